"""Perplexity of whole documents, per word and per byte; and WikiText-2, scored on its detokenized pages."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from mill.api.registry import register_task
from mill.api.request import ROLLING, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Task, TaskType, Value
from mill.tasks.data import Dataset, Row, find_local, load_split


class PerplexityTask(Task):
    """A subclass gives its samples, the text that is scored and the text whose words and bytes are counted."""

    task_type = TaskType.PERPLEXITY
    metrics: Mapping[str, str] = {
        "word_perplexity": "perplexity",
        "byte_perplexity": "perplexity",
        "bits_per_byte": "bits_per_unit",
    }

    @abstractmethod
    def scored_text(self, sample: Sample) -> str: ...

    def counted_text(self, sample: Sample) -> str:
        return self.scored_text(sample)

    def count_words(self, text: str) -> int:
        return len(text.split())

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        return [Request(ROLLING, context=self.scored_text(sample))]

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        text = self.counted_text(sample)
        score = responses[0].score if responses[0].score is not None else float("nan")
        words, size = float(max(1, self.count_words(text))), float(max(1, len(text.encode())))
        return {"word_perplexity": (score, words), "byte_perplexity": (score, size), "bits_per_byte": (score, size)}


RAW = Dataset("EleutherAI/wikitext_document_level", "wikitext-2-raw-v1", mirrors=("Salesforce/wikitext", "wikitext"))
TOKENIZED = Dataset("Salesforce/wikitext", "wikitext-2-v1", mirrors=("wikitext",))
_TITLE = re.compile(r"^ = [^=](?:.*[^=])? =\s*$")
# In this order: each step sees what the ones before it left.
_JOINS = (
    ("s '", "s'"),
    (" @-@ ", "-"),
    (" @,@ ", ","),
    (" @.@ ", "."),
    *((f" {mark} ", f"{mark} ") for mark in ":;.!?,"),
)
_ENCLOSED = (
    (r"\(\s*([^\)]*?)\s*\)", r"(\1)"),
    (r"\[\s*([^\]]*?)\s*\]", r"[\1]"),
    (r"{\s*([^}]*?)\s*}", r"{\1}"),
    (r'"\s*([^"]*?)\s*"', r'"\1"'),
    (r"'\s*([^']*?)\s*'", r"'\1'"),
)
_LEFTOVERS = (
    ("= = = =", "===="),
    ("= = =", "==="),
    ("= =", "=="),
    (" ° ", "°"),
    (" \n", "\n"),
    ("\n ", "\n"),
    (" N ", " 1 "),
    (" 's", "'s"),
)


@register_task("wikitext")
class WikiText(PerplexityTask):
    @cached_property
    def _source(self) -> tuple[Dataset, list[Row]]:
        if find_local(RAW, "test") is None and find_local(TOKENIZED, "test") is not None:
            return TOKENIZED, load_split(TOKENIZED, ("test",))[1]
        return RAW, load_split(RAW, ("test",))[1]

    def samples(self) -> Sequence[Sample]:
        rows = self._source[1]
        pages = [row["page"] for row in rows] if rows and "page" in rows[0] else join_pages(row["text"] for row in rows)
        return [Sample(str(index), {"page": page}) for index, page in enumerate(pages)]

    def warnings(self) -> list[str]:
        dataset, rows = self._source
        if dataset is TOKENIZED:
            return ["wikitext-2-v1, with its <unk> words, is used instead of wikitext-2-raw-v1: scores are not comparable"]
        return [] if "page" in rows[0] else ["pages were joined from the line-by-line form of the dataset"]

    def scored_text(self, sample: Sample) -> str:
        return detokenize(sample.doc["page"])

    def counted_text(self, sample: Sample) -> str:
        return str(sample.doc["page"])

    def count_words(self, text: str) -> int:
        """As published results count: white space at either end adds an empty word."""
        return len(re.split(r"\s+", text))


def join_pages(lines: Iterable[str]) -> list[str]:
    """Pages from the line-by-line form of the dataset: a page starts at a title of the first level."""
    pages: list[str] = []
    for line in lines:
        if _TITLE.match(line) or not pages:
            pages.append("")
        pages[-1] += line or " \n"  # the hub's line-by-line form keeps nothing of a blank line
    return [page for page in pages if page.strip()]


def detokenize(text: str) -> str:
    """Undo WikiText's tokenization, so that a model sees ordinary text."""
    for old, new in _JOINS:
        text = text.replace(old, new)
    for pattern, new in _ENCLOSED:
        text = re.sub(pattern, new, text)
    for old, new in _LEFTOVERS:
        text = text.replace(old, new)
    return text
