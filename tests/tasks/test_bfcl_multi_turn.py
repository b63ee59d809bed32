"""Multi-turn questions of BFCL: the dialog, the state of the APIs between calls, the rules, and runs that are killed.

The API here is written for these tests; `benchmarks/bfcl_multi_turn_agreement.py` compares with the
leaderboard's own checker.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mill.api.errors import DataError
from mill.api.message import Message
from mill.api.response import Response
from mill.api.task import RenderSettings
from mill.api.tools import MALFORMED, OK, TIMED_OUT, UNKNOWN, ToolCall, ToolResult
from mill.cli.main import run
from mill.execute.sample_state import execute_call
from mill.score.run_scores import Outcome
from mill.tasks.bfcl import multi_turn
from mill.tasks.bfcl.multi_turn import MORE_FUNCTIONS, MOST_STEPS, MultiTurnTask
from mill.tasks.bfcl.simulation import CODE, expected_call
from mill.tasks.load import load_files, make_task, select
from tests.outcomes import samples, scores
from tests.plans import prepare
from tests.runs.faults import ROOT
from tests.toy_bfcl import dialog, opens, user, write_package

MODEL = ROOT / "tests/toy_bfcl.py"
BASE = "multi_turn_base"
ROWS = [
    # Two calls in one response, one in another; then a look at the state.
    dialog(0, BASE, user([*opens("a"), *opens("b")], [("close_ticket", {"number": 1})]), user([("list_tickets", {})])),
    dialog(1, BASE, user(opens("c"))),
]
EXPECTED = [
    [["open_ticket('a')", "open_ticket(title='b')", "close_ticket(1)"], ["list_tickets()"]],
    [["open_ticket('other')"]],
]


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    load_files((str(MODEL),))
    monkeypatch.setenv("MILL_BFCL", str(tmp_path / "package"))
    return write_package(tmp_path / "package", BASE, ROWS, EXPECTED)


def task(category: str = BASE) -> MultiTurnTask:
    made = make_task(f"bfcl_{category}")
    assert isinstance(made, MultiTurnTask)
    return made


def evaluated(out: Path, category: str = BASE, **settings: Any) -> Outcome:
    made = RenderSettings(**settings)
    return prepare("toy-caller[path=toy]", select([f"bfcl_{category}"]), made, output_dir=out).execute(quiet=True)


def outputs(outcome: Outcome) -> list[list[str]]:
    """The results of all calls of each sample, of its first repeat."""
    (scored,) = outcome.scored.values()
    rounds = [one.responses[0] for one in scored]
    return [[result.output for response in one for result in response.tool_results] for one in rounds]


def answered(*calls: tuple[str, Any]) -> Response:
    """A response whose calls were executed."""
    made = tuple(ToolCall.parse(name, arguments) for name, arguments in calls)
    return Response(text="", tool_calls=made, tool_results=tuple(ToolResult(call.name, "", OK) for call in made))


DONE = Response(text="Done.")


# Data and code


def test_the_package_is_never_imported(package: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (package / "bfcl_eval/__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.delenv("MILL_BFCL")
    monkeypatch.syspath_prepend(package)  # as if it were installed
    before = set(sys.modules)
    assert evaluated(tmp_path / "out").errors == 0
    assert not {name for name in set(sys.modules) - before if "bfcl_eval" in name or "ticket_api" in name}


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import bfcl_eval.utils", "ImportError: bfcl_eval.utils is not one of the simulated APIs"),
        ("import no_such_package", "No module named 'no_such_package'"),
        ("class TicketAPI(", "SyntaxError"),
        ("class Tickets: pass", "has no attribute 'TicketAPI'"),
    ],
)
def test_code_that_cannot_be_loaded_is_one_line(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], code: str, error: str
) -> None:
    write_package(package, BASE, ROWS, EXPECTED, code)
    assert run(argv(tmp_path / "out")) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and error in line and "simulated APIs of bfcl-eval" in line, line


def argv(out: Path) -> list[str]:
    return ["eval", "toy-caller[path=x]", "bfcl_multi_turn_base", "--task_paths", str(MODEL), "--output_dir", str(out)]


def test_data_without_the_code_is_refused_in_one_line(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MILL_BFCL")
    monkeypatch.setenv("MILL_DATA", str(tmp_path))
    (tmp_path / "gorilla-llm").mkdir()
    (package / "bfcl_eval/data").rename(tmp_path / "gorilla-llm/bfcl")
    assert run(argv(tmp_path / "out")) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "multi-turn questions of BFCL need the whole package" in line and "MILL_BFCL" in line


@pytest.mark.parametrize(
    ("row", "calls", "error"),
    [
        (dialog(0, BASE, user(), involved_classes=["WebSearchAPI"]), [[]], "has the class 'WebSearchAPI'"),
        (dialog(0, BASE, user()), [[], []], "has 1 turns, and expected calls for 2"),
        (dialog(0, BASE, user(), initial_config=1), [[]], "initial_config"),
    ],
)
def test_malformed_data_is_refused(package: Path, row: dict[str, Any], calls: list[list[str]], error: str) -> None:
    write_package(package, BASE, [row], [calls])
    with pytest.raises(DataError, match="BFCL_v4_multi_turn_base") as raised:
        task().samples()
    assert error in str(raised.value)


@pytest.mark.parametrize("text", ["f", "f(", "a.f()", "f(*[1])", "f(**{})", "f(x=g())", "1", "lambda: 0", "f(" * 5000])
def test_expected_calls_are_never_executed(text: str) -> None:
    with pytest.raises(ValueError, match="is not a call of a function with plain values"):
        expected_call(text)
    assert expected_call(" f('a', -1, [1.5, None], b={'k': True})") == ("f", ["a", -1, [1.5, None]], {"b": {"k": True}})


@pytest.mark.parametrize(
    ("found", "instead", "error"),
    [
        ("def open_ticket(", "def opens_ticket(", "do not have the function 'open_ticket'"),
        ("def _load_scenario(", "def _load(", "the APIs of multi_turn_base_0 cannot start: AttributeError"),
    ],
)
def test_apis_that_do_not_fit_the_questions_are_refused_before_the_run(
    package: Path, found: str, instead: str, error: str
) -> None:
    file = package / "bfcl_eval" / CODE / "ticket_api.py"
    assert found in file.read_text()
    file.write_text(file.read_text().replace(found, instead))
    made = task()
    made.configure(RenderSettings())
    with pytest.raises(DataError, match=error):
        made.prepare(made.samples(), RenderSettings())


# The dialog


def test_a_turn_ends_with_an_answer_and_each_round_has_the_rounds_before(tmp_path: Path) -> None:
    outcome = evaluated(tmp_path, system_prompt="Be brief.")
    (scored,) = outcome.scored.values()
    first = scored[0]
    assert [message["role"] for message in first.messages[0]] == [
        "system", "user", "assistant", "tool", "tool", "assistant", "tool", "assistant", "user", "assistant", "tool",
    ]  # fmt: skip
    assert [len(response.tool_calls) for response in first.responses[0]] == [2, 1, 0, 1, 0]
    assert outputs(outcome) == [
        ['{"id": 2, "opened": 1}', '{"id": 3, "opened": 2}', "None", '{"tickets": ["a", "b"]}'],
        ['{"id": 2, "opened": 1}'],
    ]
    assert [one.values["acc"] for one in scored] == [[1.0], [0.0]]
    assert list(scored[1].details) == [{"reason": "TicketAPI.tickets is not as expected after turn 1"}]
    assert scored[0].extracted == (
        '[open_ticket(title="a"), open_ticket(title="b"), close_ticket(number=1)]; [list_tickets()]'
    )


def test_every_repeat_and_sample_has_a_state_of_its_own(tmp_path: Path) -> None:
    rows = [dialog(number, BASE, user(opens("a"), [("list_tickets", {})])) for number in range(3)]
    write_package(tmp_path / "package", BASE, rows, [[["open_ticket('a')"]]] * 3)
    outcome = evaluated(tmp_path / "out", repeats=4, gen_kwargs={"temperature": 1.0})
    (scored,) = outcome.scored.values()
    results = [response.tool_results for one in scored for repeat in one.responses for response in repeat]
    listed = [result.output for found in results for result in found if result.name == "list_tickets"]
    assert listed == ['{"tickets": ["first", "a"]}'] * 12
    assert outcome.tasks[0].metrics["acc"].value == 1.0


def test_missing_functions_come_in_a_turn_of_their_own(package: Path, tmp_path: Path) -> None:
    category = "multi_turn_miss_func"
    row = dialog(0, category, user([("list_tickets", {})]), user(opens("a")), [], missed_function={"2": ["open_ticket"]})
    write_package(package, category, [row], [[["list_tickets()"], [], ["open_ticket('a')", "open_ticket('a')"]]])
    (sample,) = task(category).samples()
    (request,) = task(category).requests(sample, RenderSettings())
    assert [tool.name for tool in request.tools] == ["close_ticket", "list_tickets"]
    second = task(category).next_round(sample, RenderSettings(), [DONE])
    third = task(category).next_round(sample, RenderSettings(), [DONE, DONE])
    assert second is not None and [tool.name for tool in second.tools] == ["close_ticket", "list_tickets"]
    assert third is not None and [tool.name for tool in third.tools] == ["close_ticket", "list_tickets", "open_ticket"]
    assert third.context[-1] == Message("user", MORE_FUNCTIONS)
    notes = [tool.description.removeprefix(f"{tool.name}.") for tool in third.tools]
    assert notes == [" Note that the provided function is in Python 3 syntax."] * 2 + [""]
    assert task(category).next_round(sample, RenderSettings(), [DONE, DONE, DONE]) is None
    # As on the leaderboard: the call is executed before the model has the function, and that turn is not judged.
    outcome = evaluated(tmp_path / "out", category)
    assert outputs(outcome)[0][1:] == ['{"id": 2, "opened": 1}', '{"id": 3, "opened": 2}']
    assert outcome.tasks[0].metrics["acc"].value == 1.0


def test_the_long_context_has_more_data(package: Path, tmp_path: Path) -> None:
    category = "multi_turn_long_context"
    write_package(package, category, [dialog(0, category, user([("list_tickets", {})]))], [[["list_tickets()"]]])
    outcome = evaluated(tmp_path / "out", category)
    assert outputs(outcome) == [['{"tickets": ["first", "more", "more", "more"]}']]
    assert outcome.tasks[0].metrics["acc"].value == 1.0


def test_a_response_that_cannot_be_parsed_ends_the_turn_and_executes_nothing(package: Path, tmp_path: Path) -> None:
    broken = [*opens("a"), ("open_ticket", '{"title": ')]
    row = dialog(0, BASE, user(broken, opens("b")), user([("list_tickets", {})]))
    write_package(package, BASE, [row], [[[], ["list_tickets()"]]])
    (scored,) = evaluated(tmp_path / "out").scored.values()
    first, second, _ = scored[0].responses[0]
    assert [result.outcome for result in first.tool_results] == [OK, MALFORMED]
    assert first.tool_results[0].output.startswith("not executed")
    assert second.tool_results[0].output == '{"tickets": ["first"]}' and scored[0].values["acc"] == [1.0]


def test_a_dialog_ends_where_a_turn_has_too_many_steps(package: Path, tmp_path: Path) -> None:
    def row(number: int, steps: int) -> dict[str, Any]:
        return dialog(number, BASE, user(*[[("list_tickets", {})]] * steps), user([("list_tickets", {})]))

    write_package(package, BASE, [row(0, MOST_STEPS), row(1, MOST_STEPS + 5)], [[["list_tickets()"]] * 2] * 2)
    (scored,) = evaluated(tmp_path / "out").scored.values()
    assert [len(one.responses[0]) for one in scored] == [MOST_STEPS + 3, MOST_STEPS + 1]
    assert [one.values["acc"] for one in scored] == [[1.0], [0.0]]
    assert list(scored[1].details) == [
        {"reason": "the dialog ended in turn 1 of 2: it had more than 20 responses with calls"}
    ]


def test_what_a_call_gives_the_model(package: Path) -> None:
    sample, _ = task().samples()

    def result(call: ToolCall, *before: Response) -> tuple[str, str]:
        found = execute_call(task(), sample, call, [*before, Response(text="", tool_calls=(call,))])
        return found.outcome, found.output

    assert result(ToolCall.parse("close_ticket", {"number": 5})) == (
        OK, "Error during execution: list assignment index out of range",
    )  # fmt: skip
    assert result(ToolCall.parse("close_ticket", {"count": 5}))[1].startswith(
        "Error during execution: TicketAPI.close_ticket()"
    )
    assert result(ToolCall.parse("open_ticket", '{"title": NaN}'))[1].startswith(
        "Error during execution: Out of range float"
    )
    assert result(ToolCall.parse("_load_scenario", {"scenario": {}}))[0] == UNKNOWN
    assert result(ToolCall.parse("eval", {"source": "1"}))[0] == UNKNOWN
    timed_out = Response(
        text="", tool_calls=(ToolCall.parse("open_ticket", {"title": "x"}),), tool_results=(ToolResult("", "", TIMED_OUT),)
    )
    assert result(ToolCall.parse("list_tickets", {}), timed_out) == (OK, '{"tickets": ["first"]}')


def test_a_call_that_never_ends_or_takes_all_memory_is_stopped(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_turn, "CALL_S", 3.0)
    file = package / "bfcl_eval" / CODE / "ticket_api.py"
    hangs = "def list_tickets(self):\n        while True: pass"
    fills = "def list_tickets(self):\n        return {'a': 'x' * (3 << 30)}"
    source = file.read_text()
    assert "def list_tickets(self):" in source
    sample, _ = task().samples()
    first, second = ToolCall.parse("list_tickets", {}), ToolCall.parse("open_ticket", {"title": "x"})
    for body, outcome, output in (
        (hangs, TIMED_OUT, "TimeoutError: the simulated API took more than 3 s"),
        (fills, OK, "Error during execution: "),
    ):
        file.write_text(source.replace("def list_tickets(self):", f"{body}\n\n    def other(self):"))
        made = task()
        begun = Response(text="", tool_calls=(first, second))
        result = execute_call(made, sample, first, [begun])
        assert result.outcome == outcome and result.output.startswith(output)
        after = execute_call(made, sample, second, [replace(begun, tool_results=(result,))])
        assert after.outcome == outcome  # a turn whose call took too long goes no further
        assert (made.next_round(sample, RenderSettings(), [replace(begun, tool_results=(result, after))]) is None) == (
            outcome == TIMED_OUT
        )


# The rules

A, B = ("open_ticket", {"title": "a"}), ("open_ticket", {"title": "b"})
LIST: tuple[str, Any] = ("list_tickets", {})
BOTH = '{"tickets": ["first", "a"]}'


# Expected calls of each turn, the responses, and why they are wrong.
RULES: list[tuple[list[list[str]], list[Response], str]] = [
    ([["open_ticket('a')"]], [answered(A), DONE], ""),
    ([["open_ticket('a')"]], [DONE], "no call in turn 1"),
    ([["open_ticket('a')"]], [answered(B), DONE], "TicketAPI.tickets is not as expected after turn 1"),
    ([["open_ticket('a')"]], [answered(A, LIST), DONE], ""),  # more calls that change nothing
    ([["open_ticket('a')"]], [answered(A), answered(LIST), answered(("sell", {})), DONE], ""),
    ([["open_ticket('a')"]], [answered(A, A), DONE], "TicketAPI.tickets is not as expected after turn 1"),
    ([["open_ticket('a')", "list_tickets()"]], [answered(A), DONE], f"no call up to turn 1 gave {BOTH}"),
    ([["open_ticket('a')", "list_tickets()"]], [answered(LIST, A), DONE], f"no call up to turn 1 gave {BOTH}"),
    ([["list_tickets()"], ["list_tickets()"]], [answered(LIST), DONE, answered(("sell", {})), DONE], ""),  # known before
    ([["list_tickets()"], ["list_tickets()"] * 2], [answered(LIST), DONE, answered(("sell", {})), DONE],
     'no call up to turn 2 gave {"tickets": ["first"]}'),
    ([[], ["open_ticket('a')"]], [answered(A), DONE, answered(LIST), DONE], ""),  # made in a turn that is not judged
    ([[], ["list_tickets()"]], [answered(A), DONE, answered(LIST), DONE],
     "TicketAPI.tickets is not as expected after turn 2"),
    ([[], ["list_tickets()"]], [DONE, answered(LIST), DONE], ""),
    ([["list_tickets()"], []], [answered(LIST), DONE, answered(A), DONE], ""),  # the last turn is not judged
    ([["list_tickets()"], ["list_tickets()"]], [answered(LIST), DONE], "the dialog ended in turn 1 of 2"),
    ([["list_tickets()"]], [answered(LIST)], ""),  # the last response allowed has a call
    ([["list_tickets()"]], [replace(answered(LIST), tool_results=())],
     'no call up to turn 1 gave {"tickets": ["first"]}'),  # not executed, after the limit of rounds
    ([["list_tickets()"]], [answered(("list_tickets", "{")), DONE],
     "the arguments of a call are not a JSON object in turn 1"),
]  # fmt: skip


def test_rules(package: Path) -> None:
    rows = [dialog(number, BASE, *[user()] * len(expected)) for number, (expected, _, _) in enumerate(RULES)]
    write_package(package, BASE, rows, [expected for expected, _, _ in RULES])
    made = task()
    for sample, (_, turns, reason) in zip(made.samples(), RULES, strict=True):
        assert made.wrong(sample, turns) == reason, sample.id
        assert made.score(sample, turns) == {"acc": float(not reason)}


# Runs


def test_a_run_is_scored_again_with_the_code_and_not_without_it(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert run(argv(out)) == 0, capsys.readouterr().err
    first, lines = scores(out), samples(out)
    folder = str(next(out.glob("*/*/results.json")).parent)
    capsys.readouterr()
    monkeypatch.setenv("MILL_BFCL", str(tmp_path / "nowhere"))
    assert run(["score", folder]) == 2
    assert "which is no wheel or folder of bfcl-eval" in capsys.readouterr().err
    assert scores(out) == first and samples(out) == lines
    monkeypatch.setenv("MILL_BFCL", str(package))
    assert run(["score", folder]) == 0, capsys.readouterr().err
    assert scores(out) == first and first["tasks"]["bfcl_multi_turn_base"]["metrics"]["acc"]["value"] == 0.5
