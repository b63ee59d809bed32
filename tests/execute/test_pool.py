"""A pool with workers that die: nothing is answered twice, nothing is lost, and it always comes to an end."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from mill.api.errors import MillError, ModelBroken, ModelError, RunError
from mill.api.model import MillModel
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request
from mill.api.response import Response
from mill.execute import pool as pool_module
from mill.execute.pool import Pool
from mill.execute.workers import Keyed, LocalWorker, WorkerLost, portable_identity
from mill.models.spec.open import open_model

SOON = 20.0


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "FIRST_PAUSE_S", 0.005)


class FakeWorker:
    """Answers one request after another; `before(hand, request)` may raise."""

    def __init__(self, number: int, before: Callable[[FakeWorker, Request], None] = lambda hand, request: None) -> None:
        self.number, self.before, self.ended, self.asked = number, before, 0, 0

    def stream(self, kind: str, requests: Sequence[Request]) -> Iterator[list[Keyed]]:
        for request in requests:
            self.before(self, request)
            self.asked += 1
            yield [(request.key, Response(text=f"re: {request.text}"))]

    def check_canary(self, canary: Request) -> None:
        return None

    def warnings(self) -> list[str]:
        return ["slow", f"hand {self.number}"]

    def execution_paths(self) -> dict[str, str]:
        return {}

    def end(self) -> None:
        self.ended += 1


class Seen:
    """A recorder of responses, and of the thread that streamed them."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.answers: dict[str, Response] = {}
        self.times: Counter[str] = Counter()
        self.threads: set[int] = set()
        self.before = before

    def read(self, pool: Pool, kind: str, requests: Sequence[Request]) -> None:
        """As the executor reads a stream: also what arrived before an unexpected end."""
        stream = pool.stream(kind, requests)
        try:
            for request, response in stream:
                self.record(request, response)
        except BaseException:
            stream.close()
            with contextlib.suppress(MillError):
                for request, response in pool.undelivered():
                    self.record(request, response)
            raise

    def record(self, request: Request, response: Response) -> None:
        self.before()
        self.answers[request.text] = response
        self.times[request.text] += 1
        self.threads.add(threading.get_ident())


class Agency:
    """Hires hands and keeps them for a look."""

    def __init__(self, before: Callable[[FakeWorker, Request], None] = lambda hand, request: None) -> None:
        self.before, self.hands = before, []

    def start_worker(self, number: int) -> FakeWorker:
        self.hands.append(FakeWorker(number, self.before))
        return self.hands[-1]


def asked(count: int) -> list[Request]:
    return [Request(GENERATE, f"question {number:03}") for number in range(count)]


def ask(pool: Pool, requests: Sequence[Request], seen: Seen | None = None, seconds: float = SOON) -> Seen:
    """What was streamed; raises what the pool raises, and fails where it does not come back."""
    seen, outcome = seen or Seen(), []

    def call() -> None:
        try:
            outcome.append(seen.read(pool, GENERATE, requests))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    assert outcome, f"the pool did not end within {seconds:g} s"
    if outcome[0] is not None:
        raise outcome[0]
    return seen


def all_answered(seen: Seen, requests: Sequence[Request]) -> bool:
    return seen.times == Counter(request.text for request in requests)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_everything_is_answered_once_in_the_thread_that_asked(workers: int) -> None:
    requests, seen = asked(60), Seen()
    seen.read(Pool(Agency().start_worker, workers), GENERATE, requests)
    assert all_answered(seen, requests)
    assert seen.answers["question 007"].text == "re: question 007"
    assert seen.threads == {threading.get_ident()}


def test_workers_stay_for_the_next_kind_and_none_is_hired_for_nothing() -> None:
    agency = Agency(lambda hand, request: time.sleep(0.01))
    pool = Pool(agency.start_worker, 4)
    ask(pool, asked(1))
    assert len(agency.hands) == 1
    Seen().read(pool, LOGLIKELIHOOD, asked(40))
    Seen().read(pool, GENERATE, asked(40))
    assert sorted(hand.number for hand in agency.hands) == [0, 1, 2, 3]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_worker_that_dies_in_mid_bundle_is_replaced_and_nothing_is_told_twice_or_lost(workers: int) -> None:
    def before(hand: FakeWorker, request: Request) -> None:
        time.sleep(0.01)
        if hand in agency.hands[:workers] and hand.asked == 3:
            raise WorkerLost("killed or crashed")

    agency, requests = Agency(before), asked(50)
    pool = Pool(agency.start_worker, workers)
    assert all_answered(seen := ask(pool, requests), requests)
    assert not any(answer.failed for answer in seen.answers.values())
    assert len(agency.hands) == 2 * workers
    assert [hand.ended for hand in agency.hands[:workers]] == [1] * workers
    pool.close()
    assert f"workers that died and were replaced: {workers}" in pool.warnings()


def test_a_worker_that_dies_after_its_last_answer_loses_nothing() -> None:
    class DiesAtTheEnd(FakeWorker):
        def stream(self, kind: str, requests: Sequence[Request]) -> Iterator[list[Keyed]]:
            yield from super().stream(kind, requests)
            raise WorkerLost("killed or crashed")

    requests = asked(30)
    assert all_answered(ask(Pool(DiesAtTheEnd, 3), requests), requests)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("poison", [{17}, {0, 1}, {3, 20, 39}])
def test_a_request_that_kills_workers_is_an_error_of_its_own(workers: int, poison: set[int]) -> None:
    deadly = {f"question {number:03}" for number in poison}

    def before(hand: FakeWorker, request: Request) -> None:
        if request.text in deadly:
            raise WorkerLost("killed or crashed")

    requests = asked(40)
    assert all_answered(seen := ask(Pool(Agency(before).start_worker, workers), requests), requests)
    assert {text for text, answer in seen.answers.items() if answer.failed} == deadly
    assert all("died" in (seen.answers[text].error or "") for text in deadly)


def test_random_deaths_neither_lose_nor_double_anything() -> None:
    dice, lock = random.Random(3), threading.Lock()

    def before(hand: FakeWorker, request: Request) -> None:
        with lock:
            if dice.random() < 0.02:
                raise WorkerLost("killed or crashed")

    requests = asked(400)
    assert all_answered(ask(Pool(Agency(before).start_worker, 4), requests), requests)


@pytest.mark.parametrize("workers", [1, 4])
def test_workers_that_all_die_end_the_run_in_one_line(workers: int) -> None:
    def before(hand: FakeWorker, request: Request) -> None:
        time.sleep(0.02)
        raise WorkerLost("out of memory")

    agency = Agency(before)
    with pytest.raises(ModelError, match=r"workers died and none has answered.*out of memory"):
        ask(Pool(agency.start_worker, workers), asked(100))
    assert len(agency.hands) <= 6 * (workers + 1)


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_that_cannot_start_end_the_run(workers: int) -> None:
    tries: list[int] = []

    def start_worker(number: int) -> Any:
        tries.append(number)
        time.sleep(0.02)
        raise WorkerLost("its machine is gone")

    with pytest.raises(ModelError, match="its machine is gone"):
        ask(Pool(start_worker, workers), asked(100))
    assert len(tries) <= 6 * (workers + 1)


def test_a_worker_that_cannot_start_is_no_fault_of_a_single_request() -> None:
    def start_worker(number: int) -> Any:
        raise WorkerLost("out of memory")

    with pytest.raises(ModelError, match="out of memory"):
        ask(Pool(start_worker, 1), asked(1))


@pytest.mark.parametrize("error", [RunError("the disk is full"), ModelError("no such route")])
def test_an_error_that_no_other_worker_would_avoid_ends_the_run(error: MillError) -> None:
    def before(hand: FakeWorker, request: Request) -> None:
        if request.text == "question 010":
            raise error

    agency = Agency(before)
    pool = Pool(agency.start_worker, 3)
    with pytest.raises(type(error), match=str(error)):
        ask(pool, asked(60))
    pool.close()
    assert [hand.ended for hand in agency.hands] == [1] * len(agency.hands)


class Picky(MillModel):
    """Fails on questions with certain numbers; `asked` is shared by all workers."""

    batch_size = 4

    def __init__(self, fails: range, asked: list[str]) -> None:
        self.fails, self.asked = fails, asked

    @property
    def model_name(self) -> str:
        return "picky"

    def _generate_batch(self, batch: list[Request], gen_kwargs: dict[str, Any]) -> list[str]:
        self.asked += [request.text for request in batch]
        if any(int(request.text.split()[1]) in self.fails for request in batch):
            raise ValueError("not this one")
        return ["yes"] * len(batch)


@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("fails", [range(20), range(90, 150)])
def test_failures_that_stand_together_are_no_broken_model(workers: int, fails: range) -> None:
    """A worker's first bundle may hold nothing else, since what looks alike is handed out together."""
    requests = asked(200)
    seen = ask(Pool(lambda number: LocalWorker(Picky(fails, [])), workers), requests)
    assert all_answered(seen, requests)
    assert sum(response.failed for response in seen.answers.values()) == len(fails)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_broken_model_is_told_before_all_of_it_was_tried(workers: int) -> None:
    tried: list[str] = []
    with pytest.raises(ModelBroken, match="not this one"):
        ask(Pool(lambda number: LocalWorker(Picky(range(5000), tried)), workers), asked(5000))
    assert len(tried) < 200


def test_a_worker_that_cannot_open_the_model_ends_the_run() -> None:
    def start_worker(number: int) -> Any:
        if number == 1:
            raise ModelError("no such file")
        return FakeWorker(number, lambda hand, request: time.sleep(0.005))

    with pytest.raises(ModelError, match="no such file"):
        ask(Pool(start_worker, 2), asked(60))


@pytest.mark.parametrize("error", [ValueError("a mistake"), SystemExit(3)], ids=["exception", "exit"])
def test_a_mistake_in_a_worker_is_told_and_keeps_nobody_waiting(error: BaseException) -> None:
    def before(hand: FakeWorker, request: Request) -> None:
        raise error

    with pytest.raises(ModelError, match="a worker failed"):
        ask(Pool(Agency(before).start_worker, 2), asked(10))


def test_a_worker_that_cannot_be_ended_keeps_nobody_waiting() -> None:
    class Stubborn(FakeWorker):
        def end(self) -> None:
            raise RuntimeError("cannot be reached")

    def before(hand: FakeWorker, request: Request) -> None:
        if hand is hands[0] and request.text == "question 003":
            raise WorkerLost("killed or crashed")

    hands: list[FakeWorker] = []

    def start_worker(number: int) -> FakeWorker:
        hands.append(Stubborn(number, before))
        return hands[-1]

    requests = asked(10)
    try:
        assert all_answered(ask(Pool(start_worker, 1), requests), requests)
    except MillError as error:
        assert "cannot be reached" in str(error)


def test_too_few_answers_are_told_and_an_answer_told_twice_counts_once() -> None:
    class Forgetful(FakeWorker):
        def stream(self, kind: str, requests: Sequence[Request]) -> Iterator[list[Keyed]]:
            yield from super().stream(kind, requests[:-1])

    class Repeating(FakeWorker):
        def stream(self, kind: str, requests: Sequence[Request]) -> Iterator[list[Keyed]]:
            for answers in super().stream(kind, requests):
                yield answers
                yield answers

    with pytest.raises(ModelError, match="answered 9 of 10 requests"):
        ask(Pool(Forgetful, 1), asked(10))
    requests = asked(20)
    assert all_answered(ask(Pool(Repeating, 2), requests), requests)


def test_a_worker_that_never_becomes_ready_does_not_keep_the_others() -> None:
    """As on a cluster whose other half is somebody else's."""
    asked_for, never = threading.Event(), threading.Event()

    def start_worker(number: int) -> FakeWorker:
        if number == 1:
            asked_for.set()
            never.wait()
        asked_for.wait(5)
        return FakeWorker(number)

    requests = asked(40)
    try:
        assert all_answered(ask(Pool(start_worker, 2), requests), requests)
    finally:
        never.set()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RunError("the disk is full")], ids=["interrupt", "disk"])
def test_an_observer_that_raises_ends_it_at_once_and_all_workers_end(error: BaseException) -> None:
    told: list[int] = []

    def third() -> None:
        told.append(1)
        if len(told) == 3:
            raise error

    agency = Agency(lambda hand, request: time.sleep(0.01))
    pool = Pool(agency.start_worker, 3)
    began = time.monotonic()
    with pytest.raises(type(error)):
        ask(pool, asked(30_000), Seen(third))
    pool.close()
    assert time.monotonic() - began < 30, "it waits for bundles that nobody wants any more"
    assert agency.hands and all(hand.ended == 1 for hand in agency.hands)
    assert 3 <= len(told) < 300, "only answers that were on their way are handed on after the end"


def test_a_worker_that_was_not_needed_takes_over_from_one_that_stays_away() -> None:
    """As a second server does when there is only one question left."""
    hired: list[int] = []

    def start_worker(number: int) -> FakeWorker:
        hired.append(number)
        if number == 0:
            raise WorkerLost("cannot reach it")
        return FakeWorker(number)

    pool, only = Pool(start_worker, 3), asked(1)
    assert all_answered(ask(pool, only), only)
    assert hired[0] == 0 and 1 in hired
    pool.slots[0].was_lost = True
    hired.clear()
    assert all_answered(ask(pool, only), only) and hired == [], "whoever answers is asked first"


def test_a_worker_that_cannot_answer_what_another_did_is_dismissed() -> None:
    """Its server is there, and refuses everything."""

    class Useless(FakeWorker):
        def stream(self, kind: str, requests: Sequence[Request]) -> Iterator[list[Keyed]]:
            if self.number == 1:
                raise ModelBroken("the server failed on each of the first 8 requests")
            yield from super().stream(kind, requests)

        def check_canary(self, canary: Request) -> None:
            if self.number == 1:
                raise WorkerLost("not even what was answered before")

    requests = asked(300)
    pool = Pool(lambda number: Useless(number, lambda hand, request: time.sleep(0.001)), 2, servers=True)
    assert all_answered(seen := ask(pool, requests), requests)
    assert not any(response.failed for response in seen.answers.values())


def test_remarks_are_said_once_and_those_of_the_lost_are_let_go() -> None:
    class Mute(FakeWorker):
        def warnings(self) -> list[str]:
            if self.number == 1:
                raise WorkerLost("unreachable")
            return super().warnings()

    hands: list[FakeWorker] = []

    def start_worker(number: int) -> FakeWorker:
        hands.append(Mute(number, lambda hand, request: time.sleep(0.002)))
        return hands[-1]

    pool = Pool(start_worker, 3)
    ask(pool, asked(60))
    pool.close()
    pool.close()
    assert sorted(pool.warnings()) == ["hand 0", "hand 2", "slow"]
    assert [hand.ended for hand in hands] == [1, 1, 1]


def test_a_model_is_the_same_on_every_server() -> None:
    one, other = (open_model(f"litellm[model=openai/m,api_base=http://{host}:1,top_p=1]") for host in ("a", "b"))
    assert one.identity() != other.identity() and portable_identity(one) == portable_identity(other)
    assert portable_identity(one)["parameters"] == {"top_p": 1}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ModelError("no")], ids=["interrupt", "error"])
def test_answers_that_came_before_an_end_are_handed_on(error: BaseException) -> None:
    """The observer is slow, as a full disk is, so that many have come when it ends."""
    ready = threading.Event()

    def before(hand: FakeWorker, request: Request) -> None:
        if request.text == "question 029":
            ready.set()
            if isinstance(error, ModelError):
                raise error

    def slow() -> None:
        if not seen.times:
            ready.wait(SOON)
            if isinstance(error, KeyboardInterrupt):
                seen.before = lambda: None
                raise error

    seen = Seen(slow)
    pool = Pool(Agency(before).start_worker, 1)
    with pytest.raises(type(error)):
        ask(pool, asked(30), seen)
    assert len(seen.times) >= 28


def test_a_worker_that_takes_its_time_is_hired_once_however_many_rounds_there_are() -> None:
    hired: list[int] = []
    come = threading.Event()

    def start_worker(number: int) -> FakeWorker:
        hired.append(number)
        if number == 1:
            come.wait(SOON)
        return FakeWorker(number, lambda hand, request: time.sleep(0.001))

    pool = Pool(start_worker, 2)
    for _ in range(3):
        assert all_answered(ask(pool, asked(20)), asked(20))
    come.set()
    assert sorted(hired) == [0, 1]


def test_a_worker_that_comes_after_the_end_is_ended() -> None:
    come, late = threading.Event(), FakeWorker(1)

    def start_worker(number: int) -> FakeWorker:
        if number == 1:
            come.wait(SOON)
            return late
        return FakeWorker(number)

    pool = Pool(start_worker, 2)
    ask(pool, asked(20))
    pool.close()
    come.set()
    deadline = time.monotonic() + SOON
    while not late.ended and time.monotonic() < deadline:
        time.sleep(0.01)
    assert late.ended == 1


def test_a_worker_in_the_middle_of_an_answer_is_waited_for_though_no_other_can_start() -> None:
    def start_worker(number: int) -> FakeWorker:
        if number:
            raise WorkerLost("cannot reach it")
        return FakeWorker(number, lambda hand, request: time.sleep(1.5 if request.text == "question 000" else 0))

    seen = ask(Pool(start_worker, 4), asked(20))
    assert all_answered(seen, asked(20))
