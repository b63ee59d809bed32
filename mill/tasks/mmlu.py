"""MMLU: 57 subjects, four choices, the log-probability of the letter, five examples from the dev split. MMLU-Pro: up to ten
choices, answered by a chain of thought that ends with the letter."""

from __future__ import annotations

from mill.api.registry import tasks
from mill.api.task import Benchmark, Sample
from mill.tasks.data import Dataset
from mill.tasks.multiple_choice import ListedQuestion, MultipleChoiceTask, add_generated
from mill.tasks.prompted import LETTERS, Doc, LetterTask

_SUBJECTS_BY_AREA = {
    "stem": """
        abstract_algebra anatomy astronomy college_biology college_chemistry
        college_computer_science college_mathematics college_physics computer_security
        conceptual_physics electrical_engineering elementary_mathematics high_school_biology
        high_school_chemistry high_school_computer_science high_school_mathematics
        high_school_physics high_school_statistics machine_learning
    """,
    "other": """
        business_ethics clinical_knowledge college_medicine global_facts human_aging management
        marketing medical_genetics miscellaneous nutrition professional_accounting
        professional_medicine virology
    """,
    "social_sciences": """
        econometrics high_school_geography high_school_government_and_politics
        high_school_macroeconomics high_school_microeconomics high_school_psychology human_sexuality
        professional_psychology public_relations security_studies sociology us_foreign_policy
    """,
    "humanities": """
        formal_logic high_school_european_history high_school_us_history high_school_world_history
        international_law jurisprudence logical_fallacies moral_disputes moral_scenarios philosophy
        prehistory professional_law world_religions
    """,
}
AREAS = {area: names.split() for area, names in _SUBJECTS_BY_AREA.items()}


class MMLU(MultipleChoiceTask):
    n_shots = 5
    shot_splits = ("dev",)
    fixed_shots = True
    metrics = {"acc": "mean"}

    def __init__(self, name: str) -> None:
        super().__init__(name)
        subject = name.removeprefix("mmlu_")
        self.dataset = Dataset("cais/mmlu", subject, mirrors=("hails/mmlu_no_train",))
        about = subject.replace("_", " ")
        self.description = f"The following are multiple choice questions (with answers) about {about}.\n\n"

    def question(self, doc: Doc) -> str:
        options = "".join(f"{letter}. {choice}\n" for letter, choice in zip(LETTERS, doc["choices"], strict=False))
        return f"{doc['question'].strip()}\n{options}Answer:"

    def listed(self, doc: Doc) -> ListedQuestion:
        return ListedQuestion(doc["question"].strip(), tuple(doc["choices"]), self.answer(doc))

    def choices(self, doc: Doc) -> list[str]:
        return list(LETTERS[: len(doc["choices"])])

    def answer(self, doc: Doc) -> int:
        return int(doc["answer"])


for _area, _subjects in AREAS.items():
    for _subject in _subjects:
        tasks.add(f"mmlu_{_subject}", MMLU)
    tasks.add(f"mmlu_{_area}", Benchmark(f"mmlu_{_area}", tuple(f"mmlu_{subject}" for subject in _subjects)))
tasks.add("mmlu", Benchmark("mmlu", tuple(f"mmlu_{area}" for area in AREAS)))
add_generated("mmlu")


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
