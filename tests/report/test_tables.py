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
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "dumb")
    print_table("", ("run", "value"), [[LONG, "0.12345678"]], numbers=("value",))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert "".join(line.split()[0] for line in lines if line.strip() and "run" not in line.split())[-16:] == LONG[-16:]
    assert any("0.12345678" in line for line in lines)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (float("nan"), "NaN"), (float("-inf"), "-inf"), (0.5, "0.5000"), (1234.5, "1,234.5"), (2e6, "2.000e+06")],
)
def test_numbers_for_display(value: float | None, text: str) -> None:
    assert number(value) == text
