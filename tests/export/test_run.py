"""What is exported of a run: its identity, its counts, and no keys."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mill.export.run import ExportedRun, clean, flatten
from mill.export.tracker import tracked
from tests.export.made_runs import KEY, evaluate, only_run

Edit = Callable[[Callable[[dict[str, Any]], object]], ExportedRun]


@pytest.fixture
def edited(odd_run: ExportedRun, tmp_path: Path) -> Edit:
    """A copy of the run, read again after a change of its manifest."""
    shutil.copytree(odd_run.folder.path.parents[1], tmp_path / "copy")

    def edit(change: Callable[[dict[str, Any]], object]) -> ExportedRun:
        file = only_run(tmp_path / "copy").folder.path / "manifest.json"
        manifest = json.loads(file.read_text())
        change(manifest)
        file.write_text(json.dumps(manifest))
        return only_run(tmp_path / "copy")

    return edit


def test_samples_are_counted(odd_run: ExportedRun) -> None:
    counts = {task: (count.done, count.failed, count.unanswered, count.responses) for task, count in odd_run.counts.items()}
    assert counts == {
        "odd_text": (4, 1, 0, 4),
        "odd:choice,x": (4, 0, 0, 12),
        "odd_document": (4, 0, 0, 4),
        "odd_dialog": (2, 0, 0, 4),
        "odd_agent": (1, 0, 0, 2),
    }
    assert odd_run.status == "finished"


def test_a_moved_run_is_the_same_and_an_extended_one_too(tmp_path: Path) -> None:
    first = evaluate(tmp_path / "a", "odd_text", "--limit", "2")
    assert first.counts["odd_text"].done == 2  # read now, before the run is extended
    shutil.copytree(tmp_path / "a", tmp_path / "b" / "elsewhere")
    assert only_run(tmp_path / "b" / "elsewhere").uid == first.uid
    extended = evaluate(tmp_path / "a", "odd_text")
    assert (extended.uid, extended.counts["odd_text"].done) == (first.uid, 4)
    assert tracked(extended).step == 4 and tracked(first).state != tracked(extended).state


def test_a_run_without_an_id_is_known_by_its_folders_and_its_first_session(odd_run: ExportedRun, edited: Edit) -> None:
    old = edited(lambda manifest: manifest.pop("id"))
    assert old.uid != odd_run.uid and old.uid == edited(lambda manifest: None).uid
    assert edited(lambda manifest: manifest["sessions"][0].update(id="another")).uid != old.uid


def test_metrics_have_errors_intervals_and_counts(odd_run: ExportedRun) -> None:
    entry = tracked(odd_run)
    assert entry.metrics["odd_text/exact_match"] == pytest.approx(1 / 3)
    assert entry.metrics["odd_text/exact_match_stderr"] == pytest.approx(1 / 3)
    assert entry.metrics["odd_text/exact_match_low"] == pytest.approx(1 - 0.975 ** (1 / 3))  # Clopper and Pearson
    assert entry.metrics["odd_text/failed"] == 1 and entry.metrics["run/failed"] == 1 and entry.metrics["run/samples"] == 15
    assert entry.metrics["odd_agent/tool_calls"] == 2 and entry.metrics["odd_agent/failed_calls"] == 1
    assert entry.not_finite == {"odd_text/speed": float("inf")}
    assert entry.tags["mill.not_finite"] == "odd_text/speed = inf"
    assert "odd_text/speed" not in entry.metrics
    assert entry.step == 26


def test_an_unfinished_run_has_unanswered_samples_and_no_scores(tmp_path: Path) -> None:
    run = evaluate(tmp_path, "odd_text", "--limit", "2")
    file = run.folder.samples_file("odd_text")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[1] |= {"status": "pending", "responses": [[]], "values": {}}
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run.folder.path / "results.json").unlink()
    unfinished = only_run(tmp_path)
    assert unfinished.status == "unfinished"
    assert tracked(unfinished).metrics["run/unanswered"] == 1
    assert (unfinished.counts["odd_text"].failed, unfinished.counts["odd_text"].done) == (0, 1)


def test_a_run_that_stopped_at_its_budget_is_not_finished(tmp_path: Path) -> None:
    stopped = evaluate(tmp_path, "odd_text", "--max_tokens_total", "1")
    assert stopped.status == "stopped" and tracked(stopped).status == "stopped"
    assert tracked(stopped).tags["mill.status"] == "stopped"
    assert evaluate(tmp_path, "odd_text").status == "finished"


def test_the_command_can_be_copied_into_a_shell(tmp_path: Path) -> None:
    options = ["--limit", "1", "--system_prompt", "a > b; it's"]
    run = evaluate(tmp_path, "odd_text", *options)
    words = shlex.split(run.command)
    assert words[:2] == ["mill", "eval"] and words[-4:] == options and "'a > b; it'\"'\"'s'" in run.command
    assert tracked(run).tags["mill.command"] == run.command
    file = run.folder.path / "manifest.json"
    manifest = json.loads(file.read_text())
    for earlier in ("/opt/mill/__main__.py eval 'a' exam --decide acc>0.6", "/x/bin/mill eval 'a' exam --decide acc>0.6"):
        manifest["sessions"][0]["command"] = earlier  # not quoted, as earlier versions wrote it
        file.write_text(json.dumps(manifest))
        assert shlex.split(only_run(tmp_path).command) == ["mill", "eval", "'a'", "exam", "--decide", "acc>0.6"]


def test_no_key_is_exported(odd_run: ExportedRun) -> None:
    entry = tracked(odd_run)
    shown = json.dumps([entry.params, entry.tags, odd_run.command])
    assert KEY[:10] not in shown and "***" in shown


def test_keys_in_a_manifest_of_another_origin_are_removed(edited: Edit) -> None:
    def add_keys(manifest: dict[str, Any]) -> None:
        manifest["model"]["arguments"] |= {"api_key": KEY, "base_url": f"http://me:{KEY}@host/v1"}
        manifest["judge"] = f"openai-compat[api_key={KEY}]"
        manifest["sessions"][0]["command"] = f"mill eval http://me:{KEY}@host gsm8k --api_key {KEY}"

    entry = tracked(edited(add_keys))
    assert KEY[:10] not in json.dumps([entry.params, entry.tags])
    assert entry.params["model_args.base_url"] == "http://me:***@host/v1"


def test_names_and_parameters() -> None:
    assert clean("a\x1b\ud800b") == "a\\x1b\\ud800b"
    assert flatten({"a": {"b": 1, "c": None}, "d": [1, "x"], "e": ""}, "p.") == {"p.a.b": "1", "p.d": '[1, "x"]'}


def test_times_of_a_damaged_session_do_not_matter(edited: Edit) -> None:
    found = edited(lambda manifest: manifest["sessions"][0].update(started="yesterday", seconds=1e300))
    assert (found.started.year, found.ended.year) == (1970, 9999)
