"""Prefix sharing changes no answer: on many architectures, with and without it, and against plain transformers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from mill.api.request import GENERATE, LOGLIKELIHOOD, Request, generation_options
from mill.api.response import Response
from mill.models.hf.model import TransformersModel
from mill.models.prefix import fused_kernels
from mill.models.prefix.continuous import ContinuousDecoder
from mill.models.prefix.scoring import Budget, NotShared, PrefixScorer
from mill.models.prefix.trie import Segment
from mill.models.tokens.rows import Row, Span, shared_rows

VOCABULARY = 320
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
GPT2 = {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 512}
MLA = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
DEEPSEEK = {
    **MLA,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
}

# Architecture -> (configuration, whether its rows can share prefixes). More of them: test_architectures.py.
FAMILIES: dict[str, tuple[dict[str, Any], bool]] = {
    "llama": (GROUPED, True),
    "qwen3": ({**GROUPED, "head_dim": 16}, True),
    "mistral": ({**GROUPED, "sliding_window": 40}, True),
    "gemma2": ({**GROUPED, "head_dim": 16, "sliding_window": 64}, True),
    "gemma3_text": ({**GROUPED, "head_dim": 16, "sliding_window": 64}, True),
    "phi3": (GROUPED, True),
    "gpt2": ({**SMALL, **GPT2}, True),
    "olmo2": (GROUPED, True),
    "mixtral": ({**GROUPED, **EXPERTS}, True),
    "deepseek_v3": ({**SMALL, **DEEPSEEK}, True),
    "bloom": ({**SMALL, "n_head": 4, "n_layer": 3}, False),
    "mamba": ({name: SMALL[name] for name in SMALL if name != "num_attention_heads"} | {"state_size": 8}, False),
}

# Grouped heads, soft caps, windows, learned positions, experts, latent attention; a mask of its own, and state.
REPRESENTATIVE = ("llama", "gemma2", "gemma3_text", "gpt2", "mixtral", "deepseek_v3", "bloom", "mamba")


@pytest.fixture(scope="module")
def zoo(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    made: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **FAMILIES[family][0]))
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            made[family] = folder
        return made[family]

    return get


def opened(folder: Path, **arguments: Any) -> TransformersModel:
    return TransformersModel(str(folder), dtype="float32", device_map="cpu", **arguments)


START = "the quick brown fox jumps over the lazy dog . what is the answer ? "


def scored() -> list[Request]:
    """Rows that share a long prefix, a short one, nothing; choices of one and of several tokens."""
    contexts = [START * 2 + "it is", START * 2 + "yes no A B", START + "42 , 7 or 1234 ;", "dog", "no A B C"]
    choices = [" yes", " no", " the lazy dog", " 1234 ; yes", "x"]
    return [Request(LOGLIKELIHOOD, context, choice) for context in contexts for choice in choices]


def generated() -> list[Request]:
    contexts = [START * 2 + "it is", START * 2 + "yes no A B", START + "7", "dog", START * 2 + "it is 42"]
    lengths = [3, 9, 5, 7, 1]
    return [
        Request(GENERATE, context, options=generation_options(max_gen_toks=length))
        for context, length in zip(contexts, lengths, strict=True)
    ]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
@pytest.mark.parametrize(
    "family", [one if one in REPRESENTATIVE else pytest.param(one, marks=pytest.mark.zoo) for one in FAMILIES]
)
def test_an_architecture_answers_the_same_with_and_without_sharing(zoo: Any, family: str, device: str) -> None:
    together, alone = (
        TransformersModel(str(zoo(family)), dtype="float32", device_map=device, exact=exact) for exact in (False, True)
    )
    found, wanted = together.loglikelihood(scored()), alone.loglikelihood(scored())
    assert bool(together.fast_path.disabled) is not FAMILIES[family][1]
    for one, other in zip(found, wanted, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-4 * (other.output_tokens or 1))
        assert (one.is_greedy, one.prompt_tokens, one.output_tokens) == (
            other.is_greedy,
            other.prompt_tokens,
            other.output_tokens,
        )
    texts = [answer.text for answer in together.generate_until(generated())]
    assert texts == [answer.text for answer in alone.generate_until(generated())]


def shared(answers: list[Response] | NotShared) -> list[Response]:
    assert isinstance(answers, list), answers
    return answers


def test_each_distinct_token_is_computed_once(zoo: Any) -> None:
    model = opened(zoo("llama"))
    chance = random.Random(0)
    prefix, other = ([chance.randrange(VOCABULARY) for _ in range(60)] for _ in range(2))
    rows = []
    for start in (prefix, other):
        for number in range(10):
            question = [number, *(chance.randrange(VOCABULARY) for _ in range(11))]
            rows.append(Row(start + question, [Span(71, [5])], []))
    scorer = PrefixScorer(model.model, Budget(1 << 20, 1 << 20))
    assert len(list(scorer.run(rows))) == 20
    assert scorer.count.computed == 2 * 60 + 20 * 12  # and not 20 * 72


@pytest.mark.parametrize("budget", [Budget(1 << 20, 1 << 20), Budget(64, 1 << 20), Budget(1 << 20, 3), Budget(1, 1)])
def test_any_budget_gives_the_same_scores(zoo: Any, budget: Budget) -> None:
    model = opened(zoo("qwen3"), exact=True)
    requests = scored()
    rows = shared_rows(requests, model.tokens.pairs(requests))
    scorer = PrefixScorer(model.model, budget)
    found = {
        id(request): answer.score
        for row, answers in scorer.run(rows)
        for request, answer in zip(row.requests, shared(answers), strict=True)
    }
    wanted = [answer.score for answer in model.loglikelihood(requests)]
    assert [found[id(request)] for request in requests] == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("most", [1, 2, None])
def test_continuous_decoding_gives_each_sequence_its_own_answer(zoo: Any, most: int | None) -> None:
    model, alone = opened(zoo("llama"), batch_size=most), opened(zoo("llama"), exact=True, batch_size=1)
    requests = [
        *generated(),
        *(
            Request(GENERATE, START + "yes", options=generation_options(max_gen_toks=8, temperature=1.0), draw=k)
            for k in range(3)
        ),
        Request(GENERATE, START, options=generation_options(max_gen_toks=12, repetition_penalty=1.4)),
        Request(GENERATE, START, options=generation_options(max_gen_toks=12, temperature=0.8, top_k=20, top_p=0.9)),
        Request(GENERATE, START + "no", options=generation_options(max_gen_toks=30, until=["e", "A"])),
        Request(GENERATE, "the", options=generation_options(max_gen_toks=4, logprobs=3)),
    ]
    found, wanted = model.generate_until(requests), alone.generate_until(requests)
    for one, other in zip(found, wanted, strict=True):
        decoded = (one.text, one.finish_reason, one.prompt_tokens, one.output_tokens)
        assert decoded == (other.text, other.finish_reason, other.prompt_tokens, other.output_tokens)
    tokens, plain = found[-1].tokens, wanted[-1].tokens
    assert tokens is not None and plain is not None
    assert [token.id for token in tokens] == [token.id for token in plain]
    assert [token.logprob for token in tokens] == pytest.approx([token.logprob for token in plain], abs=1e-4)


@needs_cuda
@pytest.mark.parametrize("missing", ["nothing", "available", "can_attend"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "mixtral"])
def test_on_cuda_half_precision_and_graphs_agree_with_float32(
    zoo: Any, family: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing != "nothing":
        monkeypatch.setattr(fused_kernels, missing, lambda *_: False)
    together = TransformersModel(str(zoo(family)), dtype="bfloat16")
    alone = TransformersModel(str(zoo(family)), dtype="float32", exact=True)
    found, wanted = together.loglikelihood(scored()), alone.loglikelihood(scored())
    assert not together.fast_path.disabled
    near = [one.score == pytest.approx(other.score, rel=0.05, abs=0.5) for one, other in zip(found, wanted, strict=True)]
    assert sum(near) >= len(near) - (5 if family == "mixtral" else 0)  # rounding may choose another expert: 4 % of tokens
    half = TransformersModel(str(zoo(family)), dtype="bfloat16", exact=True)
    texts = [answer.text for answer in together.generate_until(generated())]
    same = sum(a == b.text for a, b in zip(texts, half.generate_until(generated()), strict=True))
    assert same >= len(texts) - 2  # rounding flips near ties


@needs_cuda
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "olmo2", "phi3"])
def test_fused_layers_round_no_more_than_those_of_transformers(
    zoo: Any, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scores(**arguments: Any) -> list[float]:
        found = TransformersModel(str(zoo(family)), **arguments).loglikelihood(scored())
        return [one.score or 0.0 for one in found]

    exact, fused = scores(dtype="float32", exact=True), scores(dtype="bfloat16")
    monkeypatch.setattr(fused_kernels, "available", lambda: False)
    plain = scores(dtype="bfloat16")
    errors = [sum(abs(a - b) for a, b in zip(side, exact, strict=True)) / len(exact) for side in (fused, plain)]
    assert fused != plain and errors[0] <= 1.5 * errors[1] + 0.05


@needs_cuda
def test_on_cuda_prompts_are_launched_without_waiting_for_those_before(zoo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prefill, packs = ContinuousDecoder._prefill, []

    def watched(self: ContinuousDecoder, pack: list[Segment], *arguments: Any) -> None:
        packs.append(len(pack))
        torch.cuda.set_sync_debug_mode("error" if len(packs) > 1 else "default")  # the first one tries kernels
        try:
            prefill(self, pack, *arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(ContinuousDecoder, "_prefill", watched)
    monkeypatch.setattr("mill.models.hf.decoding.MOST_PREFILL_TOKENS", 32)
    answers = TransformersModel(str(zoo("llama")), dtype="bfloat16").generate_until(generated())
    assert [one.error for one in answers] == [None] * len(answers) and len(packs) > 2
