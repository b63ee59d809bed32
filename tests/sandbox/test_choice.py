"""Which sandbox a run uses, and what is refused before anything loads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mill.api.consent import Consent, consenting
from mill.api.errors import SpecError
from mill.options.option import one_call
from mill.sandbox import programs
from mill.sandbox.programs import chosen_sandbox, refuse_unsafe_code, run_programs
from mill.support.processes import Background
from mill.tasks.load import load_builtin, make_task
from tests.waiting import DEADLINE_S

ROOT = Path(__file__).parents[2]
AROUND = "; --sandbox none --confirm_run_unsafe_code runs it without isolation"


@pytest.fixture(autouse=True)
def containers() -> None:
    """What another test found out about a container is forgotten."""
    programs.container.cache_clear()


def script(folder: Path, name: str, text: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("", "bubblewrap is not installed: install it (apt install bubblewrap)"),
        ("echo bubblewrap 0.6.1", "bubblewrap 0.6.1 is too old: 0.8 or newer is needed"),
        (
            'test "$1" = --version && echo bubblewrap 0.9.0 && exit\n'
            'echo "bwrap: No permissions to create a new namespace" >&2; exit 1',
            "bubblewrap does not work here (bwrap: No permissions to create a new namespace): are user namespaces off?",
        ),
    ],
)
def test_a_machine_without_bubblewrap_refuses_in_one_line(program: str, message: str, tmp_path: Path) -> None:
    """Before the model is opened: there is none at this address."""
    if program:
        script(tmp_path, "bwrap", program)
    for name in ("setpriv", "sh"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    data = tmp_path / "data" / "openai" / "openai_humaneval" / "openai_humaneval"
    data.mkdir(parents=True)
    (data / "test.jsonl").write_text("{}\n")
    environment = {
        "PATH": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "MILL_DATA": str(tmp_path / "data"),
        "HOME": str(tmp_path),
    }
    model = f"{ROOT / 'tests' / 'toy.py'}[path=x]"
    command = [sys.executable, "-m", "mill", "eval", model, "humaneval", "--output_dir", str(tmp_path / "out")]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=tmp_path)
    assert found.returncode == 2 and len(found.stderr.splitlines()) == 1, found.stderr
    assert found.stderr.startswith(f"mill: humaneval executes code that the model wrote, and {message}")
    assert found.stderr.endswith(f"{AROUND}\n") and not (tmp_path / "out").exists()


def test_docker_without_a_daemon_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "docker", "echo 'Cannot connect to the Docker daemon' >&2\nexit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    load_builtin()
    with (
        consenting(Consent(sandbox="docker")),
        pytest.raises(SpecError, match="and neither docker nor podman answers: start a daemon"),
    ):
        refuse_unsafe_code([make_task("humaneval")])


def test_a_container_is_started_for_each_program_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an engine that logs its arguments and runs the command of the container here."""
    text = f"""
echo "$@" | head -n 1 >> {tmp_path}/log
case "$1" in run) ;; *) exit 0;; esac
while [ "$1" != --entrypoint ]; do shift; done
shift 3
exec {sys.executable} "$@"
"""
    script(tmp_path, "docker", text)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with consenting(Consent(sandbox="docker", sandbox_image="org/python:3")):
        found, label = (
            run_programs(["assert 1", "assert 0", "while True: pass"], timeout=1, workers=1),
            chosen_sandbox().label,
        )
    assert [one.outcome for one in found] == ["passed", "failed", "timed out"]
    log = (tmp_path / "log").read_text().splitlines()
    started = [line.split() for line in log if line.startswith("run ")]
    removed = [line.split()[-1] for line in log if line.startswith("rm --force ")]
    assert len(started) == 3 and [words[words.index("--name") + 1] for words in started] == removed
    for option in (
        "--network none", "--read-only", f"--memory {2**32}", "--pids-limit 16", "--cap-drop ALL",
        "--security-opt no-new-privileges", "--user 65534", "--pull never",
    ):  # fmt: skip
        assert f" {option} " in " ".join(started[0]), option
    assert label == "docker org/python:3"


def test_calls_in_two_threads_have_their_own_sandboxes() -> None:
    """A thread that a call starts has its call's."""
    chosen, answered = threading.Event(), threading.Event()

    def unisolated() -> list[str]:
        with one_call({"sandbox": "none"}):
            chosen.set()
            answered.wait(DEADLINE_S)
            return [chosen_sandbox().name, Background(lambda: chosen_sandbox().name).result()]

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(unisolated)
        assert chosen.wait(DEADLINE_S)
        with one_call({}):
            own = [chosen_sandbox().name, Background(lambda: chosen_sandbox().name).result()]
        answered.set()
        assert (own, other.result()) == (["bubblewrap"] * 2, ["none"] * 2)
