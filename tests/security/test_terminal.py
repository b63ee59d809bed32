"""Untrusted text is printed without control characters: no colours, titles, cursor moves or fake lines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mill.support.terminal import Progress, echo, echo_data, one_line, printable, warn
from tests.servers import FaultServer, status

ROOT = Path(__file__).parent.parent.parent
TOY = str(ROOT / "tests/toy.py")
Mill = Callable[..., tuple[int, str]]

# Red, a window title, a title in C1, a cleared screen in C1, a bell, a carriage return, and reversed text.
EVIL = "\x1b[31mred\x1b]0;title\x07\x9d0;t\x9c\x9b2J\rover\u202etxet"
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def controls_in(text: str) -> list[str]:
    return CONTROLS.findall(text)


EVIL_TASK = f"""
from mill.api.registry import register_task, tasks
from mill.api.task import Sample

EVIL = {EVIL!r}

@register_task("evil" + EVIL)
class Evil(tasks.get("toy_gen")):
    def samples(self):
        names = [f"{{EVIL}}\\nmill: all is well {{n}}" for n in range(3)]
        return [Sample(name, {{"question": f"toy_gen {{n}}", "answer": n}}) for n, name in enumerate(names)]

    def warnings(self):
        return ["a note " + EVIL]
"""


@pytest.fixture
def evil_server() -> Iterator[FaultServer]:
    """A server whose model name and messages are full of escape sequences."""

    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        question = json.dumps(body)
        if "toy_gen 0" in question:
            return status(400, f"no {EVIL}")
        if "toy_gen 1" in question:
            return {"error": {"message": EVIL}}
        return {"choices": [{"message": {"content": f"{EVIL} answer 1"}, "finish_reason": "stop"}]}

    with FaultServer(answer, models=(f"m{EVIL}",)) as server:
        yield server


def test_untrusted_names_and_messages_are_printed_escaped(mill: Mill, evil_server: FaultServer, tmp_path: Path) -> None:
    """Model name, task name, sample id, warning, server error and folder name, in every command that prints them."""
    (tmp_path / "evil.py").write_text(EVIL_TASK)
    folder = f"out{EVIL}"
    spec = f"openai-compat[base_url={evil_server.url},chat=true]"
    paths = ("--task_paths", f"{TOY},evil.py", "--output_dir", folder)
    output = {
        "eval": mill("eval", spec, "evil*", *paths),
        "dry run": mill("eval", spec, "evil*", *paths, "--dry_run", "--fresh"),
        "a broken model": mill("eval", f"toy[path={EVIL}],{spec}", "evil*", *paths),
        "collect": mill("collect", "--output_dir", folder),
        "check": mill("collect", "--check", "--output_dir", folder),
        "runs": mill("ls", "runs", "--output_dir", folder),
        "tasks": mill("ls", "tasks", "evil", "--task_paths", f"{TOY},evil.py"),
        "score": mill("score", str(next(Path(folder).glob("*/*/manifest.json")).parent), "--task_paths", f"{TOY},evil.py"),
        "determinism": mill("determinism", "--model", spec, "--runs", "2", "--tasks", f"evil{EVIL}", *paths),
        "compare": mill("compare", spec, f"toy[path={EVIL}]", "--tasks", f"evil{EVIL}", *paths),
        "an unknown option": mill("eval", f"--{EVIL}"),
        "an unknown command": mill(EVIL),
        "an unknown model": mill("eval", EVIL, "toy_gen"),
        "an unknown task": mill("eval", "toy[path=a]", EVIL, "--task_paths", TOY),
        "no such folder": mill("collect", "--output_dir", f"no{EVIL}"),
        "no such run file": mill("eval", "--config", f"no{EVIL}"),
        "debug": mill("--debug", "eval", f"toy[{EVIL}]", "toy_gen", "--task_paths", TOY),
    }
    assert {command: controls_in(text) for command, (_, text) in output.items() if controls_in(text)} == {}
    assert "\\x1b[31mred" in output["eval"][1] and "\\x9b2J" in output["eval"][1]
    assert output["eval"][0] == 1 and "2 of 3 samples failed" in output["eval"][1]
    assert not [text for _, text in output.values() if "\nmill: all is well" in text]
    files = "".join(file.read_text() for file in Path(folder).glob("*/*/samples/*.jsonl"))
    assert json.dumps(f"{EVIL} answer 1", ensure_ascii=False) in files, "files keep the original text"


def test_every_print_function_escapes_control_characters(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    echo(f"a{EVIL}\nb")
    echo(EVIL, err=True)
    warn(f"{EVIL} of this test")
    with Progress(EVIL, 1) as progress:
        progress.advance()
    out, err = capsys.readouterr()
    assert controls_in(out + err) == [] and len(out.splitlines()) == 1 and len(err.splitlines()) == 2
    assert controls_in(caplog.messages[0]) == []


def test_a_document_is_unchanged_in_a_file(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    echo_data(f"{EVIL}\n")
    assert capsys.readouterr().out == f"{EVIL}\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    echo_data(f"{EVIL}\n")
    assert controls_in(capsys.readouterr().out) == []


def test_no_control_character_is_printable() -> None:
    for number in (*range(0x20), *range(0x7F, 0xA0)):
        assert chr(number) in "\t\n" or printable(f"a{chr(number)}b") == f"a\\x{number:02x}b"
        assert controls_in(one_line(f"a{chr(number)}b")) == []


def test_only_the_escaping_functions_print() -> None:
    """A print() or click.echo() elsewhere would not escape untrusted text."""
    allowed = {
        "mill/cli/start.py",
        "mill/support/terminal.py",
        "mill/tasks/bfcl/simulation.py",
        "mill/tasks/bfcl/worker.py",
    }
    printing = re.compile(r"(?<![\w.])print\(|click\.s?echo\(|std(?:out|err)\.write\(|\.print_exc")
    problems = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in sorted((ROOT / "mill").rglob("*.py"))
        if str(file.relative_to(ROOT)) not in allowed
        for line in file.read_text().splitlines()
        if printing.search(line) and "def print(" not in line
    ]
    assert problems == []
