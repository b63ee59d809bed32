"""Files of others are data, never code, and names are never places."""

from __future__ import annotations

import ast
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mill.api.errors import RunError
from mill.api.registry import tasks
from mill.api.request import LOGLIKELIHOOD, Request
from mill.api.response import Response
from mill.api.task import Sample
from mill.checks.forced import _load
from mill.runs.folder import RunFolder
from mill.runs.record import Record
from mill.tasks.load import load_files

ROOT = Path(__file__).parents[2]
TOY = str(ROOT / "tests/toy.py")
Mill = Callable[..., tuple[int, str]]


class Trap:
    """Whoever unpickles it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def test_the_trap_works(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Trap(tmp_path / "marker")))
    assert (tmp_path / "marker").exists()


def test_distributions_that_hold_objects_are_refused(tmp_path: Path) -> None:
    import numpy as np

    trap = np.array([Trap(tmp_path / "marker")], dtype=object)
    place = tmp_path / "model/run/distributions"
    place.mkdir(parents=True)
    np.save(place / "object.npy", trap, allow_pickle=True)
    (place / "plain.npy").write_bytes(pickle.dumps(Trap(tmp_path / "marker")))
    np.savez(place / "zipped.npz", inside=trap)
    (place / "zipped.npz").rename(place / "zipped.npy")
    run_folder = RunFolder(tmp_path / "model/run")
    for name in ("object", "plain"):
        with pytest.raises(RunError, match="cannot read the distributions"):
            _load(run_folder, f"run/distributions/{name}.npy")
    with pytest.raises((RunError, ValueError)):
        _load(run_folder, "run/distributions/zipped.npy")["inside"]
    with pytest.raises(RunError, match="outside"):
        _load(run_folder, "../other.npy")
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize(
    "place", ["manifest.json", "results.json", "samples/toy_gen.jsonl", "record/0.jsonl", "parts/0.json"]
)
def test_a_pickle_in_a_run_folder_is_refused(mill: Mill, tmp_path: Path, place: str) -> None:
    told = ("--task_paths", TOY, "--output_dir", "out", "--limit", "2", "--quiet")
    mill("eval", "toy[path=a]", "toy_gen", *told)
    (folder,) = (tmp_path / "out").glob("*/*")
    (folder / place).write_bytes(pickle.dumps(Trap(tmp_path / "marker")) + b"\n")
    for command in (
        ["eval", "toy[path=a]", "toy_gen", *told],
        ["score", str(folder), "--task_paths", TOY],
        ["collect", "--output_dir", "out"],
        ["collect", "--check", "--output_dir", "out"],
        ["ls", "runs", "--output_dir", "out"],
    ):
        _, said = mill(*command)
        assert "Traceback" not in said and "unexpected" not in said
    assert not (tmp_path / "marker").exists()


def test_weights_that_are_a_pickle_with_code_are_refused(mill: Mill, tiny_model: Path, tmp_path: Path) -> None:
    import torch

    folder, marker = tmp_path / "pickled", tmp_path / "marker"
    shutil.copytree(tiny_model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save({"model.embed_tokens.weight": Trap(marker)}, folder / "pytorch_model.bin")
    code, said = mill("eval", f"hf[path={folder},dtype=float32]", "toy_gen", "--task_paths", TOY, "--limit", "1", "--quiet")
    assert code == 1 and "cannot load the weights of pickled" in said and not marker.exists()


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def test_no_code_of_mill_runs_what_a_file_says() -> None:
    """Imports of a person's own Python files go through importlib, on purpose; nothing else makes code of data."""
    loaders = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
    forbidden = {"eval", "exec", "compile", "os.system", "os.popen", "torch.load", "yaml.load", "yaml.unsafe_load"}
    found = []
    for file in sorted((ROOT / "mill").rglob("*.py")):
        tree = ast.parse(file.read_text())
        for name, call in calls(tree):
            given = {one.arg: ast.unparse(one.value) for one in call.keywords}
            unsafe = name in forbidden or name.partition(".")[0] in loaders or given.get("shell") == "True"
            unsafe |= name in ("np.load", "numpy.load") and given.get("allow_pickle", "False") != "False"
            unsafe |= given.get("weights_only") == "False"
            found += [f"{file.relative_to(ROOT)}:{call.lineno}: {name}"] if unsafe else []
        names = [one for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)) for one in modules(node)]
        found += [f"{file.relative_to(ROOT)}: import {name}" for name in names if name.partition(".")[0] in loaders]
    assert found == []


def modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [one.name for one in node.names] if isinstance(node, ast.Import) else [node.module or ""]


# Links

VICTIM = "a file of somebody's own\n"
INSIDE = ["manifest.json", "results.json", "samples/toy_gen.jsonl", "parts", "samples", "record", "working", "distributions"]


@pytest.fixture
def run(mill: Mill, tmp_path: Path) -> Path:
    """A run in a folder that somebody else may have prepared."""
    mill("eval", "toy[path=a]", "toy_gen", *TOLD, "--limit", "2")
    (found,) = (tmp_path / "out").glob("*/*")
    return found


TOLD = ("--task_paths", TOY, "--output_dir", "out", "--quiet")


def point_away(place: Path, target: Path) -> None:
    """Put a link to `target` in the place of a file or folder; what was there stands there too."""
    if place.is_dir():
        shutil.copytree(place, target, dirs_exist_ok=True)
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(target)


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("command", ["eval", "score"])
def test_nothing_is_written_through_a_link_in_a_result_folder(
    mill: Mill, run: Path, tmp_path: Path, inside: str, command: str
) -> None:
    """A link to a file is replaced, or the run refused; one to a folder is refused."""
    target = tmp_path / "home/target"
    target.parent.mkdir(parents=True, exist_ok=True)
    if "." in inside:
        target.write_bytes((run / inside).read_bytes())  # so that it is read well, and would be written over
    point_away(run / inside, target)
    before = {file: file.read_bytes() for file in (tmp_path / "home").rglob("*") if file.is_file()}
    argv = ["eval", "toy[path=a]", "toy_gen", *TOLD] if command == "eval" else ["score", str(run), "--task_paths", TOY]
    _, said = mill(*argv)
    assert {file: file.read_bytes() for file in (tmp_path / "home").rglob("*") if file.is_file()} == before
    assert "Traceback" not in said and "unexpected" not in said


@pytest.mark.parametrize("level", ["model", "run"])
def test_a_run_folder_that_is_a_link_is_refused(mill: Mill, run: Path, tmp_path: Path, level: str) -> None:
    place, target = (run.parent if level == "model" else run), tmp_path / "target"
    place.rename(target)
    place.symlink_to(target)
    before = all_files(target)
    code, said = mill("eval", "toy[path=a]", "toy_gen", *TOLD)
    assert code != 0 and "is a link: mill does not write through links" in said and all_files(target) == before


@pytest.mark.parametrize("form", ["md", "html", "json", "junit"])
def test_a_report_replaces_a_link_in_the_folder_and_follows_one_that_was_named(
    mill: Mill, run: Path, tmp_path: Path, form: str
) -> None:
    mill("compare", "--runs", str(run), str(run), "--output_dir", "stranger", "--no_report", "--task_paths", TOY)
    (check,) = (tmp_path / "stranger").rglob("check.json")
    victim = tmp_path / "bashrc"
    victim.write_text(VICTIM)
    name = {"junit": "report.xml"}.get(form, f"report.{form}")
    (check.parent / name).symlink_to(victim)
    code, said = mill("report", str(check.parent), "--format", form)
    assert code == 0, said
    assert victim.read_text() == VICTIM and not (check.parent / name).is_symlink() and (check.parent / name).stat().st_size
    (tmp_path / "mine").symlink_to(victim)
    assert mill("report", str(check.parent), "--format", form, "--output", "mine")[0] == 0
    assert victim.read_text() != VICTIM and (tmp_path / "mine").is_symlink()


def test_checks_and_their_reports_are_not_written_through_a_link(mill: Mill, run: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "stranger").mkdir()
    (tmp_path / "stranger/checks").symlink_to(tmp_path / "target")
    code, said = mill("compare", "--runs", str(run), str(run), "--output_dir", "stranger", "--task_paths", TOY)
    assert code == 2 and "checks is a link" in said and not [*(tmp_path / "target").iterdir()]


def test_a_distribution_replaces_a_link_in_its_place(tmp_path: Path) -> None:
    import numpy as np

    victim, asked = tmp_path / "victim", Request(LOGLIKELIHOOD, "a", " b", options={"logprobs": "all"})
    victim.write_text(VICTIM)
    response = Response(score=-1.0, distribution=np.zeros((1, 3), dtype=np.float32))
    Record(tmp_path / "model/one").put(asked, response)
    for name in ("one", "two"):
        place = tmp_path / "model" / name / f"distributions/{asked.key}.npy"
        place.unlink(missing_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(victim)
    Record(tmp_path / "model/one").put(asked, response)  # computed, and then lent
    assert Record(tmp_path / "model/two", [tmp_path / "model/one"]).get(asked) is not None
    assert victim.read_text() == VICTIM


@pytest.mark.parametrize("inside", ["schedule", "schedule/cells", "schedule/jobs"])
def test_the_scheduler_writes_nothing_through_a_link(mill: Mill, tmp_path: Path, inside: str) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "out" / inside).parent.mkdir(parents=True)
    (tmp_path / "out" / inside).symlink_to(tmp_path / "target")
    code, said = mill("schedule", "toy[path=a]", "toy_gen", "--local", "--limit", "1", *TOLD[:4])
    assert code == 2 and "is a link" in said and not [*(tmp_path / "target").iterdir()]


# Names

NASTY = {
    "upwards": "../../up",
    "further upwards": "a/../../../../up",
    "absolute": "{tmp}/absolute",
    "a NUL": "a\0b",
    "a dot": ".",
    "two dots": "..",
    "nothing readable": "\u202e\U0001f600",
    "backslashes": "..\\..\\up",
    "a newline": "a\nb",
    "hidden": ".ssh/authorized_keys",
    "long": "n" * 300,
}


def all_files(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*")}


@pytest.mark.parametrize("name", NASTY.values(), ids=list(NASTY))
@pytest.mark.parametrize("where", ["model", "task", "sample"])
def test_names_write_nothing_outside_of_the_output_folder(mill: Mill, tmp_path: Path, name: str, where: str) -> None:
    name = name.replace("{tmp}", str(tmp_path))
    out = tmp_path / "deep/er/out"
    out.parent.mkdir(parents=True)
    load_files((TOY,))
    toy = tasks.get("toy_gen")
    quoted = name.replace("\\", "\\\\")
    model = f'toy[path="{quoted}"]' if where == "model" else "toy[path=a]"
    task = name if where == "task" else "toy_gen"
    if where == "task":
        tasks.add(name, toy)
    if where == "sample":
        tasks.add("toy_gen", type("Named", (toy,), {"samples": lambda self: [Sample(name, {"question": "?", "answer": 1})]}))
    before = all_files(tmp_path)
    told = ("--limit", "1", "--output_dir", str(out), "--quiet")
    said = [mill("eval", model, task, *told)]
    if where == "model" and "up" in name:
        said.append(mill("determinism", "--model", model, "--tasks", task, "--runs", "2", *told))
    said.append(mill("collect", "--output_dir", str(out)))
    assert not [file for file in all_files(tmp_path) - before if not file.startswith("deep/er/out")]
    assert not [text for _, text in said if "Traceback" in text or "unexpected" in text]


def test_a_text_file_in_a_deep_folder_is_a_task(mill: Mill, tmp_path: Path) -> None:
    place = tmp_path.joinpath(*["d" * 60] * 4)
    place.mkdir(parents=True)
    (place / "notes.txt").write_text("the quick brown fox\n")
    code, said = mill("eval", "toy[path=a]", str(place / "notes.txt"), "--task_paths", TOY)
    assert code == 0, said
