"""Generating answers of mixed lengths on a GPU: rows that come and go against transformers' `generate` in static batches.

    python benchmarks/generation_gpu.py [--layers 32] [--prompts 256]

The model is that of scoring_gpu.py. Prompts have 64 to 512 tokens, answers 16 to 512, both drawn evenly; a static batch runs
until its longest answer is complete, as it must where lengths are not known in advance. The peer's batch size is the best
of those tried. mill runs with all rows at once and with fewer, which need less memory. Prints seconds, tokens a second and
the ratios, and how many answers are equal token by token.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

import torch
from scoring_gpu import VOCABULARY, make_model

from mill.api.request import GENERATE, Request, generation_options
from mill.models.prefix.continuous import ContinuousDecoder
from mill.models.tokens.tokenizer import Prompt


class Silent:
    """A tokenizer of numbers: the benchmark needs no text."""

    all_special_tokens: list[str] = []

    def decode(self, ids: list[int], **_: Any) -> str:
        return " ".join(map(str, ids))


def make_prompts(count: int) -> list[Prompt]:
    chance = random.Random(0)
    found = []
    for number in range(count):
        length = chance.randint(16, 512)
        request = Request(GENERATE, str(number), options=generation_options(max_gen_toks=length))
        found.append(Prompt(request, [chance.randrange(VOCABULARY) for _ in range(chance.randint(64, 512))], 0, length))
    return found


def static(model: Any, prompts: list[Prompt], size: int) -> tuple[float, dict[int, list[int]]]:
    found: dict[int, list[int]] = {}
    torch.cuda.synchronize()
    started = time.perf_counter()
    ordered = sorted(prompts, key=lambda prompt: -len(prompt.ids))
    for start in range(0, len(ordered), size):
        batch = ordered[start : start + size]
        longest_prompt = max(len(prompt.ids) for prompt in batch)
        ids = torch.zeros((len(batch), longest_prompt), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row_index, prompt in enumerate(batch):
            ids[row_index, longest_prompt - len(prompt.ids) :] = torch.tensor(prompt.ids)
            mask[row_index, longest_prompt - len(prompt.ids) :] = 1
        longest = max(prompt.max_new_tokens for prompt in batch)
        arguments = {"attention_mask": mask.cuda(), "max_new_tokens": longest, "do_sample": False, "pad_token_id": 0}
        out = model.generate(ids.cuda(), eos_token_id=None, **arguments)[:, longest_prompt:].tolist()
        found |= {id(prompt): row[: prompt.max_new_tokens] for prompt, row in zip(batch, out, strict=True)}
    torch.cuda.synchronize()
    return time.perf_counter() - started, found


def ours(model: Any, prompts: list[Prompt], rows: int) -> tuple[float, dict[int, list[int]]]:
    torch.cuda.synchronize()
    started = time.perf_counter()
    decoder = ContinuousDecoder(model, Silent(), [], tokens=1 << 19, pass_tokens=32768)
    found = {id(prompt): [int(one) for one in (answer.text or "").split()] for prompt, answer in decoder.run(prompts, rows)}
    torch.cuda.synchronize()
    return time.perf_counter() - started, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument(
        "--batch_sizes", type=lambda text: [int(number) for number in text.split(",")], default=[32, 64, 128]
    )
    parser.add_argument("--rows", type=lambda text: [int(number) for number in text.split(",")], default=[256, 96])
    options = parser.parse_args()
    model, prompts = make_model(options.layers), make_prompts(options.prompts)
    written = sum(prompt.max_new_tokens for prompt in prompts)
    ours(model, prompts[:8], 8)
    mine = {}
    for rows in options.rows:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        mine[rows], found = ours(model, prompts, rows)
        peak, rate = torch.cuda.max_memory_allocated() / 2**30, written / mine[rows]
        print(f"mill, {rows} rows: {mine[rows]:.2f} s, {rate:.0f} tokens a second, peak {peak:.0f} GiB", flush=True)
    best, theirs = float("inf"), {}
    for size in options.batch_sizes:
        torch.cuda.reset_peak_memory_stats()
        taken, answers = static(model, prompts, size)
        peak = torch.cuda.max_memory_allocated() / 2**30
        rate = written / taken
        print(f"generate, batch {size}: {taken:.2f} s, {rate:.0f} tokens a second, peak {peak:.0f} GiB", flush=True)
        if taken < best:
            best, theirs = taken, answers
    first = sum(found[id(one)][0] == theirs[id(one)][0] for one in prompts)
    equal = sum(found[id(one)] == theirs[id(one)] for one in prompts)
    ratios = ", ".join(f"{best / seconds:.2f} with {rows} rows" for rows, seconds in mine.items())
    print(f"ratio {ratios}; {first} of {len(prompts)} first tokens and {equal} whole answers are equal")


if __name__ == "__main__":
    main()
