"""The code inside a sandbox: an interpreter that forks a copy of itself for each program.

`python -c` gets this file as text, so it imports nothing of mill. Four processes take part in a program:

server      waits for programs on standard input and never reads one
supervisor  reads one program, measures its time, reports its outcome on standard output
init        the first process of the program's own namespaces: when it ends, the kernel ends all others in them
program     sets the limits and executes the program; it was forked before there was one

The program passes by writing a token to the supervisor after its last statement. Only these two processes ever have it.
"""

import contextlib
import io
import os
import resource
import select
import signal
import struct
import sys
import time
import types
from collections.abc import Callable

PASSED, FAILED, TIMED_OUT, BROKEN = b"P", b"F", b"T", b"B"
START_S = 60.0  # for the processes of a program, on a busy machine
_LENGTH_BYTES = 8
_READY = b"\n"
_TOKEN_BYTES = 32
_MOST_BYTES = 4096  # of what a program reports
_SHOWN = 300  # characters of an error
_POLL_S = 0.0005
_NO_MORE = 3  # exit code of a supervisor that no program came to
_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWPID = 0x20000, 0x8000000, 0x20000000
_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 4, 22, 38, 2
_PR_SET_CHILD_SUBREAPER = 36
_ADOPTS = sys.platform == "linux"  # whether a process can adopt those whose parent ended
_ADOPTED_S = 5.0  # for them to end
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
_NOSUID_NODEV = 2 | 4


def serve() -> None:
    memory, file_size, processes, files, size, modules, *preloaded = sys.argv[1:]
    sys.argv[1:] = []
    if modules:
        sys.path.append(modules)
    for name in preloaded:
        __import__(name)
    limits = {
        resource.RLIMIT_AS: int(memory),
        resource.RLIMIT_FSIZE: int(file_size),
        resource.RLIMIT_NPROC: int(processes),
    }
    folders = f"size={size},nr_inodes={files},mode=0777" if int(files) else ""
    if folders or _ADOPTS:
        import ctypes  # noqa: F401  once, instead of in each child
    code = 0
    while code == 0:
        code = _in_child(lambda: _supervise(folders, limits))


def _supervise(folders: str, limits: dict[int, int]) -> int:
    """Run one program in a child and report what became of it."""
    inside, to_program = os.pipe()
    from_program, results = os.pipe()
    printed, output = os.pipe()
    if folders:
        _call_libc("unshare", _CLONE_NEWNS | _CLONE_NEWIPC | _CLONE_NEWPID)
    elif _ADOPTS:
        _call_libc("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    init = os.fork()
    if init == 0:
        _leave(lambda: _start_program(inside, results, output, folders, limits))
    for used in (inside, results, output):
        os.close(used)
    first = _read(from_program, len(_READY), START_S)
    given, token = _receive_message(0), os.urandom(_TOKEN_BYTES)
    if not given:
        return _NO_MORE
    milliseconds, most_output, _ = _parts(given)
    with contextlib.suppress(BrokenPipeError):
        _write(to_program, len(given).to_bytes(_LENGTH_BYTES, "big") + given + token)
    deadline = time.monotonic() + milliseconds / 1000
    reported, text = _read_both(from_program, printed, most_output, deadline)
    ended = _end(init, deadline if len(reported) < _MOST_BYTES else 0.0)
    late = time.monotonic() >= deadline
    if not folders and _ADOPTS:
        _end_adopted()
    if first != _READY:
        _report(BROKEN, first + reported or b"the processes of a program did not start")
    elif reported == token:
        _report(PASSED, b"", text)
    elif late:
        _report(TIMED_OUT, b"", text)
    else:
        _report(FAILED, _reason(reported, token) or _ending(ended), text)
    return 0


def _reason(reported: bytes, token: bytes) -> bytes:
    """What a failed program reports, without the token: several processes of it may have come to an end."""
    text = reported.replace(token, b"")[: 4 * _SHOWN]  # so short that it has no part of a token that was cut off
    if token not in reported:
        return text
    return b"the program's result is malformed: it was written more than once" + (b" (%b)" % text if text else b"")


def _start_program(given: int, results: int, output: int, folders: str, limits: dict[int, int]) -> int:
    """The first process of the namespaces: it has no rights left when it forks the program, and nothing to write to."""
    os.dup2(given, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (1, 2):
        os.dup2(null, number)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which a first process of a namespace ignores
    try:
        if folders:
            _isolate(folders)
    except OSError as error:
        _write(results, _describe(error))
        return 1
    program = os.fork()
    if program == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(output, 2)
        os.closerange(3, results)
        os.closerange(results + 1, 256)
        _run_program(results, limits)
    os.dup2(null, 0)
    os.closerange(3, 256)
    code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    return code if code >= 0 else 128 - code


def _run_program(results: int, limits: dict[int, int]) -> None:
    """Wait for the program and execute it. Nothing returns from here."""
    write, end = os.write, os._exit  # the program may replace them
    try:
        for kind, most in {**limits, resource.RLIMIT_NOFILE: 256}.items():
            if most:
                resource.setrlimit(kind, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        write(results, _READY)
        given = _receive_message(0)
        if not given:
            end(0)
        milliseconds, most_output, source = _parts(given)
        # The token has no name: it is on the stack of this call while the program runs, so that neither the variables of
        # frames nor the garbage collector lead to it.
        write(results, _receive(0, _TOKEN_BYTES) + _execute(source, 1 + milliseconds // 1000, printing=most_output > 0))
    except BaseException as error:
        write(results, _describe(error))
    finally:
        end(0)


def _execute(source: str, seconds: int, *, printing: bool) -> bytes:
    """Execute a program to its end. Like those of the published implementations, it is not `__main__`.

    Standard error is the pipe to the supervisor; where its output is not wanted, both streams lead nowhere."""
    os.dup2(1, 0)
    os.dup2(*((2, 1) if printing else (1, 2)))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    program = sys.modules["program"] = types.ModuleType("program")
    if printing:  # unbuffered: nothing is left to write when the program ends
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(io.FileIO(file, "w"), "utf-8", "replace", write_through=True) for file in (1, 2)
        )
    sys.addaudithook(_refuse_tracing)
    exec(compile(source, "program", "exec"), program.__dict__)
    return b""


def _refuse_tracing(event: str, arguments: tuple[object, ...]) -> None:
    """A trace function could move this code past an exception of the program."""
    if event == "sys.settrace":
        raise RuntimeError("sys.settrace is not allowed here")


def _isolate(folders: str) -> None:
    """Mount the two folders that a program may write to, which bubblewrap cannot limit in their number of files; then give
    up the right to mount, and to be traced."""
    for folder in (b"/tmp", b"/dev/shm"):
        _call_libc("mount", b"tmpfs", folder, b"tmpfs", _NOSUID_NODEV, folders.encode())
    os.chdir("/tmp")
    version, none = (0x20080522).to_bytes(8, sys.byteorder), bytes(24)
    _call_libc("capset", version, none)
    _call_libc("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)
    _filter_calls()


def _filter_calls() -> None:
    """Refuse system calls that reach what namespaces do not divide, such as keys of the user, and memory that no limit
    counts. On other architectures than these two the namespaces are all there is."""
    import ctypes

    known = _REFUSED_CALLS.get(os.uname().machine)
    if known is None:
        return
    architecture, numbers = known
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06  # instructions of the kernel's packet filter
    allow, refuse, end = 0x7FFF0000, 0x00050001, 0x80000000  # the second gives EPERM
    steps = [(load, 0, 0, 4), (equal, 1, 0, architecture), (give, 0, 0, end), (load, 0, 0, 0)]
    steps += [(at_least, len(numbers) + 1, 0, 0x40000000)]  # another table of the same calls
    steps += [(equal, len(numbers) - index, 0, number) for index, number in enumerate(numbers)]
    steps += [(give, 0, 0, allow), (give, 0, 0, refuse)]
    program = b"".join(struct.pack("=HBBI", *step) for step in steps)
    buffer = ctypes.create_string_buffer(program)
    header = struct.pack("@HP", len(steps), ctypes.addressof(buffer))
    _call_libc("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call_libc("prctl", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0)


def _call_libc(name: str, *arguments: object) -> None:
    import ctypes

    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def _end(child: int, deadline: float) -> int:
    """The exit code of a child, which is killed at the deadline: it may have closed its pipe and still run."""
    waited, status = os.waitpid(child, os.WNOHANG)
    while not waited and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        waited, status = os.waitpid(child, os.WNOHANG)
    if not waited:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _end_adopted() -> None:
    """End what a program left running where no namespace does it. This process adopts them, also those with a session of
    their own."""
    deadline = time.monotonic() + _ADOPTED_S
    with contextlib.suppress(ChildProcessError):  # there are no more
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
            for child in _children():
                with contextlib.suppress(OSError):
                    os.kill(child, signal.SIGKILL)
            time.sleep(_POLL_S)


def _children() -> list[int]:
    found = []
    for process in os.scandir("/proc"):
        with contextlib.suppress(OSError, ValueError), io.FileIO(f"{process.path}/stat") as file:
            parent = file.read().rpartition(b")")[2].split()[1]
            if int(parent) == os.getpid():
                found.append(int(process.name))
    return found


def _in_child(function: Callable[[], int]) -> int:
    """The exit code of a child that calls a function."""
    child = os.fork()
    if child == 0:
        _leave(function)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _leave(function: Callable[[], int]) -> None:
    """End this process with what a function returns."""
    code = 1
    try:
        code = function()
    except BaseException as error:
        _report(BROKEN, _describe(error))
    finally:
        os._exit(code)


def _report(outcome: bytes, text: bytes, output: bytes = b"") -> None:
    answer = outcome + len(text).to_bytes(4, "big") + text + output
    _write(1, len(answer).to_bytes(_LENGTH_BYTES, "big") + answer)


def _ending(code: int) -> bytes:
    """How a process ended that reported nothing; above 128 is the number of a signal."""
    with contextlib.suppress(ValueError):
        return f"ended early with {signal.Signals(code - 128).name}".encode()
    return f"ended early with exit code {code}".encode()


def _describe(error: BaseException) -> bytes:
    try:
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
    except BaseException:
        text = type(error).__name__
    return text[:_SHOWN].encode("utf-8", "replace")


def _receive(file: int, length: int) -> bytes:
    """Exactly so many bytes; none where the other side has closed the pipe."""
    received = b""
    while len(received) < length:
        part = os.read(file, length - len(received))
        if not part:
            return b""
        received += part
    return received


def _read(file: int, most: int, seconds: float) -> bytes:
    """What comes until the other side closes the pipe, at most so many bytes, and for so long."""
    received, deadline = b"", time.monotonic() + seconds
    while len(received) < most and select.select([file], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(file, most - len(received))
        if not part:
            break
        received += part
    return received


def _read_both(results: int, printed: int, most_output: int, deadline: float) -> tuple[bytes, bytes]:
    """What a program reports and what it prints, the latter up to so many bytes, until it ends or the deadline."""
    reported, output, files = b"", b"", [results, printed]
    while results in files and len(reported) < _MOST_BYTES:
        ready = select.select(files, [], [], max(0.0, deadline - time.monotonic()))[0]
        if not ready:
            break
        for file in sorted(ready, key=lambda file: file == results):  # what was printed before the end
            part = os.read(file, _MOST_BYTES - len(reported) if file == results else _MOST_BYTES)
            if not part:
                files.remove(file)
            elif file == results:
                reported += part
            else:
                output += part[: max(0, most_output - len(output))]
    return reported, output


def _receive_message(file: int) -> bytes:
    """A length and so many bytes; none where the other side has closed the pipe."""
    return _receive(file, int.from_bytes(_receive(file, _LENGTH_BYTES), "big"))


def _parts(given: bytes) -> tuple[int, int, str]:
    """Milliseconds of a program, bytes of its output that are wanted, and its source."""
    source = given[8:].decode("utf-8", "surrogatepass")
    return int.from_bytes(given[:4], "big"), int.from_bytes(given[4:8], "big"), source


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


if __name__ == "__main__":
    serve()
