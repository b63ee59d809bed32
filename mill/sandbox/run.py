"""One Python program in a process of its own, with limits on time, memory, output and files.

With bubblewrap the process sees a read-only /usr, an empty home and no network, and is an unprivileged user. Without it only
the limits hold, so that a program can read and write what the user can: the caller needs the user's consent.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PASSED, FAILED, TIMED_OUT = "passed", "failed", "timed out"
_MEMORY = 2**30
_FILE_SIZE = 2**24
_FILES = 2**26  # bytes of all files together
_PROCESSES = 64
_UNPRIVILEGED = "65534"
_SHOWN = 300  # characters of an error
# The program's last act is a word that only its caller knows: one that ends early has not passed.
_RUNNER = """
import sys
word, source = sys.stdin.readline().strip(), sys.stdin.read()
out, errors = sys.stdout, sys.stderr
sys.stdin = open("/dev/null")
sys.stdout = open("/dev/null", "w")
try:
    exec(compile(source, "program", "exec"), {"__name__": "__main__"})
except BaseException as error:
    errors.write(f"{type(error).__name__}: {error}"[:300])
    raise SystemExit(1)
out.write(word)
out.flush()
"""


@dataclass(frozen=True)
class Execution:
    """What became of a program: passed, failed with its error, or timed out."""

    outcome: str
    error: str = ""

    @property
    def passed(self) -> bool:
        return self.outcome == PASSED


def sandbox_name() -> str:
    """What isolates programs on this machine; empty where nothing does."""
    return "bubblewrap" if _isolation() else ""


def run_python(source: str, *, timeout: float) -> Execution:
    """Run a program to its end. It passes if it gets there without an exception."""
    word, isolated = secrets.token_hex(16), _isolation()
    command = [*_limits(timeout), *(isolated or [sys.executable]), "-I", "-c", _RUNNER]
    with tempfile.TemporaryDirectory(prefix="mill-") as folder, contextlib.ExitStack() as files:
        given, out, errors = (files.enter_context((Path(folder) / name).open("w+b")) for name in ("in", "out", "errors"))
        given.write(f"{word}\n{source}".encode("utf-8", "surrogatepass"))
        given.seek(0)
        process = subprocess.Popen(
            command,
            stdin=given,
            stdout=out,  # a file, whose size is limited
            stderr=errors,
            cwd="/" if isolated else folder,
            env={"PATH": "/usr/bin:/bin"},
            start_new_session=True,
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            return Execution(TIMED_OUT)
        finally:
            _end(process)
        out.seek(0)
        errors.seek(0)
        if code == 0 and out.read(len(word) + 1).strip() == word.encode():
            return Execution(PASSED)
        error = errors.read(_SHOWN).decode("utf-8", "replace").strip()
    return Execution(FAILED, error or f"ended early with exit code {code}")


@functools.cache
def has_module(name: str) -> bool:
    """Whether a program can import a module here."""
    return run_python(f"import {name}", timeout=30).passed


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and those that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _limits(timeout: float) -> list[str]:
    if shutil.which("prlimit") is None:  # not on Apple machines
        return []
    cpu, memory = f"--cpu={int(timeout) + 1}", f"--as={_MEMORY}"
    return ["prlimit", cpu, memory, f"--fsize={_FILE_SIZE}", f"--nproc={_PROCESSES}", "--core=0"]


@functools.cache
def _isolation() -> list[str]:
    """The command that isolates a process, with an interpreter for it; empty where that does not work on this machine.

    This interpreter may be in a folder that the unprivileged user cannot read: the system's is the other choice.
    """
    if shutil.which("bwrap") is None:
        return []
    own = str(Path(sys.base_prefix) / "bin" / Path(os.path.realpath(sys.executable)).name)
    return next(filter(None, (_works([*_bubblewrap(), python]) for python in (own, "/usr/bin/python3"))), [])


def _bubblewrap() -> list[str]:
    drop = ["setpriv", f"--reuid={_UNPRIVILEGED}", f"--regid={_UNPRIVILEGED}", "--clear-groups", "--no-new-privs"]
    return [
        *(drop if os.geteuid() == 0 else []),
        *("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--ro-bind", "/usr", "/usr"),
        *(word for link in ("lib", "lib64", "bin") for word in ("--symlink", f"usr/{link}", f"/{link}")),
        *("--proc", "/proc", "--dev", "/dev", "--size", str(_FILES), "--tmpfs", "/tmp", "--chdir", "/tmp"),
        *_mounts(),
    ]


def _works(command: list[str]) -> list[str]:
    try:
        tried = subprocess.run([*command, "-I", "-c", "pass"], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return command if tried.returncode == 0 else []


def _mounts() -> Sequence[str]:
    """The folder of an interpreter that is not below /usr."""
    prefix = sys.base_prefix
    return () if prefix.startswith("/usr") or not _readable_by_others(prefix) else ("--ro-bind", prefix, prefix)


def _readable_by_others(folder: str) -> bool:
    return all(path.stat().st_mode & 0o005 == 0o005 for path in (Path(folder), *Path(folder).parents))
