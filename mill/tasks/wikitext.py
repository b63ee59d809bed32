"""WikiText-2, whole pages: perplexity per word and byte of the original text, scored on the detokenized one."""

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

from mill.api.registry import register_task
from mill.api.task import Sample
from mill.tasks.data import Dataset, Row, find_local, load_split
from mill.tasks.perplexity import PerplexityTask

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
