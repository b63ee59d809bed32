"""A pool with servers that go away: every request completes exactly once, and the stream always ends."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from mill.api.errors import MillError, ModelBroken, ModelError, RunError, ServerGone
from mill.api.model import MillModel, StreamContext
from mill.api.request import GENERATE, Request
from mill.api.response import Response
from mill.execute import pool as pool_module
from mill.execute.pool import SMALL_CHUNK, Pool
from mill.execute.workers import portable_identity
from mill.models.spec.open import open_model
from tests.waiting import DEADLINE_S, until


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short ones before a server is tried again."""
    monkeypatch.setattr(pool_module, "FIRST_PAUSE_S", 0.005)
    monkeypatch.setattr(pool_module, "LONGEST_PAUSE_S", 0.01)


Before = Callable[["FakeModel", Request], object]


class FakeModel(MillModel):
    """Answers one request after another; `before(model, request)` may raise, or return an error."""

    model_name = "fake"

    def __init__(self, number: int, before: Before = lambda model, request: None) -> None:
        self.number, self.before, self.completed = number, before, 0
        self.canary: Request | None = None

    def stream_responses(self, kind: str, requests: Sequence[Request], context: StreamContext) -> Iterator[Any]:
        self.canary = context.canary
        for request in requests:
            if context.meter is not None and not context.meter.room(request):
                return
            error = self.before(self, request)
            self.completed += 1
            yield request, Response(error=error) if isinstance(error, str) else Response(text=f"re: {request.text}")

    def warnings(self) -> list[str]:
        return ["slow"]


class Servers:
    """Opens models and keeps a list of them."""

    def __init__(self, before: Before = lambda model, request: None) -> None:
        self.before = before
        self.opened: list[FakeModel] = []

    def open(self, number: int) -> FakeModel:
        self.opened.append(FakeModel(number, self.before))
        return self.opened[-1]


def make_requests(count: int) -> list[Request]:
    return [Request(GENERATE, f"question {number:03}") for number in range(count)]


def read_all(pool: Pool, requests: Sequence[Request], context: StreamContext | None = None) -> dict[str, Response]:
    """The response to each prompt. Raises the pool's exception; fails where the stream, or a thread of it, does not end."""
    responses: dict[str, Response] = {}
    times: Counter[str] = Counter()
    outcome: list[BaseException | None] = []

    def read() -> None:
        try:
            for request, response in pool.stream(GENERATE, requests, context or StreamContext()):
                responses[request.text] = response
                times[request.text] += 1
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    assert outcome, "the stream did not end"
    for worker in pool._threads:
        worker.join(DEADLINE_S)
        assert not worker.is_alive()
    if outcome[0] is not None:
        raise outcome[0]
    assert not times or set(times.values()) == {1}
    return responses


@pytest.mark.parametrize("workers", [2, 5])
def test_every_request_is_answered_once_and_servers_stay_open(workers: int) -> None:
    servers = Servers()
    pool = Pool(servers.open, workers)
    for _ in range(2):
        responses = read_all(pool, make_requests(60))
        assert {text: response.text for text, response in responses.items()} == {
            request.text: f"re: {request.text}" for request in make_requests(60)
        }
    assert sorted(model.number for model in servers.opened) == sorted({model.number for model in servers.opened})
    assert pool.warnings() == ["slow"]
    assert any(model.canary is not None for model in servers.opened), "of the first stream, for the second"


def test_a_server_that_goes_away_within_a_chunk_is_used_again_when_it_is_back() -> None:
    """Each of three goes away once; then each answers again."""
    answered: set[int] = set()

    def before(model: FakeModel, request: Request) -> None:
        if model in servers.opened[:3]:
            until(lambda: len(servers.opened) >= 3, "three servers")
            if model.completed == 3:
                raise ServerGone("killed or crashed")
        else:
            answered.add(model.number)
            until(lambda: len(answered) == 3, "three servers that are back")

    servers = Servers(before)
    pool = Pool(servers.open, 3)
    responses = read_all(pool, make_requests(50))
    assert len(responses) == 50 and not any(response.failed for response in responses.values())
    assert "servers that were lost and tried again: 3" in pool.warnings()


@pytest.mark.parametrize(("workers", "poison"), [(2, {0, 1}), (4, {3, 20, 39})])
def test_a_request_on_which_servers_die_is_an_error(workers: int, poison: set[int]) -> None:
    deadly = {f"question {number:03}" for number in poison}

    def before(model: FakeModel, request: Request) -> None:
        if request.text in deadly:
            raise ServerGone("killed or crashed")

    responses = read_all(Pool(Servers(before).open, workers), make_requests(40))
    assert len(responses) == 40 and {text for text, response in responses.items() if response.failed} == deadly
    assert all("the server died" in (responses[text].error or "") for text in deadly)


@pytest.mark.parametrize("opens", [True, False], ids=["all die", "none opens"])
@pytest.mark.parametrize("workers", [2, 4])
def test_the_stream_fails_where_no_server_is_left(workers: int, opens: bool) -> None:
    attempts: list[int] = []

    def die(model: FakeModel, request: Request) -> None:
        raise ServerGone("out of memory")

    def open_fake(number: int) -> FakeModel:
        attempts.append(number)
        if not opens:
            raise ServerGone("out of memory")
        return FakeModel(number, die)

    with pytest.raises(ModelError, match=r"servers were lost .* and none has answered since: out of memory"):
        read_all(Pool(open_fake, workers), make_requests(400))
    assert len(attempts) <= 4 * (workers + 1)


def test_the_others_answer_while_a_server_cannot_be_reached() -> None:
    """However often it is tried while another one computes."""
    attempts: list[int] = []

    def open_fake(number: int) -> FakeModel:
        if number == 0:
            attempts.append(number)
            raise ServerGone("cannot reach it")
        return FakeModel(number, lambda model, request: until(lambda: len(attempts) > 20, "many attempts"))

    assert len(read_all(Pool(open_fake, 2), make_requests(1))) == 1


@pytest.mark.parametrize("error", [RunError("the disk is full"), ModelError("no such route")])
def test_a_mill_error_of_one_server_ends_the_stream(error: MillError) -> None:
    def before(model: FakeModel, request: Request) -> None:
        if request.text == "question 010":
            raise error

    with pytest.raises(type(error), match=str(error)):
        read_all(Pool(Servers(before).open, 3), make_requests(60))


def test_a_model_that_cannot_be_opened_ends_the_stream_and_the_threads_of_others() -> None:
    refused = threading.Event()

    def open_fake(number: int) -> FakeModel:
        if number == 1:
            refused.set()
            raise ModelError("another model")
        return FakeModel(number, lambda model, request: until(refused.is_set, "the refusal"))

    with pytest.raises(ModelError, match="another model"):
        read_all(Pool(open_fake, 2), make_requests(60))


class FailsOnSome(MillModel):
    """Fails on prompts with certain numbers; `received` is shared by all workers."""

    batch_size = 4
    model_name = "picky"

    def __init__(self, fails: range, received: list[str]) -> None:
        self.fails, self.received = fails, received

    def _generate_batch(self, batch: list[Request], gen_kwargs: dict[str, Any]) -> list[str]:
        self.received += [request.text for request in batch]
        if any(int(request.text.split()[1]) in self.fails for request in batch):
            raise ValueError("not this one")
        return ["yes"] * len(batch)


@pytest.mark.parametrize(("workers", "fails"), [(2, range(20)), (5, range(90, 150))])
def test_adjacent_failing_requests_do_not_mean_a_broken_model(workers: int, fails: range) -> None:
    """A worker's first chunk may contain only failing requests, since similar prompts are adjacent."""
    responses = read_all(Pool(lambda number: FailsOnSome(fails, []), workers), make_requests(200))
    assert len(responses) == 200 and sum(response.failed for response in responses.values()) == len(fails)


def test_a_broken_server_waits_for_an_answer_of_another() -> None:
    broken = threading.Event()

    def before(model: FakeModel, request: Request) -> None:
        if model.number == 1 and not broken.is_set():
            broken.set()
            raise ModelBroken("failed on each of the first 8 requests")
        until(broken.is_set, "the broken server")

    responses = read_all(Pool(Servers(before).open, 2), make_requests(300))
    assert len(responses) == 300 and not any(response.failed for response in responses.values())


@pytest.mark.parametrize("workers", [2, 5])
def test_a_broken_model_is_detected_before_all_requests_are_tried(workers: int) -> None:
    tried: list[str] = []
    with pytest.raises(ModelBroken, match="not this one"):
        read_all(Pool(lambda number: FailsOnSome(range(5000), tried), workers), make_requests(5000))
    assert len(tried) < 200


def test_missing_responses_are_an_error_and_repeated_ones_count_once() -> None:
    class OmitsLast(FakeModel):
        def stream_responses(self, kind: str, requests: Sequence[Request], context: StreamContext) -> Iterator[Any]:
            yield from super().stream_responses(kind, requests[:-1], context)

    class Repeating(FakeModel):
        def stream_responses(self, kind: str, requests: Sequence[Request], context: StreamContext) -> Iterator[Any]:
            for completed in super().stream_responses(kind, requests, context):
                yield from (completed, completed)

    with pytest.raises(ModelError, match="answered 9 of 10 requests"):
        read_all(Pool(OmitsLast, 1), make_requests(10))
    assert len(read_all(Pool(Repeating, 2), make_requests(20))) == 20


def test_a_server_that_fails_the_canary_gets_no_work_until_it_answers() -> None:
    """It is up, went away once, and then fails on every request, twice. The other one answers two requests meanwhile."""
    sent: list[tuple[int, str]] = []

    def before(model: FakeModel, request: Request) -> str | None:
        if model.number == 0:
            if model.completed == 2:
                until(lambda: len(servers.opened) == 5, "third return of the other server")
            return None
        until(lambda: any(other.completed >= 2 for other in servers.opened), "a canary")
        sent.append((len(servers.opened), request.text))
        if len(servers.opened) == 2:
            raise ServerGone("killed")
        return "not yet" if len(servers.opened) < 5 else None

    servers = Servers(before)
    responses = read_all(Pool(servers.open, 2), make_requests(300))
    assert len(responses) == 300 and not any(response.failed for response in responses.values())
    canary = sent[1][1]
    assert sent[1:4] == [(3, canary), (4, canary), (5, canary)] and len(sent) > 4


def test_the_meter_is_asked_before_each_request_and_what_has_no_room_stays_open() -> None:
    class Meter:
        def __init__(self) -> None:
            self.asked, self.lock = 0, threading.Lock()

        def room(self, request: Request) -> bool:
            with self.lock:
                self.asked += 1
                return self.asked <= 10

    meter: Any = Meter()
    assert len(read_all(Pool(Servers().open, 2), make_requests(60), StreamContext(meter))) == 10
    assert 11 <= meter.asked <= 12, "each of two workers is refused once, at most"


def test_what_a_budget_reaches_are_the_first_requests() -> None:
    """In the order in which they are given, also where their prompts are in another."""

    class Meter:
        left, lock = 150, threading.Lock()

        def room(self, request: Request) -> bool:
            with self.lock:
                self.left -= 1
                return self.left >= 0

    meter: Any = Meter()
    requests = make_requests(1000)[::-1]
    answered = read_all(Pool(Servers().open, 2), requests, StreamContext(meter))
    assert len(answered) == 150
    assert set(answered) < {request.text for request in requests[: 150 + 2 * SMALL_CHUNK]}


def test_the_portable_identity_is_the_same_on_every_server() -> None:
    first, second = (open_model(f"litellm[model=openai/m,api_base=http://{host}:1,top_p=1]") for host in ("a", "b"))
    assert first.identity() != second.identity() and portable_identity(first) == portable_identity(second)
    assert portable_identity(first)["parameters"] == {"top_p": 1}


def test_closing_the_stream_ends_the_threads() -> None:
    closed = threading.Event()
    servers = Servers(lambda model, request: model.completed and until(closed.is_set, "the end of the stream"))
    pool = Pool(servers.open, 2)
    stream = pool.stream(GENERATE, make_requests(5000), StreamContext())
    next(stream)
    stream.close()
    closed.set()
    for thread in pool._threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert all(model.completed <= 2 for model in servers.opened)
