"""HellaSwag: which of four endings continues a scene."""

import re

from mill.api.registry import register_task
from mill.tasks.data import Dataset
from mill.tasks.generated_choice import add_generated
from mill.tasks.multiple_choice import ListedQuestion, MultipleChoiceTask
from mill.tasks.prompted import Doc


@register_task("hellaswag")
class HellaSwag(MultipleChoiceTask):
    dataset = Dataset("Rowan/hellaswag", mirrors=("hellaswag",))
    splits = ("validation",)
    shot_splits = ("train",)

    def question(self, doc: Doc) -> str:
        scene = f"{doc['ctx_a']} {doc['ctx_b'].capitalize()}" if "ctx_a" in doc else doc["ctx"]
        return clean(f"{doc['activity_label']}: {scene}")

    def listed(self, doc: Doc) -> ListedQuestion:
        question = f"Which ending continues the text?\n{self.question(doc)}"
        return ListedQuestion(question, tuple(self.choices(doc)), self.answer(doc))

    def warnings(self) -> list[str]:
        lines = super().warnings()
        if "ctx_a" not in self.samples()[0].doc:
            lines.append("the rows have no ctx_a and ctx_b, so the start of the last sentence keeps its small letter")
        return lines

    def choices(self, doc: Doc) -> list[str]:
        return [clean(ending) for ending in doc["endings"]]

    def answer(self, doc: Doc) -> int:
        return int(doc["label"])


def clean(text: str) -> str:
    """Without the bracketed section marks that WikiHow articles left behind."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


add_generated("hellaswag")
