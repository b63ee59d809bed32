"""Tools of agents: programs and commands in the sandbox, files in memory, and an agent that computes with them."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mill.api.model import MillModel, ModelCapabilities
from mill.api.registry import register_model
from mill.api.request import Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample
from mill.api.tools import ToolCall
from mill.sandbox.programs import chosen_sandbox
from mill.tasks.agent import bash_tool, file_tools, python_tool
from mill.tasks.gsm8k import GSM8KPython
from mill.tasks.load import Selection
from tests.plans import prepare

isolated = pytest.mark.skipif(bool(chosen_sandbox().problem), reason="no sandbox works here")


@isolated
def test_python_gives_what_a_program_prints() -> None:
    python = python_tool().function
    assert python(code="print(17 * 3)") == "51\n"
    assert python(code="x = 3") == "(it printed nothing)"
    with pytest.raises(RuntimeError, match=r"ZeroDivisionError.*it printed: before"):
        python(code="print('before')\n1 / 0")
    with pytest.raises(TimeoutError, match=r"more than 0\.5 s"):
        python_tool(timeout=0.5).function(code="while True: pass")
    with pytest.raises(TypeError, match="a text is needed, not int"):
        python(code=3)
    assert len(python(code="print('x' * 10**7)")) == 2**16


@isolated
@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("echo $((17 * 3)); pwd", "51\n/tmp\n$"),
        ("exit 3", "RuntimeError: .*exit code 3"),
        ("cat /etc/shadow", "RuntimeError: .*exit code"),
        ("yes", "TimeoutError: it took more than 2 s; it printed: y"),
        ("head -c 10000000 /dev/zero | tr '\\0' x", "x" * 2**16),
        ("echo x > /usr/planted", "RuntimeError: RuntimeError: exit code 1; it printed: .*Read-only file system"),
        ("exec 3<>/dev/tcp/127.0.0.1/{port}", "RuntimeError: .*Connection refused"),
        ("kill -9 $PPID", "RuntimeError: ended early with SIGKILL"),
        ("echo a\x00b", "RuntimeError: ValueError: embedded null byte"),
    ],
)
def test_a_command_runs_apart_and_gives_a_text(command: str, found: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = command.replace("{port}", str(server.getsockname()[1]))
        try:
            output = bash_tool(timeout=2).function(command=command)
        except Exception as error:
            output = f"{type(error).__name__}: {error}"
    assert re.match(found, output, re.DOTALL) and len(output) < 70_000, output[:300]


def test_files_are_read_by_name_alone() -> None:
    listed, read = (tool.function for tool in file_tools({"notes.txt": "buy milk"}))
    assert listed() == "notes.txt" and read(name="notes.txt") == "buy milk"
    for path in ("../notes.txt", "/etc/passwd", "", "notes.txt\x00"):
        with pytest.raises(KeyError):
            read(name=path)


class Questions(GSM8KPython):
    def samples(self) -> Sequence[Sample]:
        return [Sample(str(n), {"question": f"What is {n} times 7?", "answer": f"#### {n * 7}"}) for n in range(12)]

    def warnings(self) -> list[str]:
        return []


class Calculator(MillModel):
    """Calls python with the numbers of the question, and answers with what it printed."""

    capabilities = ModelCapabilities(supports_chat_template=True, supports_tools=True)

    @property
    def model_name(self) -> str:
        return "calculator"

    def _generate_batch(self, batch: list[Request], gen_kwargs: dict[str, Any]) -> list[Response]:
        return [self._one(request) for request in batch]

    def _one(self, request: Request) -> Response:
        question, last = request.context[1], request.context[-1]
        assert not isinstance(question, str) and not isinstance(last, str)
        if last.role == "tool":
            return Response(text=f"#### {last.text.strip()}")
        _, _, n, *_ = question.text.removeprefix("Question: ").split()
        return Response(text="", tool_calls=(ToolCall.parse("python", {"code": f"print({n} * 7)"}),))


@isolated
def test_an_agent_solves_questions_with_python(tmp_path: Path) -> None:
    register_model("calculator")(Calculator)
    outcome = prepare(
        "calculator[]", Selection((Questions("gsm8k_python"),), ()), RenderSettings(), output_dir=tmp_path
    ).execute(quiet=True)
    found = {name: estimate.value for name, estimate in outcome.tasks[0].metrics.items()}
    assert found == {"exact_match": 1.0, "tool_calls": 1.0, "failed_calls": 0.0}
