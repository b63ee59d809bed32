"""Where the tokens of an echoed prompt begin: which entries are the prompt's, and which of those the continuation's."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

from mill.models.openai_compat.schema import Logprobs

BOS = -1  # where a token begins that the server put before the prompt
_MARKS = str.maketrans({"Ġ": " ", "▁": " ", "Ċ": "\n"})  # how tokenizers write blanks inside of tokens


def prompt_starts(found: Logprobs, prompt: str) -> list[int] | None:
    """The position at which each token of the prompt begins; those that were generated begin after it, and are left out.

    None where the server does not tell, or where its tokens do not add up to the prompt: pieces of a character that was
    split have no text of their own, and shift whatever comes after them.
    """
    entries = len(found.token_logprobs or [])
    if found.tokens is not None:
        starts = _from_texts([str(token) for token in found.tokens], prompt)
    else:
        starts = _from_offsets(found.text_offset or [])
    if starts is None or len(starts) != entries:
        return None
    return [start for start in starts if start < len(prompt)]


def _from_texts(tokens: list[str], prompt: str) -> list[int] | None:
    """From the texts of the tokens, before which a BOS or a blank of the tokenizer's own may stand."""
    for texts in (tokens, [token.translate(_MARKS) for token in tokens]):
        whole = "".join(texts)
        ends = list(accumulate(map(len, texts)))
        for lead in _leads(texts):
            if whole.startswith(prompt, lead):
                starts = [max(0, end - len(text) - lead) for text, end in zip(texts, ends, strict=True)]
                return [BOS, *starts[1:]] if ends[0] == lead else starts
    return None


def _leads(texts: list[str]) -> Iterator[int]:
    """How many characters may stand before the prompt."""
    yield 0
    if texts and texts[0]:
        yield len(texts[0])
        if texts[0].startswith(" "):
            yield 1


def _from_offsets(offsets: list[int]) -> list[int] | None:
    sane = offsets[:1] == [0] and all(before <= after for before, after in pairwise(offsets))
    return offsets if sane else None
