"""Servers for tests: a real llama-server in a separate process, and an HTTP server with configurable faults."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.waiting import DEADLINE_S

LLAMA = """
import os, sys, threading, time
parent = os.getppid()
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port = sys.argv[1], int(sys.argv[2])
params.hostnames = ["127.0.0.1"]
params.n_parallel = int(sys.argv[4])
params.n_ctx = 2048 * params.n_parallel
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
if sys.argv[5]:
    params.model_alias = {sys.argv[5]}
if sys.argv[3] == "exact":
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
server = xllamacpp.Server(params)
while os.getppid() == parent:  # never outlives its test
    time.sleep(0.5)
os._exit(0)
"""


_ports = itertools.count(10000 + os.getpid() * 97 % 20000)


def free_port() -> int:
    """A port for a server that cannot choose one. Each testing process begins with another, below those that systems hand
    out, and no port is returned twice."""
    for port in _ports:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError


@contextlib.contextmanager
def serving(environment: dict[str, str], *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """The server of an engine during the block; clients wait for it to come up."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=60)


def wait_for(url: str, poll: Callable[[], object], seconds: float = 300) -> None:
    """Wait until a server is healthy; raises where it takes too long, or has ended: `poll` is then not None."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=2).read()
            return
        except OSError:
            if poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server at {url} did not come up") from None
            time.sleep(0.2)


@contextlib.contextmanager
def llama_server(
    model: Path, *, exact: bool = False, slots: int = 2, alias: str = "", port: int | None = None
) -> Iterator[str]:
    """The URL of a llama-server (through xllamacpp: the same server, routes and JSON).

    `exact` keeps the KV cache in float32 and disables flash attention, which rounds to 16 bits on a CPU.
    """
    port = port or free_port()
    process = start_llama(model, port, exact=exact, slots=slots, alias=alias)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(url, process.poll)
        yield url
    finally:
        process.kill()
        process.wait()


def start_llama(model: Path, port: int, *, exact: bool = False, slots: int = 2, alias: str = "") -> subprocess.Popen[bytes]:
    command = llama_command(model, port, exact=exact, slots=slots, alias=alias)
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def llama_command(model: Path, port: int, *, exact: bool = False, slots: int = 2, alias: str = "") -> list[str]:
    return [sys.executable, "-c", LLAMA, str(model), str(port), "exact" if exact else "", str(slots), alias]


Answer = Callable[["FaultServer", str, dict[str, Any]], Any]


class FaultServer:
    """Answers every POST with what `answer(server, path, body)` returns: a JSON object, or a Fault."""

    def __init__(self, answer: Answer, models: tuple[str, ...] = ("m",), port: int = 0) -> None:
        self.answer, self.models, self.port = answer, models, port
        self.metadata: dict[str, Any] = {}
        """Further fields of each model in /v1/models."""
        self.down: Fault | None = None
        """Returned instead of any response, as by a proxy whose server is down."""
        self.gets: dict[str, Any] = {}
        """The response to a GET of each path: a JSON object, or a Fault."""
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.in_flight = self.max_in_flight = 0
        self.lock = threading.Lock()

    def __enter__(self) -> FaultServer:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                outer.headers.append(dict(self.headers))
                if outer.down is not None:
                    outer.down.play(self)
                elif self.path in outer.gets:
                    self.send(outer.gets[self.path])
                elif self.path == "/v1/models":
                    self.reply(200, {"data": [{"id": name, **outer.metadata} for name in outer.models]})
                else:
                    self.reply(404, {"error": {"message": "no such route"}})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
                with outer.lock:
                    outer.calls.append((self.path, body))
                    outer.headers.append(dict(self.headers))
                    outer.in_flight += 1
                    outer.max_in_flight = max(outer.max_in_flight, outer.in_flight)
                try:
                    response = outer.down or outer.answer(outer, self.path, body)
                finally:
                    with outer.lock:
                        outer.in_flight -= 1
                self.send(response)

            def send(self, response: Any) -> None:
                if isinstance(response, Fault):
                    response.play(self)
                else:
                    self.reply(200, response)

            def reply(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
                raw = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(raw)), **(headers or {})}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(raw)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 512
            over = threading.Event()

            def handle_error(self, *_: Any) -> None:
                pass

        self.server = Server(("127.0.0.1", self.port), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.server.over.set()
        self.server.shutdown()
        self.server.server_close()


class Fault:
    """A fault that real servers show."""

    def __init__(self, play: Callable[[Any], None]) -> None:
        self.play = play


def status(code: int, message: str = "no", **headers: str) -> Fault:
    sent_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return Fault(lambda handler: handler.reply(code, {"error": {"message": message}}, sent_headers))


def garbage() -> Fault:
    return Fault(lambda handler: handler.reply(200, b"<html>not json</html>"))


def stall() -> Fault:
    """No answer until the server ends."""
    return Fault(lambda handler: handler.server.over.wait(DEADLINE_S))


def cut() -> Fault:
    def play(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b'{"choices": [{"te')
        handler.wfile.flush()
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)

    return Fault(play)


def raw(body: bytes | str, code: int = 200, **headers: str) -> Fault:
    """A response of these bytes and headers."""
    sent_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    content = body.encode() if isinstance(body, str) else body
    return Fault(lambda handler: handler.reply(code, content, sent_headers))


def events(*lines: str, finish: bool = True) -> Fault:
    """A stream of server-sent events, cut before its end where `finish` is False."""
    pieces = [f"data: {line}\n\n" for line in lines]
    return chunked([*pieces, "data: [DONE]\n\n"] if finish else pieces)


def chunked(
    pieces: Iterable[bytes | str], *, pause: float = 0.0, content_type: str = "text/event-stream", **headers: str
) -> Fault:
    """A body of unknown length, sent piece by piece, with so many seconds between two, until the client disconnects."""

    def play(handler: Any) -> None:
        handler.send_response(200)
        sent_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        for name, value in {"Content-Type": content_type, "Connection": "close", **sent_headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.close_connection = True
        with contextlib.suppress(OSError):
            for piece in pieces:
                handler.wfile.write(piece.encode() if isinstance(piece, str) else piece)
                handler.wfile.flush()
                if pause and handler.server.over.wait(pause):
                    return

    return Fault(play)


def post_all(server: FaultServer, count: int = 1, **arguments: Any) -> list[Any]:
    """Post `count` times; returns the results in order."""
    from mill.models.http.client import Client

    caller = Client(server.url, **{"timeout": 5.0, **arguments})

    async def work(number: int) -> Any:
        return (await caller.post("/ask", {"number": number})).body

    by_number = results(caller, range(count), work)
    return [by_number[number] for number in range(count)]


def results(caller: Any, items: Iterable[Any], work: Callable[[Any], Awaitable[Any]]) -> dict[Any, Any]:
    """The result of each item's work, or its Failure."""
    from mill.models.http.failures import Failure

    async def caught(item: Any) -> Any:
        try:
            return await work(item)
        except Failure as failure:
            return failure

    return dict(caller.run_all(items, caught))
