"""Where a run lives: names that say what was set, and no folder before there is something to put into it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mill.api.errors import RunError
from mill.cli.main import run as mill
from mill.store.folder import check_writable, run_folder
from tests.runs.faults import TOY


def label(settings: dict[str, object]) -> str:
    return run_folder(Path("out"), "m", {}, settings).path.name.rpartition("-")[0]


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"seed": 3}, "seed=3"),
        ({"gen_kwargs": {"max_gen_toks": 64, "temperature": 0.7}}, "max_gen_toks=64-temperature=0.7"),
        ({"n_shots": 5, "gen_kwargs": {"temperature": 0.7}}, "n_shots=5-temperature=0.7"),
        ({"seed": -1, "same_shots": True}, "seed=-1-same_shots=True"),
        ({"system_prompt": "Be brief."}, "system_prompt=Be_brief"),
        ({"system_prompt": "word " * 50, "seed": 3}, "seed=3"),
        ({"system_prompt": "word " * 50}, "settings"),
    ],
)
def test_a_name_shows_whole_settings(settings: dict[str, object], shown: str) -> None:
    assert label(settings) == shown


def test_settings_that_have_one_label_have_two_folders() -> None:
    first, second = ({"system_prompt": f"{word} " * 50} for word in ("one", "two"))
    assert run_folder(Path("out"), "m", {}, first) != run_folder(Path("out"), "m", {}, second)
    assert run_folder(Path("out"), "m", {}, {}).path.name == "default"


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc").exists(), reason="nothing is forbidden here")
@pytest.mark.parametrize("place", ["file/below", "file", "/proc/below/it", "n" * 300, "a\0b"])
def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_computed(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write to the output folder"):
        check_writable(tmp_path / place)


@pytest.mark.parametrize(
    "argv",
    [
        ["eval", "toy[path=a]", "nosuch"],
        ["eval", "toy[path=a]", "toy_gen", "--dry_run"],
        ["compare", "toy[path=a]", "toy[path=b,nosuch=1]", "--tasks", "toy_gen"],
        ["compare", "--runs", "nosuch", "neither"],
        ["schedule", "toy[path=a]", "toy_gen", "--dry_run"],
    ],
)
def test_a_command_that_is_refused_or_only_tried_leaves_no_folder(
    toy_here: Path, tmp_path: Path, argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = mill([*argv, "--output_dir", str(tmp_path / "out/deep"), "--task_paths", str(TOY)])
    assert code == (0 if "--dry_run" in argv else 2), capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_one_odd_run_is_named_and_left_out(
    toy_here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fields of a newer version are ignored; a null where there is a number makes that run unreadable, and no other."""
    out = tmp_path / "out"
    for model in ("newer", "null", "odd", "plain"):
        mill(["eval", f"toy[path={model}]", "toy_gen", "--limit", "2", "--quiet", "--output_dir", str(out)])
    files = {model: next(out.glob(f"{model}-*/*/results.json")) for model in ("newer", "null")}
    found = {model: json.loads(file.read_bytes()) for model, file in files.items()}
    task = found["newer"]["tasks"]["toy_gen"]
    found["newer"] |= {"format": 9}
    task |= {"energy_j": 3.5}
    task["metrics"]["exact_match"] |= {"method": "exact"}
    found["null"]["tasks"]["toy_gen"]["n"] = None
    for model, file in files.items():
        file.write_text(json.dumps(found[model]))
    manifest = next(out.glob("odd-*/*/manifest.json"))
    manifest.write_text(json.dumps({**json.loads(manifest.read_bytes()), "sessions": {"a": 1}}))
    for argv in (["collect"], ["collect", "--format", "json"], ["ls", "runs"]):
        capsys.readouterr()
        assert mill([*argv, "--output_dir", str(out)]) == 0
        captured = capsys.readouterr()
        assert all(model in captured.out for model in ("newer", "plain"))
        assert not any(f"{model}-" in captured.out or f'"{model}"' in captured.out for model in ("null", "odd"))
        assert "results.json is not valid: tasks[...].n: expected int, got null" in captured.err
        assert "manifest.json is not valid: sessions: expected array, got object" in captured.err
