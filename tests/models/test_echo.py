"""Scoring by `echo` on a server without /tokenize, compared with the same weights in this process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mill.api.request import LOGLIKELIHOOD, Request
from mill.models.openai_compat.echo import BOS, prompt_starts
from mill.models.openai_compat.schema import Logprobs
from mill.models.spec.open import open_model
from tests.servers import FaultServer, status


class EchoServer:
    """Real weights behind OpenAI's completions with `echo`, as vLLM gives them: texts and offsets of tokens, BOS included.

    `generated` is how many tokens it generates although one is requested.
    """

    def __init__(self, folder: Path, *, generated: int = 1, tokenize: bool = False) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.torch, self.generated, self.tokenize = torch, generated, tokenize
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder).eval()

    def __call__(self, server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if path == "/tokenize":
            return {"tokens": self.tokenizer(body["prompt"])["input_ids"]} if self.tokenize else status(404)
        if not body.get("echo"):
            return status(400, "only echo here")
        ids = body["prompt"] if isinstance(body["prompt"], list) else self.tokenizer(body["prompt"])["input_ids"]
        ids, n_prompt = [*ids], len(ids)
        for _ in range(self.generated):
            ids.append(int(self.logprobs(ids)[-1].argmax()))
        rows = self.logprobs(ids)
        texts = [self.tokenizer.decode([token]) for token in ids]
        scores = [None, *(float(rows[at - 1, token]) for at, token in enumerate(ids) if at)]
        best = [None, *({self.tokenizer.decode([int(row.argmax())]): float(row.max())} for row in rows[:-1])]
        offsets = [sum(map(len, texts[:at])) for at in range(len(texts))]
        logprobs = {"tokens": texts, "token_logprobs": scores, "top_logprobs": best, "text_offset": offsets}
        usage = {"prompt_tokens": n_prompt, "completion_tokens": len(ids) - n_prompt}
        return {
            "choices": [{"index": 0, "text": "".join(texts), "finish_reason": "length", "logprobs": logprobs}],
            "usage": usage,
        }

    def logprobs(self, ids: list[int]) -> Any:
        with self.torch.no_grad():
            return self.model(self.torch.tensor([ids])).logits[0].float().log_softmax(-1)


PAIRS = [
    ("the quick brown", " fox"),
    ("the quick brown fox jumps", " over the lazy dog"),
    ("what is the answer ?", " it is 42"),
    ("the answer", "\n is 7"),
    ("the quick ", "brown"),
]


def served(folder: Path, pairs: list[tuple[str, str]], **how: Any) -> list[Any]:
    with FaultServer(EchoServer(folder, **how)) as server:
        model = open_model(f"{server.url}[model=m,scoring=echo]")
        model.ready()
        return model.loglikelihood([Request(LOGLIKELIHOOD, *pair) for pair in pairs])


def local(folder: Path, pairs: list[tuple[str, str]]) -> list[Any]:
    model = open_model(f"hf[path={folder},dtype=float32]")
    return model.loglikelihood([Request(LOGLIKELIHOOD, *pair) for pair in pairs])


@pytest.mark.parametrize("generated", [0, 1, 2])
@pytest.mark.parametrize("bos", [True, False], ids=["BOS", "no BOS"])
def test_scores_equal_those_of_the_same_weights_in_this_process(request: Any, bos: bool, generated: int) -> None:
    """For any number of generated tokens, with and without a BOS before the prompt."""
    folder = request.getfixturevalue("tiny_model" if bos else "tiny_model_without_bos")
    for found, known in zip(served(folder, PAIRS, generated=generated), local(folder, PAIRS), strict=True):
        assert found.error is None and found.score == pytest.approx(known.score, abs=1e-3)
        assert (found.is_greedy, found.output_tokens) == (known.is_greedy, known.output_tokens)


STRADDLING = ("the qui", "ck brown")  # "qui" and "ck" are one token


def test_a_token_across_the_boundary_is_an_error_with_its_reason(tiny_model_without_bos: Path) -> None:
    good, bad = served(tiny_model_without_bos, [PAIRS[0], STRADDLING])
    assert good.error is None and bad.score is None
    assert re.search("a token .* reaches from the context into the continuation.*needs a server with /tokenize", bad.error)


def test_with_tokenize_the_same_pair_is_scored_by_ids_as_in_this_process(tiny_model_without_bos: Path) -> None:
    """The same pair on a server with /tokenize."""
    (found,) = served(tiny_model_without_bos, [STRADDLING], tokenize=True)
    (known,) = local(tiny_model_without_bos, [STRADDLING])
    assert found.error is None and found.score == pytest.approx(known.score, abs=1e-3)


def starts(tokens: list[str], prompt: str) -> list[int] | None:
    return prompt_starts(Logprobs(tokens=[*tokens], token_logprobs=[-1.0] * len(tokens)), prompt)


def test_offsets_come_from_the_texts_of_the_tokens() -> None:
    assert starts(["the", " fox", " is"], "the fox") == [0, 3]
    assert starts(["<s>", "the", " fox", ""], "the fox") == [BOS, 0, 3]
    assert starts(["", "the", " fox"], "the fox") == [BOS, 0, 3]
    assert starts(["▁the", "▁fox", "▁is"], "the fox") == [0, 3]
    assert starts(["the", "Ġfox"], "the fox") == [0, 3]
    assert starts(["the", " f\ufffd", "\ufffd"], "the fé") is None
    assert starts(["a", "b"], "the fox") is None
    assert starts([], "the fox") is None


def test_offsets_of_the_server_are_used_if_they_increase() -> None:
    def from_offsets(offsets: list[int]) -> Any:
        return prompt_starts(Logprobs(token_logprobs=[-1.0] * 4, text_offset=offsets), "abc")

    assert from_offsets([0, 1, 2, 3]) == [0, 1, 2]
    assert from_offsets([0, 2, 1, 3]) is from_offsets([1, 2, 3, 4]) is from_offsets([0, 1, 2]) is from_offsets([]) is None
