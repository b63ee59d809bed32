"""Real trackers: a server and a database of MLflow, wandb offline, trackio. What they return is what mill has."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mill.export.run import ExportedRun
from mill.export.tracker import TrackedRun, tracked
from tests import forking
from tests.engines.prepared import environment
from tests.export.made_runs import ENVIRONMENT, KEY, evaluate, leaks, mill
from tests.servers import free_port
from tests.shared import made_once, served_once
from tests.waiting import until

READER = Path(__file__).with_name("read_trackers.py")
FORKED = Path(__file__).with_name("forked_trackers.py")
TOY = Path(__file__).parents[1] / "toy.py"
Read = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def python() -> str:
    return str(environment("trackers") / "python")


@pytest.fixture(scope="module")
def run(python: str, tmp_path_factory: pytest.TempPathFactory) -> ExportedRun:
    return evaluate(tmp_path_factory.mktemp("odd") / "results", python=python)


@pytest.fixture
def read(python: str, tmp_path: Path) -> Read:
    """What a tracker has; trackio's data is in the folder of the test."""

    def reader(*words: str) -> list[dict[str, Any]]:
        command = [python, str(READER), *words]
        environ = {**ENVIRONMENT, "TRACKIO_DIR": str(tmp_path / "trackio")}
        done = forking.run(command, env=environ, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-2000:]
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    return reader


@pytest.fixture
def export(python: str, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def exporter(*words: str) -> subprocess.CompletedProcess[str]:
        staged = {"WANDB_DIR": str(tmp_path), "WANDB_DATA_DIR": str(tmp_path / "staged")}
        return mill("export", *words, python=python, cwd=tmp_path, TRACKIO_DIR=str(tmp_path / "trackio"), **staged)

    return exporter


@pytest.fixture(scope="module")
def empty(python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of MLflow without runs: to create its tables takes MLflow several seconds."""

    def make(folder: Path) -> None:
        command = [python, str(READER), "mlflow", f"sqlite:///{folder}/mlflow.db"]
        assert forking.run(command, env=ENVIRONMENT, cwd=folder).returncode == 0

    return made_once(tmp_path_factory, "mlflow-database", make) / "mlflow.db"


@pytest.fixture
def database(empty: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(empty, tmp_path))


@pytest.fixture(scope="module")
def server(python: str, empty: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """MLflow's server, without the processes of its own that would run jobs."""
    folder = made_once(tmp_path_factory, "mlflow-store", lambda folder: shutil.copy(empty, folder))
    store = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "files")]
    options = ["server", "--host", "127.0.0.1", "--workers", "1", *store, "--port"]
    path = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**ENVIRONMENT, "PATH": path, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    mlflow = str(Path(python).with_name("mlflow"))
    with served_once(tmp_path_factory, "mlflow", lambda port: [python, mlflow, *options, str(port)], variables) as url:
        yield url


def assert_files(files: dict[str, str], run: ExportedRun) -> None:
    """The files of an entry: the report, the results as they are, and every sample."""
    import pyarrow.parquet

    assert set(files) == {"report.html", "results.json", "samples.parquet"}
    assert bytes.fromhex(files["results.json"]) == (run.folder.path / "results.json").read_bytes()
    table = pyarrow.parquet.read_table(io.BytesIO(bytes.fromhex(files["samples.parquet"])))
    assert table.num_rows == 15
    assert b"odd_dialog" in bytes.fromhex(files["report.html"])


def assert_mlflow(found: dict[str, Any], entry: TrackedRun) -> None:
    assert (found["name"], found["status"]) == (entry.name, "FINISHED")
    assert found["params"] == entry.params
    assert entry.tags.items() <= found["tags"].items()
    names = {name.replace("@", "_").replace(",", "_"): value for name, value in entry.metrics.items()}
    assert found["metrics"] == names
    assert found["history"]["odd_text/exact_match"] == [[entry.step, pytest.approx(1 / 3)]]


def test_mlflow_has_one_entry_of_a_run_that_is_exported_twice(
    run: ExportedRun, read: Read, export: Any, server: str
) -> None:
    for _ in range(2):
        done = export(str(run.folder.path), "--to", f"mlflow:{server}", "--project", "twice")
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
    (found,) = read("mlflow", server, "twice")
    assert_mlflow(found, tracked(run))
    assert found["tags"]["mill.not_finite"] == "odd_text/speed = inf"
    assert_files(found["files"], run)


def test_an_extended_run_updates_its_entry(python: str, read: Read, export: Any, server: str, tmp_path: Path) -> None:
    evaluate(tmp_path / "results", "odd_text", "--limit", "1", python=python)
    assert export(str(tmp_path / "results"), "--to", f"mlflow:{server}", "--project", "extended").returncode == 0
    longer = evaluate(tmp_path / "results", "odd_text", python=python)
    assert export(str(tmp_path / "results"), "--to", f"mlflow:{server}", "--project", "extended").returncode == 0
    (found,) = read("mlflow", server, "extended")
    assert found["metrics"] == tracked(longer).metrics
    assert found["history"]["odd_text/exact_match"] == [[1, 1.0], [4, pytest.approx(1 / 3)]]


def test_wandb_offline(run: ExportedRun, read: Read, export: Any, tmp_path: Path) -> None:
    done = export(str(run.folder.path), "--to", "wandb:evals", "--offline")
    assert done.returncode == 0 and "wandb sync" in done.stdout, done.stderr
    (found,) = read("wandb", str(tmp_path))
    entry = tracked(run)
    assert (found["id"], found["name"], found["project"]) == (entry.uid, entry.name, "evals")
    assert {**entry.params, **entry.tags}.items() <= found["config"].items()
    scores = {**entry.metrics, "odd_text/speed": "Infinity"}
    (row,) = found["history"]
    assert {name: value for name, value in row.items() if not name.startswith("_")} in (
        scores,
        {**scores, "odd_text/speed": "inf"},
    )
    assert row["_step"] == entry.step
    ((artifact,)) = found["artifacts"]
    assert artifact["name"] == f"mill-{entry.uid}"
    assert_files(artifact["files"], run)
    assert leaks(tmp_path) == []
    assert not list(tmp_path.rglob("wandb-metadata.json")) and not list(tmp_path.rglob("requirements.txt"))


def test_trackio_has_one_entry_of_a_run_that_is_exported_twice(run: ExportedRun, read: Read, export: Any) -> None:
    for _ in range(2):
        done = export(str(run.folder.path), "--to", "trackio")
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
    (found,) = read("trackio", "mill")
    entry = tracked(run)
    assert found["name"] == f"{entry.name} {entry.uid}"
    assert {**entry.params, **entry.tags}.items() <= found["config"].items()
    (row,) = found["logs"]
    assert row["step"] == entry.step
    assert {name: value for name, value in row.items() if name not in ("step", "timestamp")} == {
        **entry.metrics, "odd_text/speed": "inf",
    }  # fmt: skip
    assert_files(found["files"], run)


def logging(python: str, folder: Path, *targets: str, file: Path = FORKED) -> list[str]:
    """`mill eval --log_to` on 40 samples."""
    options = ["--task_paths", f"{TOY},{file}", "--output_dir", str(folder / "results"), "--quiet"]
    return [python, "-m", "mill", "eval", "toy[path=org/toy]", "toy_gen", *options, "--log_to", ",".join(targets)]


def log(python: str, folder: Path, *targets: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**ENVIRONMENT, "FORKED_IN": str(forking.folder), **environment}
    return forking.run(logging(python, folder, *targets), env=variables, cwd=folder)


def test_a_run_is_logged_when_it_ends(python: str, read: Read, server: str, tmp_path: Path) -> None:
    places = {"TRACKIO_DIR": str(tmp_path / "trackio"), "WANDB_DIR": str(tmp_path), "WANDB_MODE": "offline"}
    done = log(python, tmp_path, f"mlflow:{server}", "trackio:ended", "wandb:ended", **places)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    (run,) = read("mlflow", server, "mill")
    assert run["status"] == "FINISHED" and run["tags"]["mill.status"] == "finished"
    assert run["history"]["toy_gen/exact_match"] == [[40, run["metrics"]["toy_gen/exact_match"]]]
    assert set(run["files"]) == {"report.html", "results.json", "samples.parquet"}
    (local,) = read("trackio", "ended")
    assert local["logs"][-1]["toy_gen/exact_match"] == run["metrics"]["toy_gen/exact_match"]
    (offline,) = read("wandb", str(tmp_path))
    assert offline["summary"]["toy_gen/exact_match"] == run["metrics"]["toy_gen/exact_match"]
    assert offline["config"]["mill.status"] == "finished"


def test_trackers_that_fail_or_are_gone_are_one_warning(python: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    gone = f"mlflow:http://me:$SOME_NAME@127.0.0.1:{free_port()}"
    done = log(python, tmp_path, gone, "trackio", TRACKIO_DIR=str(tmp_path / "file"))
    assert done.returncode == 0
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 2 and all("the run is not logged: " in line for line in warnings), done.stderr
    assert KEY[:10] not in done.stdout + done.stderr and leaks(tmp_path) == []
    assert "exact_match" in done.stdout


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_tracker_that_hangs_does_not_delay_the_run(python: str, silent: str, tmp_path: Path) -> None:
    """The results are complete at once; the command ends after the seconds that an export may take."""
    (tmp_path / "patience.py").write_text("from mill.export import tracker\ntracker.LONGEST_S = 3\n")
    command = logging(python, tmp_path, f"mlflow:{silent}", file=tmp_path / "patience.py")
    pipe = subprocess.PIPE
    with forking.popen(command, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path) as process:
        until(lambda: process.poll() is not None or list(tmp_path.rglob("results.json")), "results.json")
        assert process.poll() is None  # it still waits for the tracker
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and "exact_match" in out
    (line,) = err.splitlines()
    assert line.startswith("warning: mlflow: the run is not logged: it did not answer within ")


def test_an_interrupted_run_is_logged_as_one(python: str, read: Read, database: Path, tmp_path: Path) -> None:
    uri = f"sqlite:///{database}"
    variables = {**ENVIRONMENT, "FORKED_IN": str(forking.folder), "TOY_HOLD": "20"}
    command = logging(python, tmp_path, f"mlflow:{uri}")
    with forking.popen(command, env=variables, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        until(lambda: process.poll() is not None or recorded(tmp_path) > 0, "responses")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=90)
    assert process.returncode == 130, err
    (run,) = read("mlflow", uri)
    assert (run["status"], run["tags"]["mill.status"]) == ("KILLED", "interrupted")
    assert run["metrics"]["run/unanswered"] == 40  # samples are written at the end of a run


def recorded(folder: Path) -> int:
    """The responses of a run so far."""
    return sum(file.read_bytes().count(b"\n") for file in folder.glob("results/*/*/record/*.jsonl"))
