"""Tokenizing texts in pieces, so that what many prompts share, such as their examples, is tokenized once.

A text is cut after a newline where a letter or digit follows. Tokenizers put a boundary there: no token of theirs contains
both sides. Each piece is tokenized with the first character that follows it, since the token of a newline may depend on
what follows, and that character's token is dropped. Whether this gives the tokens of the whole text is not assumed but
tested: on the vocabulary, on the rules of the tokenizer, and on some texts of every list. A tokenizer that fails tokenizes
whole texts from then on.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

_LETTERS = string.ascii_letters + string.digits
_LOCAL_NORMALIZERS = {
    *("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "Nmt", "Precompiled", "Prepend"),
    *("BertNormalizer", "ByteLevel"),
}
_LOCAL_SPLITS = {
    *("ByteLevel", "Metaspace", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit", "BertPreTokenizer"),
    "CharDelimiterSplit",
}
_WORD_SPLITS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
_WORD_MODELS = {"WordPiece", "WordLevel"}  # which take a whole word, or none of it
# Alternatives of the patterns of GPT-2, Llama 3, Qwen, cl100k, o200k, Tekken and DeepSeek. No match of one has a newline and
# after it a letter or digit.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LOCAL_ALTERNATIVES = {
    *(_ENDINGS, "'(?i:[sdmt]|ll|ve|re)", "'s", "'t", "'re", "'ve", "'m", "'ll", "'d"),
    *(r" ?\p{L}+", r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[^\r\n\p{L}\p{N}]?+\p{L}+", r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"),
    *(_CASED[0], _CASED[1], f"{_CASED[0]}{_ENDINGS}?", f"{_CASED[1]}{_ENDINGS}?"),
    *(r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+", r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""", "[一-龥぀-ゟ゠-ヿ]+"),
    *(r"\p{N}", r"\p{N}+", r" ?\p{N}+", r"\p{N}{1,2}", r"\p{N}{1,3}", r"\d", r"\d{1,3}", "[0-9]", "[0-9][0-9][0-9]"),
    *(r" ?[^\s\p{L}\p{N}]+", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]++[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"),
    *(r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", r" ?[\p{P}\p{S}]+[\r\n]*", r" ?[^(\s|[.,!?…。，、।۔،])]+"),
    *(r"\s+", r"\s+(?!\S)", r"\s*[\r\n]", r"\s*[\r\n]+", r"[\r\n]", r"\s", " {2,}"),
}
_ALTERNATIVE = re.compile(r"(?:\\.|\[(?:\\.|[^\]\\])*\]|\((?:\\.|[^()\\])*\)|[^|])+", re.DOTALL)


def rules_are_local(tokenizer: Any) -> bool:
    """True also for a tokenizer in Python, whose rules cannot be read."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return True
    try:
        normalizer, splitter = (_state(getattr(backend, name)) for name in ("normalizer", "pre_tokenizer"))
        splits = _flat(splitter, "pretokenizers")
        if type(backend.model).__name__ in _WORD_MODELS and not any(part["type"] in _WORD_SPLITS for part in splits):
            return False
        return all(map(_normalizes_locally, _flat(normalizer, "normalizers"))) and all(map(_splits_locally, splits))
    except Exception:  # parts in Python have no state
        return False


def _state(part: Any) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(part.__getstate__()) if part is not None else {"type": "Sequence"}
    return read


def _flat(part: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    if part["type"] != "Sequence":
        return [part]
    return [flat for inner in part.get(name, ()) for flat in _flat(inner, name)]


def _normalizes_locally(part: Mapping[str, Any]) -> bool:
    """A replacement may leave something else where a text is cut, so it must not touch newlines at all."""
    if part["type"] != "Replace":
        return part["type"] in _LOCAL_NORMALIZERS
    pattern, content = part["pattern"], part["content"]
    if "\n" in content:
        return False
    return "\n" not in pattern["String"] if "String" in pattern else pattern["Regex"] == " {2,}"


def _splits_locally(part: Mapping[str, Any]) -> bool:
    if part["type"] != "Split":
        return part["type"] in _LOCAL_SPLITS
    pattern = part["pattern"]
    if "String" in pattern:
        text = pattern["String"]
        return not any(before == "\n" and after in _LETTERS for before, after in pairwise(text))
    return _is_known(pattern["Regex"])


def _is_known(pattern: str) -> bool:
    """Whether a pattern is a known alternative, or several."""
    pattern = pattern.replace("\r", r"\r").replace("\n", r"\n")
    alternatives = _ALTERNATIVE.findall(pattern)
    return "|".join(alternatives) == pattern and _LOCAL_ALTERNATIVES.issuperset(alternatives)


Encode = Callable[[list[str]], list[list[int]]]
Piece = tuple[str, str]
"""A part of a text, and the character that follows it; empty at the end of the text."""

PROBED = 16  # texts of a list that are tokenized both ways


TextTokens = tuple[list[int], list[int], int]
"""The token ids of a context and its continuation: those of a head, which is one object for contexts that share it, those of
the rest, and after how many of both the context ends."""


# A text is cut where a match ends. Patterns that begin with a character are found several times as fast as lookbehinds.
_PARAGRAPH = re.compile(r"\n\n(?=[A-Za-z0-9])")
_LINE = re.compile(r"\n(?=[A-Za-z0-9])")
_CROSSING = re.compile(r"[\nĊ][A-Za-z0-9]")  # Ċ is the newline of byte-level vocabularies


class Pieces:
    """Token ids of texts by those of their pieces. `encode` tokenizes whole texts, as do lists shorter than `least`."""

    def __init__(self, tokenizer: Any, encode: Encode, *, least: int = 2 * PROBED, usable: bool = True) -> None:
        self._encode, self._least = encode, least
        self.usable = usable and can_cut(tokenizer)
        self._following: dict[str, int | None] = {"": None}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of distinct texts."""
        return [head + tail for head, tail, _ in self.encode_pairs([(text, "") for text in texts])]

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[TextTokens]:
        """Contexts with their continuations. The tokens before a context's last line do not depend on the continuation."""
        if self.usable and len(pairs) >= self._least:
            encoded = self._pairs_in_pieces(pairs)
            step = max(1, len(pairs) // PROBED)
            if encoded is not None and _joined(encoded[::step]) == _joined(self._whole_pairs(pairs[::step])):
                return encoded
            self.usable = False
        return self._whole_pairs(pairs)

    def _pairs_in_pieces(self, pairs: Sequence[tuple[str, str]]) -> list[TextTokens] | None:
        parts = {context: split_tail(context) for context, _ in pairs}
        cut = {(head, tail[0]): pieces_of(head, tail[0]) for head, tail in parts.values() if head}
        tails = dict.fromkeys((tail, "") for _, tail in parts.values())
        tails |= dict.fromkeys((parts[context][1] + continuation, "") for context, continuation in pairs)
        known = self._tokenize(list(dict.fromkeys(chain(chain.from_iterable(cut.values()), tails))))
        if known is None:
            return None
        heads = {head: list(chain.from_iterable(map(known.__getitem__, pieces))) for head, pieces in cut.items()}
        encoded, nothing = [], list[int]()
        for context, continuation in pairs:
            before, line = parts[context]
            head = heads[before, line[0]] if before else nothing
            encoded.append((head, known[line + continuation, ""], len(head) + len(known[line, ""])))
        return encoded

    def _whole_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[TextTokens]:
        """Each text tokenized as a whole."""
        texts = list(dict.fromkeys(chain.from_iterable((context, context + after) for context, after in pairs)))
        known = dict(zip(texts, self._encode(texts), strict=True))
        return [([], known[context + after], len(known[context])) for context, after in pairs]

    def _tokenize(self, pieces: list[Piece]) -> dict[Piece, list[int]] | None:
        """The token ids of each piece; None where a piece does not end with the token of the character after it."""
        self._learn({following for _, following in pieces})
        known = {}
        for piece, ids in zip(pieces, self._encode([text + following for text, following in pieces]), strict=True):
            expected = self._following[piece[1]]
            if piece[1] and (not ids or expected is None or ids.pop() != expected):
                return None
            known[piece] = ids
        return known

    def _learn(self, characters: set[str]) -> None:
        """The token of each character after a newline."""
        new = sorted(characters - self._following.keys())
        for character, ids in zip(new, self._encode([f"a\n{character}" for character in new]) if new else [], strict=True):
            self._following[character] = ids[-1] if ids else None


def _joined(encoded: Sequence[TextTokens]) -> list[tuple[list[int], int]]:
    return [(head + tail, n_context) for head, tail, n_context in encoded]


def pieces_of(text: str, following: str = "") -> list[Piece]:
    """Paragraphs, or lines of a text that has one paragraph. `following` is the character after the text."""
    ends = [found.end() for found in _PARAGRAPH.finditer(text)] or [found.end() for found in _LINE.finditer(text)]
    last = ends[-1] if ends else 0
    return [*((text[start:end], text[end]) for start, end in pairwise([0, *ends])), (text[last:], following)]


def split_tail(text: str) -> tuple[str, str]:
    """A text before and after its last cut, the part after it at most a line."""
    last = 0
    for found in _LINE.finditer(text, max(0, text.rfind("\n"))):
        last = found.end()
    return text[:last], text[last:]


def can_cut(tokenizer: Any) -> bool:
    """Whether no token has a newline followed by a letter or digit, no rule looks across that, and no added token takes
    the space before it."""
    try:
        vocabulary = tokenizer.get_vocab()
        added = getattr(tokenizer, "added_tokens_decoder", {}).values()
        takes_space = any(token.lstrip and token.content[:1].isalnum() for token in added)
    except Exception:  # a tokenizer may be third-party code
        return False
    if takes_space or not rules_are_local(tokenizer):
        return False
    return not any(_CROSSING.search(token) for token in vocabulary if isinstance(token, str))
