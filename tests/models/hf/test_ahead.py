"""Requests that are tokenized in a thread give the scores of those that are not."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mill.api.model import StreamContext, run_requests
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request, generation_options
from mill.models.hf import startup
from mill.models.hf.model import TransformersModel
from mill.models.hf.startup import Tokenized
from mill.models.prefix.trie import make_trie
from mill.models.tokens.tokenizer import Tokens

SUBJECTS = ("the quick brown fox is", "what is the answer ? it", "A B C D yes no it is 42 , 7 or")
CHOICES = (" yes", " no", " a dog", " 42")


def questions(subjects: Sequence[str] = SUBJECTS, count: int = 5) -> list[Request]:
    """Of each subject this many, with the choices of each."""
    return [
        Request(LOGLIKELIHOOD, f"{subject} {number} . the answer", choice)
        for subject in subjects
        for number in range(count)
        for choice in CHOICES
    ]


def hf(folder: Path, **arguments: Any) -> TransformersModel:
    return TransformersModel(str(folder), **{"dtype": "float32", "device_map": "cpu", **arguments})


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """The first part has about 20 requests, as on CUDA about 8,192. Returns how many requests were tokenized at a time, and
    whether that was in a thread."""
    monkeypatch.setattr("mill.models.hf.checkpoint.LOADED_IN_A_THREAD", ("cpu",))
    monkeypatch.setattr(startup, "FIRST_PART", 15)
    monkeypatch.setattr(startup, "HEAD", 12)
    tokenize, calls = Tokens.pairs, []

    def noted(tokens: Tokens, requests: Sequence[Request]) -> Any:
        calls.append((len(requests), threading.current_thread() is not threading.main_thread()))
        return tokenize(tokens, requests)

    monkeypatch.setattr(Tokens, "pairs", noted)
    return calls


def test_requests_that_were_tokenized_while_weights_loaded_give_the_same_scores(tiny_model: Path) -> None:
    early, plain = hf(tiny_model), hf(tiny_model)
    requests = questions()
    early.startup.prepare(requests)
    assert early.startup.ahead.scored is not None
    found = dict(run_requests(early, LOGLIKELIHOOD, requests))
    assert early.startup.ahead.scored is None
    assert [found[one].score for one in requests] == [one.score for one in plain.loglikelihood(requests)]
    early.startup.prepare(requests)  # weights are loaded already
    assert early.startup.ahead.scored is None


def test_a_part_is_tokenized_while_the_one_before_it_is_computed(
    tiny_model: Path, in_parts: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, requests = hf(tiny_model), questions()
    requests.insert(30, Request(LOGLIKELIHOOD, "the", " fox" * 5000))  # too long, in the second part
    planned: list[int] = []
    tries: list[int] = []
    score = model.fast_path.packed

    def counted(rows: Any) -> Any:
        tries.append(len(rows))
        return make_trie(rows)

    monkeypatch.setattr(startup, "make_trie", counted)
    monkeypatch.setattr("mill.models.prefix.scoring.make_trie", None)  # those of the threads are used

    def noted(rows: Any, count: Any, *given: Any) -> Any:
        for item in score(rows, count, *given):
            planned.append(count.planned)
            yield item

    monkeypatch.setattr(model.fast_path, "packed", noted)
    in_parts.clear()
    context = StreamContext()
    found = dict(run_requests(model, LOGLIKELIHOOD, requests, context))
    assert in_parts == [(20, True), (41, True)]
    assert len(tries) == 2
    plain = hf(tiny_model, exact=True).loglikelihood(requests)
    assert [found[one].score for one in requests] == pytest.approx([one.score for one in plain], abs=1e-4)
    assert "longer than the context" in (found[requests[30]].error or "")
    assert context.tokens.computed == context.tokens.planned == planned[-1]
    assert planned[0] == pytest.approx(planned[-1], rel=0.5)  # the second part is estimated from the first


def test_requests_of_equal_content_and_recorded_ones_leave_the_trie_of_the_thread_in_use(
    tiny_model: Path, in_parts: list[tuple[int, bool]]
) -> None:
    model, requests = hf(tiny_model), questions()
    copies = [Request(one.kind, one.context, one.continuation) for one in requests[:6]]
    tokenized = Tokenized(model.tokens, [*requests, *copies], shared=True)
    every = tokenized.work([*requests, *copies])
    assert every is not None and every is tokenized.work([*requests, *copies])
    once = tokenized.work(requests)
    assert once is not None and once.trie is every.trie
    assert sum(len(row.requests) for row in once.rows) == sum(len(row.spans) for row in once.rows) == len(requests)
    assert [tuple(row.ids) for row in once.rows] == [tuple(row.ids) for row in every.rows]
    assert tokenized.work(requests[4:]) is None  # a row of the trie has no request left
    assert tokenized.work([*requests, *questions(["other"])]) is None

    model.startup.prepare([*requests, *copies])
    left = requests[3:]  # the first three are recorded
    found = dict(run_requests(model, LOGLIKELIHOOD, left))
    assert [found[one].score for one in left] == [one.score for one in hf(tiny_model).loglikelihood(left)]


def test_prompts_that_were_tokenized_while_weights_loaded_give_the_same_texts(
    tiny_model: Path, in_parts: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenize, threads = Tokens.prompts, []

    def noted(tokens: Tokens, requests: Any) -> Any:
        threads.append(threading.current_thread() is not threading.main_thread())
        return tokenize(tokens, requests)

    monkeypatch.setattr(Tokens, "prompts", noted)
    options = generation_options(max_gen_toks=6)
    requests = [Request(GENERATE, f"{subject} {number}", options=options) for subject in SUBJECTS for number in range(4)]
    wanted = [one.text for one in hf(tiny_model).generate_until(requests)]
    for left, in_a_thread in (
        (requests, [True]),
        (requests[5:], [True]),
        ([*requests, Request(GENERATE, "A", options=options)], [False, True]),
    ):
        threads.clear()
        early = hf(tiny_model)
        early.startup.prepare(requests)
        prepared = early.startup.ahead._prompts
        found = dict(run_requests(early, GENERATE, left))
        assert prepared is not None and len(prepared.result()) == len(requests)
        texts = {request: found[request].text for request in left}
        assert [texts.get(one, wanted[index]) for index, one in enumerate(requests)] == wanted
        assert sorted(threads) == in_a_thread
