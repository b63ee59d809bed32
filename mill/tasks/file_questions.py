"""Questions in a data file: answered by generated text, or by choosing the likeliest of the given choices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mill.api.errors import DataError, UnknownName
from mill.api.judge import Judge
from mill.api.message import IMAGE, MEDIA_KINDS, Context
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Value
from mill.metrics.extract import EXTRACTORS, choice, is_right, normal
from mill.tasks import columns
from mill.tasks.data import Dataset, Row
from mill.tasks.multiple_choice import MultipleChoiceTask
from mill.tasks.prompted import Doc, GenerativeTask, LetterTask, PromptedTask
from mill.tasks.suite import ANSWERED, DEFAULT_MAX_TOKENS, EXTRACT_HINTS, can_be_extracted, default_extractor

JUDGE = Judge(
    rubric="The answer is CORRECT when it says the same as the reference, in whatever words.",
    metrics={"judge": "mean", "judge_read": "mean"},
    optional=True,
)
BY_LETTER = "#letters"  # after the name of a file: choices are listed, and the model generates the letter
# How answers are called, one and several.
_EXTRACTED = {
    "number": ("number", "numbers"),
    "choice": ("letter", "letters"),
    "yes_no": ("yes or no", "yes or no"),
    "true_false": ("true or false", "true or false"),
    "json": ("JSON value", "JSON values"),
    "line": ("text", "texts"),
}


class FileTask(PromptedTask):
    """Rows of a table as samples. Examples (--n_shots) come from the other rows of the same file."""

    by_category = True

    def __init__(self, name: str, rows: Sequence[Row], column: str, summary: str) -> None:
        self._file = name.removesuffix(BY_LETTER)
        self._column, self._summary, self._folder = column, summary, Path(self._file).parent
        super().__init__(name)
        self.dataset = Dataset(name)
        self._kinds = [kind for kind in MEDIA_KINDS if any(kind in row for row in rows)]
        self._docs = self.read_docs(list(rows))
        shown = {kind for kind in self._kinds if any(kind in doc for doc in self._docs)}
        if shown:
            self.modalities = frozenset({"text", *shown})
            self.takes_shots = False

    def read_docs(self, rows: list[Row]) -> list[dict[str, Any]]:
        """The rows with their cells checked and in one form."""
        return [self._read_row(row, index) for index, row in enumerate(rows)]

    def where(self, index: int) -> str:
        return f"{self._file}, row {index + 1}"

    def _read_row(self, row: Row, index: int) -> dict[str, Any]:
        doc, where = dict(row), self.where(index)
        doc["id"] = columns.optional_text(row, "id", where) or str(index)
        for column in ("category", "system"):
            text = columns.optional_text(row, column, where)
            doc.pop(column, None)
            if text.strip():
                doc[column] = text
        for kind in MEDIA_KINDS:
            media = columns.read_media(row, kind, self._folder, where)
            if media is None or columns.is_null(media, where):
                doc.pop(kind, None)
                continue
            if kind == IMAGE:
                columns.check_image(media, where)
            doc[f"{kind}_digest"] = media.digest  # the cell is a path or unread bytes, and the data hash is one of content
        return doc

    def _media_warnings(self) -> list[str]:
        without = sum(not _shows(doc) for doc in self._docs)
        if not self._kinds or not without:
            return []
        return [f"{without} of {len(self._docs)} rows have no {' or '.join(self._kinds)} and are sent as text"]

    @cached_property
    def _evaluated(self) -> tuple[str, list[Row]]:
        return "file", self._docs

    @cached_property
    def _pool(self) -> tuple[str, list[Row]]:
        return "file", self._docs

    def _pool_name(self, split: str) -> str:
        return "the rest of the file"

    def samples(self) -> Sequence[Sample]:
        return [Sample(doc["id"], doc) for doc in self._docs]

    def category(self, sample: Sample) -> str:
        return str(sample.doc.get("category", ""))

    def question(self, doc: Doc) -> str:
        return str(doc["prompt"]) if self._column == "prompt" else f"Question: {doc['question']}\nAnswer:"

    def context(self, sample: Sample, settings: RenderSettings, question: str | None = None) -> Context:
        if "system" in sample.doc:
            settings = replace(settings, system_prompt=sample.doc["system"])
        row, where = dict(sample.doc), f"{self.name}, {sample.id}"
        cells = (columns.read_media(row, kind, self._folder, where) for kind in MEDIA_KINDS)
        media = [cell for cell in cells if cell is not None]
        if media:
            return settings.dialog(*media, self.question(sample.doc))
        return super().context(sample, settings, question)

    def judged_fields(self, sample: Sample, responses: Sequence[Response]) -> dict[str, str]:
        return {**super().judged_fields(sample, responses), "question": str(sample.doc[self._column])}


def _shows(doc: Doc) -> list[str]:
    """The kinds of media that a row has, in the order in which they are sent."""
    return [kind for kind in MEDIA_KINDS if kind in doc]


class ChoiceRows(FileTask):
    """Rows with choices, of which one is right."""

    scored_by: str

    def read_docs(self, rows: list[Row]) -> list[dict[str, Any]]:
        docs = super().read_docs(rows)
        choices = [columns.read_choices(row, self.where(index)) for index, row in enumerate(rows)]
        for index, row in enumerate(rows):
            if columns.is_missing(row.get("answer")) or row["answer"] == "":
                state = "empty" if "answer" in row else "missing"
                raise DataError(f"{self.where(index)}: answer is {state}, and multiple choice needs one")
        self._how, right = columns.right_choices([row["answer"] for row in rows], choices, self._file)
        for doc, given, answer in zip(docs, choices, right, strict=True):
            doc |= {"choices": given, "answer_index": answer}
        return docs

    def choices(self, doc: Doc) -> Sequence[str]:
        return [str(choice) for choice in doc["choices"]]

    def answer(self, doc: Doc) -> int:
        return int(doc["answer_index"])

    def warnings(self) -> list[str]:
        rows = f"{len(self._docs)} rows; {self._summary}"
        lines = [f"read as multiple choice by {self.scored_by}, answers as {self._how}: {rows}", *self._media_warnings()]
        if self._how == columns.INDICES and len(self._docs) > 1 and all(doc["answer_index"] for doc in self._docs):
            lines.append("no answer is 0: the index of the first choice is 0, not 1")
        return lines


class ChoiceFile(ChoiceRows, MultipleChoiceTask):
    """Every choice is scored as the text that follows the question. Models without log-probabilities get a LetterFile."""

    scored_by = "log-probability"

    def __init__(self, name: str, rows: Sequence[Row], column: str, summary: str) -> None:
        super().__init__(name, rows, column, summary)
        self.alternatives = (name + BY_LETTER,)

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        if not _shows(sample.doc):
            return super().requests(sample, settings)
        context = self.context(sample, settings)  # always a dialog, after which no space is needed
        return [Request(LOGLIKELIHOOD, context=context, continuation=choice) for choice in self.choices(sample.doc)]


class LetterFile(ChoiceRows, LetterTask):
    """The choices are listed in the prompt, and the model generates the letter."""

    scored_by = "generated letter"
    generation = {"max_gen_toks": DEFAULT_MAX_TOKENS}

    def question(self, doc: Doc) -> str:
        text = doc["prompt"] if self._column == "prompt" else f"Question: {doc['question']}"
        lines = [f"{letter}. {choice}" for letter, choice in zip(columns.LETTERS, self.choices(doc), strict=False)]
        return "\n".join([str(text), *lines, 'End with "the answer is (X)", where X is the letter of the right choice.'])

    def answer_text(self, doc: Doc) -> str:
        return f"The answer is ({columns.LETTERS[self.answer(doc)]})."

    def right_letter(self, sample: Sample) -> str:
        return columns.LETTERS[self.answer(sample.doc)]

    def extracted(self, sample: Sample, responses: Sequence[Response]) -> str | None:
        return choice(responses[0].text or "", columns.LETTERS[len(self.choices(sample.doc)) - 1])


class QuestionFile(FileTask, GenerativeTask):
    """`exact_match`: the extracted answer equals the gold one, without case and punctuation. `includes`: free text has the
    gold answer in it as whole words. Rows without an answer have neither. A gold answer that reads as a number is compared
    as a number, also where those of other rows are texts."""

    def read_docs(self, rows: list[Row]) -> list[dict[str, Any]]:
        docs = super().read_docs(rows)
        extractor = columns.text_extractor([doc.get("answer") for doc in docs])
        if extractor == "choice" and any(not doc.get("extract") for doc in docs):
            raise DataError(
                f"{self._file}: the answers are letters, but there are no choices: add a column choices, or choice_a, "
                f"choice_b, ...; where the prompts list them, add a column extract with the value choice"
            )
        for index, doc in enumerate(docs):
            self._read_options(doc, index)
            self._read_answer(doc, index, extractor)
        golds = [doc for doc in docs if "answer" in doc]
        self._extractors = Counter(doc["extract"] for doc in golds if "extract" in doc)
        self._ungraded = sum("extract" not in doc for doc in golds)
        self._golds = len(golds)
        free = "line" in self._extractors or self._ungraded
        self.judge = JUDGE if free and len(golds) == len(docs) else None
        return docs

    @property
    def metrics(self) -> Mapping[str, str]:  # type: ignore[override]
        if not self._extractors:
            return {ANSWERED: "mean"}
        return {"exact_match": "mean", **({"includes": "mean"} if "line" in self._extractors else {})}

    def _read_options(self, doc: dict[str, Any], index: int) -> None:
        for column in ("extract", "max_tokens"):
            if columns.is_missing(doc.get(column)) or doc[column] == "":
                doc.pop(column, None)
        how = doc.get("extract", "line")
        if not isinstance(how, str) or how not in EXTRACTORS:
            known = f"known are {', '.join(EXTRACTORS)}"
            raise UnknownName(f"extractor in {self.where(index)}", str(doc["extract"]), EXTRACTORS, hint=known)
        if "max_tokens" in doc:
            text = str(doc["max_tokens"]).removesuffix(".0")
            if not text.isdecimal() or not 1 <= int(text[:10]) <= 10**9:
                raise DataError(f"{self.where(index)}: max_tokens is {text[:60]!r}, not a count of at least 1")
            doc["max_tokens"] = int(text)

    def _read_answer(self, doc: dict[str, Any], index: int, extractor: str) -> None:
        """Check the gold answer and settle how it is extracted; text of several lines is for a judge alone."""
        if columns.is_missing(doc.get("answer")):
            doc.pop("answer", None)
            return
        answer, where = doc["answer"], self.where(index)
        if isinstance(answer, str) and not answer.strip():
            raise DataError(f"{where}: answer is empty; leave the column out for prompts without an answer")
        given = doc.get("extract") or ("number" if columns.is_number(answer) else "")
        chosen = given or (extractor if isinstance(answer, str) else default_extractor(answer))
        if can_be_extracted(chosen, answer):
            doc["extract"] = chosen
        elif "extract" in doc or not isinstance(answer, str) or not any(map(normal, answer.splitlines())):
            raise DataError(
                f"{where}: the answer {str(answer)[:60]!r} cannot be extracted by {chosen}; {EXTRACT_HINTS[chosen]}"
            )

    def answer_text(self, doc: Doc) -> str:
        return str(doc.get("answer", ""))

    def target(self, sample: Sample) -> Any:
        return sample.doc.get("answer")

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        # A base model continues with another question, which is no part of the answer.
        until = ("\nQuestion:",) if self._column == "question" and not settings.apply_chat_template else ()
        options = settings.options(max_gen_toks=sample.doc.get("max_tokens", DEFAULT_MAX_TOKENS), until=until)
        return [Request(GENERATE, context=self.context(sample, settings), options=options)]

    def extracts(self, sample: Sample) -> bool:
        return "extract" in sample.doc

    def extracted(self, sample: Sample, responses: Sequence[Response]) -> str | None:
        how = sample.doc.get("extract")
        return EXTRACTORS[how](responses[0].text or "") if how else None

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        values: dict[str, Value] = {ANSWERED: float(bool((responses[0].text or "").strip()))}
        how, gold = sample.doc.get("extract"), sample.doc.get("answer")
        if how is None or gold is None:
            return {**values, "exact_match": None, "includes": None}
        answer = self.extracted(sample, responses)
        includes = float(is_right(how, answer, gold))
        if how != "line":
            return {**values, "exact_match": includes, "includes": None}
        return {**values, "exact_match": float(answer == normal(str(gold))), "includes": includes}

    def warnings(self) -> list[str]:
        lines = [f"read as {self._kind()}: {len(self._docs)} rows; {self._summary}", *self._media_warnings()]
        if self._golds < len(self._docs) and self._golds:
            lines.append(f"{len(self._docs) - self._golds} of {len(self._docs)} rows have no answer and no score")
        if self._ungraded:
            lines.append(f"{self._ungraded} answers span several lines: they have no exact match, only --judge grades them")
        return lines

    def _kind(self) -> str:
        if not self._golds:
            return "prompts without answers"
        if not self._extractors:
            return "questions with free-text answers"
        counts = [f"{count} {_EXTRACTED.get(how, (how, how))[count > 1]}" for how, count in self._extractors.items()]
        return f"questions with answers, exact match of {', '.join(counts)}"
