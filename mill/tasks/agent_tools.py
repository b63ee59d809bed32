"""Tools for agents: Python and bash in the sandbox, and a read-only store of files."""

from __future__ import annotations

from collections.abc import Mapping

from mill.sandbox import run_python
from mill.sandbox.process import PASSED, TIMED_OUT
from mill.tasks.agent import FunctionTool, text_parameters

MOST_OUTPUT = 2**16  # bytes that a program may print; the model gets fewer
_BASH = """import subprocess
done = subprocess.run(["/bin/bash", "-c", {command}], stdin=subprocess.DEVNULL)
if done.returncode:
    raise RuntimeError(f"exit code {{done.returncode}}")
"""


def python_tool(timeout: float = 10.0) -> FunctionTool:
    """A Python program, which prints its result. Each call is a program of its own, without the variables of others."""

    def python(code: str) -> str:
        return _run(code, timeout)

    about = "Runs a Python program and returns what it prints. Each call is a new program."
    return FunctionTool("python", about, text_parameters(code="the program"), python)


def bash_tool(timeout: float = 10.0) -> FunctionTool:
    def bash(command: str) -> str:
        return _run(_BASH.format(command=repr(command)), timeout)

    about = "Runs a bash command in an empty folder and returns what it prints. Each call starts in a new one."
    return FunctionTool("bash", about, text_parameters(command="the command"), bash)


def file_tools(files: Mapping[str, str]) -> tuple[FunctionTool, FunctionTool]:
    """A list of files and a reader of one of them. They are texts in memory: no path leads out of them."""

    def read_file(name: str) -> str:
        if name not in files:
            raise KeyError(f"there is no file {name!r}")
        return files[name]

    listed = FunctionTool("list_files", "Lists the files.", text_parameters(), lambda: "\n".join(sorted(files)))
    return listed, FunctionTool("read_file", "Returns the text of a file.", text_parameters(name="the file"), read_file)


def _run(program: str, timeout: float) -> str:
    if not isinstance(program, str):
        raise TypeError(f"a text is needed, not {type(program).__name__}")
    done = run_python(program, timeout=timeout, most_output=MOST_OUTPUT)
    if done.outcome == TIMED_OUT:
        raise TimeoutError(f"it took more than {timeout:g} s{_after(done.output)}")
    if done.outcome != PASSED:
        raise RuntimeError(f"{done.error}{_after(done.output)}")
    return done.output or "(it printed nothing)"


def _after(output: str) -> str:
    return f"; it printed: {output.strip()}" if output.strip() else ""
