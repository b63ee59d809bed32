"""Files of real runs, changed by hand, by a disk or by another program: every command reads them or refuses them in a line,
and no score changes unless an answer or the data did."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mill.api.registry import tasks
from mill.api.response import Response
from mill.api.task import Sample, Task, Value
from mill.cli.main import run
from mill.schedule import Cell, Expected, remember_cells
from mill.store import session
from mill.support.files import write_json
from mill.tasks.load import load_files
from tests.fuzz.cases import count, dice
from tests.fuzz.mutations import ODD_FILES, mutate

TOY = str(Path(__file__).parents[1] / "toy.py")
TASKS = "toy_all,toy_dialog"
CASES = count(4000)
N = 2
FINE = {0, 1, 2, 3, 5}
ORDER = (
    "eval", "collect as json", "score", "check", "compare", "collect as json", "other settings", "check",
    "eval", "ls", "score", "check", "compare", "collect as json", "collect", "ls", "page", "report", "report as json",
)  # fmt: skip
"""The commands, those that take less time more often."""
WRITERS = ("eval", "other settings", "score")
ANSWER = ("text", "score", "label", "tokens", "ranking")

Commands = dict[str, list[str]]


class Folder:
    """An output folder that is put back after each command."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
        (self.run,) = path.glob("a-*/default")
        (self.other,) = path.glob("b-*/default")
        self.scores = scores(self.run)

    def files(self) -> list[Path]:
        """Those that are mutated: of the first run, and of the scheduler."""
        return sorted(
            file for file in self.content if not file.is_relative_to(self.other.parent) and "checks" not in file.parts
        )

    def restore(self, mutant: Path, name: str) -> None:
        """As it was before a command; only some of them write."""
        if name in WRITERS:
            for file in self.path.rglob("*"):
                if file not in self.content and (file.is_symlink() or not file.is_dir()):
                    file.unlink()
        for file in self.content if name in WRITERS else [mutant]:
            if file.is_dir() and not file.is_symlink():
                file.rmdir()
            elif not file.is_file() or file.is_symlink():
                file.unlink(missing_ok=True)
            if file == mutant or not file.exists() or file.read_bytes() != self.content[file]:
                file.unlink(missing_ok=True)  # a new inode marks it as another file than one that was overwritten
                file.write_bytes(self.content[file])


def scores(folder: Path) -> dict[str, Any]:
    """Every score of a run, as any JSON reader finds it."""
    found = json.loads((folder / "results.json").read_bytes())
    tasks = {name: (entry["n"], entry["metrics"]) for name, entry in found["tasks"].items()}
    return {**tasks, **{name: (entry["n"], entry["metrics"]) for name, entry in found["benchmarks"].items()}}


def call(argv: list[str]) -> tuple[int, str]:
    """With streams as Python makes them: a lone surrogate can be written to standard error alone."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(argv)
    return code, (out.buffer.getvalue() + err.buffer.getvalue()).decode()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: thousands of commands would wait for the disk."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as found:
        yield Path(found)


@pytest.fixture
def commands(root: Path) -> Commands:
    out, other = str(root / "out"), str(root / "other")
    options = ["--output_dir", out, "--quiet", "--task_paths", TOY]
    return {
        "eval": ["eval", "toy[path=a]", TASKS, *options],
        "other settings": ["eval", "toy[path=a]", "toy_gen", "--seed", "1", *options],
        "score": ["score", "{run}", "--task_paths", TOY],
        "compare": ["compare", "--runs", "{run}", "{other}", "--output_dir", other, "--no_report", "--task_paths", TOY],
        "collect": ["collect", "--output_dir", out],
        "collect as json": ["collect", "--output_dir", out, "--format", "json"],
        "check": ["collect", "--check", "--output_dir", out],
        "ls": ["ls", "runs", "--output_dir", out],
        "page": ["report", "{run}", "--output", "-"],
        "report": ["report", out, "--format", "md", "--output", "-"],
        "report as json": ["report", "{run}", "--format", "json", "--output", "-"],
    }


def graded(task: Task, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
    """A value that every answer and every row of the data changes."""
    return {"exact_match": abs(int((responses[0].text or "")[-1:]) - sample.doc["answer"]) / 7 + 0.1}


@pytest.fixture
def folder(root: Path, monkeypatch: pytest.MonkeyPatch, commands: Commands) -> Folder:
    """Two real runs, one of them scheduled, with a process that died at work in one of them."""
    load_files((TOY,))
    for name in ("toy_gen", "toy_gen2"):
        tasks.add(name, type("Graded", (tasks.get(name),), {"score": graded}))
    monkeypatch.setenv("TOY_N", str(N))
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr("mill.report.tables.PLAIN_WIDTH", 300)
    monkeypatch.setattr(session, "SILENCE_S", 0.0)
    monkeypatch.setattr(session, "_POLL_S", 0.0)
    monkeypatch.setattr("gc.collect", lambda *_: None)
    monkeypatch.setattr("mill.runs.files.versions", lambda: {"mill": "1"})
    out = root / "out"
    for model in "ab":
        code, output = call([*commands["eval"][:1], f"toy[path={model}]", *commands["eval"][2:]])
        assert code == 0, output
    found = Folder(out)
    process = {"host": "gone", "machine": session._machine(), "pid": 1, "born": "no", "tasks": ["toy_gen"]}
    write_json(
        found.run / "sessions" / "20200101T000000-host-1-0000beef.json", {**process, "working": True, "beat": 3}, root=out
    )
    expected = {
        "toy_gen": Expected(N, 1, json.loads((found.run / "results.json").read_bytes())["tasks"]["toy_gen"]["data_hash"])
    }
    remember_cells(out, [Cell("toy[path=a]", "toy_gen", 0, ("eval", "toy"), str(found.run.relative_to(out)), expected)])
    found = Folder(out)
    for argv in commands.values():
        argv[:] = [
            part.format(run=found.run, other=found.other) if "{" in part and "[" not in part else part for part in argv
        ]
        code, output = call(argv)
        assert code == 0, output
        found.restore(found.run / "manifest.json", "eval")
    return found


def edited(before: bytes, after: bytes, fields: tuple[str, ...]) -> bool:
    """Whether lines that can be read hold another answer, or other data, than they did."""

    def held(content: bytes) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for line in content.split(b"\n"):
            with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError, RecursionError):
                whole = json.loads(line.decode("utf-8", "surrogatepass").lstrip("\ufeff"))
                fields_of = whole if "doc" in whole else whole["response"]
                found.setdefault(repr(whole.get("key", whole.get("id"))), []).append(
                    {name: fields_of.get(name) for name in fields}
                )
        return found

    then, now = held(before), held(after)
    return any(one not in then.get(key, []) for key, ones in now.items() for one in ones)


def verify(folder: Folder, name: str, file: Path, code: int, output: str, after: bytes | None) -> None:
    assert code in FINE and "unexpected" not in output and "Traceback" not in output, output
    before = folder.content[file]
    if name in ("collect", "ls", "collect as json"):
        assert code == 0 and (name == "collect" or str(folder.other) in output), output
    if name == "report":
        assert code == 0 and f"run: {folder.other}" in output.replace("\\", ""), output
    if after is not None and file.parent.name == "record" and edited(before, after, ANSWER):
        return
    if name == "score" and after is not None and file.parent.name == "samples" and edited(before, after, ("doc", "keys")):
        return
    if name in ("eval", "score") and code == 0:
        assert same(scores(folder.run), folder.scores), output


def same(found: Any, wanted: Any) -> bool:
    """Equal but for the order in which numbers were added up."""
    if isinstance(wanted, dict):
        return (
            isinstance(found, dict)
            and found.keys() == wanted.keys()
            and all(same(found[key], wanted[key]) for key in wanted)
        )
    if isinstance(wanted, (list, tuple)):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return bool(found == pytest.approx(wanted, rel=1e-9)) if isinstance(wanted, float) else bool(found == wanted)


def test_no_change_of_a_file_ends_a_command_with_a_traceback_or_another_score(
    folder: Folder, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, counts, failures = folder.files(), Counter[tuple[str, int]](), []
    for case in range(CASES):
        chance = dice(f"files/{case}")
        name, file = ORDER[case % len(ORDER)], chance.choice(files)
        after = mutate(file.name, folder.content[file], chance)
        file.write_bytes(after)
        code, output = call(commands[name])
        counts[name, code] += 1
        try:
            verify(folder, name, file, code, output, after)
        except AssertionError as error:
            failures.append(f"case {case}: {name} with {file.relative_to(folder.path)}: {str(error)[:600]}")
        folder.restore(file, name)
    print(f"{CASES} mutants of {len(files)} files: {dict(counts)}")
    assert not failures, f"{len(failures)} of {CASES}\n" + "\n".join(failures[:20])


@pytest.mark.parametrize("what", ODD_FILES)
def test_what_is_no_file_is_refused_by_name_and_hides_no_other_run(
    folder: Folder, commands: Commands, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    for file in folder.files():
        for name, argv in commands.items():
            file.unlink()
            ODD_FILES[what](file)
            code, output = call(argv)
            verify(folder, name, file, code, output, None)
            folder.restore(file, name)


def test_no_change_of_a_check_ends_a_report_or_a_gate_with_a_traceback(
    folder: Folder, commands: Commands, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(commands["compare"])[0] == 0
    (file,) = (root / "other").rglob("check.json")
    content, counts, failures = file.read_bytes(), Counter[tuple[str, int]](), []
    readers = {
        **{
            form: ["report", str(file.parent), "--format", form, "--output", "-"] for form in ("html", "json", "md", "junit")
        },
        "gate": ["gate", str(file.parent), "--fail_on", "flip_rate>0.5,identical_rate<0.1"],
    }
    for case in range(CASES // 4):
        name = list(readers)[case % len(readers)]
        file.write_bytes(mutate(file.name, content, dice(f"checks/{case}")))
        code, output = call(readers[name])
        counts[name, code] += 1
        if code not in FINE or "unexpected" in output or "Traceback" in output:
            failures.append(f"case {case}: {name}: {output[-300:]}")
    print(f"{CASES // 4} mutants of a check: {dict(counts)}")
    assert not failures, f"{len(failures)} of {CASES // 4}\n" + "\n".join(failures[:20])
