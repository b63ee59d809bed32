"""Whether the rules by which a tokenizer normalizes and splits text look across a cut: from a newline to the letter or digit
after it.

Rules with patterns may depend on words that no sample of texts shows, so only those of known families are trusted.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Mapping
from itertools import pairwise
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
        if type(backend.model).__name__ in _WORD_MODELS and not any(one["type"] in _WORD_SPLITS for one in splits):
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
    return [one for inner in part.get(name, ()) for one in _flat(inner, name)]


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
    found = _ALTERNATIVE.findall(pattern)
    return "|".join(found) == pattern and _LOCAL_ALTERNATIVES.issuperset(found)
