"""What a sandbox is, and the three: bubblewrap, a container, and none.

In bubblewrap a program sees a read-only /usr and an interpreter, has no network and is an unprivileged user.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import struct
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

RUNNER = Path(__file__).with_name("runner.py")
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
UNPRIVILEGED = "65534"


@dataclass(frozen=True)
class Limits:
    """What a program may use, besides its time. 0 is no limit."""

    memory: int = 2**32
    """Bytes of address space of each process; a solution of MBPP+ needs half of it."""
    file_size: int = 2**24
    processes: int = 16
    """With those of the sandbox itself."""
    folder_size: int = 2**26
    """Bytes of all files together in each of the folders that it may write to, where the sandbox mounts these."""


class Sandbox(ABC):
    """One way to start interpreters apart from this machine, one for each program."""

    name: str
    isolates: bool = True
    limits: Limits = Limits()
    modules: str = ""
    """The folder, as programs see it, of modules beside the standard library."""

    @property
    def label(self) -> str:
        """The sandbox with what it depends on, for the manifest."""
        return self.name

    @cached_property
    def problem(self) -> str:
        """Why it cannot be used on this machine and what would help, in one line; empty where it can."""
        return ""

    @abstractmethod
    def start(self, label: str, arguments: Sequence[str], folder: str) -> subprocess.Popen[bytes]:
        """Start an interpreter with these arguments; `label` names this one."""

    def end(self, label: str) -> None:
        """End what is left of an interpreter whose process here was killed."""
        return

    def arguments(self, preload: Sequence[str] = ()) -> list[str]:
        """Those of an interpreter that waits for a program, with some modules imported."""
        numbers = (self.limits.memory, self.limits.file_size, self.limits.processes)
        return ["-c", RUNNER.read_text(encoding="utf-8"), *map(str, numbers), self.modules, *preload]


def popen(
    command: Sequence[str], folder: str, environment: Mapping[str, str] | None, files: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """A process with pipes, which is the first of its own group. Without an environment it has that of this process."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        bufsize=0,
        cwd=folder,
        env=environment,
        pass_fds=files,
        start_new_session=True,
    )


class Unisolated(Sandbox):
    """A program can read, write and send what the user can."""

    name = "none"
    isolates = False
    # Processes are counted for the user, not for the program; macOS cannot limit the address space.
    limits = Limits(memory=0 if sys.platform == "darwin" else Limits.memory, processes=0)

    def start(self, label: str, arguments: Sequence[str], folder: str) -> subprocess.Popen[bytes]:
        return popen([sys.executable, "-I", *arguments], folder, {**ENVIRONMENT, "MILL_PROGRAM": label})

    def end(self, label: str) -> None:
        """Processes with a session of their own have left the group; on Linux their environment shows whose they are."""
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if label.encode() in (process / "environ").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)


DEFAULT_IMAGE = "python:3.11-slim"
_ENGINES = ("docker", "podman")
_CALL_S = 60


class Container(Sandbox):
    """Docker or Podman. The engine limits memory and processes; the image's own modules can be imported."""

    name = "docker"
    limits = Limits(processes=0)

    def __init__(self, image: str = DEFAULT_IMAGE) -> None:
        self.image = image

    @property
    def label(self) -> str:
        return f"{self._engine or self.name} {self.image}"

    @cached_property
    def _engine(self) -> str:
        """The first engine that answers."""
        return next((name for name in _ENGINES if shutil.which(name) and _call(name, "ps", "-q")), "")

    @cached_property
    def problem(self) -> str:
        if not self._engine:
            return "neither docker nor podman answers: start a daemon, or leave out --sandbox docker"
        if not _call(self._engine, "image", "inspect", self.image):
            return f"{self._engine} has no image {self.image}: {self._engine} pull {self.image}"
        return ""

    def start(self, label: str, arguments: Sequence[str], folder: str) -> subprocess.Popen[bytes]:
        most = self.limits
        command = [
            *(self._engine, "run", "--rm", "--interactive", "--pull", "never", "--name", label),
            *("--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--user", UNPRIVILEGED, "--memory", str(most.memory), "--memory-swap", str(most.memory)),
            *("--pids-limit", str(Limits().processes), "--tmpfs", f"/tmp:size={most.folder_size},mode=1777"),
            *("--workdir", "/tmp", *(word for pair in ENVIRONMENT.items() for word in ("--env", "=".join(pair)))),
            *("--entrypoint", "python3", self.image, "-I", *arguments),
        ]
        return popen(command, folder, None)  # the engine's client may need the environment; the container gets its own

    def end(self, label: str) -> None:
        _call(self._engine, "rm", "--force", label)  # the engine's client was killed, not the container


def _call(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=_CALL_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


_PYTHON, _MODULES = "/opt/python", "/opt/modules"  # as programs see them
_PROVIDED = ("numpy",)
_INSTALL = "install it (apt install bubblewrap)"
_ENABLE = "are user namespaces off? In a container: --security-opt seccomp=unconfined; else sysctl user.max_user_namespaces"
_OLDEST = (0, 8)  # has --disable-userns


class Bubblewrap(Sandbox):
    """Each program has namespaces and folders of its own."""

    name = "bubblewrap"
    modules = _MODULES

    @cached_property
    def problem(self) -> str:
        return self._probed[1]

    def start(self, label: str, arguments: Sequence[str], folder: str) -> subprocess.Popen[bytes]:
        with _call_filter() as file:
            return popen([*_command(self._probed[0], file), *arguments], folder, {}, (file,))

    @cached_property
    def _probed(self) -> tuple[Path, str]:
        """An interpreter that works, or why there is none. This one may need more than its own folder: the system's is the
        other choice."""
        pythons, complaint = (Path(os.path.realpath(sys.executable)), Path("/usr/bin/python3")), ""
        program = shutil.which("bwrap")
        if program is None:
            return pythons[0], f"bubblewrap is not installed: {_INSTALL}"
        version = _output([program, "--version"]).rpartition(" ")[2].strip()
        if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < _OLDEST:
            return pythons[0], f"bubblewrap {version} is too old: 0.8 or newer is needed"
        for python in pythons:
            try:
                with _call_filter() as file:
                    command = [*_command(python, file), "-c", ""]
                    tried = subprocess.run(command, capture_output=True, timeout=60, check=False, cwd="/", pass_fds=(file,))
            except (OSError, subprocess.TimeoutExpired) as error:
                complaint = complaint or type(error).__name__
                continue
            if tried.returncode == 0:
                return python, ""
            complaint = complaint or tried.stderr.decode("utf-8", "replace").strip()
        return pythons[0], f"bubblewrap does not work here ({' '.join(complaint.split())[:200]}): {_ENABLE}"


def _command(python: Path, call_filter: int) -> list[str]:
    """The command that starts an interpreter as an unprivileged user."""
    program = shutil.which("bwrap") or "bwrap"
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
    size = str(Limits.folder_size)
    return [
        *before,
        *(program, "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"),
        *("--clearenv", "--setenv", "LD_LIBRARY_PATH", f"{_PYTHON}/lib", "--setenv", "OPENBLAS_NUM_THREADS", "1"),
        *("--ro-bind", "/usr", "/usr", *_beside_usr()),
        *(word for source, target in binds.items() for word in ("--ro-bind", source, target)),
        # No /proc: it would show the interpreter's memory and what else runs here.
        *("--dev", "/dev", "--size", size, "--tmpfs", "/dev/shm", "--size", size, "--tmpfs", "/tmp"),
        *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp", "--seccomp", str(call_filter)),
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


# add_key, request_key, keyctl, shmget, semget, msgget, ptrace, process_vm_readv and writev, memfd_create, bpf,
# perf_event_open, userfaultfd, unshare, setns, mount, io_uring_setup
_REFUSED_CALLS = {
    "x86_64": (
        0xC000003E,
        (248, 249, 250, 29, 64, 68, 101, 310, 311, 319, 321, 298, 323, 272, 308, 165, 425),
    ),
    "aarch64": (
        0xC00000B7,
        (217, 218, 219, 194, 190, 186, 117, 270, 271, 279, 280, 241, 282, 97, 268, 40, 425),
    ),
}


@contextlib.contextmanager
def _call_filter() -> Iterator[int]:
    """An open file with a seccomp filter for bubblewrap. It refuses system calls that reach what namespaces do not divide,
    such as keys of the user, and memory that no limit counts. On other architectures the namespaces are all there is."""
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06  # instructions of the kernel's packet filter
    allow, refuse, end = 0x7FFF0000, 0x00050001, 0x80000000  # the second gives EPERM
    steps = [(give, 0, 0, allow)]
    if known := _REFUSED_CALLS.get(os.uname().machine):
        architecture, numbers = known
        steps = [(load, 0, 0, 4), (equal, 1, 0, architecture), (give, 0, 0, end), (load, 0, 0, 0)]
        steps += [(at_least, len(numbers) + 1, 0, 0x40000000)]  # another table of the same calls
        steps += [(equal, len(numbers) - index, 0, number) for index, number in enumerate(numbers)]
        steps += [(give, 0, 0, allow), (give, 0, 0, refuse)]
    read, write = os.pipe()
    try:
        os.write(write, b"".join(struct.pack("=HBBI", *step) for step in steps))
        os.close(write)
        yield read
    finally:
        os.close(read)
