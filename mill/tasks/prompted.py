"""What text tasks share: data splits, few-shot examples, system prompts and chat messages around one question; and tasks
whose answer is generated text."""

from __future__ import annotations

import hashlib
import random
import re
import string
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

from mill.api.errors import DataError
from mill.api.message import Context
from mill.api.request import GENERATE, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Task, TaskType, Value
from mill.tasks.data import Dataset, Row, load_split

Doc = Mapping[str, Any]


def shots_from(
    pool: Sequence[Doc], count: int, sample: Sample, settings: RenderSettings, *, fixed: bool, task: str, where: str
) -> list[Doc]:
    """The `count` examples before a sample's question: drawn for it, or where they are `fixed` the same for all. `where` is
    the pool's name, for the message about too few."""
    if fixed or settings.same_shots:
        shots = list(islice((shot for shot in pool if shot != sample.doc), count))
    else:
        shots = drawn_shots(pool, count, sample.doc, sample_id=sample.id, seed=settings.seed or 0)
    if len(shots) < count:
        found = f"{where} has only {len(shots)}"
        raise DataError(f"{task} needs {count} examples before each question, but {found}: lower --n_shots")
    return shots


def drawn_shots(pool: Sequence[Doc], count: int, doc: Doc, *, sample_id: str, seed: int) -> list[Doc]:
    """`count` examples drawn without replacement, never the question itself.

    The draw is seeded by (seed, sample id): it is the same in any order, with any limit and in any process.
    """
    digest = hashlib.blake2b(f"{seed}/{sample_id}".encode(), digest_size=8).digest()
    draw = random.Random(int.from_bytes(digest, "big"))
    # One more than needed, since the question itself is skipped; where it has duplicates, more are drawn.
    wanted = min(len(pool), count + 1)
    while True:
        state = draw.getstate()
        shots = [shot for shot in (pool[index] for index in draw.sample(range(len(pool)), wanted)) if shot != doc]
        if len(shots) >= count or wanted == len(pool):
            return shots[:count]
        wanted = min(len(pool), wanted * 2)
        draw.setstate(state)


class PromptedTask(Task):
    """A subclass names its dataset and renders a row as a question and, in an example, as an answer."""

    takes_shots = True
    dataset: Dataset
    splits: tuple[str, ...] = ("test",)
    """The evaluated split; those after the first are used where it is missing, with a warning."""
    shot_splits: tuple[str, ...] = ("train", "validation")
    fixed_shots: bool = False
    """Whether examples are the first of their split (as in MMLU) instead of drawn for each sample."""
    description: str = ""
    separator: str = "\n\n"
    delimiter: str = " "

    @abstractmethod
    def question(self, doc: Doc) -> str: ...

    @abstractmethod
    def answer_text(self, doc: Doc) -> str:
        """The answer as an example shows it, after the delimiter."""

    def keep(self, doc: Doc) -> bool:
        """Whether a row belongs to this task."""
        return True

    @cached_property
    def _evaluated(self) -> tuple[str, list[Row]]:
        split, rows = load_split(self.dataset, self.splits)
        return split, [row for row in rows if self.keep(row)]

    @cached_property
    def _pool(self) -> tuple[str, list[Row]]:
        split, rows = load_split(self.dataset, (*self.shot_splits, *self.splits))
        return split, [row for row in rows if self.keep(row)]

    def samples(self) -> Sequence[Sample]:
        return [Sample(str(index), row) for index, row in enumerate(self._evaluated[1])]

    def warnings(self) -> list[str]:
        lines = []
        if self._evaluated[0] != self.splits[0]:
            lines.append(f"the {self._evaluated[0]} split is used instead of {self.splits[0]}, which is missing")
        if "_pool" in self.__dict__ and self._pool[0] != self.shot_splits[0]:
            lines.append(f"examples come from the {self._pool[0]} split, since {self.shot_splits[0]} is missing")
        return lines

    def shots(self, sample: Sample, settings: RenderSettings) -> list[Doc]:
        """The examples before a sample's question."""
        count = self.n_shots if settings.n_shots is None else settings.n_shots
        if not count:
            return []
        split, pool = self._pool
        where = self._pool_name(split)
        return shots_from(pool, count, sample, settings, fixed=self.fixed_shots, task=self.name, where=where)

    def _pool_name(self, split: str) -> str:
        return f"the {split} split of {self.dataset}"

    def context(self, sample: Sample, settings: RenderSettings, question: str | None = None) -> Context:
        """Description, examples and question as one text, or as chat messages where a chat template is applied."""
        text = self.question(sample.doc) if question is None else question
        if settings.apply_chat_template and settings.fewshot_as_multiturn:
            turns = [(self.question(shot), self.answer_text(shot)) for shot in self.shots(sample, settings)]
            return settings.frame(text, self.description, turns)
        examples = "".join(self.example(shot) + self.separator for shot in self.shots(sample, settings))
        return settings.frame(examples + text, self.description)

    def judged_fields(self, sample: Sample, responses: Sequence[Response]) -> dict[str, str]:
        fields = {"question": self.question(sample.doc), "reference": self.answer_text(sample.doc)}
        return {**super().judged_fields(sample, responses), **fields}

    def example(self, doc: Doc) -> str:
        """One solved example."""
        return f"{self.question(doc)}{self.delimiter}{self.answer_text(doc)}"


LETTERS = string.ascii_uppercase


class GenerativeTask(PromptedTask):
    """A subclass adds `generation` (decoding options) and `score`."""

    task_type = TaskType.GENERATIVE_QA
    metrics: Mapping[str, str] = {"exact_match": "mean"}
    generation: Mapping[str, Any] = {}

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        context = self.context(sample, settings)
        return [Request(GENERATE, context=context, options=settings.options(**self.generation))]


class LetterTask(GenerativeTask):
    """Multiple choice by the generated letter: the prompt asks it to end with `the answer is (X)`."""

    task_type = TaskType.MULTIPLE_CHOICE
    kind = GENERATE
    pattern = r"answer is \(?([A-J])(?![A-Za-z])"

    @abstractmethod
    def right_letter(self, sample: Sample) -> str: ...

    def target(self, sample: Sample) -> str:
        return self.right_letter(sample)

    def extracted(self, sample: Sample, responses: Sequence[Response]) -> str | None:
        match = re.search(self.pattern, responses[0].text or "")
        return match.group(1).upper() if match else None

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {"exact_match": float(self.extracted(sample, responses) == self.right_letter(sample))}
