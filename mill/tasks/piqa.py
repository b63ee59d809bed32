"""PIQA: which of two ways reaches an everyday goal."""

from mill.api.registry import register_task
from mill.tasks.data import Dataset
from mill.tasks.generated_choice import add_generated
from mill.tasks.multiple_choice import MultipleChoiceTask
from mill.tasks.prompted import Doc


@register_task("piqa")
class Piqa(MultipleChoiceTask):
    dataset = Dataset("baber/piqa", mirrors=("ybisk/piqa", "piqa"))
    splits = ("validation",)
    shot_splits = ("train",)

    def question(self, doc: Doc) -> str:
        return f"Question: {doc['goal']}\nAnswer:"

    def choices(self, doc: Doc) -> list[str]:
        return [doc["sol1"], doc["sol2"]]

    def answer(self, doc: Doc) -> int:
        return int(doc["label"])


add_generated("piqa")
