"""Starts `mill` by forking a process that has imported it already: 50 ms instead of 1.5 to 12 seconds.

    test ── command, environment, folder, pipes ──► server (mill, torch or transformers imported) ── fork ──► mill
         ◄───────────────── exit status, processor seconds ──────────────────────────

What runs is a process of its own: its signals, exit code, files and standard streams are those of a real start. It differs
in its command line under /proc, its parent, and its hash seed. Tests of starting itself use `subprocess`.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import json
import os
import pkgutil
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.shared import join

SERVERS = {
    "mill": ["pyarrow", "aiohttp", "rich.progress", "rich.table", "yaml"],
    "torch": ["torch", "torch.distributed"],
    "lm_eval": ["lm_eval.evaluator", "lm_eval.tasks", "evaluate", "mill.bridges.lm_eval.source"],
    "transformers": ["torch", "mill.models.hf.model", "transformers.models.llama.modeling_llama"],
    # By the name of an environment of an engine, whose interpreter is then the server's.
    "mlx": ["mlx_lm.generate", "mill.models.mlx_lm"],
    "readers": ["inspect_ai.log", "every_eval_ever.cli"],
    "trackers": [
        *("mlflow.tracking", "mlflow.entities", "mlflow.store.tracking.sqlalchemy_store", "mlflow.store.db.utils"),
        *("wandb.apis.public", "huggingface_hub", "pyarrow.parquet", "rich.progress", "rich.table"),
    ],
    "vllm": ["tests.engines.warm_vllm"],
}
PACKAGES = (
    *("api", "checks", "cli", "execute", "export", "metrics", "models.spec", "options", "plan", "report", "runs"),
    *("score", "store", "tasks"),
)
# Libraries read these once, when they are imported.
AT_IMPORT = ("OMP_", "MKL_", "HF_", "TRANSFORMERS_", "TOKENIZERS_", "PYTHON", "LD_", "CUDA_")
LENGTH = 8

children_seconds = 0.0
"""Processor seconds of the forked processes that have ended, which are no children of this process."""
folder: Path | None = None
"""Where the servers of all testing processes are found."""
_servers: dict[str, Server] = {}


def popen(command: Sequence[str], server: str = "", **options: Any) -> subprocess.Popen[Any]:
    """`subprocess.Popen(command)`, forked where the command is `python -m MODULE` or `python FILE` with this interpreter or
    that of an engine in SERVERS."""
    environment = options.get("env") or os.environ
    server = server or fitting(command, environment)
    if sys.platform != "linux" or server not in SERVERS or command[1] == "-c" or _is_customized(environment):
        return subprocess.Popen(command, **options)
    at_import = {name: value for name, value in environment.items() if name.startswith(AT_IMPORT) and name != "PYTHONPATH"}
    digest = hashlib.sha256(json.dumps([command[0], at_import], sort_keys=True).encode()).hexdigest()
    name = f"{server}-{digest[:8]}"
    if name not in _servers:
        _servers[name] = Server((folder or Path(tempfile.mkdtemp())) / name, server, environment, command[0])
    return Forked(_servers[name], command, **options)


def run(
    command: Sequence[str], server: str = "", *, timeout: float = 300, **options: Any
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run(command, capture_output=True, text=True)`."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with popen(command, server, **{**pipes, **options}) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _is_customized(environment: Mapping[str, str]) -> bool:
    folders = environment.get("PYTHONPATH", "").split(os.pathsep)
    return any(Path(folder, "sitecustomize.py").exists() for folder in folders if folder)


def fitting(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """The server that has imported what the command will import."""
    if command[0] != sys.executable:
        return Path(command[0]).parent.parent.name
    words = " ".join(command)
    if "hf[" in words:
        return "transformers"
    if "configs/clip" in words:
        return "torch"
    if "RANK" in environment or "torch.distributed" in words:
        return "torch"
    return "lm_eval" if "lm-eval" in words else "mill"


class Server:
    """The warm process, as the tests see it: one for all testing processes."""

    def __init__(self, folder: Path, name: str, environment: Mapping[str, str], python: str) -> None:
        self._lock = threading.Lock()
        self._socket = join(folder, lambda descriptor: [python, __file__, str(descriptor), name], environment)

    def fork(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> tuple[int, int]:
        """The process, and a descriptor from which its end can be read."""
        status, theirs = os.pipe()
        body = json.dumps(request).encode()
        with self._lock:
            socket.send_fds(self._socket, [len(body).to_bytes(LENGTH, "big")], [*descriptors, theirs])
            self._socket.sendall(body)
            os.close(theirs)
            return int.from_bytes(receive(self._socket, LENGTH), "big"), status


class Forked(subprocess.Popen[Any]):
    """A process that the server forks: only how it is started and waited for differs from its base class."""

    def __init__(self, server: Server, command: Sequence[str], **options: Any) -> None:
        self._server = server
        super().__init__(command, **options)

    def _execute_child(self, args: Any, executable: Any, preexec: Any, close_fds: Any, pass_fds: Any, cwd: Any, env: Any,
                       info: Any, flags: Any, shell: Any, p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int,
                       errread: int, errwrite: int, *more: Any) -> None:  # fmt: skip
        request = {
            "command": list(map(os.fspath, args)),
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "session": bool(more[5]),
        }
        streams = [own if own != -1 else standard for own, standard in ((p2cread, 0), (c2pwrite, 1), (errwrite, 2))]
        try:
            self.pid, self._status_from = self._server.fork(request, streams)
            self._child_created = True
        finally:
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    def _internal_poll(self, _deadstate: Any = None, **_: Any) -> int | None:
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid == self.pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        global children_seconds
        if wait_flags & os.WNOHANG and not select.select([self._status_from], [], [], 0)[0]:
            return 0, 0
        ended = os.read(self._status_from, 100)
        os.close(self._status_from)
        assert ended, "the server of forked processes ended"
        status, seconds = json.loads(ended)
        children_seconds += seconds
        return self.pid, status


def receive(source: socket.socket, length: int) -> bytes:
    body = b""
    while len(body) < length:
        chunk = source.recv(length - len(body))
        if not chunk:
            raise EOFError
        body += chunk
    return body


def serve(listener: socket.socket) -> dict[str, Any]:
    """Forks for each request until the tests end; returns the request in each new process."""
    signal.signal(signal.SIGCHLD, lambda *_: None)
    wakeup, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    ends: dict[int, int] = {}  # where the end of each process is reported
    users = [listener.accept()[0]]
    while users:
        waited_for: list[Any] = [listener, wakeup, *users]
        ready, _, _ = select.select(waited_for, [], [])
        if wakeup in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wakeup, 4096)
            report_ended(ends)
        if listener in ready:
            users.append(listener.accept()[0])
        for user in [user for user in users if user in ready]:
            try:
                header, (*streams, status), _, _ = socket.recv_fds(user, LENGTH, 4)
                header += receive(user, LENGTH - len(header))
                request = json.loads(receive(user, int.from_bytes(header, "big")))
            except (ValueError, EOFError, OSError):  # it has ended, or was killed
                users.remove(user)
                user.close()
                continue
            pid = os.fork()
            if not pid:
                for own in (*ends.values(), status, wakeup, woken, *(one.detach() for one in (listener, *users))):
                    os.close(own)
                become(request, streams)
                return dict(request)
            for stream in streams:
                os.close(stream)
            ends[pid] = status
            with contextlib.suppress(OSError):
                user.sendall(pid.to_bytes(LENGTH, "big"))
    sys.exit()


def report_ended(ends: dict[int, int]) -> None:
    while ends:
        pid, status, usage = os.wait4(-1, os.WNOHANG)
        if not pid:
            return
        with contextlib.suppress(BrokenPipeError):
            os.write(ends[pid], json.dumps([status, usage.ru_utime + usage.ru_stime]).encode())
        os.close(ends.pop(pid))


def become(request: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Make this process what a new interpreter with the request's command would be."""
    signal.set_wakeup_fd(-1)
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGCHLD, signal.SIG_DFL)):
        signal.signal(number, handler)
    if request["session"]:
        os.setsid()
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", 1, errors="backslashreplace")
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))  # or it would be closed where a program replaces it
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    command = request["command"]
    sys.orig_argv, sys.argv = command, command[2:] if command[1] == "-m" else command[1:]
    folder = request["cwd"] if command[1] == "-m" else str(Path(command[1]).parent)
    sys.path[:1] = [folder, *filter(None, request["env"].get("PYTHONPATH", "").split(os.pathsep))]
    os.fsync = lambda fd: None  # no test cuts the power, and each call takes 20 ms
    random.seed()


def main() -> None:
    listener = socket.socket(fileno=int(sys.argv[1]))
    for package in PACKAGES:
        for module in pkgutil.iter_modules(importlib.import_module(f"mill.{package}").__path__, f"mill.{package}."):
            importlib.import_module(module.name)
    for name in SERVERS[sys.argv[2]]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    command = serve(listener)["command"]
    if command[1] == "-m":
        runpy.run_module(command[2], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(command[1], run_name="__main__")


if __name__ == "__main__":
    main()
