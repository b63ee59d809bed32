"""Scored continuations with tokens, top_logprobs and distributions, against plain transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mill.api.request import ALL, LOGLIKELIHOOD, Request
from mill.models.hf.model import TransformersModel

PAIRS = [("the quick brown", " fox jumps"), ("what is the answer ?", " it is 42"), ("the", " dog"), ("yes", " no A B C D")]


def requests(logprobs: Any) -> list[Request]:
    options = {"logprobs": logprobs} if logprobs else {}
    return [Request(LOGLIKELIHOOD, context, continuation, options=options) for context, continuation in PAIRS]


def hf(folder: Path, **arguments: Any) -> TransformersModel:
    return TransformersModel(str(folder), dtype="float32", device_map="cpu", **arguments)


def reference(folder: Path) -> list[tuple[list[int], torch.Tensor]]:
    """The continuation's ids, and the log-probabilities of the whole vocabulary before each, one text at a time."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for context, continuation in PAIRS:
        ids, start = tokenizer(context + continuation)["input_ids"], len(tokenizer(context)["input_ids"])
        with torch.inference_mode():
            logprobs = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        found.append((ids[start:], logprobs[start - 1 : -1]))
    return found


@pytest.mark.parametrize("batch_size", [1, 3, None])
def test_whole_distributions_equal_plain_transformers(tiny_model: Path, batch_size: int | None) -> None:
    answers = hf(tiny_model, batch_size=batch_size).loglikelihood(requests(ALL))
    for answer, (ids, logprobs) in zip(answers, reference(tiny_model), strict=True):
        assert [token.id for token in answer.tokens or ()] == ids
        assert answer.distribution.shape == logprobs.shape
        assert torch.allclose(torch.from_numpy(answer.distribution).double(), logprobs, atol=2e-5)
        positions = torch.arange(len(ids))
        assert answer.score == pytest.approx(float(logprobs[positions, ids].sum()), abs=1e-4)
        assert answer.is_greedy == bool((logprobs.argmax(-1) == torch.tensor(ids)).all())


def test_top_logprobs_are_sorted_best_first(tiny_model: Path) -> None:
    answers = hf(tiny_model).loglikelihood(requests(5))
    for answer, (ids, logprobs) in zip(answers, reference(tiny_model), strict=True):
        assert answer.distribution is None and answer.tokens is not None
        for token, id, distribution in zip(answer.tokens, ids, logprobs, strict=True):
            best = distribution.topk(5)
            assert [name for name, _ in token.top] == best.indices.tolist()
            assert [value for _, value in token.top] == pytest.approx(best.values.tolist(), abs=2e-5)
            assert token.logprob == pytest.approx(float(distribution[id]), abs=2e-5)
