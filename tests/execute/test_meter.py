"""The meter of a run: room for requests, what they count, estimates of their sizes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from mill.api.budget import BudgetLimits, Price, TokenUsage
from mill.api.request import GENERATE, Request, generation_options
from mill.api.response import Response
from mill.execute.meter import JUDGE, MODEL, Amounts, Meter


class Spent:
    """What a session file would say."""

    def __init__(self, elsewhere: int = 0, seconds: float = 0.0) -> None:
        self.spent: Amounts = {}
        self.elsewhere, self.seconds = elsewhere, seconds

    def refresh(self) -> None:
        """It is always as of now."""

    def spent_elsewhere(self) -> Amounts:
        return {MODEL: TokenUsage(self.elsewhere)}

    def run_seconds(self) -> float:
        return self.seconds


def make_meter(limits: BudgetLimits, spent: Spent | None = None, price: Price | None = None, processes: int = 1) -> Meter:
    return Meter(limits, {MODEL: price, JUDGE: price}, spent or Spent(), processes=processes)


def question(number: int, tokens: int = 10) -> Request:
    """A prompt of 40 characters, and an answer of at most `tokens`."""
    return Request(GENERATE, f"question {number:031}", options=generation_options(max_gen_toks=tokens))


QUESTIONS = [question(number) for number in range(100)]
ANSWER = Response(text="yes", prompt_tokens=10, output_tokens=5)


def fitting(meter: Meter, requests: list[Request] = QUESTIONS, answering_s: float = 1.0) -> int:
    return meter.fitting(requests, calls=False, answering_s=answering_s)


def test_a_model_gets_few_requests_first_and_then_half_of_what_is_left() -> None:
    spent = Spent()
    meter = make_meter(BudgetLimits(tokens=1000), spent)
    assert fitting(meter) == 8
    for request in QUESTIONS[:8]:
        meter.add(request, ANSWER)
    # 880 are left; a request takes 10 tokens and at most 10 more.
    assert fitting(meter) == 22 and fitting(make_meter(BudgetLimits(tokens=60))) == 1
    spent.elsewhere = 870
    assert fitting(meter) == 1, "of at most 20, though half of what is left are 5"
    spent.elsewhere = 880
    assert fitting(meter) == 0 and meter.stopped == "the budget of 1k tokens"
    assert meter.fitting(QUESTIONS, calls=True, answering_s=1.0) == 0


def test_time_limits_how_much_a_model_gets_at_once() -> None:
    spent = Spent()
    meter = make_meter(BudgetLimits(seconds=100), spent)
    assert fitting(meter) == 8
    for request in QUESTIONS[:8]:
        meter.add(request, ANSWER)
    answered = 50 + 7 * 20  # by their estimates: 40 characters are 40 tokens until some are counted
    spent.seconds = 40.0
    seconds = 30  # half of what is left
    assert fitting(meter, answering_s=8.0) == seconds * answered / 8.0 // 20
    assert fitting(meter, [question(1, tokens=190)] * 100, answering_s=8.0) == seconds * answered / 8.0 // 200
    assert meter.fitting(QUESTIONS, calls=True, answering_s=8.0) == 100
    meter.limits = BudgetLimits(seconds=10_000)
    assert fitting(meter, answering_s=80.0) == 60 * answered / 80.0 // 20, "no more than a minute at once"
    spent.seconds = 10_000
    assert fitting(meter) == 0 and meter.stopped == "the budget of 2h46m40s"


def test_a_call_has_room_beside_those_in_flight_and_one_alone_in_any_case() -> None:
    spent = Spent()
    meter = make_meter(BudgetLimits(tokens=100), spent)
    assert meter.fitting(QUESTIONS, calls=True, answering_s=0.0) == 100, "each call asks for itself"
    # 40 characters are at most 40 tokens, as far as is known.
    assert [meter.room(question(number)) for number in range(3)] == [True, True, False]
    assert meter.room(question(1)), "it is in flight already"
    for number in range(2):
        meter.add(question(number), ANSWER)
    assert spent.spent[MODEL] == TokenUsage(20, 10)
    assert meter.room(question(2, tokens=1000)), "70 are left, and nothing else is in flight"
    assert not meter.room(question(3)) and not meter.reached()
    meter.add(question(2, tokens=1000), replace(ANSWER, output_tokens=60))
    assert meter.reached() and not meter.room(question(4))


def test_a_failed_call_counts_its_prompt_and_an_abandoned_one_all_it_may_use() -> None:
    spent = Spent()
    meter = make_meter(BudgetLimits(tokens=120), spent)
    assert meter.room(question(1)) and meter.room(question(2))
    meter.spend(question(1))
    assert spent.spent[MODEL] == TokenUsage(10), "four characters a token"
    assert meter.room(question(1)), "110 are left"
    meter.spend(question(1))
    meter.spend(question(1))
    assert not meter.room(question(1)), "90 are left, and another one is in flight"
    meter.spend(question(2), whole=True)
    assert spent.spent[MODEL] == TokenUsage(70, 10) and meter.room(question(1))


@pytest.mark.parametrize("seed", range(10))
def test_no_order_of_calls_and_responses_spends_more_than_one_request_too_much(seed: int) -> None:
    dice, limit, spent = random.Random(seed), 500, Spent()
    meter = make_meter(BudgetLimits(tokens=limit), spent)
    in_flight: list[Request] = []
    for number in range(400):
        if in_flight and dice.random() < 0.5:
            meter.add(in_flight.pop(dice.randrange(len(in_flight))), replace(ANSWER, output_tokens=dice.randrange(11)))
        elif meter.room(question(number)):
            in_flight.append(question(number))
    for request in in_flight:
        meter.add(request, replace(ANSWER, output_tokens=10))
    assert limit <= spent.spent[MODEL].total < limit + 20


def test_the_judge_has_an_account_of_its_own() -> None:
    spent = Spent()
    meter = make_meter(BudgetLimits(tokens=100), spent)
    meter.add(question(1), ANSWER)
    meter.use(JUDGE)
    meter.add(question(2), ANSWER)
    assert spent.spent == {MODEL: TokenUsage(10, 5), JUDGE: TokenUsage(10, 5)} and meter.spent() == (30, 0.0)


def test_dollars_of_requests_in_flight_are_the_most_they_may_be() -> None:
    meter = make_meter(BudgetLimits(cost=0.0018), price=Price(prompt=10, output=10, reasoning=50))
    # 40 prompt tokens for $10 and 10 output tokens for $50 a million are $0.0009.
    assert [meter.room(question(number)) for number in range(3)] == [True, True, False]
    meter.add(question(0), replace(ANSWER, reasoning_tokens=4))
    assert meter.spent()[1] == pytest.approx((10 * 10 + 1 * 10 + 4 * 50) / 1e6)


def test_calls_in_flight_are_awaited_some_time_after_that_of_the_run() -> None:
    spent = Spent(seconds=4.0)
    meter = make_meter(BudgetLimits(seconds=5), spent)
    assert meter.patience_s() == 1 + 5
    meter.limits = BudgetLimits(seconds=1000)
    assert meter.patience_s() == 996 + 30
    assert make_meter(BudgetLimits(tokens=5)).patience_s() is None


@pytest.mark.parametrize(
    ("response", "usage"),
    [
        (ANSWER, TokenUsage(10, 5)),
        (Response(text="a" * 40), TokenUsage(10, 10)),
        (Response(text="a" * 40, prompt_tokens=0, output_tokens=0), TokenUsage(10, 10)),
        (Response(text="", prompt_tokens=10, output_tokens=0), TokenUsage(10, 0)),
        (Response(error="no answer"), TokenUsage(10, 0)),
        (replace(ANSWER, cached_tokens=10**9, reasoning_tokens=10**9), TokenUsage(10, 5, 10, 5)),
    ],
    ids=["counted", "not counted", "counts of zero", "an empty answer", "an error", "parts above the whole"],
)
def test_what_a_response_counts(response: Response, usage: TokenUsage) -> None:
    spent = Spent()
    make_meter(BudgetLimits(), spent).add(question(1), response)
    assert spent.spent[MODEL] == usage
