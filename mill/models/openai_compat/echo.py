"""The character offsets of the tokens of an echoed prompt, which separate context, continuation and generated tokens."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

from mill.models.openai_compat.schema import Logprobs

BOS = -1  # the offset of a BOS that the server added before the prompt
_MARKS = str.maketrans({"Ġ": " ", "▁": " ", "Ċ": "\n"})  # how tokenizers write spaces in tokens


def prompt_starts(logprobs: Logprobs, prompt: str) -> list[int] | None:
    """The offset of each token of the prompt; generated tokens, which follow it, are left out.

    None if the server gives no offsets, or if its tokens do not add up to the prompt: bytes of a split character have no
    text, and shift all later offsets.
    """
    entries = len(logprobs.token_logprobs or [])
    if logprobs.tokens is not None:
        starts = _from_texts([str(token) for token in logprobs.tokens], prompt)
    else:
        starts = _from_offsets(logprobs.text_offset or [])
    if starts is None or len(starts) != entries:
        return None
    return [start for start in starts if start < len(prompt)]


def _from_texts(tokens: list[str], prompt: str) -> list[int] | None:
    """From the texts of the tokens, which may have a BOS or a space of the tokenizer in front."""
    for texts in (tokens, [token.translate(_MARKS) for token in tokens]):
        whole = "".join(texts)
        ends = list(accumulate(map(len, texts)))
        for lead in _leads(texts):
            if whole.startswith(prompt, lead):
                starts = [max(0, end - len(text) - lead) for text, end in zip(texts, ends, strict=True)]
                return [BOS, *starts[1:]] if ends[0] == lead else starts
    return None


def _leads(texts: list[str]) -> Iterator[int]:
    """How many characters there may be before the prompt."""
    yield 0
    if texts and texts[0]:
        yield len(texts[0])
        if texts[0].startswith(" "):
            yield 1


def _from_offsets(offsets: list[int]) -> list[int] | None:
    valid = offsets[:1] == [0] and all(before <= after for before, after in pairwise(offsets))
    return offsets if valid else None
