"""Budgets of runs: where they stop, what they say, and what counts. An answer of the toy model has 3 + 2 tokens."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mill.api.judge import Judge
from mill.api.model import MillModel, ModelCapabilities
from mill.api.registry import register_model, register_task
from mill.api.request import GENERATE, Request, generation_options
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Task, TaskType, Value
from mill.cli.main import run
from mill.store.folder import RunFolder
from mill.store.session import spent_so_far
from tests.outcomes import only, recorded, samples, scores, sessions
from tests.runs.faults import TOY, computed
from tests.servers import FaultServer, status
from tests.waiting import DEADLINE_S, until

TOKENS = 5  # of an answer of the toy model
Mill = Callable[..., tuple[int, str, str]]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def mill(out: Path, toy_here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Mill:
    monkeypatch.setenv("COLUMNS", "200")

    def call(model: str, tasks: str, *options: str) -> tuple[int, str, str]:
        toy_here.write_text("")
        code = run(["eval", model, tasks, "--task_paths", str(TOY), "--output_dir", str(out), "--quiet", *options])
        return code, *capsys.readouterr()

    return call


def spent(out: Path) -> int:
    """The tokens of the only run, as its sessions say."""
    amounts, _ = spent_so_far(RunFolder(only(out, "manifest.json").parent))
    return sum(usage.total for usage in amounts.values())


# Local models.


def test_a_run_stops_at_its_budget_and_continues_with_a_larger_one(mill: Mill, out: Path, toy_here: Path) -> None:
    code, printed, _ = mill("toy[path=toy]", "toy_gen", "--max_tokens_total", "60")
    assert (code, len(computed(toy_here)), spent(out)) == (4, 12, 60)
    assert "stopped at the budget of 60 tokens: 12 of 30 samples; the same command with a larger budget" in printed
    assert "spent: 60 tokens" in printed
    result = scores(out)["tasks"]["toy_gen"]
    assert (result["n"], result["pending"], result["total"], result["errors"]) == (12, 18, 30, 0)
    assert result["sampled"]["method"] == "first"
    first = "first 12 rows, not a random sample (--sample draws one)"
    assert result["warnings"] == [first, "the run stopped at the budget of 60 tokens: 12 of 30 samples"]
    assert f"toy_gen: {first}" in printed
    assert result["metrics"]["exact_match"]["n"] == 12
    assert [session["ended"] for session in sessions(out)] == ["stopped"]
    # The first samples are done, as with --limit 12.
    pending = [row["status"] == "pending" for row in samples(out)["toy_gen.jsonl"]]
    assert pending == [False] * 12 + [True] * 18

    code, printed, _ = mill("toy[path=toy]", "toy_gen", "--max_tokens_total", "60")
    assert (code, computed(toy_here), spent(out)) == (4, [], 60)
    assert "stopped at the budget of 60 tokens: 12 of 30 samples" in printed

    code, printed, _ = mill("toy[path=toy]", "toy_gen", "--max_tokens_total", "1k")
    assert (code, len(computed(toy_here)), spent(out)) == (0, 18, 150)
    assert "stopped" not in printed and "pending" not in scores(out)["tasks"]["toy_gen"]
    assert scores(out)["tasks"]["toy_gen"]["warnings"] == []


def test_sessions_of_an_earlier_version_count(mill: Mill, out: Path, toy_here: Path) -> None:
    """The manifest has them; no session has a file."""
    assert mill("toy[path=toy]", "toy_gen", "--limit", "10")[0] == 0
    (file,) = out.glob("*/*/sessions/*.json")
    file.unlink()
    assert spent(out) == 50
    assert mill("toy[path=toy]", "toy_gen", "--max_tokens_total", "60")[0] == 4
    assert len(computed(toy_here)) == 2


def test_dialogs_that_are_cut_are_pending_and_resume_in_the_middle(mill: Mill, out: Path, toy_here: Path) -> None:
    code, printed, _ = mill("toy[path=toy]", "toy_dialog", "--limit", "2", "--max_tokens_total", "20")
    assert (code, len(computed(toy_here))) == (4, 4), "both first rounds, and two of the second"
    assert "stopped at the budget of 20 tokens: 0 of 2 samples" in printed
    result = scores(out)["tasks"]["toy_dialog"]
    assert (result["n"], result["pending"], result["errors"]) == (0, 2, 0)
    code, *_ = mill("toy[path=toy]", "toy_dialog", "--limit", "2", "--max_tokens_total", "1k")
    assert (code, len(computed(toy_here)), spent(out)) == (0, 2, 30)


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that are added to the time; pauses are over at once, and in the list."""
    seconds, clock = [0.0], time.monotonic
    for name in ("monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, lambda: clock() + sum(seconds))
    monkeypatch.setattr(time, "sleep", seconds.append)
    return seconds


def test_time_is_a_budget(
    mill: Mill, out: Path, toy_here: Path, passed: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request takes 5 seconds. Nothing is known about the first of them, and those after it are half of what fits."""
    monkeypatch.setenv("TOY_DELAY", "5")
    code, printed, _ = mill("toy[path=toy]", "toy_gen", "--max_time", "90s")
    assert code == 4
    assert "stopped at the budget of 1m30s" in printed
    done = len(computed(toy_here))
    assert 16 <= done <= 19
    code, *_ = mill("toy[path=toy]", "toy_gen", "--max_time", "90s")
    assert (code, computed(toy_here)) == (4, [])
    assert mill("toy[path=toy]", "toy_gen", "--max_time", "1h30m")[0] == 0


def test_sessions_at_the_same_time_count_once(mill: Mill, out: Path) -> None:
    assert mill("toy[path=toy]", "toy_gen", "--limit", "2")[0] == 0
    folder = RunFolder(only(out, "manifest.json").parent)
    alone = spent_so_far(folder)[1]
    (file,) = (folder.path / "sessions").glob("*.json")
    file.with_name(f"another-{file.name}").write_bytes(file.read_bytes())
    amounts, seconds = spent_so_far(folder)
    assert seconds == pytest.approx(alone) and amounts["model"].total == 2 * 2 * TOKENS


def test_a_stopped_run_is_scored_again_as_it_was(mill: Mill, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mill("toy[path=toy]", "toy_gen,toy_choice", "--max_tokens_total", "60")
    before = scores(out)
    run(["score", str(only(out, "manifest.json").parent), "--task_paths", str(TOY)])
    assert scores(out) == before


# Money.


def test_a_budget_in_dollars(mill: Mill, out: Path, toy_here: Path) -> None:
    # 3 prompt tokens for $1 a million and 2 output tokens for $2 a million: 7 millionths of a dollar for an answer.
    price = ("--price", "in=1,out=2")
    code, printed, _ = mill("toy[path=toy]", "toy_gen", "--max_cost", "0.00007", *price)
    assert (code, len(computed(toy_here))) == (4, 10)
    assert "stopped at the budget of $7e-05: 10 of 30 samples" in printed and "spent: 50 tokens, $7e-05" in printed
    code, *_ = mill("toy[path=toy]", "toy_gen", "--max_cost", "0.00007", "--price", "in=0,out=2")
    assert (code, len(computed(toy_here))) == (4, 8), "40 of 70 were spent by these prices, and 4 are for an answer"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--max_tokens_total", "20X"), "--max_tokens_total must be a number of tokens from 1 to 10^15, such as"),
        (("--max_tokens_total", "99999999999999999999B"), "--max_tokens_total must be a number of tokens from 1 to 10^15"),
        (("--max_cost", "1000000001"), "--max_cost must be an amount of dollars above 0, up to 10^9"),
        (("--max_time", "2x"), "--max_time must be a time above 0"),
        (("--max_time", "30m2h"), "--max_time must be a time above 0"),
        (("--max_cost", "much"), "--max_cost must be an amount of dollars above 0"),
        (("--price", "in=1,out=x"), "--price: out=x is no price"),
        (("--price", "in=1,out=2,tax=3"), "'tax' has no price: names are in, out, cached, reasoning"),
        (("--judge_price", "in=1,out=1"), "--judge_price has no effect without --judge"),
    ],
)
def test_bad_values_are_one_line(mill: Mill, out: Path, options: Sequence[str], message: str) -> None:
    code, _, err = mill("toy[path=toy]", "toy_gen", *options)
    assert code == 2 and len(err.splitlines()) == 1 and message in err and not out.exists()


# Judges.


class Echo(MillModel):
    """Answers with 10 tokens to a prompt of 10."""

    def __init__(self, name: str = "echo") -> None:
        self.name, self.capabilities = name, ModelCapabilities(supports_chat_template=False)

    @property
    def model_name(self) -> str:
        return self.name

    def _generate_batch(self, batch: list[Request], gen_kwargs: dict[str, Any]) -> list[Response]:
        return [Response(text="VERDICT: CORRECT", prompt_tokens=10, output_tokens=10) for _ in batch]


class JudgedTask(Task):
    task_type = TaskType.GENERATIVE_QA
    metrics = {"exact_match": "mean"}
    judge: Judge | None = Judge(max_gen_toks=10)

    def samples(self) -> Sequence[Sample]:
        return [Sample(str(number), {"question": f"question {number}"}) for number in range(10)]

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        return [Request(GENERATE, sample.doc["question"], options=generation_options(max_gen_toks=10))]

    def target(self, sample: Sample) -> str:
        return ""

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {"exact_match": 0.0}

    def judged_fields(self, sample: Sample, responses: Sequence[Response]) -> dict[str, str]:
        # Equal answers to one question would be judged once.
        return {**super().judged_fields(sample, responses), "question": sample.doc["question"]}


@pytest.fixture
def judged() -> None:
    register_model("echo")(Echo)
    register_task("judged_budget")(JudgedTask)


def test_judges_spend_from_the_same_budget(mill: Mill, judged: None, out: Path) -> None:
    judge = ("--judge", "echo[name=judge]")
    code, printed, _ = mill("echo", "judged_budget", *judge, "--max_tokens_total", "260")
    assert code == 4, "200 tokens for the answers, and 60 for three judgements"
    assert "stopped at the budget of 260 tokens: 10 of 10 samples, 3 of them judged" in printed
    result = json.loads(next(out.glob("echo-*/*/results.json")).read_text())["tasks"]["judged_budget"]
    assert (result["n"], result["not_judged"], result["errors"]) == (10, 7, 0)
    assert (result["metrics"]["exact_match"]["n"], result["metrics"]["judge"]["n"]) == (10, 3)
    assert "unjudged" not in result, "none of the judgements failed"
    code, printed, _ = mill("echo", "judged_budget", *judge, "--max_tokens_total", "400")
    assert code == 0 and "spent: 400 tokens" in printed
    result = json.loads(next(out.glob("echo-*/*/results.json")).read_text())["tasks"]["judged_budget"]
    assert result["metrics"]["judge"]["n"] == 10 and "not_judged" not in result


# Servers.


def chat(prompt: int = 20, output: int = 4, usage: dict[str, Any] | None = None) -> dict[str, Any]:
    counts = {"prompt_tokens": prompt, "completion_tokens": output, **(usage or {})}
    return {"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}], "usage": counts}


def is_probe(body: dict[str, Any]) -> bool:
    return "toy_gen" not in json.dumps(body)


def test_a_server_gets_no_request_after_the_budget(mill: Mill, out: Path) -> None:
    sent: list[str] = []

    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if not is_probe(body):
            sent.append(path)
            until(lambda: len(sent) == 1 or len(sent) >= 5, "four requests in flight, after the first one alone")
        return chat()

    with FaultServer(answer) as server:
        spec = f"openai-compat[model=m,base_url={server.url},chat=true,concurrency=4]"
        code, printed, _ = mill(spec, "toy_gen", "--max_tokens_total", "240")
        # An answer has 24 tokens of at most 28 or so: the last of ten is sent alone.
        assert (code, len(sent), spent(out)) == (4, 10, 240)
        assert "stopped at the budget of 240 tokens: 10 of 30 samples" in printed
        assert mill(spec, "toy_gen", "--max_tokens_total", "240")[0] == 4 and len(sent) == 10
        assert mill(spec, "toy_gen", "--max_tokens_total", str(30 * 24))[0] == 0 and len(sent) == 30


@pytest.mark.parametrize(("drawn", "reached"), [((), ("--limit", "10")), (("--sample", "20"), ("--sample", "10"))])
def test_a_budget_reaches_the_first_samples_on_a_server(mill: Mill, drawn: Sequence[str], reached: Sequence[str]) -> None:
    """Sorted as texts, "toy_gen 10" would be before "toy_gen 2"."""
    sent: list[str] = []

    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if not is_probe(body):
            sent.append(body["messages"][0]["content"])
        return chat()

    runs = []
    for code, options in ((4, (*drawn, "--max_tokens_total", "240")), (0, reached)):
        sent.clear()
        with FaultServer(answer) as server:
            spec = f"openai-compat[model=m,base_url={server.url},chat=true,concurrency=1]"
            assert mill(spec, "toy_gen", *options)[0] == code
        runs.append(set(sent))
    assert runs[0] == runs[1] and len(runs[0]) == 10


def test_failed_attempts_count_their_prompts_and_stop_at_the_budget(mill: Mill, out: Path) -> None:
    """A server that fails on every second call: no call is made for which there is no room."""
    sent: list[str] = []

    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if is_probe(body):
            return chat()
        text = body["messages"][0]["content"]
        sent.append(text)
        return status(500) if sent.count(text) == 1 else chat(prompt=3, output=4)

    with FaultServer(answer) as server:
        spec = f"openai-compat[model=m,base_url={server.url},chat=true,concurrency=4]"
        code, *_ = mill(spec, "toy_gen", "--max_tokens_total", "100")
        calls = len(sent)
        # A prompt of 9 or 10 characters is estimated to have 3 or 4 tokens: 3 of the failed attempt, 7 of the answer.
        assert code == 4 and 100 <= spent(out) <= 110
        assert 18 <= calls <= 22
        assert mill(spec, "toy_gen", "--max_tokens_total", "100")[0] == 4 and len(sent) == calls


def test_cached_and_reasoning_tokens_have_their_own_prices(mill: Mill, out: Path) -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 10}, "completion_tokens_details": {"reasoning_tokens": 3}}
    with FaultServer(lambda server, path, body: chat(usage=details)) as server:
        spec = f"openai-compat[model=m,base_url={server.url},chat=true]"
        price = ("--price", "in=2,out=10,cached=1,reasoning=20")
        # 10 of 20 prompt tokens are cached and 3 of 4 output tokens are reasoning: (20 + 10 + 10 + 60) / 1e6 dollars.
        code, printed, _ = mill(spec, "toy_gen", "--limit", "5", "--max_cost", "1", *price)
        assert code == 0 and "spent: 120 tokens, $0.0005" in printed
    (response,) = {json.dumps(one, sort_keys=True) for one in recorded(out).values()}
    assert json.loads(response)["cached_tokens"] == 10


def test_a_server_that_stalls_is_abandoned_after_the_time(mill: Mill, out: Path) -> None:
    ended = threading.Event()

    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if is_probe(body):
            return chat()
        if "toy_gen 0" in json.dumps(body):
            return chat()
        ended.wait(DEADLINE_S)
        return chat()

    with FaultServer(answer) as server:
        spec = f"openai-compat[model=m,base_url={server.url},chat=true,concurrency=4]"
        code, printed, err = mill(spec, "toy_gen", "--max_time", "1s")
        ended.set()
    assert code == 4 and "stopped at the budget of 1s" in printed
    assert err.count("the time of the run is over: requests without a response are abandoned") == 1
    assert spent(out) > 4 * 8, "what was abandoned counts with the longest answers"
    assert scores(out)["tasks"]["toy_gen"]["errors"] == 0


# Dry runs.


def test_a_dry_run_estimates_what_a_run_takes(mill: Mill, out: Path) -> None:
    code, printed, _ = mill("toy[path=toy]", "toy_gen", "--dry_run", "--price", "in=1,out=10")
    # 290 characters in 30 prompts, four of them a token, and at most 8 tokens for each answer.
    assert code == 0 and "estimate for toy: about 72 input and at most 240 output tokens, at most $0.00247" in printed
    assert "time unknown" in printed
    mill("toy[path=toy]", "toy_gen", "--limit", "10")
    code, printed, _ = mill("toy[path=toy]", "toy_gen", "--dry_run", "--max_tokens_total", "100", "--max_time", "1h")
    run_folder = only(out, "manifest.json").parent
    assert "about 60 input and about 40 output tokens, cost unknown" in printed
    assert f"(rates of 10 requests in {run_folder})" in printed and "about 1s" in printed
    assert "the budget of 100 tokens and 1h would reach about 10 of the 20 samples that are left" in printed
    assert "would be enough" in mill("toy[path=toy]", "toy_gen", "--dry_run", "--max_tokens_total", "150")[1]
    assert len(list(run_folder.glob("sessions/*"))) == 1, "a dry run writes nothing"
