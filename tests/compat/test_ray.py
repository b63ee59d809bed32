"""Ray prints reports of lost nodes through the function that mill replaces."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest

from mill.compat import silence_node_reports

ray = pytest.importorskip("ray")
REPORT = {"lines": ["a node died"], "pid": "raylet", "is_err": False, "ip": "127.0.0.1"}


def test_reports_are_dropped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    worker = ray._private.worker
    monkeypatch.setattr(worker, "print_to_stdstream", worker.print_to_stdstream)  # restores it after the test
    silence_node_reports(ray)
    worker.print_to_stdstream(REPORT)
    worker.print_to_stdstream(REPORT, ignore_prefix=False)
    assert capsys.readouterr().out == ""


def test_the_listener_for_errors_calls_the_replaced_name() -> None:
    assert "print_to_stdstream(" in inspect.getsource(ray._private.worker.listen_error_messages)


def test_a_version_without_that_name_is_left_alone() -> None:
    other = SimpleNamespace()
    silence_node_reports(other)
    assert vars(other) == {}
