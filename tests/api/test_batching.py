"""Batches: longest first, within the budget, halved when memory runs out, and no request lost on another's account."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from mill.api import batching
from mill.api.batching import BatchLimits, Unit, as_response, describe, is_out_of_memory, run_batches
from mill.api.errors import CannotServe, ModelError
from mill.api.request import CLASSIFY, GENERATE, LOGLIKELIHOOD, MULTI_ROUND, ROLLING, ZERO_SHOT, Request
from mill.api.response import Response


def unit(name: str, cost: int = 1) -> Unit:
    return Unit([Request(GENERATE, name)], cost)


def units(names: str, costs: Sequence[int] = ()) -> list[Unit]:
    """One unit for each letter, all of length 1 unless told."""
    return [unit(name, cost) for name, cost in zip(names, costs or [1] * len(names), strict=True)]


@dataclass
class Echo:
    """Answers each request with its name in capitals; remembers the batches it was asked, as words."""

    fail: Callable[[str], None] = lambda word: None
    batches: list[str] = field(default_factory=list)

    def __call__(self, batch: list[Unit]) -> list[list[Response]]:
        word = "".join(request.text for unit in batch for request in unit.requests)
        self.batches.append(word)
        self.fail(word)
        return [[Response(text=request.text.upper()) for request in unit.requests] for unit in batch]

    @property
    def sizes(self) -> list[int]:
        return [len(word) for word in self.batches]


def run(todo: Sequence[Unit], hook: Any, requests: int | None = None, tokens: int | None = None) -> dict[str, Response]:
    """Every request's response by its name; a request that is answered twice fails the test."""
    pairs = list(run_batches(todo, hook, limits=BatchLimits(requests, tokens)))
    found = {request.text: response for request, response in pairs}
    assert len(found) == len(pairs)
    return found


def texts(found: dict[str, Response]) -> dict[str, str | None]:
    return {name: response.text for name, response in found.items()}


def fits(width: int) -> Callable[[str], None]:
    def fail(word: str) -> None:
        if len(word) > width:
            raise MemoryError

    return fail


def breaks_on(letter: str) -> Callable[[str], None]:
    def fail(word: str) -> None:
        if letter in word:
            raise ValueError(f"cannot read {letter}")

    return fail


# Order and size.


def test_the_longest_go_first() -> None:
    hook = Echo()
    run(units("abc", [1, 5, 3]), hook, requests=1)
    assert hook.batches == ["b", "c", "a"]


def test_equally_long_ones_keep_the_order_given() -> None:
    hook = Echo()
    run(units("abcd", [1, 2, 1, 2]), hook, requests=1)
    assert hook.batches == ["b", "d", "a", "c"]


def test_the_request_limit_cuts_batches() -> None:
    hook = Echo()
    assert texts(run(units("abcde"), hook, requests=2)) == {"a": "A", "b": "B", "c": "C", "d": "D", "e": "E"}
    assert hook.batches == ["ab", "cd", "e"]


def test_without_limits_everything_is_one_batch() -> None:
    hook = Echo()
    run(units("abcde"), hook)
    assert hook.batches == ["abcde"]


def test_no_units_call_no_hook() -> None:
    hook = Echo()
    assert run([], hook, requests=4) == {}
    assert hook.batches == []


def test_the_token_budget_counts_the_padding() -> None:
    hook = Echo()
    run(units("fedcba", [6, 5, 4, 3, 2, 1]), hook, tokens=12)
    assert hook.batches == ["fe", "dcb", "a"]  # 2 x 6, 3 x 4, then what is left


def test_a_unit_longer_than_the_budget_runs_alone() -> None:
    hook = Echo()
    run(units("abc", [20, 3, 3]), hook, tokens=10)
    assert hook.batches == ["a", "bc"]


def test_of_two_limits_the_tighter_one_holds() -> None:
    hook = Echo()
    run(units("abcdef", [4, 4, 4, 1, 1, 1]), hook, requests=2, tokens=4)
    assert hook.batches == ["a", "b", "c", "de", "f"]


def test_a_unit_of_no_length_does_not_break_the_budget() -> None:
    hook = Echo()
    run(units("ab", [0, 0]), hook, tokens=8)
    assert hook.batches == ["ab"]


def test_requests_of_one_unit_get_their_own_answers() -> None:
    both = Unit([Request(GENERATE, "a"), Request(GENERATE, "b")], 3)
    assert texts(run([both, unit("c")], Echo())) == {"a": "A", "b": "B", "c": "C"}


# Memory running out.


def test_out_of_memory_halves_until_it_fits_and_every_request_is_answered() -> None:
    hook = Echo(fits(3))
    found = run(units("abcdefgh"), hook)
    assert hook.batches == ["abcdefgh", "abcd", "ab", "cd", "ef", "gh"]
    assert texts(found) == {letter: letter.upper() for letter in "abcdefgh"}


def test_twin_the_same_hook_without_batching_loses_them_all() -> None:
    with pytest.raises(MemoryError):
        Echo(fits(3))(units("abcdefgh"))


def test_twin_an_out_of_memory_that_is_not_recognised_falls_to_single_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "is_out_of_memory", lambda error: False)
    hook = Echo(fits(3))
    run(units("abcdefgh"), hook)
    assert hook.sizes == [8, 1, 1, 1, 1, 2, 2]


def test_memory_is_freed_once_for_each_failed_attempt() -> None:
    freed: list[str] = []
    hook = Echo(fits(2))
    limits = BatchLimits(requests=8)
    answers = run_batches(units("abcdefgh"), hook, limits=limits, free_memory=lambda: freed.append(hook.batches[-1]))
    assert len(list(answers)) == 8
    assert freed == ["abcdefgh", "abcd"]


def test_what_was_done_before_memory_ran_out_is_not_asked_again() -> None:
    def fail(word: str) -> None:
        if word == "cd":
            raise MemoryError

    hook = Echo(fail)
    assert texts(run(units("abcd"), hook, requests=2)) == {"a": "A", "b": "B", "c": "C", "d": "D"}
    assert hook.batches == ["ab", "cd", "c", "d"]


def test_answers_are_handed_out_before_the_next_batch_is_asked() -> None:
    hook = Echo()
    answers = run_batches(units("abcd"), hook, limits=BatchLimits(requests=2))
    assert [next(answers)[0].text, next(answers)[0].text] == ["a", "b"]
    assert hook.batches == ["ab"]


def run_with_one_shortage() -> list[int]:
    """The sizes of batches where memory runs out at the first attempt and never again."""
    hook = Echo(lambda word: fits(4)(word) if len(hook.batches) == 1 else None)
    run([unit(chr(ord("A") + n)) for n in range(32)], hook, requests=8)
    return hook.sizes


def test_the_batch_grows_again_after_four_that_fit() -> None:
    assert run_with_one_shortage() == [8, 4, 4, 4, 4, 8, 8]


def test_twin_without_growing_the_batch_stays_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "GROW_AFTER", 1000)
    assert run_with_one_shortage() == [8, 4, 4, 4, 4, 4, 4, 4, 4]


def test_a_batch_never_grows_over_its_limit() -> None:
    hook = Echo()
    run(units("abcdefghijkl"), hook, requests=2)
    assert hook.sizes == [2] * 6


def test_a_single_request_that_does_not_fit_becomes_an_error_with_its_length() -> None:
    def fail(word: str) -> None:
        if "b" in word:
            raise MemoryError

    found = run(units("abc", [1, 900, 2]), Echo(fail))
    assert found["b"].error == "out of memory on a single request of length 900"
    assert (found["a"].text, found["c"].text) == ("A", "C")


# Other failures.


def test_one_bad_request_does_not_take_others_along() -> None:
    found = run(units("abcdef"), Echo(breaks_on("c")), requests=3)
    assert found["c"] == Response(error="ValueError: cannot read c")
    assert texts(found) == {"a": "A", "b": "B", "c": None, "d": "D", "e": "E", "f": "F"}


def test_a_bad_unit_fails_all_of_its_requests_and_no_other() -> None:
    both = Unit([Request(GENERATE, "a"), Request(GENERATE, "b")], 3)
    found = run([both, unit("c")], Echo(breaks_on("b")))
    assert (found["a"].error, found["b"].error) == ("ValueError: cannot read b", "ValueError: cannot read b")
    assert found["c"].text == "C"


def test_a_hook_that_fails_on_everything_raises_at_the_eighth_failure() -> None:
    def fail(word: str) -> None:
        raise ValueError("no such layer")

    hook = Echo(fail)
    with pytest.raises(ModelError) as raised:
        run(units("abcdefghij"), hook, requests=1)
    assert str(raised.value) == "the model failed on each of the first 8 requests: ValueError: no such layer"
    assert isinstance(raised.value.__cause__, ValueError)
    assert hook.batches == list("abcd") + list("jihg")  # the longest, and then the shortest


def test_long_ones_that_all_fail_do_not_condemn_the_short() -> None:
    def fail(word: str) -> None:
        if len(word) > 1:
            raise ValueError("too long")

    long = [unit(f"long {number}", cost=9) for number in range(20)]
    found = run([*long, *units("abcdefghij")], Echo(fail), requests=1)
    assert [name for name, response in found.items() if not response.failed] == list("jabcdefghi") and len(found) == 30


def test_a_healthy_hook_may_fail_on_everything() -> None:
    def fail(word: str) -> None:
        raise ValueError("no")

    found = list(run_batches(units("abcdefghij"), Echo(fail), limits=BatchLimits(1), healthy=True))
    assert len(found) == 10 and all(response.failed for _, response in found)


def test_seven_failures_are_seven_errors() -> None:
    found = run(units("abcdefg"), Echo(fits(0)), requests=1)
    assert {response.error for response in found.values()} == {"out of memory on a single request of length 1"}
    assert len(found) == 7


def test_after_one_success_no_number_of_failures_raises() -> None:
    def fail(word: str) -> None:
        if word != "a":
            raise ValueError("bad")

    found = run(units("abcdefghijkl"), Echo(fail), requests=1)
    assert sum(response.failed for response in found.values()) == 11


def test_a_wrong_number_of_answers_is_refused_with_both_numbers() -> None:
    def short(batch: list[Unit]) -> list[list[Response]]:
        return [[Response(text="x")]]

    with pytest.raises(ModelError, match="the backend answered 1 of 2 requests of a batch"):
        run(units("ab"), short)


def test_an_error_of_mill_is_raised_at_once() -> None:
    def fail(word: str) -> None:
        raise CannotServe("not this one")

    hook = Echo(fail)
    with pytest.raises(CannotServe, match="not this one"):
        run(units("abcd"), hook)
    assert hook.sizes == [4]


def test_ctrl_c_is_not_an_error_response() -> None:
    def fail(word: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(units("ab"), Echo(fail), requests=1)


def test_an_answer_without_a_time_gets_a_share_of_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([10.0, 16.0])
    monkeypatch.setattr(batching.time, "perf_counter", lambda: next(ticks))
    assert [response.seconds for response in run(units("abc"), Echo()).values()] == [2.0, 2.0, 2.0]


def test_an_answer_with_a_time_keeps_it() -> None:
    def timed(batch: list[Unit]) -> list[list[Response]]:
        return [[Response(text="x", seconds=2.5)]]

    assert run(units("a"), timed)["a"].seconds == 2.5


# What a hook may return.


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
def test_as_response_reads_every_form_an_answer_may_have(answer: Any, kind: str, response: Response) -> None:
    assert as_response(answer, kind) == response


@pytest.mark.parametrize("answer", [math.nan, (math.nan, True), Response(score=math.nan)])
def test_a_log_probability_that_is_nan_is_an_error_not_a_score(answer: Any) -> None:
    assert as_response(answer, LOGLIKELIHOOD) == Response(error="the score is NaN")


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
def test_as_response_turns_an_answer_of_the_wrong_form_into_an_error(answer: Any, kind: str, error: str) -> None:
    assert as_response(answer, kind) == Response(error=error)


class OutOfMemoryError(Exception):
    """Named as torch's own."""


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
def test_out_of_memory_is_known_by_type_name_or_wording(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("one\ntwo"), "ValueError: one"),
        (KeyError(), "KeyError"),
        (ValueError("x" * 400), "ValueError: " + "x" * 300),
    ],
)
def test_describe_gives_one_short_line(error: Exception, line: str) -> None:
    assert describe(error) == line


def test_running_out_of_memory_on_the_longest_alone_does_not_give_up_on_the_rest() -> None:
    def fail(word: str) -> None:
        if word < "m":
            raise MemoryError

    found = run(units("abcdefghijklmnop", range(16, 0, -1)), Echo(fail), requests=4)
    assert [name for name, response in found.items() if not response.failed] == list("mnop")


def test_memory_is_freed_when_nothing_of_the_failed_batch_is_held_any_more() -> None:
    import weakref

    class Big:
        pass

    held: list[weakref.ref[Big]] = []
    alive: list[bool] = []

    def hook(batch: list[Unit]) -> list[list[Response]]:
        big = Big()
        held.append(weakref.ref(big))
        raise MemoryError

    list(run_batches([unit("a")], hook, limits=BatchLimits(1), free_memory=lambda: alive.append(held[-1]() is not None)))
    assert alive == [False]


def test_a_unit_answered_with_too_few_responses_is_refused() -> None:
    two = Unit([Request(GENERATE, "a"), Request(GENERATE, "b")], 1)
    with pytest.raises(ModelError, match="the backend answered 1 of 2 requests of a batch"):
        list(run_batches([two], lambda batch: [[Response(text="x")]], limits=BatchLimits(1)))
