"""BoolQ: a passage and a yes/no question about it."""

from mill.api.registry import register_task
from mill.tasks.data import Dataset
from mill.tasks.generated_choice import add_generated
from mill.tasks.multiple_choice import MultipleChoiceTask
from mill.tasks.prompted import Doc


@register_task("boolq")
class BoolQ(MultipleChoiceTask):
    dataset = Dataset("aps/super_glue", "boolq", mirrors=("super_glue",), plain_mirrors=("google/boolq", "boolq"))
    splits = ("validation",)
    shot_splits = ("train",)
    metrics = {"acc": "mean"}

    def question(self, doc: Doc) -> str:
        return f"{doc['passage']}\nQuestion: {doc['question']}?\nAnswer:"

    def choices(self, doc: Doc) -> list[str]:
        return ["no", "yes"]

    def answer(self, doc: Doc) -> int:
        return int(doc["label"] if "label" in doc else doc["answer"])


add_generated("boolq")
