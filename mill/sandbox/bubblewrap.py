"""bubblewrap: programs see a read-only /usr and an interpreter, have no network and are an unprivileged user."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from functools import cached_property
from pathlib import Path

from mill.sandbox.isolation import UNPRIVILEGED, Sandbox

_PYTHON, _MODULES = "/opt/python", "/opt/modules"  # as programs see them
_PROVIDED = ("numpy",)
_INSTALL = "install it (apt install bubblewrap)"
_ENABLE = "are user namespaces off? In a container: --security-opt seccomp=unconfined; else sysctl user.max_user_namespaces"
_OLDEST = (0, 8)  # has --disable-userns


class Bubblewrap(Sandbox):
    """`bwrap` isolates an interpreter from the machine; that one gives every program namespaces and folders of its own."""

    name = "bubblewrap"
    reusable = True
    modules = _MODULES

    @cached_property
    def problem(self) -> str:
        return self._probed[1]

    def interpreter(self, label: str) -> list[str]:
        return self._probed[0]

    @cached_property
    def _probed(self) -> tuple[list[str], str]:
        """The command of an interpreter that works, or why there is none. This one may need more than its own folder: the
        system's is the other choice."""
        program = shutil.which("bwrap")
        if program is None:
            return [], f"bubblewrap is not installed: {_INSTALL}"
        version = _output([program, "--version"]).rpartition(" ")[2].strip()
        if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < _OLDEST:
            return [], f"bubblewrap {version} is too old: 0.8 or newer is needed"
        complaint = ""
        for python in (Path(os.path.realpath(sys.executable)), Path("/usr/bin/python3")):
            command = _command(program, python)
            try:
                tried = subprocess.run([*command, "-c", ""], capture_output=True, timeout=60, check=False, cwd="/")
            except (OSError, subprocess.TimeoutExpired) as error:
                complaint = complaint or type(error).__name__
                continue
            if tried.returncode == 0:
                return command, ""
            complaint = complaint or tried.stderr.decode("utf-8", "replace").strip()
        return [], f"bubblewrap does not work here ({' '.join(complaint.split())[:200]}): {_ENABLE}"


def _command(program: str, python: Path) -> list[str]:
    """The command that starts an interpreter as an unprivileged user."""
    binds, seen = _binds(python)
    before: list[str] = []
    if os.geteuid() == 0:
        before = ["setpriv", f"--reuid={UNPRIVILEGED}", f"--regid={UNPRIVILEGED}", "--clear-groups", "--no-new-privs"]
        if not all(_readable_by_others(source) for source in binds):
            # The unprivileged user cannot reach these folders: root mounts them where it can, in a namespace of their own.
            staged = {f"/tmp/{number}": target for number, target in enumerate(binds.values())}
            mounts = [word for pair in zip(binds, staged, strict=True) for word in ("--ro-bind", *pair)]
            before = [program, "--dev-bind", "/", "/", "--tmpfs", "/tmp", *mounts, *before]
            binds = staged
    return [
        *before,
        *(program, "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"),
        *("--clearenv", "--setenv", "LD_LIBRARY_PATH", f"{_PYTHON}/lib", "--setenv", "OPENBLAS_NUM_THREADS", "1"),
        *("--ro-bind", "/usr", "/usr", *_beside_usr()),
        *(word for source, target in binds.items() for word in ("--ro-bind", source, target)),
        # No /proc: it would show the interpreter's memory and what else runs here.
        *("--dev", "/dev", "--dir", "/tmp", "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"),
        *("--cap-add", "CAP_SYS_ADMIN"),  # in its user namespace, and for the runner alone: it mounts /tmp
        *(seen, "-I", "-S"),
    ]


def _binds(python: Path) -> tuple[dict[str, str], str]:
    """The folders that programs see beside /usr, with their paths there, and the path of the interpreter there."""
    binds, seen, prefix = {}, str(python), str(python.parent.parent)
    if not prefix.startswith("/usr"):
        binds[prefix] = _PYTHON
        seen = f"{_PYTHON}/bin/{python.name}"
    for name in _PROVIDED:
        found = importlib.util.find_spec(name)
        if found is not None and found.origin is not None:
            package = Path(found.origin).parent
            libraries = package.with_name(f"{name}.libs")  # of a wheel
            binds |= {str(path): f"{_MODULES}/{path.name}" for path in (package, libraries) if path.is_dir()}
    return binds, seen


def _beside_usr() -> list[str]:
    """The top folders with programs and libraries, which are links into /usr in most distributions."""
    words: list[str] = []
    for folder in map(Path, ("/bin", "/lib", "/lib32", "/lib64", "/sbin")):
        if folder.is_symlink():
            words += ["--symlink", str(folder.readlink()), str(folder)]
        elif folder.is_dir():
            words += ["--ro-bind", str(folder), str(folder)]
    return words


def _readable_by_others(folder: str) -> bool:
    return all(path.stat().st_mode & 0o005 == 0o005 for path in (Path(folder), *Path(folder).parents))


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
