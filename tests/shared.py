"""What the testing processes of a run share: folders that one of them makes, and programs that serve all of them.

python -m tests.shared DESCRIPTOR COMMAND...     keeps a program running for those who connect to a listening socket
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the environments of engines have no pytest
    import pytest

from tests.servers import free_port, wait_for

ROOT = Path(__file__).parents[1]


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """One folder for all testing processes of a run."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder that `make` filled for the first who asked. Others wait for it; none may change it."""
    folder = shared_folder(factory) / name
    done = folder.with_name(f"{name}.done")
    with locked(folder.with_name(f"{name}.lock")):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of one who failed
            folder.mkdir(parents=True)
            make(folder)
            done.touch()
    return folder


@contextlib.contextmanager
def served_once(
    factory: pytest.TempPathFactory,
    name: str,
    command: Callable[[int], Sequence[str]],
    environment: Mapping[str, str] = os.environ,
) -> Iterator[str]:
    """The URL of a server that the first who asks starts on a port, and that ends with the last who uses it."""
    folder = shared_folder(factory) / name

    def keeper(descriptor: int) -> list[str]:
        port = free_port()
        (folder / "port").write_text(str(port))
        return [sys.executable, "-m", "tests.shared", str(descriptor), *command(port)]

    with join(folder, keeper, environment) as user:
        url = f"http://127.0.0.1:{(folder / 'port').read_text()}"
        wait_for(url, lambda: select.select([user], [], [], 0)[0] or None)  # closed by the keeper of a server that ended
        yield url


def join(folder: Path, command: Callable[[int], Sequence[str]], environment: Mapping[str, str]) -> socket.socket:
    """A connection to the program that listens in a folder. Where there is none, the command for a socket starts it.

    It ends when nobody is connected any more, also where testing processes were killed. Its output is in the file `log`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    address = folder / "socket"
    user = socket.socket(socket.AF_UNIX)
    with locked(folder / "lock"):
        try:
            user.connect(str(address))
        except OSError:
            address.unlink(missing_ok=True)
            with socket.socket(socket.AF_UNIX) as listener, (folder / "log").open("ab") as log:
                listener.bind(str(address))
                listener.listen()
                subprocess.Popen(
                    command(listener.fileno()),
                    env={**environment, "PYTHONPATH": str(ROOT)},
                    pass_fds=[listener.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C is for the tests
                )
            user.connect(str(address))
    return user


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    with file.open("w") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield


def keep(listener: socket.socket, command: Sequence[str]) -> None:
    """Run a program until it ends or nobody is connected any more."""
    from tests import forking

    forking.folder = Path(listener.getsockname()).parents[1]
    users = [listener.accept()[0]]
    process = forking.popen(command, start_new_session=True)
    while users and process.poll() is None:
        for ready in select.select([listener, *users], [], [], 1)[0]:
            if ready is listener:
                users.append(listener.accept()[0])
            else:  # users send nothing: this one has closed its connection
                users.remove(ready)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=20)
    with contextlib.suppress(ProcessLookupError):  # and what it started
        os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    keep(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
