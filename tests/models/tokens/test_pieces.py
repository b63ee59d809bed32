"""Texts tokenized in pieces have the tokens of the whole text, or are tokenized as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mill.models.tokens.pieces import Pieces, can_cut

CORPUS = [
    "Question: what is 2 + 2?\nAnswer: 4\n\nQuestion: why is the sky blue?\nAnswer: light, scattered\n\n\n",
    "The following are questions about history.\n\nWho was first?\nA. one\nB. two\nAnswer: A",
    "def f(x):\n    return x\n\n\n# 12 345\n",
]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXTS = st.text(st.sampled_from("Ab1 .:\n\t-é"), max_size=60)


def trained(model: Any, trainer: Any, **parts: Any) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(model)
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def byte_level(**splitting: Any) -> PreTrainedTokenizerFast:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    return trained(models.BPE(), trainer, decoder=decoders.ByteLevel(), **splitting)


@pytest.fixture(scope="module")
def kinds() -> dict[str, PreTrainedTokenizerFast]:
    """The ways in which tokenizers of today split text."""
    split = pre_tokenizers.Split(__import__("tokenizers").Regex(LLAMA3), "isolated")
    unigram = trainers.UnigramTrainer(vocab_size=120, show_progress=False, unk_token="<unk>", special_tokens=["<unk>"])
    return {
        "gpt2": byte_level(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False)),
        "llama3": byte_level(
            pre_tokenizer=pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        ),
        "prefix space": byte_level(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)),
        "sentencepiece": trained(
            models.Unigram(), unigram, normalizer=normalizers.Prepend("▁"), pre_tokenizer=pre_tokenizers.Metaspace()
        ),
        "whole text": byte_level(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
    }


def whole(tokenizer: Any) -> Any:
    return lambda texts: tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []


@pytest.mark.parametrize("kind", ["gpt2", "llama3", "prefix space", "sentencepiece", "whole text"])
@settings(max_examples=60, deadline=None)
@given(head=TEXTS, tails=st.lists(TEXTS, min_size=1, max_size=6), continuation=TEXTS)
def test_pieces_have_the_tokens_of_the_whole_text(
    kinds: dict[str, Any], kind: str, head: str, tails: list[str], continuation: str
) -> None:
    encode = whole(kinds[kind])
    pieces = Pieces(kinds[kind], encode, least=1)
    texts = list(dict.fromkeys(f"{head}\n\nQuestion: {tail}\nA. b" for tail in tails))
    assert pieces.encode(texts) == encode(texts)
    pairs = [(text, continuation + str(number)) for number, text in enumerate(texts)]
    for (context, after), (shared, rest, n_context) in zip(pairs, pieces.encode_pairs(pairs), strict=True):
        assert shared + rest == encode([context + after])[0]
        assert n_context == len(encode([context])[0])


def test_which_tokenizers_take_pieces(kinds: dict[str, Any]) -> None:
    texts = [f"{CORPUS[0]}Question: {number}" for number in range(40)]
    usable = {}
    for kind, tokenizer in kinds.items():
        pieces = Pieces(tokenizer, whole(tokenizer))
        assert pieces.encode(texts) == whole(tokenizer)(texts)
        usable[kind] = pieces.usable
    assert usable["gpt2"] and usable["llama3"]
    assert not usable["prefix space"] and not usable["whole text"]  # the latter has tokens of newlines with letters


def test_shared_paragraphs_are_tokenized_once() -> None:
    given: list[str] = []

    class Characters:
        """A token for each character."""

        def get_vocab(self) -> dict[str, int]:
            return {chr(code): code for code in range(256)}

    def encode(texts: list[str]) -> list[list[int]]:
        given.extend(texts)
        return [[ord(one) for one in text] for text in texts]

    examples = "Example one.\n\nExample two.\n\n" * 50
    Pieces(Characters(), encode).encode([f"{examples}Question {number}" for number in range(1000)])
    assert sum(map(len, given)) < 50 * len(examples)  # of 1000


def test_a_token_across_a_newline_forbids_cuts(tiny_model: Path) -> None:
    class Crossing:
        def get_vocab(self) -> dict[str, int]:
            return {"a": 0, "ĊQ": 1}

    class Broken:
        def get_vocab(self) -> dict[str, int]:
            raise RuntimeError("no vocabulary")

    assert not can_cut(Crossing()) and not can_cut(Broken())
