"""The code inside a sandbox: it waits for one program, executes it, and reports whether it got to its end.

`python -c` gets this file as text, so it imports nothing of mill. Arguments are the limits of a program, the folder of
modules beside the standard library, and modules that are imported before the program's time starts. The program comes
through standard input; the report goes to standard output, and what the program prints to standard error.

A program passes if the token that comes with it is reported, which happens after its last statement. Nothing that the
program can reach has the token.
"""

import io
import os
import resource
import sys
import types

READY = b"\n"
TOKEN_BYTES = 32
MOST_SHOWN = 300  # characters of an error


def serve() -> None:
    """Run one program; nothing returns from here."""
    memory, file_size, processes, modules, *preloaded = sys.argv[1:]
    sys.argv[1:] = []
    if modules:
        sys.path.append(modules)
    write, end, results = os.write, os._exit, os.dup(1)  # the program may replace the functions
    try:
        for name in preloaded:
            __import__(name)
        limits = {
            resource.RLIMIT_AS: int(memory),
            resource.RLIMIT_FSIZE: int(file_size),
            resource.RLIMIT_NPROC: int(processes),
            resource.RLIMIT_NOFILE: 256,
        }
        for kind, most in limits.items():
            if most:
                resource.setrlimit(kind, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        write(results, READY)
        seconds, printing = _number(), _number()
        source = _receive(_number()).decode("utf-8", "surrogatepass")
        # The token has no name: it is on the stack of this call while the program runs, so that neither the variables of
        # frames nor the garbage collector lead to it.
        write(results, _receive(TOKEN_BYTES) + _execute(source, seconds, printing=printing > 0))
    except BaseException as error:
        write(results, _describe(error))
    finally:
        end(0)


def _execute(source: str, seconds: int, *, printing: bool) -> bytes:
    """Execute a program to its end. Like those of the published implementations, it is not `__main__`.

    Where its output is not wanted, both streams lead nowhere."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2 if printing else null, 1)
    os.dup2(1, 2)
    os.close(null)
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


def _describe(error: BaseException) -> bytes:
    try:
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
    except BaseException:
        text = type(error).__name__
    return text[:MOST_SHOWN].encode("utf-8", "replace")


def _number() -> int:
    return int.from_bytes(_receive(8), "big")


def _receive(length: int) -> bytes:
    received = b""
    while len(received) < length:
        part = os.read(0, length - len(received))
        if not part:
            os._exit(0)  # no program comes
        received += part
    return received


if __name__ == "__main__":
    serve()
