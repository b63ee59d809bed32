"""Engines that several files of tests use: each starts once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import forking
from tests.engines.prepared import ENVIRONMENT, MODEL, ROOT, engine, shallow
from tests.shared import made_once, served_once

# Thinks unless that is switched off; shows tools, calls and their results.
TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}'
    "<|im_end|>\n{% endfor %}<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
)


@pytest.fixture(scope="session")
def vllm_python() -> str:
    return str(engine("vllm") / "python")


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first layers of the demo model."""
    if not (MODEL / "config.json").is_file():
        pytest.skip("the demo model is not prepared: make engines")
    return made_once(tmp_path_factory, "small", shallow)


@pytest.fixture(scope="session")
def vllm_server(vllm_python: str, small: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of vLLM's server, with parsers for reasoning and tool calls."""
    template = made_once(tmp_path_factory, "template", lambda folder: (folder / "chat.jinja").write_text(TEMPLATE))
    options = ["--model", str(small), "--served-model-name", "smollm2", "--dtype", "float32", "--max-model-len", "512"]
    parsers = ["--reasoning-parser", "deepseek_r1", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    more = ["--enforce-eager", "--chat-template", str(template / "chat.jinja"), "--host", "127.0.0.1", "--port"]
    command = [vllm_python, "-m", "vllm.entrypoints.openai.api_server", *options, *parsers, *more]
    with served_once(tmp_path_factory, "vllm", lambda port: [*command, str(port)], ENVIRONMENT) as url:
        yield url


@dataclass(frozen=True)
class InProcess:
    """What the commands of in_vllm.py did."""

    folder: Path

    def printed(self, command: str) -> str:
        """What a command printed; it must have succeeded."""
        code, text = json.loads((self.folder / f"{command}.json").read_text())
        assert code == 0, text
        return str(text)


@pytest.fixture(scope="session")
def vllm_in_process(vllm_python: str, small: Path, tmp_path_factory: pytest.TempPathFactory) -> InProcess:
    def make(folder: Path) -> None:
        command = [vllm_python, str(ROOT / "tests/engines/in_vllm.py"), str(small), str(folder)]
        done = forking.run(command, env=ENVIRONMENT, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr[-2000:]
        assert "misses=1," in done.stdout, "one engine serves all commands"

    return InProcess(made_once(tmp_path_factory, "vllm-in-process", make))
