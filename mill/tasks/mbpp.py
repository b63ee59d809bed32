"""MBPP: a function is written from a sentence and three tests. MBPP+ has many times as many tests."""

import ast
from dataclasses import replace

from mill.api.registry import register_task
from mill.api.task import RenderSettings, Sample
from mill.tasks.code import CodeTask
from mill.tasks.data import Dataset, Row, load_split
from mill.tasks.prompted import Doc

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
