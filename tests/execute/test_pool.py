"""A pool with workers that die: every request completes exactly once, and the stream always ends."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from mill.api.budget import CallMeter
from mill.api.errors import MillError, ModelBroken, ModelError, RunError
from mill.api.model import MillModel, StreamContext
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request
from mill.api.response import Response
from mill.execute import pool as pool_module
from mill.execute.pool import Keyed, Pool, WorkerLost
from mill.execute.workers import LocalWorker, portable_identity
from mill.models.spec.open import open_model
from tests.waiting import DEADLINE_S, until


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short ones before a worker is replaced. A thread that does not end is waited for: no test leaves one unnoticed."""
    monkeypatch.setattr(pool_module, "FIRST_PAUSE_S", 0.005)
    monkeypatch.setattr(pool_module, "LONGEST_PAUSE_S", 0.01)
    monkeypatch.setattr(pool_module, "LEAVE_S", 3600.0)


@pytest.fixture
def leaves_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "LEAVE_S", 0.01)


@pytest.fixture
def lose(workers: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Loses all workers together, each time when the pool has warned of those that were lost before."""
    warned = threading.Semaphore(workers)
    monkeypatch.setattr(pool_module, "warn", lambda text: warned.release())

    def await_warnings() -> None:
        for _ in range(workers):
            warned.acquire()

    together = threading.Barrier(workers, await_warnings, DEADLINE_S)

    def lose(reason: str) -> None:
        together.wait()
        raise WorkerLost(reason)

    yield lose
    warned.release(workers)
    together.abort()


class FakeWorker:
    """Answers one request after another; `before(worker, request)` may raise."""

    def __init__(self, number: int, before: Callable[[FakeWorker, Request], object] = lambda worker, request: None) -> None:
        self.number, self.before, self.ended, self.completed = number, before, 0, 0

    def stream(self, kind: str, requests: Sequence[Request], meter: CallMeter | None = None) -> Iterator[list[Keyed]]:
        for request in requests:
            self.before(self, request)
            self.completed += 1
            yield [(request.key, Response(text=f"re: {request.text}"))]

    def report(self) -> tuple[list[str], dict[str, str]]:
        return ["slow", f"worker {self.number}"], {}

    def end(self) -> None:
        self.ended += 1


class ResponseRecorder:
    """Records responses, and the thread that read them."""

    def __init__(self) -> None:
        self.responses: dict[str, Response] = {}
        self.times: Counter[str] = Counter()
        self.threads: set[int] = set()

    def read(self, pool: Pool, kind: str, requests: Sequence[Request]) -> None:
        for request, response in pool.stream(kind, requests, StreamContext()):
            self.responses[request.text] = response
            self.times[request.text] += 1
            self.threads.add(threading.get_ident())


class WorkerFactory:
    """Starts workers and keeps a list of them."""

    def __init__(self, before: Callable[[FakeWorker, Request], object] = lambda worker, request: None) -> None:
        self.before = before
        self.workers_started: list[FakeWorker] = []

    def start_worker(self, number: int) -> FakeWorker:
        self.workers_started.append(FakeWorker(number, self.before))
        return self.workers_started[-1]

    def until_started(self, count: int) -> None:
        until(lambda: len(self.workers_started) >= count, f"{count} workers")


def make_requests(count: int) -> list[Request]:
    return [Request(GENERATE, f"question {number:03}") for number in range(count)]


def read_all(pool: Pool, requests: Sequence[Request], seen: ResponseRecorder | None = None) -> ResponseRecorder:
    """The streamed responses; raises the pool's exception, and fails where the stream does not end."""
    seen = seen or ResponseRecorder()
    outcome: list[BaseException | None] = []

    def call() -> None:
        try:
            seen.read(pool, GENERATE, requests)
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    assert outcome, "the stream did not end"
    if outcome[0] is not None:
        raise outcome[0]
    return seen


def all_completed(seen: ResponseRecorder, requests: Sequence[Request]) -> bool:
    return seen.times == Counter(request.text for request in requests)


@pytest.mark.parametrize("workers", [1, 5])
def test_every_request_completes_once_in_the_calling_thread(workers: int) -> None:
    requests, seen = make_requests(60), ResponseRecorder()
    seen.read(Pool(WorkerFactory().start_worker, workers), GENERATE, requests)
    assert all_completed(seen, requests)
    assert seen.responses["question 007"].text == "re: question 007"
    assert seen.threads == {threading.get_ident()}


def test_workers_are_reused_and_started_only_when_needed() -> None:
    needed = 1
    factory = WorkerFactory(lambda worker, request: factory.until_started(needed))
    pool = Pool(factory.start_worker, 4)
    read_all(pool, make_requests(1))
    assert len(factory.workers_started) == 1
    needed = 4
    ResponseRecorder().read(pool, LOGLIKELIHOOD, make_requests(40))
    ResponseRecorder().read(pool, GENERATE, make_requests(40))
    assert sorted(worker.number for worker in factory.workers_started) == [0, 1, 2, 3]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_worker_that_dies_within_a_chunk_is_replaced_and_every_request_completes_once(workers: int) -> None:
    def before(worker: FakeWorker, request: Request) -> None:
        factory.until_started(workers)
        if worker in factory.workers_started[:workers] and worker.completed == 3:
            raise WorkerLost("killed or crashed")

    factory, requests = WorkerFactory(before), make_requests(50)
    pool = Pool(factory.start_worker, workers)
    assert all_completed(seen := read_all(pool, requests), requests)
    assert not any(response.failed for response in seen.responses.values())
    assert len(factory.workers_started) == 2 * workers
    assert [worker.ended for worker in factory.workers_started[:workers]] == [1] * workers
    pool.close()
    assert f"workers that died and were replaced: {workers}" in pool.warnings()


@pytest.mark.parametrize(("workers", "poison"), [(1, {0, 1}), (4, {3, 20, 39})])
def test_a_request_that_kills_workers_is_an_error(workers: int, poison: set[int]) -> None:
    deadly = {f"question {number:03}" for number in poison}

    def before(worker: FakeWorker, request: Request) -> None:
        if request.text in deadly:
            raise WorkerLost("killed or crashed")

    requests = make_requests(40)
    assert all_completed(seen := read_all(Pool(WorkerFactory(before).start_worker, workers), requests), requests)
    assert {text for text, response in seen.responses.items() if response.failed} == deadly
    assert all("died" in (seen.responses[text].error or "") for text in deadly)


@pytest.mark.parametrize("workers", [1, 4])
def test_the_stream_fails_where_all_workers_die(workers: int, lose: Callable[[str], None]) -> None:
    factory = WorkerFactory(lambda worker, request: lose("out of memory"))
    with pytest.raises(ModelError, match=r"workers died and none has answered.*out of memory"):
        read_all(Pool(factory.start_worker, workers), make_requests(100))
    assert len(factory.workers_started) <= 4 * (workers + 1)


@pytest.mark.parametrize("workers", [1, 3])
def test_the_stream_fails_where_no_worker_starts(workers: int, lose: Callable[[str], None]) -> None:
    attempts: list[int] = []

    def start_worker(number: int) -> Any:
        attempts.append(number)
        lose("its machine is gone")

    with pytest.raises(ModelError, match="its machine is gone"):
        read_all(Pool(start_worker, workers), make_requests(100))
    assert len(attempts) <= 4 * (workers + 1)


@pytest.mark.parametrize("error", [RunError("the disk is full"), ModelError("no such route")])
def test_a_mill_error_of_one_worker_ends_the_stream(error: MillError) -> None:
    def before(worker: FakeWorker, request: Request) -> None:
        if request.text == "question 010":
            raise error

    factory = WorkerFactory(before)
    pool = Pool(factory.start_worker, 3)
    with pytest.raises(type(error), match=str(error)):
        read_all(pool, make_requests(60))
    pool.close()
    assert [worker.ended for worker in factory.workers_started] == [1] * len(factory.workers_started)


class FailsOnSome(MillModel):
    """Fails on prompts with certain numbers; `received` is shared by all workers."""

    batch_size = 4

    def __init__(self, fails: range, received: list[str]) -> None:
        self.fails, self.received = fails, received

    @property
    def model_name(self) -> str:
        return "picky"

    def _generate_batch(self, batch: list[Request], gen_kwargs: dict[str, Any]) -> list[str]:
        self.received += [request.text for request in batch]
        if any(int(request.text.split()[1]) in self.fails for request in batch):
            raise ValueError("not this one")
        return ["yes"] * len(batch)


@pytest.mark.parametrize(("workers", "fails"), [(2, range(20)), (5, range(90, 150))])
def test_adjacent_failing_requests_do_not_mean_a_broken_model(workers: int, fails: range) -> None:
    """A worker's first chunk may contain only failing requests, since similar prompts are adjacent."""
    requests = make_requests(200)
    seen = read_all(Pool(lambda number: LocalWorker(FailsOnSome(fails, [])), workers), requests)
    assert all_completed(seen, requests)
    assert sum(response.failed for response in seen.responses.values()) == len(fails)


@pytest.mark.parametrize("workers", [1, 5])
def test_a_broken_model_is_detected_before_all_requests_are_tried(workers: int) -> None:
    tried: list[str] = []
    with pytest.raises(ModelBroken, match="not this one"):
        read_all(Pool(lambda number: LocalWorker(FailsOnSome(range(5000), tried)), workers), make_requests(5000))
    assert len(tried) < 200


def test_a_worker_that_cannot_open_the_model_ends_the_stream() -> None:
    """While the other one is at work."""
    over = threading.Event()

    def start_worker(number: int) -> Any:
        if number == 1:
            raise ModelError("no such file")
        return FakeWorker(number, lambda worker, request: until(over.is_set, "end of the stream"))

    with pytest.raises(ModelError, match="no such file"):
        read_all(Pool(start_worker, 2), make_requests(60))
    over.set()


def test_missing_responses_are_an_error_and_repeated_ones_count_once() -> None:
    class OmitsLast(FakeWorker):
        def stream(self, kind: str, requests: Sequence[Request], meter: CallMeter | None = None) -> Iterator[list[Keyed]]:
            yield from super().stream(kind, requests[:-1])

    class Repeating(FakeWorker):
        def stream(self, kind: str, requests: Sequence[Request], meter: CallMeter | None = None) -> Iterator[list[Keyed]]:
            for responses in super().stream(kind, requests):
                yield responses
                yield responses

    with pytest.raises(ModelError, match="answered 9 of 10 requests"):
        read_all(Pool(OmitsLast, 1), make_requests(10))
    requests = make_requests(20)
    assert all_completed(read_all(Pool(Repeating, 2), requests), requests)


def test_an_unused_worker_replaces_one_that_cannot_start() -> None:
    """As a second server does when only one request is left."""
    numbers_started: list[int] = []

    def start_worker(number: int) -> FakeWorker:
        numbers_started.append(number)
        if number == 0:
            raise WorkerLost("cannot reach it")
        return FakeWorker(number)

    pool, only = Pool(start_worker, 3), make_requests(1)
    assert all_completed(read_all(pool, only), only)
    assert numbers_started[0] == 0 and 1 in numbers_started
    pool.slots[0].was_lost = True
    numbers_started.clear()
    assert all_completed(read_all(pool, only), only) and numbers_started == [], "the worker that is up is used first"


def test_a_worker_that_fails_the_canary_is_dropped() -> None:
    """Its server is up, and fails on every request. The other one continues when that was found."""
    found = threading.Event()

    class FailsOnServerOne(FakeWorker):
        def stream(self, kind: str, requests: Sequence[Request], meter: CallMeter | None = None) -> Iterator[list[Keyed]]:
            if self.number == 1 and len(requests) == 1:
                found.set()
                yield [(requests[0].key, Response(error="the canary failed"))]
            elif self.number == 1:
                raise ModelBroken("the server failed on each of the first 8 requests")
            else:
                yield from super().stream(kind, requests)

    def before(worker: FakeWorker, request: Request) -> None:
        if worker.completed:
            until(found.is_set, "canary that failed")

    requests = make_requests(300)
    pool = Pool(lambda number: FailsOnServerOne(number, before), 2)
    assert all_completed(seen := read_all(pool, requests), requests)
    assert not any(response.failed for response in seen.responses.values())


def test_the_portable_identity_is_the_same_on_every_server() -> None:
    one, other = (open_model(f"litellm[model=openai/m,api_base=http://{host}:1,top_p=1]") for host in ("a", "b"))
    assert one.identity() != other.identity() and portable_identity(one) == portable_identity(other)
    assert portable_identity(one)["parameters"] == {"top_p": 1}


@pytest.mark.usefixtures("leaves_threads")
def test_a_worker_that_starts_after_close_is_ended() -> None:
    requested, release, late = threading.Event(), threading.Event(), FakeWorker(1)

    def start_worker(number: int) -> FakeWorker:
        if number == 1:
            requested.set()
            until(release.is_set, "release")
            return late
        return FakeWorker(number, lambda worker, request: until(requested.is_set, "request for the other worker"))

    pool = Pool(start_worker, 2)
    read_all(pool, make_requests(20))
    pool.close()
    release.set()
    until(lambda: late.ended == 1, "end of the late worker")
