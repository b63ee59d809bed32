"""Tools between two rounds of a dialog: what each kind of call gives the model, and runs that are killed and resumed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mill.api.consent import Consent, consenting
from mill.api.request import MULTI_ROUND, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample
from mill.api.tools import ERROR, MALFORMED, OK, TIMED_OUT, UNKNOWN, ToolCall
from mill.execute.sample_state import SampleState, execute_call, run_tools
from mill.runs.rescore import score_again
from mill.sandbox.programs import chosen_sandbox
from mill.score.run_scores import Outcome
from mill.tasks.load import load_files, make_task, select
from tests.plans import prepare
from tests.runs.faults import ROOT, assert_resumes_after_kills

AGENT = ROOT / "tests/toy_agent.py"
SPEC = "toy-agent[path=toy]"


@pytest.fixture(autouse=True)
def loaded() -> None:
    load_files((str(AGENT),))


def run(out: Path, limit: int = 40, **settings: object) -> Outcome:
    made = RenderSettings(**settings)  # type: ignore[arg-type]
    return prepare(SPEC, select(["toy_agent"]), made, output_dir=out, limit=limit).execute(quiet=True)


@pytest.mark.parametrize(
    ("call", "outcome", "output"),
    [
        (ToolCall.parse("add", {"a": "1", "b": "2"}), OK, "3"),
        (ToolCall.parse("add", '{"a": "1", '), MALFORMED, 'the arguments are not a JSON object: {"a": "1", '),
        (ToolCall.parse("subtract", "{}"), UNKNOWN, "there is no tool 'subtract'; there are: add, tick, hang, much"),
        (ToolCall.parse("add", {"a": "one", "b": "2"}), ERROR, "ValueError: invalid literal"),
        (ToolCall.parse("add", {"c": "1"}), ERROR, "TypeError"),
        (ToolCall.parse("hang", {}), TIMED_OUT, "TimeoutError: it took too long"),
    ],
)
def test_the_model_gets_the_result_of_every_call(call: ToolCall, outcome: str, output: str) -> None:
    result = execute_call(make_task("toy_agent"), Sample("0", {"question": "q"}), call)
    assert result.outcome == outcome and result.output.startswith(output)


def test_a_tool_that_does_not_return_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    task, over = make_task("toy_agent"), threading.Event()
    monkeypatch.setattr(type(task), "tool_timeout_s", 0.01)
    monkeypatch.setattr(type(task), "call_tool", lambda *given: str(over.wait()))
    result = execute_call(task, Sample("0", {"question": "q"}), ToolCall.parse("hang", {}))
    over.set()
    assert (result.outcome, result.output) == (TIMED_OUT, "the tool gave no answer in 0.01 s")


def test_an_agent_answers_after_its_rounds_and_each_round_holds_those_before(tmp_path: Path) -> None:
    outcome = run(tmp_path)
    (scored,) = outcome.scored.values()
    assert outcome.errors == 0 and len(scored) == 40
    outcomes = {result.outcome for one in scored for response in one.responses[0] for result in response.tool_results}
    assert outcomes == {OK, ERROR, MALFORMED, UNKNOWN, TIMED_OUT}
    for one in scored:
        *calling, last = one.responses[0]
        assert calling and all(response.tool_calls for response in calling) and not last.tool_calls
        roles = [message["role"] for message in one.messages[0]]
        expected = ["system", "user"]
        for response in calling:
            expected += ["assistant", *["tool"] * len(response.tool_calls)]
        assert roles == expected
    assert outcome.tasks[0].metrics["tool_calls"].value > 2


def test_a_long_output_is_shortened_for_the_model(tmp_path: Path) -> None:
    def longest(outcome: Outcome) -> int:
        (scored,) = outcome.scored.values()
        responses = [response for one in scored for response in one.responses[0]]
        return max(len(result.output) for response in responses for result in response.tool_results if result.name == "much")

    assert 100 < longest(run(tmp_path / "a")) < 150
    assert 1000 < longest(run(tmp_path / "b", max_tool_output=1000)) < 1050


def test_an_agent_run_killed_at_random_moments_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    assert_resumes_after_kills(tmp_path, kills=4, tasks="toy_agent", model=SPEC, file=AGENT)


def test_a_tool_that_answered_is_not_called_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file counts calls, and the answer depends on them: a second call would change every later round."""
    counter = tmp_path / "ticks"
    monkeypatch.setenv("TOY_TICK", str(counter))
    first = run(tmp_path / "out")
    calls = counter.stat().st_size
    assert calls > 3
    again = run(tmp_path / "out")
    assert counter.stat().st_size == calls and again.tally.computed == 0
    rescored = score_again(first.folder)
    assert counter.stat().st_size == calls
    assert rescored.tasks[0].metrics == first.tasks[0].metrics == again.tasks[0].metrics


class Nothing:
    """A store without responses."""

    def get(self, request: Request) -> Response | None:
        return None

    def put(self, request: Request, response: Response) -> Response:
        return response

    def supersede(self) -> None:
        pass


def test_tools_run_in_the_sandbox_of_their_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """They run in threads."""
    monkeypatch.setattr(type(make_task("toy_agent")), "call_tool", lambda *given: chosen_sandbox().name)
    for name in ("none", "bubblewrap"):
        request = Request(MULTI_ROUND, "q", options={"round": 0})
        state = SampleState(make_task("toy_agent"), Sample("0", {"question": "q"}), RenderSettings(), [], [[request]])
        state.answers[request.key] = [Response(text="", tool_calls=(ToolCall.parse("add", {}),))]
        with consenting(Consent(sandbox=name)):
            run_tools(Nothing(), [(state, [request])])
        assert [result.output for result in state.answers[request.key][0].tool_results] == [name]
