"""Third-party files are data, never code, and names never change the output path."""

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
from mill.store.folder import RunFolder
from mill.store.record import Record
from mill.tasks.load import load_files

ROOT = Path(__file__).parents[2]
TOY = str(ROOT / "tests/toy.py")
Mill = Callable[..., tuple[int, str]]


class Trap:
    """Unpickling it creates a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def test_distributions_with_objects_are_refused(tmp_path: Path) -> None:
    import numpy as np

    trap = np.array([Trap(tmp_path / "marker")], dtype=object)
    path = tmp_path / "model/run/distributions"
    path.mkdir(parents=True)
    np.save(path / "object.npy", trap, allow_pickle=True)
    (path / "plain.npy").write_bytes(pickle.dumps(Trap(tmp_path / "marker")))
    np.savez(path / "zipped.npz", inside=trap)
    (path / "zipped.npz").rename(path / "zipped.npy")
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
    "path", ["manifest.json", "results.json", "samples/toy_gen.jsonl", "record/0.jsonl", "sessions/0.json"]
)
def test_a_pickle_in_a_run_folder_is_refused(mill: Mill, tmp_path: Path, path: str) -> None:
    options = ("--task_paths", TOY, "--output_dir", "out", "--limit", "2", "--quiet")
    mill("eval", "toy[path=a]", "toy_gen", *options)
    (folder,) = (tmp_path / "out").glob("*/*")
    (folder / path).write_bytes(pickle.dumps(Trap(tmp_path / "marker")) + b"\n")
    for command in (
        ["eval", "toy[path=a]", "toy_gen", *options],
        ["score", str(folder), "--task_paths", TOY],
        ["collect", "--output_dir", "out"],
        ["collect", "--check", "--output_dir", "out"],
        ["ls", "runs", "--output_dir", "out"],
    ):
        _, output = mill(*command)
        assert "Traceback" not in output and "unexpected" not in output
    assert not (tmp_path / "marker").exists()


def test_pickled_weights_with_code_are_refused(mill: Mill, tiny_model: Path, tmp_path: Path) -> None:
    import torch

    folder, marker = tmp_path / "pickled", tmp_path / "marker"
    shutil.copytree(tiny_model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save({"model.embed_tokens.weight": Trap(marker)}, folder / "pytorch_model.bin")
    code, output = mill(
        "eval", f"hf[path={folder},dtype=float32]", "toy_gen", "--task_paths", TOY, "--limit", "1", "--quiet"
    )
    assert code == 1 and "cannot load the weights of pickled" in output and not marker.exists()


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def test_mill_executes_no_data_files() -> None:
    """A user's Python files are imported with importlib, on purpose. Programs of a model are executed by the code that runs
    inside of the sandbox alone, and the simulated APIs of the package bfcl-eval by one module. No other data is executed."""
    executing = {ROOT / "mill/sandbox/runner.py", ROOT / "mill/tasks/bfcl/simulation.py"}
    loaders = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
    forbidden = {"eval", "exec", "compile", "os.system", "os.popen", "torch.load", "yaml.load", "yaml.unsafe_load"}
    problems = []
    for file in sorted({*(ROOT / "mill").rglob("*.py")} - executing):
        tree = ast.parse(file.read_text())
        for name, call in calls(tree):
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
            unsafe = name in forbidden or name.partition(".")[0] in loaders or given.get("shell") == "True"
            unsafe |= name in ("np.load", "numpy.load") and given.get("allow_pickle", "False") != "False"
            unsafe |= given.get("weights_only") == "False"
            problems += [f"{file.relative_to(ROOT)}:{call.lineno}: {name}"] if unsafe else []
        names = [one for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)) for one in modules(node)]
        problems += [f"{file.relative_to(ROOT)}: import {name}" for name in names if name.partition(".")[0] in loaders]
    assert problems == []


def modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [one.name for one in node.names] if isinstance(node, ast.Import) else [node.module or ""]


# Links

VICTIM = "a file outside of the run\n"
INSIDE = ["manifest.json", "results.json", "samples/toy_gen.jsonl", "sessions", "samples", "record", "distributions"]


@pytest.fixture
def run(mill: Mill, tmp_path: Path) -> Path:
    """A run in a folder that another user may have prepared."""
    mill("eval", "toy[path=a]", "toy_gen", *OPTIONS, "--limit", "2")
    (folder,) = (tmp_path / "out").glob("*/*")
    return folder


OPTIONS = ("--task_paths", TOY, "--output_dir", "out", "--quiet")


def replace_by_link(path: Path, target: Path) -> None:
    """Replace a file or folder by a link to `target`, which gets a copy of a folder."""
    if path.is_dir():
        shutil.copytree(path, target, dirs_exist_ok=True)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("command", ["eval", "score"])
def test_a_link_in_a_result_folder_is_never_written_through(
    mill: Mill, run: Path, tmp_path: Path, inside: str, command: str
) -> None:
    """A link to a file is replaced, or the run refused; one to a folder is refused."""
    target = tmp_path / "home/target"
    target.parent.mkdir(parents=True, exist_ok=True)
    if "." in inside:
        target.write_bytes((run / inside).read_bytes())  # valid, so that a write would follow
    replace_by_link(run / inside, target)
    before = {file: file.read_bytes() for file in (tmp_path / "home").rglob("*") if file.is_file()}
    argv = ["eval", "toy[path=a]", "toy_gen", *OPTIONS] if command == "eval" else ["score", str(run), "--task_paths", TOY]
    _, output = mill(*argv)
    assert {file: file.read_bytes() for file in (tmp_path / "home").rglob("*") if file.is_file()} == before
    assert "Traceback" not in output and "unexpected" not in output


@pytest.mark.parametrize("level", ["model", "run"])
def test_a_run_folder_that_is_a_link_is_refused(mill: Mill, run: Path, tmp_path: Path, level: str) -> None:
    path, target = (run.parent if level == "model" else run), tmp_path / "target"
    path.rename(target)
    path.symlink_to(target)
    before = all_files(target)
    code, output = mill("eval", "toy[path=a]", "toy_gen", *OPTIONS)
    assert code != 0 and "is a link: mill does not write through links" in output and all_files(target) == before


@pytest.mark.parametrize("form", ["md", "html", "json", "junit"])
def test_a_report_replaces_a_link_in_the_folder_and_follows_an_explicit_one(
    mill: Mill, run: Path, tmp_path: Path, form: str
) -> None:
    mill("compare", "--runs", str(run), str(run), "--output_dir", "stranger", "--no_report", "--task_paths", TOY)
    (check,) = (tmp_path / "stranger").rglob("check.json")
    victim = tmp_path / "bashrc"
    victim.write_text(VICTIM)
    name = {"junit": "report.xml"}.get(form, f"report.{form}")
    (check.parent / name).symlink_to(victim)
    code, output = mill("report", str(check.parent), "--format", form)
    assert code == 0, output
    assert victim.read_text() == VICTIM and not (check.parent / name).is_symlink() and (check.parent / name).stat().st_size
    (tmp_path / "mine").symlink_to(victim)
    assert mill("report", str(check.parent), "--format", form, "--output", "mine")[0] == 0
    assert victim.read_text() != VICTIM and (tmp_path / "mine").is_symlink()


def test_checks_and_their_reports_are_not_written_through_a_link(mill: Mill, run: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "stranger").mkdir()
    (tmp_path / "stranger/checks").symlink_to(tmp_path / "target")
    code, output = mill("compare", "--runs", str(run), str(run), "--output_dir", "stranger", "--task_paths", TOY)
    assert code == 2 and "checks is a link" in output and not [*(tmp_path / "target").iterdir()]


def test_a_distribution_replaces_a_link_at_its_path(tmp_path: Path) -> None:
    import numpy as np

    victim, request = tmp_path / "victim", Request(LOGLIKELIHOOD, "a", " b", options={"logprobs": "all"})
    victim.write_text(VICTIM)
    response = Response(score=-1.0, distribution=np.zeros((1, 3), dtype=np.float32))
    path = tmp_path / "model/one" / f"distributions/{request.key}.npy"
    path.parent.mkdir(parents=True)
    path.symlink_to(victim)
    Record(tmp_path / "model/one").put(request, response)
    assert not path.is_symlink() and np.load(path).shape == (1, 3) and victim.read_text() == VICTIM


@pytest.mark.parametrize("inside", ["schedule", "schedule/cells", "schedule/jobs"])
def test_the_scheduler_never_writes_through_a_link(mill: Mill, tmp_path: Path, inside: str) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "out" / inside).parent.mkdir(parents=True)
    (tmp_path / "out" / inside).symlink_to(tmp_path / "target")
    code, output = mill("schedule", "toy[path=a]", "toy_gen", "--limit", "1", *OPTIONS[:4])
    assert code == 2 and "is a link" in output and not [*(tmp_path / "target").iterdir()]


# Names

NASTY = {
    "upwards": "../../up",
    "absolute": "{tmp}/absolute",
    "a NUL": "a\0b",
    "a dot": ".",
    "a newline": "a\nb",
    "hidden": ".ssh/authorized_keys",
    "long": "n" * 300,
}


def all_files(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*")}


@pytest.mark.parametrize(
    ("where", "name"),
    [("model", name) for name in NASTY.values()]
    + [
        (where, NASTY[what])
        for where in ("task", "sample")
        for what in ("upwards", "absolute", "a NUL", "a newline", "long")
    ],
)
def test_names_cannot_write_outside_of_the_output_folder(mill: Mill, tmp_path: Path, name: str, where: str) -> None:
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
    options = ("--limit", "1", "--output_dir", str(out), "--quiet")
    output = [mill("eval", model, task, *options)]
    if where == "model" and "up" in name:
        output.append(mill("determinism", "--model", model, "--tasks", task, "--runs", "2", *options))
    output.append(mill("collect", "--output_dir", str(out)))
    assert not [file for file in all_files(tmp_path) - before if not file.startswith("deep/er/out")]
    assert not [text for _, text in output if "Traceback" in text or "unexpected" in text]
