"""`mill schedule` and `mill collect --check` where there is no SLURM: what is refused, what is planned, what runs here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mill.cli.main import run
from mill.schedule import active_jobs
from tests.cli.conftest import Mill

ROOT = Path(__file__).parents[2]
TOY = str(ROOT / "tests/toy.py")


@pytest.fixture
def mill(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> Mill:
    """`mill schedule` of the toy model in a temporary folder: (exit code, standard output, standard error)."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TOY_N", "4")
    for command in ("schedule", "scores"):
        monkeypatch.setattr(f"mill.cli.{command}.active_jobs", lambda cells: set())

    return lambda models, tasks="toy_gen", *options: mill(
        "schedule", models, tasks, "--task_paths", TOY, "--output_dir", "out", *options
    )


@pytest.fixture
def check(mill: Mill, capsys: pytest.CaptureFixture[str]) -> Mill:
    def call(*options: str) -> tuple[int, str, str]:
        code = run(["collect", "--check", "--output_dir", "out", *options])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Instead of SLURM: the command lines that it would get, one list per array."""
    from dataclasses import replace

    found: list[list[str]] = []

    def submit(cells: Any, cluster: Any, output_dir: Path, run: Any) -> Any:
        for start in range(0, len(cells), cluster.array_size):
            part = cells[start : start + cluster.array_size]
            found.append([" ".join(cell.argv) for cell in part])
            yield [replace(cell, job=f"{len(found)}_{index}") for index, cell in enumerate(part)]

    monkeypatch.setattr("mill.cli.schedule.submit", submit)
    return found


def cluster(**entries: Any) -> tuple[str, str]:
    Path("cluster.yaml").write_text(json.dumps(entries))
    return "--cluster", "cluster.yaml"


def rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if line.startswith("toy[")]


# What would be done


def test_a_dry_run_shows_the_matrix_and_submits_nothing(mill: Mill, tmp_path: Path) -> None:
    limits = cluster(array_size=3, at_once=2, partition="gpu")
    code, out, err = mill("toy[path=a],toy[path=b]", "toy_gen,toy_choice", "--n_shots", "0,5", "--dry_run", *limits)
    assert (code, err) == (0, "")
    assert [row[:5] for row in rows(out)] == [
        [f"toy[path={model}]", task, shots, "to", "do"]
        for model in "ab"
        for task in ("toy_gen", "toy_choice")
        for shots in "05"
    ]
    assert "would submit 8 of 8 jobs in 3 arrays: " in out and "slurm_partition=gpu" in out
    assert not (tmp_path / "out").exists(), "a dry run leaves nothing behind"


def test_each_cell_is_one_command_line_that_users_can_run(
    mill: Mill, submitted: list[list[str]], capsys: pytest.CaptureFixture[str], check: Mill
) -> None:
    options = ("--n_shots", "5", "--limit", "2", "--seed", "3", "--batch_size", "2", "--gen_kwargs", "temperature=0.5")
    code, _, _ = mill("toy[path=a]", "toy_gen,toy_choice", *options, "--apply_chat_template", *cluster(array_size=1))
    assert code == 0 and [len(array) for array in submitted] == [1, 1]
    assert check()[0] == 1
    for array in submitted:
        assert run(array[0].split()) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert check()[0] == 0, "the runs of these command lines are those that are waited for"
    assert [" --n_shots 5 " in line and " --seed 3 " in line for line in (array[0] for array in submitted)] == [True, True]


def test_a_cell_that_is_named_twice_is_submitted_once(mill: Mill, submitted: list[list[str]]) -> None:
    assert mill("toy[path=a],toy[path=a]", "toy_gen,toy_gen", "--n_shots", "5,05")[0] == 0
    assert [len(array) for array in submitted] == [1]


def test_a_matrix_that_is_interrupted_between_arrays_remembers_what_slurm_has(
    mill: Mill, submitted: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import mill.cli.schedule as module
    from mill.api.errors import MillError

    def broken(*given: Any) -> Any:
        yield next(whole(*given))
        raise MillError("SLURM refused the jobs: no more")

    whole = vars(module)["submit"]
    monkeypatch.setattr(module, "submit", broken)
    limits = cluster(array_size=1)
    code, out, err = mill("toy[path=a]", "toy_gen,toy_choice", *limits)
    assert code == 2 and "submitted 1 job as 1" in out and err == "mill: SLURM refused the jobs: no more\n"
    monkeypatch.setattr(module, "submit", whole)
    monkeypatch.setattr(module, "active_jobs", lambda cells: {"1_0"})
    submitted.clear()
    assert mill("toy[path=a]", "toy_gen,toy_choice", *limits)[0] == 0
    assert len(submitted) == 1 and " toy_choice " in submitted[0][0]


# What is refused


def test_invalid_numbers_of_shots(mill: Mill, submitted: list[list[str]]) -> None:
    for shots in ("-1", "1.5", "", ",", "0,x", "5 5", "²"):
        code, _, err = mill("toy[path=a]", "toy_gen", "--n_shots", shots)
        assert code == 2 and err == f"mill: --n_shots {shots}: give counts, comma-separated, such as 0,5\n" and not submitted


REFUSED = [
    ("toy[path=a],toy[pth=b]", "toy_gen", "unknown argument of toy 'pth'"),
    ("toy[path=a],hf[path=./nothing-here]", "toy_gen", "does not exist"),
    ("toy[path=a]", "toy_gen,toy_gne", "unknown task 'toy_gne'; did you mean toy_gen"),
    ("toy[path=a]", "toy_gen,none_*", "no task matches 'none_*'"),
    ("", "toy_gen", "give models and tasks"),
    ("toy[path=a]", "", "give models and tasks"),
    ("toy[path=a],no-config.py", "toy_gen", "no-config.py does not exist"),
]


def test_nothing_is_submitted_where_a_part_of_the_matrix_is_refused(
    mill: Mill, submitted: list[list[str]], tmp_path: Path
) -> None:
    for models, tasks, message in REFUSED:
        code, out, err = mill(models, tasks)
        assert (code, out) == (2, "") and message in err and err.count("\n") == 1
    code, _, err = mill("toy[path=a]", "toy_gen", *cluster(at_once="two"))
    assert code == 2 and err == "mill: cluster.yaml is not valid: at_once: expected int, got str\n"
    assert not submitted and not (tmp_path / "out/schedule").exists()


def test_keys_are_not_stored_with_the_jobs(
    mill: Mill, submitted: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = mill("toy[path=a,api_key=sk-inline-0]")
    assert code == 2 and "'toy[path=a,api_key=$NAME]'" in err and "sk-in" not in out + err and not submitted
    monkeypatch.setenv("NAME", "sk-inherited")
    Path("config.py").write_text('model = {"type": "toy", "path": "a", "api_key": "sk-in-a-file"}\n')
    for spec in ("toy[path=a,api_key=$NAME]", "config.py"):
        code, out, err = mill(spec)
        assert code == 0 and "sk-in" not in out + err
    stored = [file.read_text() for file in (tmp_path / "out").rglob("*.json")]
    assert submitted and stored and "sk-in" not in "".join(stored) + str(submitted)


def test_without_submitit_one_line_names_the_package(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "submitit" else found(name, *more))
    code, _, err = mill("toy[path=a]")
    assert code == 2 and err == 'mill: mill schedule needs the package submitit: pip install -e ".[slurm]"\n'


def test_without_slurm_one_line_names_eval(mill: Mill, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, out, err = mill("toy[path=a]")
    assert (code, out) == (2, "") and err.startswith("mill: no SLURM on this machine (") and "`mill eval`" in err
    assert err.count("\n") == 1


def test_a_refusal_by_slurm_is_reported_in_one_line(mill: Mill, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An sbatch that refuses, as real ones do for a partition that they do not have."""
    for program in ("srun", "squeue", "sbatch"):
        (tmp_path / program).write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: gpu' >&2\nexit 1\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    code, _, err = mill("toy[path=a]", "toy_gen", *cluster(partition="gpu"))
    last = err.splitlines()[-1]
    assert code == 2 and last.startswith("mill: SLURM refused the jobs: ") and "invalid partition specified: gpu" in last


# mill collect --check


def test_the_check_lists_runs_outside_the_schedule(
    check: Mill, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["eval", "toy[path=a]", "toy_gen,toy_choice", "--task_paths", TOY, "--output_dir", "out", "--quiet"]
    monkeypatch.setenv("TOY_FAILS", "toy_gen 3")
    assert run(argv) == 1
    capsys.readouterr()
    code, out, _ = check()
    assert code == 1 and "toy_gen: 1 samples failed" in out and "toy_choice" not in out and "1 results are missing" in out
    monkeypatch.delenv("TOY_FAILS")
    assert run(argv) == 0
    capsys.readouterr()
    assert check()[:2] == (0, "nothing is missing: 0 jobs scheduled\n")


def test_the_check_can_be_limited_to_a_model_or_a_task(mill: Mill, check: Mill, submitted: list[list[str]]) -> None:
    mill("toy[path=a],toy[path=b]", "toy_gen,toy_choice")
    assert "4 results are missing" in check()[1]
    assert "2 results are missing" in check("--model", "path=b")[1]
    assert "1 results are missing" in check("--model", "path=b", "--task", "toy_choice")[1]
    assert check("--model", "nosuch")[0] == 0


def test_the_check_refuses_a_missing_folder_and_options_that_it_would_ignore(check: Mill) -> None:
    for options, message in {
        ("--output_dir", "otu"): "the output folder otu does not exist",
        ("--out", "x.csv"): "leave out --out, --format and --columns",
        ("--format", "json"): "leave out --out, --format and --columns",
    }.items():
        code, _, err = check(*options)
        assert code == 2 and message in err


@pytest.mark.parametrize(("squeue", "why"), [("echo no controller >&2; exit 1", "no controller"), (None, "squeue")])
def test_without_a_list_of_jobs_nothing_is_submitted_twice(
    mill: Mill, check: Mill, submitted: list[list[str]], monkeypatch: pytest.MonkeyPatch, squeue: str | None, why: str
) -> None:
    mill("toy[path=a]")
    tools = Path("tools").resolve()
    tools.mkdir()
    if squeue:
        (tools / "squeue").write_text(f"#!/bin/sh\n{squeue}\n")
        (tools / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}" if squeue is None else f"{tools}:{os.environ['PATH']}")
    for command in ("schedule", "scores"):
        monkeypatch.setattr(f"mill.cli.{command}.active_jobs", active_jobs)
    code, _, err = mill("toy[path=a]")
    assert code != 0 and why in err and len(submitted) == 1
    code, out, err = check()
    assert code == 1 and "unknown" in out and why in err
