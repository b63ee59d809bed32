"""MMLU-Pro: up to ten choices, answered by a chain of thought that ends with the letter."""

from mill.api.registry import tasks
from mill.api.task import Benchmark, Sample
from mill.tasks.data import Dataset
from mill.tasks.generative import LETTERS, LetterTask
from mill.tasks.prompted import Doc

_NAMES = """
    biology business chemistry computer_science economics engineering health history law math other philosophy physics
    psychology
"""
SUBJECTS = _NAMES.split()
_THINK = "Let's think step by step."


class MMLUPro(LetterTask):
    dataset = Dataset("TIGER-Lab/MMLU-Pro")
    shot_splits = ("validation",)
    fixed_shots = True
    n_shots = 5
    generation = {"until": ("Question:",), "max_gen_toks": 2048}
    pattern = r"answer is \(?([ABCDEFGHIJ])\)?"  # as in published results

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.subject = name.removeprefix("mmlu_pro_").replace("_", " ")
        self.description = (
            f"The following are multiple choice questions (with answers) about {self.subject}. Think step by step and "
            'then finish your answer with "the answer is (X)" where X is the correct letter choice.\n'
        )

    def keep(self, doc: Doc) -> bool:
        return bool(doc["category"] == self.subject)

    def question(self, doc: Doc) -> str:
        options = "".join(f"{letter}. {text.strip()}\n" for letter, text in zip(LETTERS[:10], doc["options"], strict=False))
        return f"Question:\n{doc['question']}\nOptions:\n{options}Answer: {_THINK}"

    def answer_text(self, doc: Doc) -> str:
        return str(doc["cot_content"]).replace(f"A: {_THINK} ", "")

    def right_letter(self, sample: Sample) -> str:
        return str(sample.doc["answer"])


for _subject in SUBJECTS:
    tasks.add(f"mmlu_pro_{_subject}", MMLUPro)
tasks.add("mmlu_pro", Benchmark("mmlu_pro", tuple(f"mmlu_pro_{subject}" for subject in SUBJECTS)))
