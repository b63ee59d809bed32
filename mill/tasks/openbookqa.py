"""OpenBookQA: elementary science questions that need a fact and common sense."""

from mill.api.registry import register_task
from mill.tasks.data import Dataset
from mill.tasks.generated_choice import add_generated
from mill.tasks.multiple_choice import MultipleChoiceTask
from mill.tasks.prompted import Doc


@register_task("openbookqa")
class OpenBookQA(MultipleChoiceTask):
    dataset = Dataset("allenai/openbookqa", "main", mirrors=("openbookqa",))
    splits = ("test", "validation")

    def question(self, doc: Doc) -> str:
        return str(doc["question_stem"])

    def choices(self, doc: Doc) -> list[str]:
        return list(doc["choices"]["text"])

    def answer(self, doc: Doc) -> int:
        return list(doc["choices"]["label"]).index(doc["answerKey"].strip())


add_generated("openbookqa")
