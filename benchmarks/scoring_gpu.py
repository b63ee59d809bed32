"""Scoring MMLU-shaped rows on a GPU: mill's shared prefixes against lm-evaluation-harness's algorithm, on one random model.

    python benchmarks/scoring_gpu.py [--layers 32] [--questions 20] [--subjects 57]

The model is Llama-3-8B-shaped, bfloat16, with random weights. Each subject has a prefix of about 609 tokens and questions
of about 94, each with four choices of one token. The peer is the harness's algorithm: rows sorted by length, padded
batches, the choices of a question from one row, log-softmax over all logits of a batch; its batch size is the best of those
tried. Prints seconds, tokens, TFLOP/s and the share of the floor: 2 x parameters x distinct tokens at the measured rate.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mill.models.device import logit_rows, scoring_tokens
from mill.models.prefix.proof import sharing_obstacle
from mill.models.prefix.scoring import Budget, NotShared, PrefixScorer
from mill.models.tokens.rows import Row, Span

VOCABULARY = 128256


def make_model(layers: int) -> Any:
    config = LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=VOCABULARY,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = LlamaForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
    return model


def make_rows(subjects: int, questions: int) -> list[Row]:
    chance = random.Random(0)
    rows = []
    for _ in range(subjects):
        prefix = [chance.randrange(VOCABULARY) for _ in range(round(chance.gauss(609, 150)))]
        for _ in range(questions):
            question = [chance.randrange(VOCABULARY) for _ in range(max(20, round(chance.gauss(94, 45))))]
            ids = prefix + question
            choices = [362, 426, 356, 423]
            rows.append(Row(ids, [Span(len(ids) - 1, [choice]) for choice in choices], []))
    return rows


def harness(model: Any, rows: list[Row], batch_size: int) -> tuple[float, dict[int, list[float]]]:
    ordered = sorted(rows, key=lambda row: -len(row.ids))
    found: dict[int, list[float]] = {}
    torch.cuda.synchronize()
    started = time.perf_counter()
    with torch.inference_mode():
        for start in range(0, len(ordered), batch_size):
            batch = ordered[start : start + batch_size]
            longest = max(len(row.ids) for row in batch)
            ids = torch.zeros((len(batch), longest), dtype=torch.long)
            for row_index, row in enumerate(batch):
                ids[row_index, : len(row.ids)] = torch.tensor(row.ids)
            logprobs = torch.nn.functional.log_softmax(model(ids.cuda()).logits, dim=-1)
            for row_index, row in enumerate(batch):
                chosen = logprobs[row_index, len(row.ids) - 1, [span.tokens[0] for span in row.spans]]
                found[id(row)] = chosen.float().tolist()
            del logprobs
    torch.cuda.synchronize()
    return time.perf_counter() - started, found


def ours(model: Any, rows: list[Row]) -> tuple[float, int, dict[int, list[float]]]:
    torch.cuda.synchronize()
    started = time.perf_counter()
    budget = Budget(scoring_tokens(model, logits_per_token=0.0), logit_rows(model))
    scorer = PrefixScorer(model, budget)
    found = {}
    for row, outcome in scorer.run(rows):
        assert not isinstance(outcome, NotShared), outcome.reason
        found[id(row)] = [response.score or 0.0 for response in outcome]
    torch.cuda.synchronize()
    return time.perf_counter() - started, scorer.count.computed, found


def matrix_rate() -> float:
    """FLOP/s of a large bfloat16 product, as in the model's own layers."""
    a = torch.randn(16384, 4096, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(4096, 14336, device="cuda", dtype=torch.bfloat16)
    for _ in range(5):
        a @ b
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(50):
        a @ b
    torch.cuda.synchronize()
    return 50 * 2 * a.shape[0] * a.shape[1] * b.shape[1] / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--subjects", type=int, default=57)
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--batch_sizes", type=lambda text: [int(number) for number in text.split(",")], default=[16, 32, 64])
    options = parser.parse_args()
    model, rows = make_model(options.layers), make_rows(options.subjects, options.questions)
    body = sum(p.numel() for name, p in model.named_parameters() if "embed" not in name and "lm_head" not in name)
    fed = sum(len(row.ids) for row in rows)
    sharing = sharing_obstacle(model) or "prefixes are shared"
    print(
        f"{len(rows)} rows, {fed:,} tokens; {body / 1e9:.2f} G parameters in layers; {sharing}",
        flush=True,
    )
    ours(model, rows[: 2 * options.questions])
    torch.cuda.reset_peak_memory_stats()
    seconds, computed, found = ours(model, rows)
    peak = torch.cuda.max_memory_allocated() / 2**30
    rate = matrix_rate()
    floor = 2 * body * computed / rate
    reached = 2 * body * computed / seconds / 1e12
    print(f"mill: {seconds:.2f} s, {computed:,} tokens, {reached:.0f} TFLOP/s, peak {peak:.0f} GiB")
    print(f"floor {floor:.2f} s at {rate / 1e12:.0f} TFLOP/s: {floor / seconds:.0%} of it reached", flush=True)
    best, theirs = float("inf"), {}
    for size in options.batch_sizes:
        torch.cuda.reset_peak_memory_stats()
        try:
            taken, answers = harness(model, rows, size)
        except torch.OutOfMemoryError:
            print(f"harness, batch {size}: out of memory")
            torch.cuda.empty_cache()
            continue
        print(f"harness, batch {size}: {taken:.2f} s, peak {torch.cuda.max_memory_allocated() / 2**30:.0f} GiB", flush=True)
        if taken < best:
            best, theirs = taken, answers
    far = max(abs(a - b) for row in rows for a, b in zip(found[id(row)], theirs[id(row)], strict=True))
    flips = [row for row in rows if _best(found[id(row)]) != _best(theirs[id(row)])]
    gaps = [sorted(theirs[id(row)])[-1] - sorted(theirs[id(row)])[-2] for row in flips]
    print(
        f"ratio {best / seconds:.2f}; largest difference {far:.3f} nats; {len(flips)} of {len(rows)} choices differ", end=""
    )
    print(f", at gaps of at most {max(gaps):.3f}" if gaps else "")


def _best(scores: list[float]) -> int:
    return max(range(len(scores)), key=scores.__getitem__)


if __name__ == "__main__":
    main()
