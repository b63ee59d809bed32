"""Checks on the terminal and in Markdown, as other programs read them."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from mill.checks.glossary import METRICS, format_value
from mill.checks.result import Check, Variant, read_check
from mill.metrics.estimate import around
from mill.metrics.paired import rate
from mill.report.checks import details, print_check
from mill.report.sections import summary_markdown

HOSTILE = "a|b <script>alert(1)</script> [x](http://y) **c** `d` _e_ &lt; \\"


def made(*labels: str) -> Check:
    metrics = {"match_rate": rate(9, 10), "flip_rate": rate(1, 10), "kl_mean": around(0.000012, 0.000003, 80)}
    counts = {"samples": 10, "severity_identical": 9, "severity_failed": 1}
    variants = [Variant(label, metrics=metrics, counts=counts, p_values={"flip_rate": 0.0123}) for label in labels]
    return Check("sweep", ["some_task"], variants, "the baseline")


def cells(markdown: str) -> list[list[str]]:
    """The rows of the first table, as markdown-it reads it."""
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown)
    rows: list[list[str]] = []
    for token, after in pairwise(tokens):
        if token.type == "tr_open":
            rows.append([])
        elif token.type in ("th_open", "td_open"):
            rows[-1].append("".join(child.content for child in after.children or [] if child.type != "text_special"))
    return rows


def test_the_table_has_a_column_for_each_variant() -> None:
    rows = cells(summary_markdown(made("four bits", "eight bits")))
    assert rows[0] == ["metric", "four bits", "eight bits"]
    assert ["same text", "90.0 % (55.5 % – 99.7 %)", "90.0 % (55.5 % – 99.7 %)"] in rows
    assert ["answer flips", *["10.0 % (0.25 % – 44.5 %) p=0.012"] * 2] in rows
    assert ["KL mean", *["1.2e-05 (6.0e-06 – 1.8e-05)"] * 2] in rows
    assert ["identical / minor / moderate / severe / empty / failed", *["9 / 0 / 0 / 0 / 0 / 1"] * 2] in rows
    assert [row[0] for row in rows if row[1:] == ["", ""]] == ["text", "answers", "distributions"]  # their names


def test_names_are_no_markup() -> None:
    check = made(HOSTILE, "plain")
    check.warnings = [HOSTILE]
    check.variants[0].series = {"errors": [{"id": "1", "error": HOSTILE}]}
    text = summary_markdown(check)
    page = MarkdownIt("commonmark").enable("table").render(text)
    assert not re.search(r"<(script|a |em|code)", page)
    bold = re.findall("<strong>(.*?)</strong>", page)
    assert bold == ["the baseline", "text", "answers", "distributions"]  # which mill sets in bold
    assert {len(row) for row in cells(text)} == {3}


@pytest.mark.parametrize("label", ["a\\|b", "a\\", "\\\\|"])
def test_a_backslash_does_not_start_a_cell(label: str) -> None:
    """GitHub reads a backslash before a backslash as an escape: what follows is then a bare pipe."""
    header = next(line for line in summary_markdown(made(label)).splitlines() if line.startswith("| metric"))
    assert len(re.findall(r"(?:\\.|[^|\\])+", header)) == 2


@pytest.mark.parametrize("label", ["two\nlines", "two\r\nlines", "two\rlines"])
def test_a_name_of_several_lines_stays_in_its_cell(label: str) -> None:
    assert cells(summary_markdown(made(label)))[0][1].split() == ["two", "lines"]


@pytest.mark.parametrize(("width", "tables"), [(1000, 1), (100, 6)])
def test_every_metric_is_shown_for_any_number_of_variants(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, tables: int
) -> None:
    """In one table, or in blocks of columns that fit."""
    monkeypatch.setattr("mill.report.tables.PLAIN_WIDTH", width)
    print_check(made(*(f"variant {n}" for n in range(6))))
    out = capsys.readouterr().out
    assert out.count("90.0 % (55.5 %") == out.count("(6.0e-06") == out.count("p=0.012") == 6
    assert out.count("same text") == out.count("KL mean") == tables and out.count("sweep on some_task") == 1
    assert max(map(len, out.splitlines())) <= width


def test_labels_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_check(made("[red]x[/red]"))
    assert "[red]x[/red]" in capsys.readouterr().out


def test_counts_errors_and_warnings_are_below_the_table() -> None:
    counts = {"samples": 10, "runs": 4, "failed": 2, "diverged": 3, "near_ties": 1, "positions": 90, "forced_texts": 8}
    variant = Variant("b", counts=counts, warnings=["a warning"], series={"errors": [{"id": "7", "error": "HTTP 500"}]})
    assert details(variant) == [
        "10 samples x 4 runs, 2 failed, 3 diverge (1 at a near-tie); 90 positions of 8 texts scored by both",
        "sample 7: HTTP 500",
        "a warning",
    ]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("flip_rate", 0.0123, "1.23 %"),
        ("acc_drop", -0.02, "-2.00 %"),
        ("kl_mean", 0.0, "0"),
        ("kl_mean", 0.00001234, "1.2e-05"),
        ("latency_p50", 1.23456, "1.235 s"),
        ("ppl_ratio", 1.00004, "1.0000"),
        ("tokens_per_s", 12345.6, "12,346"),
        ("kl_max", float("inf"), "inf"),
        ("kl_max", float("nan"), "NaN"),
        ("kl_max", None, "-"),
    ],
)
def test_values_for_display(name: str, value: float | None, text: str) -> None:
    assert name in METRICS and format_value(name, value) == text


def test_several_tasks_have_a_table_with_those_that_changed_most_first(capsys: pytest.CaptureFixture[str]) -> None:
    check = made("four bits")
    sure, changed = [1.0, 0.9, 1.0, 10], [0.2, 0.0, 0.5, 10]
    check.variants[0].groups = [
        {"task": "same", "category": "same", "n": 10, "match_rate": sure, "flip_rate": [0.0, 0.0, 0.1, 10]},
        {
            "task": "other",
            "category": "law",
            "n": 10,
            "match_rate": sure,
            "flip_rate": changed,
            "acc_baseline": sure,
            "acc": changed,
        },
    ]
    print_check(check)
    lines = capsys.readouterr().out.splitlines()
    head = lines.index("four bits by task")
    assert lines[head + 1].split("  ")[0] == "task"
    table = [line.split() for line in lines[head + 2 :] if line.startswith(("other / law", "same"))]
    assert table[0] == ["other", "/", "law", "10", "100.0", "%", "20.0", "%", "100.0", "%", "20.0", "%"]
    assert table[1] == ["same", "10", "100.0", "%", "0.00", "%", "-", "-"]
    assert "| other / law | 10 | 100.0 % | 20.0 % | 100.0 % | 20.0 % |" in summary_markdown(check)


def test_a_score_that_is_no_number_is_shown(tmp_path: Path) -> None:
    """The file of a check has it as a text."""
    check = made("b")
    numbers = {"match_rate": (0.9, 0.5, 1.0, 10), "score_baseline": (math.nan, None, None, 0), "score": (2.5, 2.0, 3.0, 10)}
    check.variants[0].groups = [{"task": name, "category": name, "n": 10, **numbers} for name in ("one", "two")]
    read = read_check(check.save(tmp_path))
    assert "| one | 10 | 90.0 % | - | NaN | 2.500 |" in summary_markdown(read)
