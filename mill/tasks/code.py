"""Tasks whose answers are programs: a program passes if it reaches the end of its tests in the sandbox. HumanEval and MBPP,
each also with many times as many tests (HumanEval+, MBPP+)."""

from __future__ import annotations

import ast
import re
import textwrap
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mill.api.message import Context
from mill.api.registry import register_task
from mill.api.request import GENERATE, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Value
from mill.sandbox.programs import Execution, require_imports, run_programs
from mill.tasks.data import Dataset, Row, load_split
from mill.tasks.prompted import Doc, GenerativeTask

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
        return [Request(GENERATE, context=context, options=settings.options(**options))]

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
    # A block inside of a list is indented as a whole.
    defining = [block for block in map(textwrap.dedent, blocks) if defines(block, entry_point)]
    return defining[-1] if defining else blocks[0] if blocks else text


def defines(code: str, name: str) -> bool:
    """Whether code has a function or class of this name at its top level."""
    return re.search(rf"^(?:(?:async\s+)?def|class)\s+{re.escape(name)}\b", code, re.MULTILINE) is not None


@register_task("humaneval")
class HumanEval(CodeTask):
    """The prompt and the stop strings of the published evaluation."""

    dataset = Dataset("openai/openai_humaneval", "openai_humaneval", mirrors=("openai_humaneval",))
    takes_shots = False
    generation = {"until": ("\nclass", "\ndef", "\n#", "\nif", "\nprint"), "max_gen_toks": 1024}

    def question(self, doc: Doc) -> str:
        return str(doc["prompt"])

    def instruction(self, doc: Doc) -> str:
        wanted = (
            "Complete this Python function. Answer with the complete function, and its imports, in one Python code block."
        )
        return f"{wanted}\n\n```python\n{doc['prompt'].rstrip()}\n```"

    def answer_text(self, doc: Doc) -> str:
        return str(doc["canonical_solution"])

    def target_code(self, doc: Doc) -> str:
        return f"{doc['prompt']}{doc['canonical_solution']}"

    def entry_point(self, doc: Doc) -> str:
        return str(doc["entry_point"])

    def completed(self, doc: Doc, code: str) -> str:
        """A function that is whole replaces that of the prompt, whose imports and helpers it may use."""
        whole = defines(code, self.entry_point(doc))
        return f"{doc['prompt']}\n{code}" if whole else f"{doc['prompt']}{code}"

    def tests(self, doc: Doc) -> str:
        return f"{doc['test']}\ncheck({doc['entry_point']})"


@register_task("humaneval_plus")
class HumanEvalPlus(HumanEval):
    """The published test of task 32 mixes up its arguments, so that no program passes: it is mended here."""

    dataset = Dataset("evalplus/humanevalplus")
    preload = ("numpy",)
    timeout = 45.0

    def tests(self, doc: Doc) -> str:
        return super().tests(doc).replace("_poly(*candidate(*inp), inp)", "abs(_poly(*inp, candidate(*inp)))")


_FULL = Dataset("google-research-datasets/mbpp", "full", mirrors=("mbpp",))
_SHOWN = 3  # tests in a prompt


@register_task("mbpp")
class MBPP(CodeTask):
    """The prompt of the paper, with the tasks 2, 3 and 4 as examples."""

    dataset = _FULL
    shot_splits = ("prompt",)
    fixed_shots = True
    n_shots = 3
    generation = {"until": ("[DONE]",)}
    delimiter = ""

    def keep(self, doc: Doc) -> bool:
        return bool(doc["task_id"] != 1)  # the examples of the paper start after it

    def shots(self, sample: Sample, settings: RenderSettings) -> list[Doc]:
        """Without the sample's own task, which is among the examples of MBPP+: the next one takes its turn."""
        count = self.n_shots if settings.n_shots is None else settings.n_shots
        more = super().shots(sample, replace(settings, n_shots=count + 1)) if count else []
        return [shot for shot in more if shot["task_id"] != sample.doc["task_id"]][:count]

    def text(self, doc: Doc) -> str:
        return str(doc["text"])

    def question(self, doc: Doc) -> str:
        tests = "\n".join(doc["test_list"][:_SHOWN])
        task = f"You are an expert Python programmer, and here is your task: {self.text(doc)}"
        return f"{task} Your code should pass these tests:\n\n{tests}\n[BEGIN]\n"

    def instruction(self, doc: Doc) -> str:
        tests = "\n".join(doc["test_list"][:_SHOWN])
        wanted = "Answer with the complete function, and its imports, in one Python code block."
        return f"{self.text(doc)} {wanted} It should pass these tests:\n\n```python\n{tests}\n```"

    def answer_text(self, doc: Doc) -> str:
        return f"{doc['code']}\n[DONE]"

    def target_code(self, doc: Doc) -> str:
        return str(doc["code"])

    def entry_point(self, doc: Doc) -> str:
        """The function of the canonical solution that the tests call."""
        named = {node.id for node in ast.walk(ast.parse("\n".join(doc["test_list"]))) if isinstance(node, ast.Name)}
        defined = [node.name for node in ast.parse(doc["code"]).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
        return next((name for name in defined if name in named), "")

    def tests(self, doc: Doc) -> str:
        return "\n".join((doc.get("test_setup_code") or "", *doc["test_list"]))


@register_task("mbpp_plus")
class MBPPPlus(MBPP):
    """With the examples of MBPP."""

    dataset = Dataset("evalplus/mbppplus")
    preload = ("numpy",)
    timeout = 45.0

    @property
    def _pool(self) -> tuple[str, list[Row]]:
        split, rows = load_split(_FULL, self.shot_splits)
        return split, [row for row in rows if self.keep(row)]

    def text(self, doc: Doc) -> str:
        return str(doc["prompt"] if "prompt" in doc else doc["text"])

    def tests(self, doc: Doc) -> str:
        return str(doc["test"])
