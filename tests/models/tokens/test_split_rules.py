"""Rules of tokenizers: those of today's families end at a newline before a letter, and others are recognized."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
import regex  # type: ignore[import-untyped, unused-ignore]
from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mill.models.tokens import pieces
from mill.models.tokens.pieces import Pieces, rules_are_local
from tests.models.tokens.test_pieces import LLAMA3, byte_level, trained, whole

ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*")
PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
LOCAL = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama 3": LLAMA3,
    "llama 3 with newlines as they are": LLAMA3.replace(r"\r\n", "\r\n"),
    "qwen": LLAMA3.replace("{1,3}", ""),
    "qwen 3.5": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
    + SPACES,
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|" + SPACES,
    "o200k": rf"{CASED[0]}{ENDINGS}|{CASED[1]}{ENDINGS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|" + SPACES,
    "tekken": rf"{CASED[0]}|{CASED[1]}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|" + SPACES,
    "deepseek": PUNCTUATION + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + SPACES,
    "bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",
}
ACROSS = {
    "a word ahead": r"\n{2,}(?=ZQ)",
    "a newline and a word": r"ZQ\n\nab|\w",
    "everything but a bar": r"[^|]+",
    "repeated, white space or letters": r"(?:\s|\w)+",
    "an anchor": r"^a",
    "a mode": r"(?m).",
}


def split(pattern: str) -> PreTrainedTokenizerFast:
    parts = [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    return byte_level(pre_tokenizer=pre_tokenizers.Sequence(parts))


@pytest.mark.parametrize("name", LOCAL)
def test_patterns_of_todays_families_are_local(name: str) -> None:
    assert rules_are_local(split(LOCAL[name]))


def test_no_known_alternative_matches_a_newline_and_a_letter_after_it() -> None:
    letters = random.Random(1)
    texts = ["".join(letters.choices("ab1\n\n .'/,!", k=40)) for _ in range(300)]
    for alternative in pieces._LOCAL_ALTERNATIVES:
        pattern = regex.compile(alternative, regex.VERSION1)
        crossing = [one for text in texts for one in pattern.findall(text) if re.search(r"\n[a-z0-9]", one)]
        assert not crossing, (alternative, crossing[:3])


@pytest.mark.parametrize("name", ACROSS)
def test_other_patterns_may_look_across(name: str) -> None:
    assert not rules_are_local(split(ACROSS[name]))


@pytest.mark.parametrize(
    ("normalizer", "local"),
    [
        (normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]), True),
        (normalizers.Replace(" ", "▁"), True),
        (normalizers.Replace(Regex(" {2,}"), "▁"), True),
        (normalizers.Replace("\n\n", "▁"), False),
        (normalizers.Replace(Regex(r"\s+"), " "), False),
        (normalizers.Replace("▁", "\n"), False),
    ],
)
def test_a_normalizer_that_replaces_newlines_may_look_across(normalizer: Any, local: bool) -> None:
    tokenizer = byte_level(pre_tokenizer=pre_tokenizers.ByteLevel(False), normalizer=normalizer)
    assert rules_are_local(tokenizer) is local


@pytest.mark.parametrize(("splitter", "local"), [(pre_tokenizers.Whitespace(), True), (pre_tokenizers.Punctuation(), False)])
def test_a_model_of_words_needs_a_split_at_white_space(splitter: Any, local: bool) -> None:
    trainer = trainers.WordLevelTrainer(special_tokens=["[UNK]"], show_progress=False)
    assert rules_are_local(trained(models.WordLevel(unk_token="[UNK]"), trainer, pre_tokenizer=splitter)) is local


def test_one_text_of_a_thousand_has_the_tokens_of_the_whole_text() -> None:
    """Its words decide how it is split; the texts that are tokenized both ways do not have them."""
    parts = [normalizers.Replace(Regex(r"\n{2,}(?=ZQ)"), " ")]
    tokenizer = byte_level(pre_tokenizer=pre_tokenizers.ByteLevel(False), normalizer=normalizers.Sequence(parts))
    texts = [f"a b\n\nQuestion {number}\nAnswer:" for number in range(1000)]
    texts[777] = "a b\n\nc d\n\nZQ e\nAnswer:"
    encode = whole(tokenizer)
    pieces = Pieces(tokenizer, encode)
    assert pieces.encode(texts) == encode(texts)
    pieces.usable = True  # as if its rules were not read
    assert pieces.encode(texts) != encode(texts)
