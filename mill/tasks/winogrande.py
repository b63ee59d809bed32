"""WinoGrande: whom does a pronoun refer to? Each name is inserted, and the rest of the sentence is scored."""

from collections.abc import Sequence

from mill.api.registry import register_task
from mill.api.request import LOGLIKELIHOOD, Request
from mill.api.task import RenderSettings, Sample
from mill.tasks.data import Dataset
from mill.tasks.generated_choice import add_generated
from mill.tasks.multiple_choice import ListedQuestion, MultipleChoiceTask
from mill.tasks.prompted import Doc


@register_task("winogrande")
class WinoGrande(MultipleChoiceTask):
    dataset = Dataset("allenai/winogrande", "winogrande_xl", mirrors=("winogrande",))
    splits = ("validation",)
    shot_splits = ("train",)
    metrics = {"acc": "mean"}

    def question(self, doc: Doc) -> str:
        return self.choices(doc)[self.answer(doc)]

    def answer_text(self, doc: Doc) -> str:
        return self._parts(doc)[1].strip()

    def choices(self, doc: Doc) -> Sequence[str]:
        start, _ = self._parts(doc)
        return [start + doc["option1"], start + doc["option2"]]

    def answer(self, doc: Doc) -> int:
        return int(doc["answer"]) - 1

    def listed(self, doc: Doc) -> ListedQuestion:
        question = f"Which option fills the blank?\n{doc['sentence']}"
        return ListedQuestion(question, (doc["option1"], doc["option2"]), self.answer(doc))

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        """The choices differ in the context; the continuation is the same for both."""
        delimiter = "" if settings.apply_chat_template else self.delimiter
        return [
            Request(
                LOGLIKELIHOOD,
                context=self.context(sample, settings, question=choice),
                continuation=delimiter + self.answer_text(sample.doc),
                repeats=settings.repeats,
            )
            for choice in self.choices(sample.doc)
        ]

    def _parts(self, doc: Doc) -> tuple[str, str]:
        start, _, end = doc["sentence"].partition("_")
        return start, end


add_generated("winogrande")
