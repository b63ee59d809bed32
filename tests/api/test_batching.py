"""Batches: longest first, within the budget, halved when memory runs out; a failing request does not affect others."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from mill.api.batching import BatchLimits, Unit, as_response, is_out_of_memory, run_batches
from mill.api.errors import ModelError
from mill.api.request import CLASSIFY, GENERATE, LOGLIKELIHOOD, MULTI_ROUND, ROLLING, ZERO_SHOT, Request
from mill.api.response import Response


def unit(name: str, cost: int = 1) -> Unit:
    return Unit([Request(GENERATE, name)], cost)


def units(names: str, costs: Sequence[int] = ()) -> list[Unit]:
    """One unit for each letter, of length 1 by default."""
    return [unit(name, cost) for name, cost in zip(names, costs or [1] * len(names), strict=True)]


@dataclass
class Echo:
    """Answers each request with its name in capitals; records each batch as the string of its names."""

    fail: Callable[[str], None] = lambda names: None
    batches: list[str] = field(default_factory=list)

    def __call__(self, batch: list[Unit]) -> list[list[Response]]:
        names = "".join(request.text for unit in batch for request in unit.requests)
        self.batches.append(names)
        self.fail(names)
        return [[Response(text=request.text.upper()) for request in unit.requests] for unit in batch]

    @property
    def sizes(self) -> list[int]:
        return [len(names) for names in self.batches]


def run(todo: Sequence[Unit], hook: Any, requests: int | None = None, tokens: int | None = None) -> dict[str, Response]:
    """Every request's response by its name; a request with two responses fails the test."""
    pairs = list(run_batches(todo, hook, limits=BatchLimits(requests, tokens)))
    responses = {request.text: response for request, response in pairs}
    assert len(responses) == len(pairs)
    return responses


def texts(responses: dict[str, Response]) -> dict[str, str | None]:
    return {name: response.text for name, response in responses.items()}


def fits(size: int) -> Callable[[str], None]:
    def fail(names: str) -> None:
        if len(names) > size:
            raise MemoryError

    return fail


def breaks_on(letter: str) -> Callable[[str], None]:
    def fail(names: str) -> None:
        if letter in names:
            raise ValueError(f"cannot read {letter}")

    return fail


# Order and size.


def test_token_budget_includes_padding() -> None:
    hook = Echo()
    run(units("fedcba", [6, 5, 4, 3, 2, 1]), hook, tokens=12)
    assert hook.batches == ["fe", "dcb", "a"]  # 2 x 6, 3 x 4, then the rest


# Memory running out.


def test_out_of_memory_halves_the_batch_until_it_fits_and_all_requests_complete() -> None:
    hook = Echo(fits(3))
    responses = run(units("abcdefgh"), hook)
    assert hook.batches == ["abcdefgh", "abcd", "ab", "cd", "ef", "gh"]
    assert texts(responses) == {letter: letter.upper() for letter in "abcdefgh"}


def run_with_one_out_of_memory() -> list[int]:
    """The batch sizes where memory runs out at the first attempt only."""
    hook = Echo(lambda names: fits(4)(names) if len(hook.batches) == 1 else None)
    run([unit(chr(ord("A") + n)) for n in range(32)], hook, requests=8)
    return hook.sizes


def test_batch_size_grows_again_after_four_batches_that_fit() -> None:
    assert run_with_one_out_of_memory() == [8, 4, 4, 4, 4, 8, 8]


def test_a_single_request_that_does_not_fit_becomes_an_error_with_its_length() -> None:
    def fail(names: str) -> None:
        if "b" in names:
            raise MemoryError

    responses = run(units("abc", [1, 900, 2]), Echo(fail))
    assert responses["b"].error == "out of memory on a single request of length 900"
    assert (responses["a"].text, responses["c"].text) == ("A", "C")


# Other failures.


def test_a_failing_unit_fails_all_of_its_requests_and_no_others() -> None:
    both = Unit([Request(GENERATE, "a"), Request(GENERATE, "b")], 3)
    responses = run([both, unit("c")], Echo(breaks_on("b")))
    assert (responses["a"].error, responses["b"].error) == ("ValueError: cannot read b", "ValueError: cannot read b")
    assert responses["c"].text == "C"


def test_a_hook_that_always_fails_raises_at_the_eighth_failure() -> None:
    def fail(names: str) -> None:
        raise ValueError("no such layer")

    hook = Echo(fail)
    with pytest.raises(ModelError) as raised:
        run(units("abcdefghij"), hook, requests=1)
    assert str(raised.value) == "the model failed on each of the first 8 requests: ValueError: no such layer"
    assert isinstance(raised.value.__cause__, ValueError)
    assert hook.batches == list("abcd") + list("jihg")  # the longest, and then the shortest


def test_short_units_run_though_all_long_units_fail() -> None:
    def fail(names: str) -> None:
        if len(names) > 1:
            raise ValueError("too long")

    long = [unit(f"long {number}", cost=9) for number in range(20)]
    responses = run([*long, *units("abcdefghij")], Echo(fail), requests=1)
    assert [name for name, response in responses.items() if not response.failed] == list("jabcdefghi")
    assert len(responses) == 30


def test_exit_of_a_library_and_an_interrupt_end_the_run() -> None:
    def leave(names: str) -> None:
        if "b" in names:
            raise SystemExit(0)

    with pytest.raises(ModelError, match=r"the backend called exit\(\): SystemExit: 0"):
        list(run_batches(units("abc"), Echo(leave), limits=BatchLimits(1)))

    def interrupt(names: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run_batches(units("a"), Echo(interrupt), limits=BatchLimits(1)))


def test_a_wrong_number_of_answers_is_refused_with_both_numbers() -> None:
    def short(batch: list[Unit]) -> list[list[Response]]:
        return [[Response(text="x")]]

    with pytest.raises(ModelError, match="the backend answered 1 of 2 requests of a batch"):
        run(units("ab"), short)


def test_a_response_without_a_time_gets_a_share_of_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([10.0, 16.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    assert [response.seconds for response in run(units("abc"), Echo()).values()] == [2.0, 2.0, 2.0]


# Return values of hooks.


@pytest.mark.parametrize(
    ("answer", "kind", "response"),
    [
        ("four", GENERATE, Response(text="four")),
        ("", MULTI_ROUND, Response(text="")),
        ((-1.5, True), LOGLIKELIHOOD, Response(score=-1.5, is_greedy=True)),
        ((-2, 0), LOGLIKELIHOOD, Response(score=-2.0, is_greedy=False)),
        (-3.25, ROLLING, Response(score=-3.25)),
        (-3, ROLLING, Response(score=-3.0)),
        (-math.inf, ROLLING, Response(score=-math.inf)),
        (Response(text="x", output_tokens=1), GENERATE, Response(text="x", output_tokens=1)),
        (Response(label="cat", ranking=(("cat", 0.9),)), ZERO_SHOT, Response(label="cat", ranking=(("cat", 0.9),))),
        (Response(label="cat"), CLASSIFY, Response(label="cat")),
        (Response(error="timeout"), GENERATE, Response(error="timeout")),
    ],
)
def test_as_response_reads_every_valid_return_value(answer: Any, kind: str, response: Response) -> None:
    assert as_response(answer, kind) == response


@pytest.mark.parametrize("kind", [LOGLIKELIHOOD, ROLLING])
@pytest.mark.parametrize(("score", "shown"), [(0.0011, "0.0011"), (2, "2"), (1e9, "1e+09"), (math.inf, "inf")])
def test_a_log_probability_above_0_is_an_error_of_its_request(score: float, shown: str, kind: str) -> None:
    error = f"the log-probability is {shown}, which is above 0"
    assert as_response(Response(score=score, prompt_tokens=3), kind) == Response(error=error, prompt_tokens=3)
    assert as_response((score, True) if kind == LOGLIKELIHOOD else score, kind) == Response(error=error)


@pytest.mark.parametrize(
    ("answer", "kind", "error"),
    [
        (None, GENERATE, "the backend returned NoneType for generate_until"),
        ([-1.5, True], LOGLIKELIHOOD, "the backend returned list for loglikelihood"),
        ((-1.5, True, 3), LOGLIKELIHOOD, "the backend returned tuple for loglikelihood"),
        ("four", LOGLIKELIHOOD, "the backend returned no score for loglikelihood"),
        (-1.5, GENERATE, "the backend returned no text for generate_until"),
        ("cat", ZERO_SHOT, "the backend returned no label for zero_shot_classify"),
        (Response(score=-1.0), CLASSIFY, "the backend returned no label for classify"),
        (Response(), MULTI_ROUND, "the backend returned no text for generate_until_multi_round"),
    ],
)
def test_as_response_turns_a_value_of_the_wrong_type_into_an_error(answer: Any, kind: str, error: str) -> None:
    assert as_response(answer, kind) == Response(error=error)


class OutOfMemoryError(Exception):
    """Has the name of torch's exception."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (OutOfMemoryError("CUDA"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 8 GB)"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory"), True),
        (RuntimeError("[Errno 12] Cannot allocate memory"), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("out of memory"), False),
    ],
    ids=str,
)
def test_out_of_memory_is_recognised_by_type_name_or_message(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_memory_is_freed_after_the_failed_batch_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    import weakref

    class Big:
        pass

    refs: list[weakref.ref[Big]] = []
    alive: list[bool] = []

    def hook(batch: list[Unit]) -> list[list[Response]]:
        big = Big()
        refs.append(weakref.ref(big))
        raise MemoryError

    monkeypatch.setattr("mill.api.batching.free_memory", lambda: alive.append(refs[-1]() is not None))
    list(run_batches([unit("a")], hook, limits=BatchLimits(1)))
    assert alive == [False]
