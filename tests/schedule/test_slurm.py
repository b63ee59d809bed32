"""Matrices on a real SLURM: arrays, active jobs, what failed, what was cancelled, killed or preempted."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.schedule.matrix import (
    all_ended,
    check,
    computed,
    evaluate,
    jobs,
    logs,
    recorded,
    schedule,
    scores,
    squeue,
)
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("slurm")
MODELS, TASKS, SHOTS = "toy[path=a],toy[path=b]", "toy_gen,toy_choice", ("--n_shots", "0,5")
KEY = "sk-a-key-that-jobs-have-in-their-environment"


def cluster_file(folder: Path, **entries: object) -> tuple[str, str]:
    file = folder / "cluster.yaml"
    file.write_text(json.dumps({"minutes": 5, **entries}))  # JSON is YAML
    return "--cluster", str(file)


@dataclass
class Seen:
    """The queue, polled until it was empty."""

    out: Path
    together: int = 0
    of_one_array: int = 0
    submitted: str = ""
    again: str = ""
    check_meanwhile: tuple[int, str] = (0, "")
    jobs: set[str] = field(default_factory=set)


@pytest.fixture(scope="module")
def seen(slurm: None, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Eight cells in two arrays, two at once in each, by a command that is given twice at the same time."""
    folder = tmp_path_factory.mktemp("matrix")
    found = Seen(folder / "out")
    limits = cluster_file(folder, at_once=2, array_size=4)
    environment = {"TOY_N": "6", "TOY_DELAY": "0.15", "MILL_API_KEY": KEY}
    with ThreadPoolExecutor(2) as two:
        both = two.map(lambda _: schedule(found.out, MODELS, TASKS, *SHOTS, *limits, **environment), range(2))
    first, again = sorted(both, key=lambda done: "submitted" not in done.stdout)
    found.submitted, found.again = first.stdout, again.stdout
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    found.check_meanwhile = check(found.out)
    found.jobs = jobs(found.out)

    def empty() -> bool:
        running = squeue("R")
        found.together = max(found.together, len(running))
        arrays = Counter(job.partition("_")[0] for job in running)
        found.of_one_array = max(found.of_one_array, *arrays.values(), 0)
        return not squeue()

    until(empty, "end of all jobs")
    return found


def test_arrays_have_the_size_and_the_concurrency_of_the_cluster_file(seen: Seen) -> None:
    assert seen.submitted.count("submitted 4 jobs as ") == 2
    assert len(seen.jobs) == 8
    assert {job.partition("_")[2] for job in seen.jobs} == {"0", "1", "2", "3"}
    assert seen.of_one_array == 2


def test_no_more_than_at_once_run_together_in_all(seen: Seen) -> None:
    assert seen.together <= 2


def test_active_cells_are_not_submitted_again(seen: Seen) -> None:
    assert "submitted" not in seen.again and seen.again.count("active") == 8
    assert jobs(seen.out) == seen.jobs


def test_the_check_marks_active_cells(seen: Seen) -> None:
    code, out = seen.check_meanwhile
    assert code == 1
    missing = out.count("no result")  # a fast cell may be done by now
    assert 1 <= missing <= 8 and out.count("active") == missing and f"{missing} results are missing" in out


def test_results_are_those_of_plain_runs(seen: Seen, tmp_path: Path) -> None:
    for shots in ("0", "5"):
        evaluate(tmp_path / "plain", MODELS, TASKS, "--n_shots", shots, TOY_N="6")
    assert scores(seen.out) == scores(tmp_path / "plain"), logs(seen.out)
    assert len(scores(seen.out)) == 4 and all(len(run["tasks"]) == 2 for run in scores(seen.out).values())


def test_a_matrix_that_is_done_is_not_submitted_again(seen: Seen) -> None:
    again = schedule(seen.out, MODELS, TASKS, *SHOTS, TOY_N="6")
    assert again.returncode == 0 and again.stdout.count("done") == 8 and "submitted" not in again.stdout
    assert jobs(seen.out) == seen.jobs and not squeue()
    assert check(seen.out) == (0, "nothing is missing: 8 jobs scheduled\n")


def test_keys_in_the_environment_are_in_no_file_of_a_schedule(seen: Seen) -> None:
    assert not [file for file in seen.out.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()]


@pytest.mark.parametrize(
    ("fails", "missing", "left"),
    [("toy_gen 3", "toy_gen: 1 samples failed", 1), ("toy_gen", "toy_gen: no result", 9)],
    ids=["a sample", "the model"],
)
def test_only_the_cell_that_failed_is_submitted_again(tmp_path: Path, fails: str, missing: str, left: int) -> None:
    """Its good answers are reused: only what failed is computed again."""
    out, log = tmp_path / "out", tmp_path / "log"
    limits = cluster_file(tmp_path)
    schedule(out, "toy[path=a]", TASKS, *limits, TOY_N="9", TOY_FAILS=fails)
    all_ended()
    code, report = check(out)
    assert code == 1 and missing in report and "toy_choice" not in report and "active" not in report
    assert "1 results are missing" in report
    good = recorded(out)
    again = schedule(out, "toy[path=a]", TASKS, *limits, TOY_N="9", TOY_LOG=str(log))
    assert "submitted 1 job " in again.stdout
    all_ended()
    assert check(out)[0] == 0, logs(out)
    assert len(computed(log)) == left and not good & set(computed(log))


def test_a_preempted_job_is_queued_again_and_ends_right(tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    limits = cluster_file(tmp_path)
    schedule(out, "toy[path=a]", "toy_gen", *limits, TOY_N="24", TOY_DELAY="0.1", TOY_LOG=str(log))
    (job,) = jobs(out)
    until(lambda: recorded(out), "answer")
    subprocess.run(["scancel", "--signal=USR2", job], check=True)
    until(lambda: job in squeue("PD"), "requeued job", pause=0.2)
    known = recorded(out)
    assert 0 < len(known) < 24
    again = schedule(out, "toy[path=a]", "toy_gen", *limits, TOY_N="24")
    assert "active" in again.stdout and "submitted" not in again.stdout
    all_ended()
    assert check(out)[0] == 0, logs(out)
    (run,) = out.glob("*/*/manifest.json")
    first, second = json.loads(run.read_text())["sessions"]
    assert (first["ended"], second["ended"]) == ("failed", "finished")
    assert second["known"] == len(known) and second["computed"] == 24 - len(known)
    evaluate(tmp_path / "plain", "toy[path=a]", "toy_gen", TOY_N="24")
    assert scores(out) == scores(tmp_path / "plain")


def test_the_ranks_of_a_job_share_its_samples(tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    limits = cluster_file(tmp_path, ranks=2)
    schedule(out, "toy[path=a]", "toy_choice", *limits, TOY_N="20", TOY_LOG=str(log))
    all_ended()
    assert check(out)[0] == 0, logs(out)
    assert len(computed(log)) == len(set(computed(log))) == 60
    assert len({file.name.split("-")[2] for file in out.glob("*/*/record/*.jsonl")}) == 2, "one for each rank"
    evaluate(tmp_path / "plain", "toy[path=a]", "toy_choice", TOY_N="20")
    assert scores(out) == scores(tmp_path / "plain")
