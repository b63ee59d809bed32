"""Programs that attack the machine or the verdict: none passes, nothing changes, and the next program runs.

docs/code.md has the table of them, with these outcomes.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mill.sandbox import isolation
from mill.sandbox.programs import chosen_sandbox, run_program
from tests.waiting import until

pytestmark = pytest.mark.skipif(bool(chosen_sandbox().problem), reason="bubblewrap is not installed or does not work here")
PAGE = Path(__file__).parents[2] / "docs" / "code.md"
HOME, RESULTS, PARENT, NOW = Path.home(), Path(__file__), os.getpid(), time.time()
KEYCTL = {"x86_64": 250, "aarch64": 219}.get(os.uname().machine, 250)
LIBC = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
CALL = LIBC + "def call(name, *given):\n    if getattr(libc, name)(*given) < 0: raise OSError(ctypes.get_errno(), name)\n"
# Searches all that leads to a token: variables, constants and globals of all frames, and what the collector knows.
SEARCH = """
import gc, os, sys
frame, todo = sys._getframe(), list(gc.get_objects())
while frame:
    todo += [*frame.f_locals.values(), *frame.f_globals.values(), *frame.f_code.co_consts]
    frame = frame.f_back
seen, found = set(), []
while todo:
    one = todo.pop()
    if id(one) not in seen:
        seen.add(id(one))
        todo += gc.get_referents(one)
        found += [bytes(one)] if isinstance(one, (bytes, bytearray)) and len(one) == 32 else []
assert found, "no secret"
for number in range(3, 256):
    try:
        os.write(number, found[0])
    except OSError:
        pass
os._exit(0)
"""

# What a program does -> the program, and the outcome with a part of its reason.
PROGRAMS: dict[str, tuple[str, str]] = {
    # against the machine
    "fork bomb": ("import os\nwhile True: os.fork()", "failed: BlockingIOError|timed out"),
    "10,000 threads": (
        "import threading, time\nfor _ in range(10**4): threading.Thread(target=time.sleep, args=(3600,)).start()",
        "failed: RuntimeError: can't start new thread",
    ),
    "10 GB of memory": ("x = bytearray(10**10)", "failed: MemoryError"),
    "memory that is mapped, not allocated": ("import mmap\nmmap.mmap(-1, 10**10)", "failed: OSError"),
    "a file of 1 GB": ("open('x', 'wb').write(bytes(10**9))", "failed: OSError: [Errno 27] File too large"),
    "files of 640 MB together": (
        "for n in range(64): open(str(n), 'wb').write(bytes(10**7))",
        "failed: OSError: [Errno 28] No space left",
    ),
    "shared memory of 640 MB": (
        "for n in range(64): open(f'/dev/shm/{n}', 'wb').write(bytes(10**7))",
        "failed: OSError: [Errno 28] No space left",
    ),
    "endless output": (
        "import os\nwhile True:\n    for n in (1, 2): os.write(n, b'x' * 65536)",
        "timed out",
    ),
    "endless output to every open file": (
        "import os\nwhile True:\n    for n in range(256):\n"
        "        try: os.write(n, b'x' * 65536)\n        except OSError: pass",
        "failed: xxx",
    ),
    "sleeping for ever": ("import time\nwhile True: time.sleep(3600)", "timed out"),
    "an endless loop that ignores every signal": (
        "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "while True: pass",
        "timed out",
    ),
    "endless recursion": ("def f(): return f()\nf()", "failed: RecursionError"),
    "endless recursion in C": (
        "import sys\nsys.setrecursionlimit(10**9)\nx = []\nfor _ in range(10**6): x = [x]\nrepr(x)",
        "failed: ended early with SIGSEGV|timed out|failed: MemoryError",
    ),
    "reading /etc/passwd": ("open('/etc/passwd')", "failed: FileNotFoundError"),
    "reading the home folder": (
        f"import os\nos.listdir({str(HOME)!r})",
        "failed: FileNotFoundError|failed: PermissionError",
    ),
    "reading the results folder": (f"open({str(RESULTS)!r})", "failed: FileNotFoundError|failed: PermissionError"),
    "reading the environment": (
        "import os\nassert set(os.environ) - {'PWD', 'LC_CTYPE', 'LD_LIBRARY_PATH', 'OPENBLAS_NUM_THREADS'}",
        "failed: AssertionError",
    ),
    "reading /proc": ("open('/proc/1/environ', 'rb').read()", "failed: FileNotFoundError"),
    "being root": (
        "import os\nassert 0 in (os.getuid(), os.geteuid(), os.getgid(), *os.getgroups())",
        "failed: AssertionError",
    ),
    "becoming root": ("import os\nos.setuid(0)", "failed: OSError: [Errno 22]|failed: PermissionError"),
    "writing outside": ("open('/usr/planted', 'w')", "failed: OSError: [Errno 30] Read-only"),
    "writing to / and /dev": ("open('/dev/planted', 'w')", "failed: OSError: [Errno 30] Read-only"),
    "changing the mode of a system file": (
        "import os\nos.chmod('/usr/bin/env', 0o4777)",
        "failed: OSError: [Errno 30] Read-only",
    ),
    "a link out of its folder": (
        f"import os\nos.symlink({str(RESULTS)!r}, 'link')\nopen('link').read()",
        "failed: FileNotFoundError|failed: PermissionError",
    ),
    "a link up": (
        "import os\nos.symlink('../../../../etc/shadow', 'link')\nopen('link').read()",
        "failed: FileNotFoundError",
    ),
    "a connection to this machine": (
        "import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)",
        "failed: ConnectionRefusedError",
    ),
    "a connection to the internet": (
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('8.8.8.8', 53))",
        "failed: OSError: [Errno 101]",
    ),
    "a name lookup": ("import socket\nsocket.getaddrinfo('example.com', 80)", "failed: gaierror"),
    "killing its parents": (
        f"import os\nfor pid in ({PARENT}, os.getppid()):\n    try: os.kill(pid, 9)\n    except OSError: pass\n"
        f"os.kill({PARENT}, 0)",
        "failed: ProcessLookupError|failed: PermissionError",
    ),
    "killing every process": (
        "import os\nos.kill(-1, 9)\nraise ValueError('alone')",
        "failed: ProcessLookupError",
    ),
    "interrupting its parent": (
        "import os\nfor n in (2, 15, 1): os.kill(1, n)\nraise ValueError('sent')",
        "failed: ValueError: sent",
    ),
    "tracing its parent": (CALL + "call('ptrace', 16, 1, 0, 0)", "failed: PermissionError"),
    "tracing another process": (
        CALL + f"call('ptrace', 16, {PARENT}, 0, 0)",
        "failed: ProcessLookupError|failed: PermissionError",
    ),
    "a background process": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    while True: time.sleep(1)\nraise ValueError('left')",
        "failed: ValueError: left",
    ),
    "changing the clock": ("import time\ntime.clock_settime(time.CLOCK_REALTIME, 0)", "failed: PermissionError"),
    "changing the host name": ("import socket\nsocket.sethostname('planted')", "failed: PermissionError"),
    "mounting": (CALL + "call('mount', b'tmpfs', b'/tmp', b'tmpfs', 0, b'')", "failed: PermissionError"),
    "unmounting": (CALL + "call('umount2', b'/tmp', 2)", "failed: PermissionError"),
    "a user namespace": (CALL + "call('unshare', 0x10000000)", "failed: OSError: [Errno 28]|failed: PermissionError"),
    "a mount namespace": (CALL + "call('unshare', 0x20000)", "failed: PermissionError"),
    "a device": (CALL + "call('mknod', b'/tmp/disk', 0o60666, 0xfe00)", "failed: PermissionError"),
    "raising its limits": (
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
        "failed: ValueError: not allowed|failed: PermissionError",
    ),
    "becoming set-user-id": (
        "import os, subprocess\nassert subprocess.run(['/usr/bin/su', '-c', 'true']).returncode == 0",
        "failed: ",
    ),
    # against the verdict
    "os._exit(0)": ("import os; os._exit(0)", "failed: ended early with exit code 0"),
    "sys.exit(0)": ("import sys; sys.exit(0)", "failed: SystemExit: 0"),
    "a crash": ("import os; os.kill(os.getpid(), 11)", "failed: ended early with SIGSEGV"),
    "printing markers of success": (
        "import os, sys\nfor n in range(3, 256):\n    try: os.write(n, b'passed')\n    except OSError: pass\nos._exit(0)",
        "failed: passed",
    ),
    "the report of a supervisor": (
        "import os\nfor n in range(256):\n    try: os.write(n, b'P' + bytes(4))\n    except OSError: pass\nos._exit(0)",
        "failed: P",
    ),
    "closing every file": ("import os\nos.closerange(0, 1024)", "failed: ended early"),
    "closing every file and sleeping": (
        "import os, time\nos.closerange(0, 1024)\ntime.sleep(3600)",
        "timed out",
    ),
    "replacing os.write and os._exit": (
        "import os\nos.write = lambda *given: 0\nos._exit = lambda code: None\nraise ValueError('wrong')",
        "failed: ValueError: wrong",
    ),
    "two processes that both reach the end": (
        "import os\nif os.fork(): os.wait()",
        "failed: the program's result is malformed: it was written more than once",
    ),
    "a process that reaches the end for one that fails": (
        "import os\nif os.fork():\n    os.wait()\n    raise ValueError('wrong')",
        "failed: the program's result is malformed: it was written more than once (ValueError: wrong)",
    ),
    "text before the token": (
        "import os\nfor n in range(3, 256):\n    try: os.write(n, b'x' * 4080)\n    except OSError: pass",
        "failed: xxx",
    ),
    "secrets in frames and the garbage collector": (SEARCH, "failed: AssertionError: no secret"),
    "secrets in arguments and the environment": (
        "import os, sys\ntexts = [*sys.argv, *sys.orig_argv[5:], *os.environ.values()]\n"
        "assert any(len(text) >= 32 for text in texts)",
        "failed: AssertionError",
    ),
    "reading more from the supervisor": ("import os\nassert os.read(0, 100)", "failed: AssertionError"),
    "a trace function on the runner": (
        "import sys\nframe = sys._getframe(1)\ndef trace(*given): return trace\n"
        "while frame:\n    frame.f_trace = trace\n    frame = frame.f_back\nsys.settrace(trace)\nraise ValueError('traced')",
        "failed: RuntimeError: sys.settrace is not allowed here",
    ),
    "a trace function that skips the exception": (
        "import sys\nframe = sys._getframe(1)\ndef trace(frame, event, _):\n    if event == 'line': frame.f_lineno += 1\n"
        "    return trace\nframe.f_trace = trace\nsys.settrace(trace)\nassert False",
        "failed: RuntimeError: sys.settrace is not allowed here",
    ),
    "keys of the user": (
        CALL + f"call('syscall', {KEYCTL}, 0, -3, 1)",
        "failed: PermissionError|failed: OSError: [Errno 38]",
    ),
    "shared memory that no limit counts": (CALL + "call('shmget', 0, 2**30, 0o1600)", "failed: PermissionError"),
    "a file in memory": ("import os\nos.memfd_create('held')", "failed: PermissionError"),
}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def machine() -> tuple[object, ...]:
    """What an attack would change."""
    return (
        sorted(Path("/").iterdir()),
        sorted(Path("/usr").iterdir()),
        Path("/usr/bin/env").stat().st_mode,
        [line for line in Path("/proc/mounts").read_text().splitlines() if "pytest" not in line],
        socket.gethostname(),
        sorted(Path("/dev").iterdir()),
    )


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_hostile_program_fails_and_changes_nothing(what: str, port: int) -> None:
    program, expected = PROGRAMS[what]
    before = machine()
    found = run_program(chosen_sandbox(), program.replace("{port}", str(port)), timeout=3 if "timed out" in expected else 60)
    line = f"{found.outcome}: {found.error}"
    assert line.startswith(tuple(expected.split("|"))) and not found.passed, line
    assert len(found.error) <= 1300 and found.error.isascii()
    assert machine() == before and time.time() > NOW


def test_a_token_with_a_name_would_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search above passes in a runner that stores the token in a variable."""
    text = isolation.RUNNER.read_text()
    stored = re.sub(
        r"write\(results, _receive\(TOKEN_BYTES\) \+ (.*)\)",
        r"token = _receive(TOKEN_BYTES); write(results, token + \1)",
        text,
    )
    assert stored != text
    (tmp_path / "runner.py").write_text(stored)
    monkeypatch.setattr(isolation, "RUNNER", tmp_path / "runner.py")
    assert run_program(chosen_sandbox(), SEARCH, timeout=20).passed


def test_nothing_of_a_background_process_is_left() -> None:
    """A process with a name of its own, seen from outside."""
    name = f"mill-left-{os.getpid()}"
    program = (
        f"import os\nend, pipe = os.pipe()\nif os.fork() == 0:\n    os.setsid()\n"
        f"    os.execv('/usr/bin/sleep', ['{name}', '600'])\n"
        f"os.close(pipe)\nos.read(end, 1)"  # until the other process has its name, and so closed the pipe
    )
    assert run_program(chosen_sandbox(), program, timeout=10).passed
    until(lambda: name not in _command_lines(), "end of the process")


def _command_lines() -> str:
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(file.read_text(errors="replace"))
        except OSError:
            continue
    return "\n".join(lines)


def test_the_page_has_these_programs_with_these_outcomes() -> None:
    rows = dict(re.findall(r"^\| ([^|]+) \| (fails[^|]*|times out[^|]*) \|$", PAGE.read_text(), re.MULTILINE))
    assert set(rows) == set(PROGRAMS)
    for what, (_, expected) in PROGRAMS.items():
        assert rows[what].startswith("times out" if expected.split("|")[0] == "timed out" else "fails"), what
