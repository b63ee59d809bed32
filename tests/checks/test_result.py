"""Checks as files: what is written is read back, and invalid files are refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from mill.api.errors import RunError
from mill.checks.answers import Answer
from mill.checks.compare import row_of
from mill.checks.pairing import AnswerPair
from mill.checks.result import Check, Variant, find_checks, read_check
from mill.metrics.estimate import Estimate


def made(label: str = "b") -> Check:
    metrics = {
        "kl_mean": Estimate(0.5, 0.1, 0.3, 0.7, 9),
        "kl_max": Estimate(math.inf, None, None, None, 9),
        "ppl_ratio": Estimate(math.nan, math.nan, -math.inf, math.inf, 9),
    }
    p_values = {"ppl_ratio": math.nan, "acc_drop": 0.25}
    variant = Variant(label, "a model", "hf", "run", 10, metrics, p_values, {"samples": 3}, warnings=["\u00e9"])
    pair = AnswerPair(Answer("t", "1", "c", "p", None, "a\x00\ud800"), Answer("t", "1", "c", "p", None, "b"))
    variant.rows = [{**row_of(pair, None), "kl": {"mean": math.nan}}]
    return Check("compare", ["t"], [variant], "a", {"limit": None}, ["a warning"])


def test_a_check_is_read_back_with_nan_and_infinity(tmp_path: Path) -> None:
    file = made().save(tmp_path)
    json.loads(file.read_bytes().decode("utf-8", "surrogatepass"), parse_constant=pytest.fail)  # NaN is no JSON
    found = read_check(file)
    (variant,) = found.variants
    assert variant.metrics["kl_mean"] == Estimate(0.5, 0.1, 0.3, 0.7, 9)
    assert variant.metrics["kl_max"] == Estimate(math.inf, None, None, None, 9)
    ratio = variant.metrics["ppl_ratio"]
    assert math.isnan(ratio.value) and ratio.stderr is not None and math.isnan(ratio.stderr)
    assert (ratio.low, ratio.high) == (-math.inf, math.inf)
    assert math.isnan(variant.p_values["ppl_ratio"]) and variant.p_values["acc_drop"] == 0.25
    assert (found.command, found.tasks, found.baseline, found.warnings) == ("compare", ["t"], "a", ["a warning"])
    assert (variant.size, variant.counts, variant.warnings) == (10, {"samples": 3}, ["\u00e9"])


def test_the_same_check_has_one_folder_and_another_check_another(tmp_path: Path) -> None:
    assert made().folder(tmp_path) == made().folder(tmp_path)
    other = made()
    other.settings = {"limit": 3}
    assert len({made().folder(tmp_path), other.folder(tmp_path), made("c").folder(tmp_path)}) == 3


@pytest.mark.parametrize("label", ["../../etc", "a/b", "x" * 500, "\u6771\u4eac", "con\x00"])
def test_a_label_makes_no_path(tmp_path: Path, label: str) -> None:
    file = made(label).save(tmp_path)
    assert file.resolve().parent.parent == (tmp_path / "checks").resolve()
    assert read_check(file).variants[0].label == label


def test_checks_are_found_below_a_folder(tmp_path: Path) -> None:
    (tmp_path / "foreign" / "check.json").mkdir(parents=True)
    first, second = made("b").save(tmp_path), made("c").save(tmp_path)
    assert set(find_checks(tmp_path)) == {first, second}
    assert find_checks(first.parent) == [first.parent]
    assert find_checks(first) == [first]
    with pytest.raises(RunError, match="nowhere does not exist"):
        find_checks(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="contains no check"):
        find_checks(tmp_path / "empty")


@pytest.mark.parametrize("version", [0, 1, "2", None])
def test_another_version_is_refused(tmp_path: Path, version: Any) -> None:
    data = {**json.loads(made().to_json()), "version": version}
    (tmp_path / "check.json").write_text(json.dumps(data))
    with pytest.raises(RunError, match=f"has version {version}, this mill reads version 2"):
        read_check(tmp_path)


GOOD = {"version": 2, "command": "compare", "tasks": ["t"], "variants": []}


def test_unknown_fields_are_ignored(tmp_path: Path) -> None:
    data = {**GOOD, "more": 1, "variants": [{"label": "a", "metrics": {}, "unknown": 1}]}
    (tmp_path / "check.json").write_text(json.dumps(data))
    assert read_check(tmp_path).variants[0].label == "a"


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (["variants", 0, "rows", 0, "severity"], "odd", "rows[0] is not valid: severity: invalid enum value 'odd'"),
        (["variants", 0, "metrics", "kl_mean", "value"], "soon", "variants[0].metrics[...].value:"),
        (["variants", 0, "counts"], None, "variants[0].counts: expected object, got null"),
        (["variants", 0, "series"], {"kl": ["x"]}, "variants[0].series is not valid: kl[0]:"),
    ],
)
def test_an_invalid_field_is_named(tmp_path: Path, path: list[Any], value: Any, field: str) -> None:
    data = json.loads(made().to_json())
    inner = data
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    (tmp_path / "check.json").write_text(json.dumps(data))
    with pytest.raises(RunError) as refused:
        read_check(tmp_path)
    assert str(tmp_path / "check.json") in str(refused.value) and field in str(refused.value)
