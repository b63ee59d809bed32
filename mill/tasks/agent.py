"""Tasks in which the model calls tools, round by round, until it answers without a call; tools for Python,
bash and files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mill.api.message import Message
from mill.api.request import MULTI_ROUND, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Task, TaskType
from mill.api.tools import OK, Tool, ToolCall
from mill.sandbox.programs import PASSED, TIMED_OUT, run_python

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


@dataclass(frozen=True)
class FunctionTool(Tool):
    """A tool that is a Python function of its arguments; the model gets what it raises as the result."""

    function: Callable[..., str] = field(default=str, compare=False)


class AgentTask(Task):
    """A subclass adds `prompt`, `tools` (of FunctionTools) and `score`. Each call is executed by itself: tools have no
    memory."""

    task_type = TaskType.GENERATIVE_QA
    kind = MULTI_ROUND
    description: str = ""
    """The system message."""
    generation: Mapping[str, Any] = {}
    max_rounds = 8
    diagnostics = ("tool_calls", "failed_calls")
    metrics: Mapping[str, str] = {"exact_match": "mean", "tool_calls": "count", "failed_calls": "count"}

    @abstractmethod
    def prompt(self, sample: Sample) -> str:
        """The question."""

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        chat = replace(settings, apply_chat_template=True)  # tools need messages
        dialog = chat.frame(self.prompt(sample), self.description)
        assert not isinstance(dialog, str)
        return [self._round(sample, settings, dialog)]

    def _round(self, sample: Sample, settings: RenderSettings, dialog: tuple[Message, ...]) -> Request:
        tools = tuple(Tool(tool.name, tool.description, tool.parameters) for tool in self.tools(sample))
        options = settings.options(**self.generation)
        return Request(MULTI_ROUND, dialog, options=options, tools=tools)

    def next_round(self, sample: Sample, settings: RenderSettings, responses: Sequence[Response]) -> Request | None:
        if not responses[-1].tool_calls:
            return None
        (first,) = self.requests(sample, settings)
        assert not isinstance(first.context, str)
        turns = [turn for number, response in enumerate(responses) for turn in tool_turns(response, number)]
        return self._round(sample, settings, (*first.context, *turns))

    def call_tool(self, sample: Sample, call: ToolCall, responses: Sequence[Response]) -> str:
        tool = next(tool for tool in self.tools(sample) if tool.name == call.name)
        assert isinstance(tool, FunctionTool)
        given, known = dict(call.arguments or {}), set(tool.parameters.get("properties", {}))
        wrong = sorted(set(given) - known) or sorted(set(tool.parameters.get("required", ())) - set(given))
        if wrong:
            raise TypeError(
                f"{tool.name} takes {', '.join(sorted(known)) or 'no arguments'}: {wrong[0]} is wrong or missing"
            )
        return tool.function(**given)

    def call_counts(self, responses: Sequence[Response]) -> dict[str, float]:
        """How many tools were called, and how many of the calls failed or, in the last round, were not executed."""
        calls = sum(len(response.tool_calls) for response in responses)
        good = sum(result.outcome == OK for response in responses for result in response.tool_results)
        return {"tool_calls": float(calls), "failed_calls": float(calls - good)}


def tool_turns(response: Response, number: int) -> list[Message]:
    """A response with calls as messages: that of the assistant, and one for the result of each call.

    Calls get ids of mill, not those that a server draws, so that equal dialogs are equal requests.
    """
    calls = tuple(replace(call, id=call_id(number, index)) for index, call in enumerate(response.tool_calls))
    results = zip(calls, response.tool_results, strict=True)
    answer = Message("assistant", response.text or "", tool_calls=calls)
    return [answer, *(Message("tool", result.output, tool_call_id=call.id, name=call.name) for call, result in results)]


def call_id(number: int, index: int) -> str:
    """Nine characters, as Mistral's templates want; the number of a round may have three digits."""
    return f"{'call' if number < 100 else 'cal'}{number:02d}{index:03d}"


def text_parameters(**descriptions: str) -> dict[str, Any]:
    """The JSON schema of required arguments that are texts."""
    properties = {name: {"type": "string", "description": about} for name, about in descriptions.items()}
    return {"type": "object", "properties": properties, "required": list(descriptions)}
