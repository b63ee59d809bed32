"""Faults of engines, servers and runs that a gate must find, each with a twin without the fault that passes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mill.cli.main import run
from tests.servers import Fault, FaultServer

PLANTED = str(Path(__file__).with_name("planted.py"))
KEPT, BROKEN, UNDECIDED_EXIT = 0, 3, 5
QUIET = ["--quiet", "--no_report"]
Gate = Callable[..., int]


@pytest.fixture
def gated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Make a check and apply a rule with `mill gate`; returns the exit code of the gate."""
    monkeypatch.chdir(tmp_path)

    def call(rule: str, *check: str) -> int:
        assert run([*check, *QUIET, "--output_dir", "out", "--task_paths", PLANTED]) in (0, 1)
        newest = max(Path("out/checks").glob("*/check.json"), key=lambda file: file.stat().st_mtime_ns)
        return run(["gate", str(newest.parent), "--fail_on", rule])

    return call


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        ("nan", "kl_max>5"),
        ("inf", "kl_max>5"),
        ("inf", "ppl_ratio>50"),
        ("inf", "nonfinite_rate>0"),
        ("wrong logit", "kl_mean>0.01"),
    ],
)
def test_wrong_distributions(gated: Gate, fault: str, rule: str) -> None:
    """NaN, infinite and wrong log-probabilities: two of twelve positions of each text, or one logit everywhere."""
    check = ["compare", "planted[path=base]", "--prompts", "reasoning", "--limit", "6", "--max_tokens", "12"]
    assert gated(rule, *check, "planted[path=twin]") == KEPT
    assert gated(rule, *check, f"planted[path=bad,fault={fault}]") == BROKEN


def completion(text: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"text": text, "finish_reason": "stop", **more}], "usage": {"completion_tokens": 2}, "model": "m"}


def served(answer: Callable[[str], Any]) -> Callable[[FaultServer, str, dict[str, Any]], Any]:
    """A server of plain completions without log-probabilities and chat."""

    def reply(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        scored = "echo" in body or "prompt_logprobs" in body
        return answer(body["prompt"]) if path == "/v1/completions" and not scored else {"choices": []}

    return reply


def compare_servers(gated: Gate, rule: str, good: Callable[[str], Any], other: Callable[[str], Any]) -> int:
    with FaultServer(served(good)) as one, FaultServer(served(other)) as two:
        specs = [f"openai-compat[model=m,base_url={server.url}]" for server in (one, two)]
        labels = ["--label_a", "a", "--label_b", "b"]
        return gated(rule, "compare", *specs, *labels, "--prompts", "reasoning", "--limit", "12", "--no_chat")


def plain(prompt: str) -> Any:
    return completion(f"answer {len(prompt)}")


def test_filtered_answers(gated: Gate) -> None:
    def filtered(prompt: str) -> Any:
        return completion(f"answer {len(prompt)}", finish_reason="content_filter" if len(prompt) % 2 else "stop")

    assert compare_servers(gated, "filtered_rate>0", plain, plain) == KEPT
    assert compare_servers(gated, "filtered_rate>0", plain, filtered) == BROKEN


def stream(text: str, *, whole: bool) -> Fault:
    """Events of a streamed completion; without its last one, partial text looks like an answer."""
    events: list[dict[str, Any]] = [{"choices": [{"text": part}], "model": "m"} for part in text.split()]
    if whole:
        events.append({"choices": [{"text": "", "finish_reason": "stop"}], "model": "m"})
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"

    def play(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body.encode())

    return Fault(play)


def stressed(gated: Gate, rule: str, server: FaultServer) -> int:
    """At the same address each time, so that earlier measurements are in the same folder."""
    model = ["stress", "--model", "m", "--backend", "openai-compat", "--base_url", server.url]
    return gated(rule, *model, "--concurrency", "1", "--repetitions", "1", "--prompts", "reasoning", "--limit", "4")


@pytest.mark.parametrize(("whole", "code"), [(True, KEPT), (False, BROKEN)])
def test_truncated_streams(gated: Gate, whole: bool, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mill.models.http.policy.FIRST_PAUSE_S", 0.001)

    def answer(prompt: str) -> Any:
        cut = len(prompt) % 2 and "one two three" not in prompt
        return stream("so it is", whole=whole or not cut)

    with FaultServer(served(answer)) as server:
        assert stressed(gated, "failure_rate>0", server) == code


def test_stale_latencies(gated: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    pause, counter, pauses = [0.0], time.perf_counter, [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: counter() + sum(pauses))

    def answer(prompt: str) -> Any:
        pauses.append(pause[0])
        return stream("so it is", whole=True)

    with FaultServer(served(answer)) as server:
        assert stressed(gated, "latency_p50>100", server) == KEPT
        assert stressed(gated, "latency_p50>100", server) == KEPT
        pause[0] = 120.0
        assert stressed(gated, "latency_p50>100", server) == BROKEN


def evaluated(name: str) -> str:
    argv = ["eval", f"planted[path={name}]", "planted_first", "--task_paths", PLANTED, "--quiet", "--output_dir", name]
    assert run(argv) == 0
    (manifest,) = Path(name).glob("*/*/manifest.json")
    return str(manifest.parent)


def test_different_data(gated: Gate, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    first, twin = evaluated("first"), evaluated("twin")
    assert gated("unpaired_rate>0", "compare", "--runs", first, twin) == KEPT
    monkeypatch.setenv("PLANTED_OTHER_ROWS", "10")
    assert gated("unpaired_rate>0", "compare", "--runs", first, evaluated("partly")) == BROKEN
    monkeypatch.setenv("PLANTED_OTHER_ROWS", "40")
    other = evaluated("other")
    assert run(["compare", "--runs", first, other, *QUIET, "--task_paths", PLANTED, "--fail_on", "acc_drop>0.01"]) == 2
    assert "same tasks, but different data" in capsys.readouterr().err


def test_a_task_that_fails(gated: Gate) -> None:
    check = ["compare", "planted[path=base]", "--tasks", "planted_first,planted_second", "--forced_tokens", "0"]
    for rule, code in (("failure_rate>0", BROKEN), ("acc_drop>0.01", UNDECIDED_EXIT)):
        assert gated(rule, *check, "planted[path=twin]") == KEPT
        assert gated(rule, *check, "planted[path=bad,fault=second fails]") == code
