"""Logs of inspect_ai without inspect_ai; tests/engines/test_inspect_logs.py reads real ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import mill
from mill.api.errors import MissingPackage, RunError
from mill.view.index import ResultsIndex
from mill.view.scan import INSPECT, scan
from tests.view.conftest import evaluate

MISSING = 'a log of inspect_ai needs the package inspect_ai>=0.3.242: pip install -e ".[inspect]"'


@pytest.fixture(autouse=True)
def _not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("inspect_ai", "inspect_ai.log"):
        monkeypatch.setitem(sys.modules, name, None)


def test_logs_are_found_by_their_name_or_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.eval").write_text("PK")
    (tmp_path / "b.json").write_text('{\n  "version": 2,\n  "status": "success",\n  "eval": {')
    (tmp_path / "c.json").write_text('{"version": 2, "tasks": {}}')
    (tmp_path / "linked.eval").symlink_to(tmp_path / "a.eval")
    logs = scan(tmp_path).logs
    assert [(log.tool, log.path.name) for log in logs] == [(INSPECT, "a.eval"), (INSPECT, "b.json")]
    assert scan(tmp_path / "linked.eval").logs == []
    (tmp_path / "manifest.json").write_text("{}")
    assert scan(tmp_path).logs == [], "a run has no logs"


def test_without_the_package_one_line_says_how_to_install_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The other runs are shown."""
    evaluate(tmp_path, "toy[path=one]", "toy_gen")
    for name in ("a.eval", "b.eval"):
        (tmp_path / name).write_text("PK")
    index = ResultsIndex(tmp_path, cache=tmp_path / "cache")
    index.sync()
    assert [run.model for run in index.runs.values()] == ["one"]
    assert index.state.warnings == [f"left out: {MISSING}"]
    assert caplog.messages.count(f"left out: {MISSING}") == 1
    index.close()


def test_a_log_that_is_named_is_refused_with_this_line(tmp_path: Path) -> None:
    (tmp_path / "a.eval").write_text("PK")
    with pytest.raises(MissingPackage) as refused:
        mill.load(tmp_path / "a.eval")
    assert str(refused.value) == MISSING
    (tmp_path / "a.txt").write_text("PK")
    with pytest.raises(RunError, match=r"a\.txt is neither a folder of results nor a log of lm-eval or inspect_ai"):
        mill.load(tmp_path / "a.txt")
