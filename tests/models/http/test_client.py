"""The HTTP core with server faults: each ends as a correct response or an error, never as a wrong response."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any

import pytest

from mill.models.http import failures, policy
from mill.models.http.client import Client
from mill.models.http.failures import Failure, read_events
from mill.models.openai_compat.answers import StreamedAnswer
from tests.launching import environment
from tests.servers import Fault, FaultServer, chunked, cut, events, free_port, garbage, post_all, results, stall, status
from tests.waiting import DEADLINE_S, until


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(policy, "LONGEST_PAUSE_S", 0.02)


def once(fault: Fault) -> Callable[..., Any]:
    """Fails the first time, then echoes."""
    return lambda server, path, body: fault if len(server.calls) == 1 else body


@pytest.mark.parametrize(
    "fault",
    [status(429), status(500), status(502), status(503), cut(), garbage()],
    ids=["429", "500", "502", "503", "cut", "garbage"],
)
def test_a_transient_failure_is_retried(fault: Fault) -> None:
    with FaultServer(once(fault)) as server:
        assert post_all(server) == [{"number": 0}]
        assert len(server.calls) == 2


@pytest.mark.parametrize("code", [400, 401, 403, 404, 422])
def test_a_permanent_failure_is_not_retried(code: int) -> None:
    with FaultServer(lambda *_: status(code, "not so")) as server:
        (result,) = post_all(server)
        assert isinstance(result, Failure)
        assert str(result).startswith(f"HTTP {code}: not so")
        assert len(server.calls) == 1


def test_retry_after_is_read_as_seconds_or_as_a_date() -> None:
    assert failures.parse_retry_after("7") == 7
    assert failures.parse_retry_after(formatdate(time.time() + 30, usegmt=True)) == pytest.approx(30, abs=2)
    assert failures.parse_retry_after("99999") == 99999
    assert failures.parse_retry_after("-5") == failures.parse_retry_after("-inf") == 0
    assert failures.parse_retry_after("1e999") == math.inf
    for invalid in ("soon", "nan", "Mon, 99 Foo 2024", "0x10", "1,5"):
        assert failures.parse_retry_after(invalid) is None, invalid
    assert failures.parse_retry_after(None) is None


def test_each_kind_of_failure_has_its_own_attempts() -> None:
    responses = iter([*[status(429)] * policy.ATTEMPTS, status(500), {"fine": True}])
    with FaultServer(lambda *_: next(responses)) as server:
        assert post_all(server) == [{"fine": True}]


def test_a_stall_is_a_timeout_that_names_the_limit() -> None:
    with FaultServer(lambda *_: stall()) as server:
        (result,) = post_all(server, timeout=0.3)
        assert (result.kind, str(result)) == ("timeout", f"no answer from {server.url} within 0.3 s")
        assert len(server.calls) == policy.TIMEOUT_ATTEMPTS


def test_an_absent_server_is_a_connection_failure() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(Failure, match=f"cannot reach {url}: Connection refused") as raised:
        Client(url).probe("GET", "/v1/models")
    assert raised.value.kind == "connection"


def test_connections_and_coroutines_are_bounded_by_the_concurrency() -> None:
    task_counts: list[int] = []

    def answer(server: FaultServer, path: str, body: Any) -> Any:
        return body

    with FaultServer(answer) as server:
        caller = Client(server.url, concurrency=8)

        async def work(number: int) -> Any:
            task_counts.append(len(asyncio.all_tasks()))
            return (await caller.post("/ask", {"number": number})).body["number"]

        result = dict(caller.run_all(iter(range(600)), work))
        assert result == {number: number for number in range(600)}
        assert server.max_in_flight <= 8
        assert max(task_counts) <= 3 * 8  # aiohttp has a task or two for each connection


def test_headers_are_sent_and_not_in_the_repr() -> None:
    with FaultServer(lambda server, path, body: body) as server:
        post_all(server, headers={"Authorization": "Bearer sk-1"})
        assert server.headers[-1]["Authorization"] == "Bearer sk-1"
    assert "sk-1" not in repr(Client("http://x", {"Authorization": "Bearer sk-1"}))


def stream(server: FaultServer) -> Any:
    caller = Client(server.url, timeout=5.0)

    async def work(_: int) -> Any:
        return await caller.stream("/ask", {}, StreamedAnswer)

    return results(caller, [0], work)[0]


def chunk(text: str | None, finish: str | None = None, **more: Any) -> str:
    """An event of a streamed completion."""
    return json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": finish}], **more})


def stepwise(monkeypatch: pytest.MonkeyPatch, *lines: str) -> Any:
    """The reply to a stream in which each event is sent when the client has read the one before, a second later."""
    read = [0]

    class Collector(StreamedAnswer):
        def feed(self, event: Any) -> bool:
            has_text = super().feed(event)
            read[0] += 1
            return has_text

    def pieces() -> Iterator[str]:
        for number, line in enumerate([*lines, "[DONE]"]):
            until(lambda number=number: read[0] >= number, f"sign that event {number} was read")  # type: ignore[misc]
            yield f"data: {line}\n\n"

    async def work(_: int) -> Any:
        return await caller.stream("/ask", {}, Collector)

    monkeypatch.setattr(time, "perf_counter", lambda: float(read[0]))
    with FaultServer(lambda *_: chunked(pieces())) as server:
        caller = Client(server.url)
        return results(caller, [0], work)[0]


ROLE = json.dumps({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
THOUGHT = json.dumps({"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]})


@pytest.mark.parametrize(
    ("lines", "content", "reasoning", "first_token_s"),
    [
        ([chunk("a"), chunk("b"), chunk("", "stop")], "ab", None, 1.0),
        ([ROLE, chunk(None), chunk("yes", "stop")], "yes", None, 3.0),  # the role alone is sent before the first token
        ([THOUGHT, chunk("yes", "stop")], "yes", "hm", 1.0),
    ],
    ids=["text", "role first", "reasoning"],
)
def test_a_stream_has_the_time_of_its_first_token(
    lines: list[str], content: str, reasoning: str | None, first_token_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = stepwise(monkeypatch, *lines)
    assert reply.body["choices"] == [
        {"index": 0, "message": {"content": content, "reasoning_content": reasoning}, "finish_reason": "stop"}
    ]
    assert (reply.first_token_s, reply.seconds) == (first_token_s, len(lines))


@pytest.mark.parametrize(("streams", "connections"), [(False, 1), (True, 3)])
def test_a_streaming_client_has_a_connection_for_each_call(streams: bool, connections: int) -> None:
    ports: set[int] = set()

    def play(handler: Any) -> None:
        ports.add(handler.client_address[1])
        handler.reply(200, {"fine": True})

    with FaultServer(lambda *_: Fault(play)) as server:
        post_all(server, 3, concurrency=1, streams=streams)
    assert len(ports) == connections


def test_a_stream_without_a_finish_reason_is_an_error() -> None:
    with FaultServer(lambda *_: events(chunk("half"))) as server:
        result = stream(server)
        assert isinstance(result, Failure) and result.kind == "cut"
        assert len(server.calls) == policy.ATTEMPTS


@pytest.mark.parametrize("after", [0, 1, 2], ids=["first", "in the middle", "last"])
def test_an_error_event_at_any_position_is_an_error(after: int) -> None:
    lines = [chunk("par"), chunk("tial", "stop")]
    lines.insert(after, json.dumps({"error": {"message": "engine died", "type": "internal"}}))
    with FaultServer(lambda *_: events(*lines)) as server:
        result = stream(server)
    assert isinstance(result, Failure) and str(result) == "the server reported an error: engine died"


ONE = b'{"choices": [{"text": "whole", "finish_reason": "stop"}]}'
LEGAL_STREAMS = {
    "data on two lines": (
        b'data: {"choices":\ndata: [{"text": "whole", "finish_reason": "stop"}]}\n\n',
        b"data: [DONE]\n\n",
    ),
    "CR as line end": (b'data: {"choices": [{"text": "whole", "finish_reason": "stop"}]}\r\rdata: [DONE]\r\r',),
    "CRLF cut in half": (
        b'data: {"choices": [{"text": "whole", "finish_reason": "stop"}]}\r',
        b"\n\r\ndata: [DONE]\r\n\r\n",
    ),
}


@pytest.mark.parametrize("pieces", LEGAL_STREAMS.values(), ids=LEGAL_STREAMS)
def test_events_may_be_cut_anywhere(pieces: tuple[bytes, ...]) -> None:
    """What arrives together is up to the network."""

    class Answer:
        headers: dict[str, str] = {}
        content: Any

        async def one_by_one(self) -> AsyncIterator[bytes]:
            for byte in b"".join(pieces):
                yield bytes([byte])

    async def read() -> list[tuple[str, bytes]]:
        answer = Answer()
        answer.content = SimpleNamespace(iter_any=answer.one_by_one)
        return [event async for event in read_events(answer)]

    whole, done = asyncio.run(read())
    assert json.loads(whole[1]) == json.loads(ONE) and done == ("", b"[DONE]")


def test_the_timeout_of_a_probe_is_at_most_that_of_other_calls() -> None:
    with FaultServer(lambda *_: stall()) as server, pytest.raises(Failure, match=r"within 0\.2 s"):
        Client(server.url, timeout=0.2).probe("POST", "/slow", {}, timeout=60)


def test_a_client_error_in_a_stream_is_not_retried() -> None:
    """Its twin, a server error, is retried; the code in the event decides."""
    for code, calls in ((400, 1), (500, policy.ATTEMPTS)):
        line = json.dumps({"error": {"message": "no", "code": code}})
        with FaultServer(lambda *_, line=line: events(line)) as server:
            assert isinstance(stream(server), Failure)
            assert len(server.calls) == calls


INTERRUPTED = """
import asyncio, os, signal, threading
from tests.servers import post_all, FaultServer, stall
signal.signal(signal.SIGINT, signal.default_int_handler)

first = threading.Lock()

def answer(server, path, body):
    if len(server.calls) >= 2 and first.acquire(blocking=False):
        os.kill(os.getpid(), signal.SIGINT)
    return stall()

async def cell():
    with FaultServer(answer) as server:
        try:
            post_all(server, 20, timeout=1e6)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        os._exit(0)

loop = asyncio.new_event_loop()  # as a kernel's: it handles no signals itself
loop.run_until_complete(cell())
"""


def test_an_interrupt_inside_a_running_event_loop_cancels_calls_in_flight() -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=DEADLINE_S)
    assert ended.stdout == "interrupted\n", ended.stderr


def test_a_call_that_swallows_its_cancellation_is_cancelled_again() -> None:
    """As libraries do where a call ends at the same moment."""
    swallowed = threading.Event()

    async def work(number: int) -> None:
        if number:
            raise ValueError("the end")
        try:
            await asyncio.sleep(DEADLINE_S)
        except asyncio.CancelledError:
            swallowed.set()
        await asyncio.sleep(DEADLINE_S)

    with pytest.raises(ValueError, match="the end"):
        list(Client("http://127.0.0.1:9", concurrency=2).run_all(range(2), work))
    assert swallowed.is_set()
