"""Accounts of a budget: room, reservations and estimates, with several processes on one ledger; pools that close."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from mill.api.budget import BudgetLimits, BudgetReached, Price, TokenUsage, shown_dollars, shown_seconds, shown_tokens
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request, generation_options
from mill.api.response import Response
from mill.execute.account import Account
from mill.execute.budget import MODEL, OtherSpending, RunBudget, Spending, summed
from mill.execute.pool import Pool
from mill.execute.prompt_lengths import PromptLengths
from tests.execute.test_pool import FakeWorker, WorkerFactory, make_requests, read_all
from tests.waiting import until


class SharedLedger:
    """The ledgers of several processes in memory, each read as it is now."""

    def __init__(self, name: str, table: dict[str, Spending]) -> None:
        self.name, self.table, self.elapsed = name, table, 0.0

    def write(self, own: Spending, *, at_once: bool) -> None:
        self.table[self.name] = own

    def others(self, *, fresh: bool) -> OtherSpending:
        others = [one for name, one in self.table.items() if name != self.name]
        pending = [amounts for one in others for amounts in (one.in_flight, one.planned)]
        return OtherSpending(summed([one.spent for one in others]), summed(pending))

    def seconds(self) -> float:
        return self.elapsed


def make_account(
    limits: BudgetLimits, table: dict[str, Spending] | None = None, name: str = "a", **how: Any
) -> tuple[Account, SharedLedger]:
    ledger = SharedLedger(name, {} if table is None else table)
    budget = RunBudget(ledger, limits, {MODEL: how.pop("price", None)}, **how)
    return Account(budget, MODEL, lambda requests: 10 * len(requests)), ledger


def question(number: int, tokens: int = 10) -> Request:
    """A prompt of 40 characters, which is 10 tokens, and an answer of at most `tokens`."""
    return Request(GENERATE, f"question {number:031}", options=generation_options(max_gen_toks=tokens))


ANSWER = Response(text="yes", prompt_tokens=10, output_tokens=5)


def test_half_of_what_is_left_is_given_to_a_model_at_once() -> None:
    account, ledger = make_account(BudgetLimits(tokens=850))
    requests = [question(number) for number in range(100)]
    # A prompt is estimated as 11 tokens, one for rounding: 20 requests of 21 tokens are 420.
    assert account.fitting(requests, gated=False) == 20
    assert ledger.table["a"].planned[MODEL] == TokenUsage(20 * 11, 20 * 10)
    with account.window(requests[:20]):
        account.start(requests[:15])
        for request in requests[:15]:
            account.charge(request, ANSWER)
        assert ledger.table["a"].planned[MODEL] == TokenUsage(5 * 11, 5 * 10)
    assert ledger.table["a"].planned == {} and ledger.table["a"].spent[MODEL] == TokenUsage(150, 75)


def test_what_a_model_computes_is_in_flight_and_lost_where_it_is_interrupted() -> None:
    account, ledger = make_account(BudgetLimits(tokens=850))
    requests = [question(number) for number in range(20)]
    assert account.fitting(requests, gated=False) == 20
    with pytest.raises(KeyboardInterrupt), account.window(requests):
        account.start(requests[:4])
        assert ledger.table["a"].in_flight[MODEL] == TokenUsage(4 * 11, 4 * 10)
        assert ledger.table["a"].planned[MODEL] == TokenUsage(16 * 11, 16 * 10)
        account.charge(requests[0], ANSWER)
        raise KeyboardInterrupt
    # One response, and three requests with their longest answers; the sixteen others were not begun.
    assert ledger.table["a"].spent[MODEL] == TokenUsage(10 + 3 * 11, 5 + 3 * 10)
    assert not ledger.table["a"].planned and ledger.table["a"].in_flight[MODEL] == TokenUsage()


def test_a_model_that_does_not_say_what_it_computes_may_compute_all() -> None:
    account, ledger = make_account(BudgetLimits(tokens=850))
    requests = [question(number) for number in range(20)]
    account.fitting(requests, gated=False)
    with account.window(requests):
        account.charge(requests[0], ANSWER)
        assert ledger.table["a"].in_flight[MODEL] == TokenUsage(19 * 11, 19 * 10)


def test_a_model_behind_a_gate_gets_all_that_fits() -> None:
    account, ledger = make_account(BudgetLimits(tokens=850))
    requests = [question(number) for number in range(100)]
    assert account.fitting(requests, gated=True) == 40 and not ledger.table["a"].planned


def test_the_gate_admits_what_fits_and_one_request_in_any_case() -> None:
    account, ledger = make_account(BudgetLimits(tokens=50))
    admitted = [account.admit(question(number)) for number in range(4)]
    # Without a response, 40 characters are 10 tokens, and one is for rounding.
    assert admitted == [True, True, False, False]
    assert ledger.table["a"].in_flight[MODEL].total == 42
    for number in range(2):
        account.settle(question(number), ANSWER)
    assert ledger.table["a"].in_flight[MODEL].total == 0 and ledger.table["a"].spent[MODEL].total == 30
    assert account.admit(question(2, tokens=1000)), "20 are left, and nothing else is in flight"
    assert not account.admit(question(3))
    account.settle(question(2, tokens=1000), replace(ANSWER, output_tokens=10))
    assert account.closed() and not account.admit(question(4))
    with pytest.raises(BudgetReached):
        account.begin(question(4))


def test_the_first_request_is_alone_and_shows_how_the_server_counts() -> None:
    account, ledger = make_account(BudgetLimits(tokens=1000))
    requests = [question(number) for number in range(3)]
    assert all(account.admit(request) for request in requests)
    assert [account.may_send(request) for request in requests] == [True, False, False]
    account.settle(requests[0], Response(error="away"))
    assert [account.may_send(request) for request in requests[1:]] == [True, False], "an error shows nothing"
    account.settle(requests[1], replace(ANSWER, prompt_tokens=800))
    assert account.may_send(requests[2])
    account.release(requests[2])
    # The error counts its prompt of 11, and 800 + 5 are spent: 184 are left, and a request may need 801 + 10.
    assert account.size(requests[2]) == TokenUsage(801, 10)
    assert account.admit(requests[2]), "nothing else is in flight"
    assert not account.admit(question(4))
    assert ledger.table["a"].spent[MODEL].total == 816


def test_prompts_are_estimated_from_those_that_were_counted() -> None:
    counted = PromptLengths()
    assert not counted and counted.most(400) == counted.mean(400) == 100
    counted.add(250, 1000)
    counted.add(250, 1000)
    assert counted.most(400) == 100
    counted.add(30, 10)  # a chat template: 530 tokens of 2010 characters, and 3 for each character
    assert counted.mean(2010) == 530
    assert counted.most(10) == 30, "3 for each character"
    assert counted.most(2010) == 530 + 28, "that prompt is 27.4 above the mean"


def test_a_prompt_of_no_tokens_is_estimated() -> None:
    account, ledger = make_account(BudgetLimits(tokens=1000))
    account.charge(question(1), Response(text="a" * 40, prompt_tokens=0, output_tokens=0))
    assert ledger.table["a"].spent[MODEL] == TokenUsage(11, 11)
    account.charge(question(2), Response(text="", prompt_tokens=10, output_tokens=0))
    assert ledger.table["a"].spent[MODEL] == TokenUsage(21, 11), "an empty answer has no tokens"


def test_the_time_of_requests_in_flight_ends_some_time_after_that_of_the_run() -> None:
    account, ledger = make_account(BudgetLimits(seconds=5))
    ledger.elapsed = 4.0
    assert account.patience_s() == 1 + 5
    account.budget.limits = BudgetLimits(seconds=1000)
    assert account.patience_s() == 996 + 30
    assert make_account(BudgetLimits(tokens=5))[0].patience_s() == float("inf")


def test_a_retry_counts_the_prompt_and_is_refused_where_there_is_no_room() -> None:
    account, ledger = make_account(BudgetLimits(tokens=60))
    first, second = question(1), question(2)
    assert account.admit(first) and account.admit(second)
    account.retry(first)  # 42 in flight and 11 spent
    with pytest.raises(BudgetReached):
        account.retry(first)
    account.release(first)
    assert ledger.table["a"].in_flight[MODEL].total == 21 and ledger.table["a"].spent[MODEL] == TokenUsage(22)
    account.lose(second)
    assert ledger.table["a"].spent[MODEL] == TokenUsage(33, 10)


def test_requests_that_were_admitted_and_not_sent_are_released() -> None:
    account, ledger = make_account(BudgetLimits(tokens=1000))
    requests = [question(1), question(2)]
    with account.window(requests):
        assert all(account.admit(request) for request in requests)
        account.settle(requests[0], ANSWER)
    assert ledger.table["a"].in_flight[MODEL].total == 0 and ledger.table["a"].spent[MODEL].total == 15


def test_what_another_process_has_in_flight_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"b": Spending(in_flight={MODEL: TokenUsage(80)})}
    account, _ = make_account(BudgetLimits(tokens=100), table)
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            table["b"] = Spending(spent={MODEL: TokenUsage(10)})

    monkeypatch.setattr(time, "sleep", sleep)
    assert account.fitting([question(1)], gated=True) == 1
    assert len(pauses) == 3 and min(pauses) > 0
    table["b"] = Spending(spent={MODEL: TokenUsage(100)})
    assert account.fitting([question(1)], gated=True) == 0
    assert account.budget.stopped == "the budget of 100 tokens"


def test_ranks_take_their_share_and_do_not_wait_for_each_other() -> None:
    table: dict[str, Spending] = {}
    accounts = [make_account(BudgetLimits(tokens=1680), table, name, processes=2)[0] for name in "ab"]
    requests = [question(number) for number in range(100)]
    assert [account.fitting(requests, gated=False) for account in accounts] == [20, 15], "a quarter of 1680, of 1260"
    table["b"] = Spending(in_flight={MODEL: TokenUsage(1680)})
    assert make_account(BudgetLimits(tokens=1680), table, "c", processes=2)[0].fitting(requests, gated=False) == 1


@pytest.mark.parametrize("seed", range(20))
def test_processes_never_spend_more_than_one_request_above_the_budget(seed: int) -> None:
    """Any interleaving of two processes that send and receive."""
    dice, table = random.Random(seed), dict[str, Spending]()
    limit, most = 500, 21
    accounts = [make_account(BudgetLimits(tokens=limit), table, name)[0] for name in "ab"]
    in_flight: list[tuple[Account, Request]] = []
    for number in range(400):
        if in_flight and dice.random() < 0.5:
            account, request = in_flight.pop(dice.randrange(len(in_flight)))
            account.settle(request, replace(ANSWER, output_tokens=dice.randrange(11)))
        elif (account := dice.choice(accounts)).admit(request := question(number)):
            in_flight.append((account, request))
    for account, request in in_flight:
        account.settle(request, replace(ANSWER, output_tokens=10))
    total = sum(one.spent[MODEL].total for one in table.values())
    assert limit <= total < limit + most


def test_time_limits_how_much_a_model_gets_at_once() -> None:
    account, ledger = make_account(BudgetLimits(seconds=100))
    requests = [question(number) for number in range(100)]
    assert account.fitting(requests, gated=False) == 8, "nothing is known about their time"
    with account.window(requests[:8]):
        for request in requests[:8]:
            account.charge(request, ANSWER)
    account._answering_s = 8.0  # a second for each
    ledger.elapsed = 40.0
    assert account.fitting(requests, gated=False) == 30, "half of the 60 seconds that are left"
    long_answers = [question(number, tokens=199) for number in range(100)]
    assert account.fitting(long_answers, gated=False) == 3, "of 210 tokens instead of 21"
    assert account.fitting(requests, gated=True) == 100
    account.budget.limits = BudgetLimits(seconds=10_000)
    assert account.fitting(requests, gated=False) == 60, "no more than a minute at once"
    account.budget.limits = BudgetLimits(seconds=100)
    ledger.elapsed = 100.0
    assert account.fitting(requests, gated=True) == 0 and account.budget.stopped == "the budget of 1m40s"


def test_dollars_of_requests_in_flight_are_the_most_they_may_be() -> None:
    account, _ = make_account(BudgetLimits(cost=0.001), price=Price(prompt=10, output=10, reasoning=50))
    # 11 prompt tokens for $10 and 10 output tokens for $50 a million are $0.00061.
    assert [account.admit(question(number)) for number in range(2)] == [True, False]
    account.settle(question(0), replace(ANSWER, reasoning_tokens=4))
    assert account.budget.spent()[1] == pytest.approx((10 * 10 + 1 * 10 + 4 * 50) / 1e6)


def test_scored_texts_count_their_context_and_continuation() -> None:
    account, ledger = make_account(BudgetLimits(tokens=1000))
    request = Request(LOGLIKELIHOOD, "c" * 40, " yes" * 2)
    assert account.size(request) == TokenUsage(14, 0)  # the model reads both
    account.charge(request, Response(score=-1.0))
    assert ledger.table["a"].spent[MODEL] == TokenUsage(14, 0)
    account.charge(request, Response(score=-1.0, prompt_tokens=9, output_tokens=1))
    assert ledger.table["a"].spent[MODEL] == TokenUsage(24, 0)


def test_a_text_of_0_tokens_is_estimated() -> None:
    account, ledger = make_account(BudgetLimits(tokens=1000))
    account.charge(question(0), Response(text="a" * 400, prompt_tokens=10, output_tokens=0))
    assert ledger.table["a"].spent[MODEL] == TokenUsage(10, 101)
    account.charge(question(1), Response(text="", prompt_tokens=10, output_tokens=0))
    assert ledger.table["a"].spent[MODEL] == TokenUsage(20, 101)


def test_parts_of_a_count_are_at_most_the_whole() -> None:
    account, ledger = make_account(BudgetLimits(cost=1), price=Price(prompt=1, output=1, cached=0, reasoning=0))
    account.charge(question(0), replace(ANSWER, cached_tokens=10**9, reasoning_tokens=10**9))
    assert ledger.table["a"].spent[MODEL] == TokenUsage(10, 5, 10, 5)


def test_without_limits_everything_is_counted_and_nothing_estimated() -> None:
    account, ledger = make_account(BudgetLimits())
    requests = [question(number) for number in range(50)]
    assert account.fitting(requests, gated=False) == 50
    account.charge(requests[0], ANSWER)
    assert ledger.table["a"].spent[MODEL] == TokenUsage(10, 5)


class ClosingGate:
    """Closes after some requests."""

    def __init__(self) -> None:
        self.over = False

    def closed(self) -> bool:
        return self.over

    def start(self, requests: Sequence[Request]) -> None:
        """Nothing to count."""


def test_a_pool_that_closes_awaits_what_its_workers_have() -> None:
    """It closes when both have their first chunk."""
    gate, at_work = ClosingGate(), set[int]()

    def before(worker: FakeWorker, request: Request) -> None:
        at_work.add(worker.number)
        until(lambda: len(at_work) == 2, "two workers at work")
        gate.over = True

    pool = Pool(WorkerFactory(before).start_worker, 2)
    pool.set_gate(gate)  # type: ignore[arg-type]
    requests = make_requests(60)
    seen = read_all(pool, requests)
    taken = [request.text for request in requests[: 21 + 14]]
    assert sorted(seen.times.elements()) == taken, "both chunks are whole: 0.7 of an equal share of 60, then of 39"


def test_amounts_are_shown_as_they_are_typed() -> None:
    assert [shown_tokens(count) for count in (812, 500_000, 1_500_000, 20_000_000, 1_234_567, 2 * 10**9)] == [
        *("812", "500k", "1.5M", "20M", "1,234,567", "2B"),
    ]
    assert [shown_seconds(seconds) for seconds in (0.5, 30, 90, 5400, 7200)] == ["0.5s", "30s", "1m30s", "1h30m", "2h"]
    assert [shown_dollars(dollars) for dollars in (15, 0.5, 0.00123)] == ["$15.00", "$0.50", "$0.00123"]
