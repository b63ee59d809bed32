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
from mill.api.task import Sample
from mill.checks.forced import _load
from mill.runs.folder import RunFolder
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
