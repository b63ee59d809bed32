"""Scoring by `echo` on a server without /tokenize, compared with the same weights in this process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mill.api.request import LOGLIKELIHOOD, Request
from mill.models.openai_compat.answers import Logprobs
from mill.models.openai_compat.scoring import BOS, prompt_starts
from mill.models.spec.open import open_model
from tests.servers import FaultServer, status


class EchoServer:
    """Real weights behind OpenAI's completions with `echo` as in vLLM: texts of tokens, with BOS.

    `generated` is how many tokens it generates where one is requested.
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
        logprobs = {"tokens": texts, "token_logprobs": scores, "top_logprobs": best}
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


def served(folder: Path, pairs: list[tuple[str, str]], **options: Any) -> list[Any]:
    with FaultServer(EchoServer(folder, **options)) as server:
        model = open_model(f"{server.url}[model=m,scoring=echo]")
        model.ready()
        return model.loglikelihood([Request(LOGLIKELIHOOD, *pair) for pair in pairs])


def local(folder: Path, pairs: list[tuple[str, str]]) -> list[Any]:
    model = open_model(f"hf[path={folder},dtype=float32]")
    return model.loglikelihood([Request(LOGLIKELIHOOD, *pair) for pair in pairs])


@pytest.mark.parametrize("generated", [0, 1, 2])
@pytest.mark.parametrize("bos", [True, False], ids=["BOS", "no BOS"])
def test_scores_match_the_same_weights_in_this_process(request: Any, bos: bool, generated: int) -> None:
    """With any number of generated tokens, and with or without a BOS before the prompt."""
    folder = request.getfixturevalue("tiny_model" if bos else "tiny_model_without_bos")
    for scored, expected in zip(served(folder, PAIRS, generated=generated), local(folder, PAIRS), strict=True):
        assert scored.error is None and scored.score == pytest.approx(expected.score, abs=1e-3)
        assert (scored.is_greedy, scored.output_tokens) == (expected.is_greedy, expected.output_tokens)


STRADDLING = ("the qui", "ck brown")  # "qui" and "ck" are one token


def test_a_token_across_the_boundary_is_a_clear_error(tiny_model_without_bos: Path) -> None:
    good, bad = served(tiny_model_without_bos, [PAIRS[0], STRADDLING])
    assert good.error is None and bad.score is None
    assert re.search(
        "a token .* spans the end of the context and the start of the continuation.*use a server with /tokenize", bad.error
    )


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
