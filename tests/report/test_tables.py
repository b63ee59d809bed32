"""Tables in a pipe and on a terminal."""

from __future__ import annotations

import pytest

from mill.report.tables import number, print_table

LONG = "results/" + "a-very-long-model-name-" * 12 + "0123abcd/default"


def test_a_pipe_gets_every_cell_on_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    columns = ("run", *(f"column {n}" for n in range(30)), "value")
    print_table(f"would write to {LONG}", columns, [[LONG, *["exact_match_flexible_extract"] * 30, "0.1234"]] * 2)
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == f"would write to {LONG}"
    rows = [line.split() for line in lines if LONG in line]
    assert rows == [[LONG, *["exact_match_flexible_extract"] * 30, "0.1234"]] * 2
    (head,) = [line for line in lines if "column 0" in line]
    assert "column 29" in head and "value" in head


def test_a_terminal_gets_lines_that_fit(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is folded, the number is not."""
    terminal(monkeypatch, 60)
    print_table("", ("run", "value"), [[LONG, "0.12345678"]], numbers=("value",))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert "".join(line.split()[0] for line in lines if line.strip() and "run" not in line.split())[-16:] == LONG[-16:]
    assert any("0.12345678" in line for line in lines)


def test_lines_in_a_pipe_are_not_padded(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("title", ("run", "value", "detail"), [["a", "0.5", ""], ["a longer name", "12", "x"]], numbers=("value",))
    title, head, ruler, *rows = capsys.readouterr().out.split("\n")
    assert title == "title" and set(ruler) == {"─"}
    assert [head, *rows] == ["run            value  detail", "a                0.5", "a longer name     12  x", ""]


ROWS = [
    [f"a-model-of-usual-length-{size}-Instruct", "default", task, "exact_match", "0.1234"]
    for size in ("1.5B", "7B")
    for task in ("gsm8k", "mmlu_high_school_government_and_politics")
]
NAMES = ("model", "settings", "task", "metric", "value")


def terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("LINES", "25")  # without it rich takes a dumb terminal to have 80 columns
    monkeypatch.setenv("TERM", "dumb")


def test_on_a_narrow_terminal_columns_that_rows_share_are_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal(monkeypatch, 80)
    print_table("", NAMES, ROWS, numbers=("value",), group=("model", "settings"))
    head, _, *lines = (line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert head.split() == ["task", "metric", "value"]
    for model in ("1.5B", "7B"):
        first, second, third, *lines = lines
        assert first == f"a-model-of-usual-length-{model}-Instruct, default"
        assert second.split() == ["gsm8k", "exact_match", "0.1234"]
        assert third.split() == ["mmlu_high_school_government_and_politics", "exact_match", "0.1234"]
        assert second.index("exact_match") == third.index("exact_match") == head.index("metric")
    assert lines == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (float("nan"), "NaN"), (float("-inf"), "-inf"), (0.5, "0.5000"), (1234.5, "1,234.5"), (2e6, "2.000e+06")],
)
def test_numbers_for_display(value: float | None, text: str) -> None:
    assert number(value) == text
