"""A server that goes away in the middle of the work: waited for, checked when it is back, and never taken for an answer."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mill.api.errors import ModelBroken, ModelError, ServerBroken, ServerGone
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request, generation_options
from mill.api.response import Response
from mill.models.http import client
from mill.models.spec.open import open_model
from tests.launching import ended, run, start_mill, toy, until
from tests.outcomes import recorded, samples, scores
from tests.servers import Fault, FaultServer, cut, free_port, stall, start_llama, status, wait_for

AWAY_S = 1.0  # longer than a call is tried with these pauses


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("mill.models.http.server.POLL_S", 0.05)
    monkeypatch.setattr("mill.models.http.breaker.RECHECK_PAUSES_S", (0.5,))


class Restarting:
    """A server that goes away when it is asked something it cannot bear, and is started again after a while."""

    def __init__(
        self, deadly: Callable[[str, int], bool], *, root: str = "a", returns: bool = True, away: float = AWAY_S
    ) -> None:
        self.deadly, self.root, self.returns, self.away = deadly, root, returns, away
        self.starts = 1
        self.asked: Counter[str] = Counter()
        self.port, self.lock = free_port(), threading.Lock()
        self.up: FaultServer | None = self._start("a")
        self.url = self.up.url

    def _start(self, root: str) -> FaultServer:
        server = FaultServer(self._answer, port=self.port)
        server.mill_lines["root"] = root
        return server.__enter__()

    def _answer(self, server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        prompt = body["prompt"]
        with self.lock:
            if server is not self.up:
                raise ConnectionError("gone")  # a connection that was open
            self.asked[prompt] += 1
            if self.deadly(prompt, self.asked[prompt]):
                self.up = None
                threading.Thread(target=self._restart, args=(server,), daemon=True).start()
                raise ConnectionError("gone")
        return {"choices": [{"text": f"re: {prompt}", "finish_reason": "stop"}]}

    def _restart(self, server: FaultServer) -> None:
        server.__exit__()
        time.sleep(self.away)
        if self.returns:
            with self.lock:
                self.starts += 1
                self.up = self._start(self.root)

    def close(self) -> None:
        self.returns = False
        with self.lock:
            if self.up is not None:
                self.up.__exit__()


@pytest.fixture
def restarting() -> Iterator[Callable[..., Restarting]]:
    made: list[Restarting] = []

    def make(*arguments: Any, **more: Any) -> Restarting:
        made.append(Restarting(*arguments, **more))
        return made[-1]

    yield make
    for server in made:
        server.close()


def ask(
    url: str, count: int = 40, patience: float = 20.0, seen: dict[str, Response] | None = None, timeout: float = 120.0
) -> dict[str, Response]:
    """The response to every prompt, each of which was streamed once; `seen` has them also where an error follows."""
    model: Any = open_model(f"openai-compat[model=m,base_url={url},concurrency=4,timeout={timeout}]")
    model.outage_patience_s = patience
    model.ready()
    seen = {} if seen is None else seen
    options = generation_options(max_gen_toks=4)
    requests = [Request(GENERATE, f"q {number:02}", options=options) for number in range(count)]
    for request, response in model.stream_responses(GENERATE, requests):
        assert request.text not in seen
        seen[request.text] = response
    return seen


def test_a_server_that_is_started_again_answers_the_rest(restarting: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = restarting(lambda prompt, times: prompt in ("q 07", "q 25") and times == 1)
    found = ask(server.url)
    assert len(found) == 40 and all(response.text == f"re: {text}" for text, response in found.items())
    assert "waiting for it to come back" in caplog.text


def test_a_question_that_always_ends_the_server_is_an_error_of_its_own(restarting: Any) -> None:
    found = ask(restarting(lambda prompt, times: prompt == "q 07").url)
    assert [text for text, response in found.items() if response.failed] == ["q 07"]
    assert "the server crashed on this request" in str(found["q 07"].error) and len(found) == 40


class Spoilt:
    """A server that fails on some questions, or on all once it was asked so many."""

    def __init__(self, fault: Fault, *, bad: Callable[[str], bool] = lambda prompt: False, good: int = 1 << 30) -> None:
        self.fault, self.bad, self.good, self.asked = fault, bad, good, Counter[str]()

    def __call__(self, server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        prompt = body["prompt"]
        self.asked[prompt] += 1
        if self.bad(prompt) or len(self.asked) > self.good:
            return self.fault
        return {"choices": [{"text": f"re: {prompt}", "finish_reason": "stop"}]}


FAULTS = {"silent": stall(20), "broken": status(500, "the engine is dead")}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_server_that_answers_nothing_any_more_ends_the_run_early(fault: Fault) -> None:
    answers = Spoilt(fault, good=30)
    seen: dict[str, Response] = {}
    with FaultServer(answers) as server, pytest.raises(ServerGone, match="even on one that it answered before"):
        ask(server.url, count=400, seen=seen, timeout=1.0)
    assert len(seen) < 30 + 16 + 8
    assert sum(not response.failed for response in seen.values()) <= 30


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_server_that_fails_on_many_neighbours_is_asked_on(fault: Fault) -> None:
    answers = Spoilt(fault, bad=lambda prompt: prompt in BAD)
    with FaultServer(answers) as server:
        found = ask(server.url, count=60, timeout=1.0)
    assert len(found) == 60 and {text for text, response in found.items() if response.failed} == BAD


def test_what_failed_while_a_server_was_not_itself_is_asked_again() -> None:
    """As one that is back, whose proxy finds it before it is warm."""
    cold = threading.Event()

    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if not cold.is_set() and body["prompt"] == "q 20":
            cold.set()
            server.down = status(404, "warming up")
            threading.Timer(0.3, lambda: setattr(server, "down", None)).start()
        return {"choices": [{"text": "yes", "finish_reason": "stop"}]}

    with FaultServer(answer) as server:
        found = ask(server.url, count=400)
    assert cold.is_set() and len(found) == 400 and not any(response.failed for response in found.values())


def test_scores_that_are_no_numbers_are_failures_too() -> None:
    good = threading.Semaphore(30)

    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if path == "/tokenize" or "prompt_logprobs" in body:
            return status(404 if path == "/tokenize" else 400)
        words = body["prompt"].split(" ")
        value = -1.0 if good.acquire(blocking=False) else float("nan")
        places = [max(0, sum(len(word) + 1 for word in words[:place]) - 1) for place in range(len(words) + 1)]
        mill_lines = {
            "tokens": [words[0], *(f" {word}" for word in words[1:]), "x"],
            "token_logprobs": [None, *[value] * len(words)],
            "top_logprobs": [None, *[{"a": value}] * len(words)],
            "text_offset": places,
        }
        return {"choices": [{"text": "x", "finish_reason": "stop", "logprobs": mill_lines}]}

    with FaultServer(answer) as server:
        model = open_model(f"openai-compat[model=m,base_url={server.url},concurrency=4]")
        model.ready()
        with pytest.raises(ServerBroken, match="NaN"):
            model.loglikelihood([Request(LOGLIKELIHOOD, f"q {number:04} what", " choice") for number in range(100)])


def test_a_run_of_which_only_failing_samples_are_left_comes_to_its_end(tmp_path: Path) -> None:
    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if "toy_gen 1" in body["prompt"]:
            return status(400, "not this one")
        return {"choices": [{"text": "yes", "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}

    with FaultServer(answer) as server:
        command = toy(tmp_path, "toy_gen", model=f"openai-compat[model=m,base_url={server.url}]")
        for _ in range(2):
            code, said = run(command)
            assert code == 1 and said == ""
    assert sum(bool(row["error"]) for row in samples(tmp_path)["toy_gen.jsonl"]) == 11


@pytest.mark.parametrize("fault", [status(400, "bad"), status(401, "revoked")], ids=["refused", "locked"])
def test_a_server_among_several_that_answers_nothing_any_more_leaves_no_errors(fault: Fault, tmp_path: Path) -> None:
    bad = Spoilt(fault, good=6)
    with FaultServer(Spoilt(fault)) as first, FaultServer(bad) as second:
        both = toy(tmp_path, "toy_gen", "--base_url", f"{first.url},{second.url}", model="openai-compat[model=m]")
        code, said = run(both)
    assert code == 0 and "even on one that it answered before" in said, said
    assert len(bad.asked) > 6 and len(recorded(tmp_path)) == 40


BAD = {f"q {number:02}" for number in range(20, 38)}


def test_a_server_that_stays_away_ends_the_run_and_no_sample_is_blamed(restarting: Any) -> None:
    with pytest.raises(ServerGone, match="cannot reach"):
        ask(restarting(lambda prompt, times: prompt == "q 07", returns=False).url, patience=0.5)


@pytest.mark.parametrize("away", [0.0, 0.05, AWAY_S])
def test_nothing_is_taken_from_a_server_that_comes_back_with_another_model(restarting: Any, away: float) -> None:
    """However soon it is back."""
    server, seen = restarting(lambda prompt, times: prompt == "q 07" and times == 1, root="b", away=away), {}
    with pytest.raises(ModelError, match="came back with another model"):
        ask(server.url, seen=seen)
    assert len(seen) <= 8 + 4 and not any(response.failed for response in seen.values())


def test_a_server_that_goes_away_whatever_it_is_asked_is_given_up(restarting: Any) -> None:
    server = restarting(lambda prompt, times: prompt.startswith("q"), away=0.05)
    with pytest.raises(ModelBroken, match="crashed on every request"):
        ask(server.url)
    assert server.starts < 15


def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
    return {"choices": [{"text": f"re: {body['prompt']}", "finish_reason": "stop"}]}


@pytest.mark.parametrize("sign", [status(502), cut()], ids=["502", "cut"])
def test_a_server_behind_a_proxy_is_waited_for_too(sign: Fault) -> None:
    def going(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if body["prompt"] == "q 07" and server.calls.count((path, body)) == 1:
            server.down = sign
            threading.Timer(AWAY_S, lambda: setattr(server, "down", None)).start()
        return answer(server, path, body)

    with FaultServer(going) as server:
        found = ask(server.url)
    assert len(found) == 40 and not any(response.failed for response in found.values())


def test_a_server_that_fails_on_everything_ends_the_run() -> None:
    def failing(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        return status(400, "no such thing") if body["prompt"].startswith("q") else answer(server, path, body)

    with FaultServer(failing) as server:
        with pytest.raises(ModelBroken, match="failed on each of the first 8 requests: HTTP 400: no such thing"):
            ask(server.url, 200)
        assert len(server.calls) < 40


def test_a_real_server_that_is_killed_and_started_again(demo_weights: Path, tmp_path: Path) -> None:
    """The same scores as with one that nothing happened to, in one command."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"

    def command(out: str) -> list[str]:
        more = ["--limit", "24", "--gen_kwargs", "max_gen_toks=8"]
        return toy(tmp_path / out, "toy_gen", *more, model=f"llama-cpp[base_url={url}]")

    server = start_llama(demo_weights, port)
    try:
        wait_for(url, server)
        assert run(command("alone"))[0] == 0
        running = start_mill(command("out"))
        until(lambda: len(recorded(tmp_path / "out")) > 4)
        server.kill()
        server.wait()
        assert running.poll() is None, "it ended before the server did"
        server = start_llama(demo_weights, port)
        code, said = ended(running)
    finally:
        server.kill()
        server.wait()
    assert code == 0, said
    texts = [
        [row["responses"][0][0]["text"] for row in samples(tmp_path / out)["toy_gen.jsonl"]] for out in ("out", "alone")
    ]
    assert texts[0] == texts[1] and scores(tmp_path / "out") == scores(tmp_path / "alone")
