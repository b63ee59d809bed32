"""Outages of a server: waited for, verified after its return, and never recorded as responses."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mill.api.errors import ModelBroken, ModelError, ServerGone
from mill.api.model import StreamContext, run_requests
from mill.api.request import GENERATE, Request, generation_options
from mill.api.response import Response
from mill.models.http import policy
from mill.models.http.server import ServerModel
from mill.models.spec.open import open_model
from tests.launching import run, toy
from tests.outcomes import recorded, samples
from tests.servers import Fault, FaultServer, cut, free_port, stall, status
from tests.waiting import DEADLINE_S, until


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("mill.models.http.server.POLL_S", 0.05)
    monkeypatch.setattr("mill.models.http.policy.RECHECK_PAUSES_S", (0.5,))


WAITS = "wait_for_server"
Outage = dict[str, threading.Event]


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Outage:
    """What a model has done since its server went down: it looks whether the server is back, and then waits for it."""

    def noting(method: Callable[..., Any], event: threading.Event) -> Callable[..., Any]:
        def called(*given: Any) -> Any:
            event.set()
            return method(*given)

        return called

    events = {name: threading.Event() for name in ("verify", WAITS)}
    for name, event in events.items():
        monkeypatch.setattr(ServerModel, name, noting(getattr(ServerModel, name), event))
    return events


class Restarting:
    """A server that crashes on certain prompts, and restarts at once or when a model does what `returns` says."""

    def __init__(
        self, deadly: Callable[[str, int], bool], outage: Outage, *, root: str = "a", returns: str | None = WAITS
    ) -> None:
        self.deadly, self.root, self.returns, self.outage = deadly, root, returns, outage
        self.starts = 1
        self.received: Counter[str] = Counter()
        self.port, self.lock = free_port(), threading.Lock()
        self.up: FaultServer | None = self._start("a")
        self.url = self.up.url

    def _start(self, root: str) -> FaultServer:
        server = FaultServer(self._answer, port=self.port)
        server.metadata["root"] = root
        return server.__enter__()

    def _answer(self, server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        prompt = body["prompt"]
        with self.lock:
            if server is not self.up:
                raise ConnectionError("gone")  # a connection that was still open
            self.received[prompt] += 1
            if self.deadly(prompt, self.received[prompt]):
                self.up = None
                for event in self.outage.values():
                    event.clear()
                threading.Thread(target=self._restart, args=(server,), daemon=True).start()
                raise ConnectionError("gone")
        return {"choices": [{"text": f"re: {prompt}", "finish_reason": "stop"}]}

    def _restart(self, server: FaultServer) -> None:
        server.__exit__()
        if self.returns in self.outage:
            assert self.outage[self.returns].wait(DEADLINE_S), f"the model did not {self.returns}"
        if self.returns is not None:
            with self.lock:
                self.starts += 1
                self.up = self._start(self.root)

    def close(self) -> None:
        self.returns = None
        with self.lock:
            if self.up is not None:
                self.up.__exit__()


@pytest.fixture
def restarting(outage: Outage) -> Iterator[Callable[..., Restarting]]:
    made: list[Restarting] = []

    def make(deadly: Callable[[str, int], bool], **more: Any) -> Restarting:
        made.append(Restarting(deadly, outage, **more))
        return made[-1]

    yield make
    for server in made:
        server.close()


def send_prompts(
    url: str, count: int = 40, patience: float = 20.0, streamed: dict[str, Response] | None = None, timeout: float = 120.0
) -> dict[str, Response]:
    """The response to every prompt, each streamed once; `streamed` also has them where an exception follows."""
    model: Any = open_model(f"openai-compat[model=m,base_url={url},concurrency=4,timeout={timeout}]")
    model.ready()
    streamed = {} if streamed is None else streamed
    options = generation_options(max_gen_toks=4)
    requests = [Request(GENERATE, f"q {number:02}", options=options) for number in range(count)]
    for request, response in run_requests(model, GENERATE, requests, StreamContext(outage_patience_s=patience)):
        assert request.text not in streamed
        streamed[request.text] = response
    return streamed


def test_server_restart_resends_unanswered_requests(restarting: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = restarting(lambda prompt, times: prompt in ("q 07", "q 25") and times == 1)
    responses = send_prompts(server.url)
    assert len(responses) == 40 and all(response.text == f"re: {text}" for text, response in responses.items())
    assert "waiting for it to come back" in caplog.text


def test_a_request_that_always_crashes_the_server_is_an_error(restarting: Any) -> None:
    responses = send_prompts(restarting(lambda prompt, times: prompt == "q 07").url)
    assert [text for text, response in responses.items() if response.failed] == ["q 07"]
    assert "the server crashed on this request" in str(responses["q 07"].error) and len(responses) == 40


class FailingServer:
    """A server that fails on some prompts, or on all after `good` prompts."""

    def __init__(self, fault: Fault, *, bad: Callable[[str], bool] = lambda prompt: False, good: int = 1 << 30) -> None:
        self.fault, self.bad, self.good, self.received = fault, bad, good, Counter[str]()

    def __call__(self, server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        prompt = body["prompt"]
        self.received[prompt] += 1
        if self.bad(prompt) or len(self.received) > self.good:
            return self.fault
        return {"choices": [{"text": f"re: {prompt}", "finish_reason": "stop"}]}


FAULTS = {"silent": stall(), "broken": status(500, "the engine is dead")}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_server_that_fails_on_every_request_ends_the_stream_early(fault: Fault) -> None:
    answers = FailingServer(fault, good=30)
    streamed: dict[str, Response] = {}
    with FaultServer(answers) as server, pytest.raises(ServerGone, match="even on one that it answered before"):
        send_prompts(server.url, count=400, streamed=streamed, timeout=0.6)
    assert len(streamed) < 30 + 16 + 8
    assert sum(not response.failed for response in streamed.values()) <= 30


def test_requests_that_failed_during_an_outage_are_sent_again() -> None:
    """As after a restart, when a proxy forwards requests before the server is ready."""
    cold = threading.Event()

    def canary_failed(server: FaultServer) -> bool:
        """The canary is the first prompt that is sent twice."""
        prompts = [body["prompt"] for _, body in [*server.calls] if str(body.get("prompt")).startswith("q ")]
        return len(set(prompts)) < len(prompts)

    def end_outage(server: FaultServer) -> None:
        until(lambda: canary_failed(server) and not server.in_flight, "canary that failed")
        server.down = None

    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if not cold.is_set() and body["prompt"] == "q 20":
            cold.set()
            server.down = status(404, "warming up")
            threading.Thread(target=end_outage, args=(server,), daemon=True).start()
        return {"choices": [{"text": "yes", "finish_reason": "stop"}]}

    with FaultServer(answer) as server:
        responses = send_prompts(server.url, count=400)
    assert cold.is_set() and len(responses) == 400 and not any(response.failed for response in responses.values())


def test_a_run_with_only_failing_samples_left_ends(tmp_path: Path) -> None:
    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if "toy_gen 1" in body["prompt"]:
            return status(400, "not this one")
        return {"choices": [{"text": "yes", "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}

    with FaultServer(answer) as server:
        command = toy(tmp_path, "toy_gen", model=f"openai-compat[model=m,base_url={server.url}]")
        for _ in range(2):
            code, stderr = run(command)
            assert code == 1 and stderr == ""
    assert sum(bool(row["error"]) for row in samples(tmp_path)["toy_gen.jsonl"]) == 11


def test_one_failing_server_of_several_causes_no_errors(tmp_path: Path) -> None:
    fault = status(401, "revoked")
    bad = FailingServer(fault, good=6)
    with FaultServer(FailingServer(fault)) as first, FaultServer(bad) as second:
        both = toy(tmp_path, "toy_gen", "--base_url", f"{first.url},{second.url}", model="openai-compat[model=m]")
        code, stderr = run(both)
    assert code == 0 and "even on one that it answered before" in stderr, stderr
    assert len(bad.received) > 6 and len(recorded(tmp_path)) == 40


def test_a_server_that_refuses_calls_leaves_its_requests_to_others(tmp_path: Path) -> None:
    """Alone it would get each of them two dozen times."""
    busy = FailingServer(status(429, "slow down", Retry_After="0"), good=3)
    with FaultServer(answer) as first, FaultServer(busy) as second:
        both = toy(tmp_path, "toy_gen", "--base_url", f"{first.url},{second.url}", model="openai-compat[model=m]")
        code, stderr = run(both)
    assert code == 0 and "a server was lost (HTTP 429: slow down); the others continue" in stderr, stderr
    assert len(recorded(tmp_path)) == 40 and len(second.calls) < 200


def test_a_server_that_does_not_return_ends_the_stream_without_errors(restarting: Any) -> None:
    with pytest.raises(ServerGone, match="cannot reach"):
        send_prompts(restarting(lambda prompt, times: prompt == "q 07", returns=None).url, patience=0.5)


@pytest.mark.parametrize("returns", ["at once", "verify", WAITS])
def test_responses_of_a_server_that_returns_with_another_model_are_refused(restarting: Any, returns: str) -> None:
    """After any time, even at once."""
    server = restarting(lambda prompt, times: prompt == "q 07" and times == 1, root="b", returns=returns)
    streamed: dict[str, Response] = {}
    with pytest.raises(ModelError, match="came back with another model"):
        send_prompts(server.url, streamed=streamed)
    assert len(streamed) <= 8 + 4 and not any(response.failed for response in streamed.values())


def test_a_server_that_crashes_on_every_request_ends_the_stream(restarting: Any) -> None:
    server = restarting(lambda prompt, times: prompt.startswith("q"), returns="at once")
    with pytest.raises(ModelBroken, match="crashed on every request"):
        send_prompts(server.url)
    assert server.starts <= 1 + policy.ATTEMPTS * (4 + 6), "four at once, then one by one; not as often as there are prompts"


def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
    return {"choices": [{"text": f"re: {body['prompt']}", "finish_reason": "stop"}]}


@pytest.mark.parametrize("fault", [status(502), cut()], ids=["502", "cut"])
def test_a_server_behind_a_proxy_is_waited_for(fault: Fault, outage: Outage) -> None:
    def end_outage(server: FaultServer) -> None:
        assert outage[WAITS].wait(DEADLINE_S)
        server.down = None

    def failing_once(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if body["prompt"] == "q 07" and server.calls.count((path, body)) == 1:
            server.down = fault
            threading.Thread(target=end_outage, args=(server,), daemon=True).start()
        return answer(server, path, body)

    with FaultServer(failing_once) as server:
        responses = send_prompts(server.url)
    assert len(responses) == 40 and not any(response.failed for response in responses.values())


def test_a_server_that_never_succeeds_ends_the_stream() -> None:
    def failing(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        return status(400, "no such thing") if body["prompt"].startswith("q") else answer(server, path, body)

    with FaultServer(failing) as server:
        with pytest.raises(ModelBroken, match="failed on each of the first 8 requests: HTTP 400: no such thing"):
            send_prompts(server.url, 200)
        assert len(server.calls) < 40
