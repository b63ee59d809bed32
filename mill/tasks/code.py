"""Tasks whose answers are programs: a program passes if it reaches the end of its tests in the sandbox."""

from __future__ import annotations

import re
import textwrap
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from mill.api.message import Context
from mill.api.request import GENERATE, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Value
from mill.sandbox import Execution, require_imports, run_programs
from mill.tasks.generative import GenerativeTask
from mill.tasks.prompted import Doc

CHAT_TOKENS = 1024
_BLOCK = re.compile(r"^[ \t]*```[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)


class CodeTask(GenerativeTask):
    """A subclass renders its question in two ways: `question` is continued by a model, `instruction` is for a chat template
    and requests the whole function in a code block. Each answer is run once, all of them together."""

    metrics = {"pass@1": "mean"}
    runs_code = True
    isolates_code = True
    timeout: float = 15.0
    """Seconds for a program with its tests; canonical solutions take up to a third of it on a slow machine."""
    preload: tuple[str, ...] = ()
    """Modules that the tests import: importing them takes none of a program's time."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._executions: dict[str, Execution] = {}

    @abstractmethod
    def instruction(self, doc: Doc) -> str: ...

    @abstractmethod
    def entry_point(self, doc: Doc) -> str:
        """The function that the tests call."""

    @abstractmethod
    def tests(self, doc: Doc) -> str: ...

    def completed(self, doc: Doc, code: str) -> str:
        """The code of an answer as a program: where an answer continues the prompt, both together."""
        return code

    def samples(self) -> Sequence[Sample]:
        """With the ids of the data, such as HumanEval/0."""
        return [Sample(str(sample.doc["task_id"]), sample.doc) for sample in super().samples()]

    def prepare(self, samples: Sequence[Sample], settings: RenderSettings) -> None:
        require_imports(self.tests(sample.doc) for sample in samples)

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        options = {"max_gen_toks": CHAT_TOKENS} if settings.apply_chat_template else self.generation
        context = self.context(sample, settings)
        return [Request(GENERATE, context=context, options=settings.options(**options), repeats=settings.repeats)]

    def context(self, sample: Sample, settings: RenderSettings, question: str | None = None) -> Context:
        if not settings.apply_chat_template:
            return super().context(sample, settings, question)
        turns = [
            (self.instruction(shot), f"```python\n{self.target_code(shot)}\n```") for shot in self.shots(sample, settings)
        ]
        text = self.instruction(sample.doc) if question is None else question
        if settings.fewshot_as_multiturn:
            return settings.frame(text, turns=turns)
        return settings.frame("".join(f"{question}\n\n{answer}\n\n" for question, answer in turns) + text)

    @abstractmethod
    def target_code(self, doc: Doc) -> str:
        """The canonical solution, as a whole function."""

    def target(self, sample: Sample) -> str:
        return self.target_code(sample.doc)

    def extracts(self, sample: Sample) -> bool:
        return True

    def extracted(self, sample: Sample, responses: Sequence[Response]) -> str:
        return self.completed(sample.doc, extract_code(responses[0].text or "", self.entry_point(sample.doc)))

    def prepare_scoring(self, answered: Sequence[tuple[Sample, Sequence[Response]]]) -> None:
        programs = dict.fromkeys(self._program(sample, responses) for sample, responses in answered)
        waiting = [program for program in programs if program not in self._executions]
        found = run_programs(waiting, timeout=self.timeout, preload=self.preload)
        self._executions.update(zip(waiting, found, strict=True))

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {"pass@1": float(self._execution(sample, responses).passed)}

    def details(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Any]:
        execution = self._execution(sample, responses)
        return {"outcome": execution.outcome, **({"reason": execution.error} if execution.error else {})}

    def _execution(self, sample: Sample, responses: Sequence[Response]) -> Execution:
        program = self._program(sample, responses)
        if program not in self._executions:
            self.prepare_scoring([(sample, responses)])
        return self._executions[program]

    def _program(self, sample: Sample, responses: Sequence[Response]) -> str:
        tests = self.tests(sample.doc)
        require_imports([tests])
        return f"{self.extracted(sample, responses)}\n{tests}"


def extract_code(text: str, entry_point: str) -> str:
    """The last code block of an answer that defines the function; else the first block; else all of the text, which is then
    code itself or the continuation of a prompt."""
    blocks = [block for block in _BLOCK.findall(text) if block.strip()]
    defining = [block for block in map(_dedented, blocks) if defines(block, entry_point)]
    return defining[-1] if defining else blocks[0] if blocks else text


def defines(code: str, name: str) -> bool:
    """Whether code has a function or class of this name at its top level."""
    return re.search(rf"^(?:(?:async\s+)?def|class)\s+{re.escape(name)}\b", code, re.MULTILINE) is not None


def _dedented(block: str) -> str:
    """A block inside of a list is indented as a whole."""
    return textwrap.dedent(block)
