"""HumanEval: a function is completed from its signature and docstring. HumanEval+ has many times as many tests."""

from mill.api.registry import register_task
from mill.tasks.code import CodeTask, defines
from mill.tasks.data import Dataset
from mill.tasks.prompted import Doc


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
