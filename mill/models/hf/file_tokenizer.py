"""A tokenizer straight from its file: importing transformers takes seconds, for which counting tokens need not wait.

Only for tokenizers that transformers reads from the same file without changes; None for all others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mill.api.errors import ModelError
from mill.models.tokens.tokenizer import Tokens
from mill.support.validate import read_file

_UNCHANGED = {"TokenizersBackend", "PreTrainedTokenizerFast"}
_TOKENS = (
    *("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"),
    *("extra_special_tokens", "additional_special_tokens", "added_tokens_decoder"),
)
_HARMLESS = {
    *("tokenizer_class", "backend", "is_local", "local_files_only", "model_max_length", "name_or_path", "chat_template"),
    *("padding_side", "truncation_side", "model_input_names", "clean_up_tokenization_spaces"),
    *("special_tokens_map_file", "response_schema", *_TOKENS),
}
"""Settings that change no ids, or whose tokens are looked up in the file."""


class FileTokenizer:
    """The part of a transformers tokenizer that encodes texts."""

    chat_template = None

    def __init__(self, tokenizer: Any, *, bos: str | None, eos: str | None) -> None:
        self.backend_tokenizer, self.get_vocab = tokenizer, tokenizer.get_vocab
        self.added_tokens_decoder = tokenizer.get_added_tokens_decoder()
        self.bos_token_id, self.eos_token_id = (None if one is None else tokenizer.token_to_id(one) for one in (bos, eos))

    def __call__(self, texts: list[str], add_special_tokens: bool = True) -> dict[str, Any]:
        encoded = self.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        return {"input_ids": [text.ids for text in encoded]}


def read_tokens(folder: Path, *, most: int, add_bos: bool | None) -> Tokens | None:
    """The tokens of a model in a folder, with a window of at most `most`."""
    try:
        settings = read_file(folder / "tokenizer_config.json", dict[str, Any], ModelError)
        config = read_file(folder / "config.json", dict[str, Any], ModelError)
        return _read(folder, settings, config, most, add_bos)
    except Exception:  # damaged files, and versions that this library does not read: transformers reports the reason
        return None


def _read(folder: Path, settings: dict[str, Any], config: dict[str, Any], most: int, add_bos: bool | None) -> Tokens | None:
    from tokenizers import Tokenizer

    text_config = config.get("text_config") or config
    positions = text_config.get("max_position_embeddings")
    others = {name for name, value in settings.items() if value is not None} - _HARMLESS
    if settings.get("tokenizer_class") not in _UNCHANGED or others or (folder / "added_tokens.json").exists():
        return None
    if not isinstance(positions, int) or "auto_map" in config or "vision_config" in config:
        return None
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    special = folder / "special_tokens_map.json"
    mapped = read_file(special, dict[str, Any], ModelError) if special.exists() else {}
    named = [token for source in (settings, mapped) for name in _TOKENS for token in _contents(source.get(name))]
    if any(tokenizer.token_to_id(token) is None for token in named):
        return None  # which transformers would add
    bos, eos = (next(iter(_contents(settings.get(name))), None) for name in ("bos_token", "eos_token"))
    return Tokens(
        FileTokenizer(tokenizer, bos=bos, eos=eos),
        window=min(most, positions),
        add_bos=add_bos,
        model_type=str(text_config.get("model_type", "")),
    )


def _contents(tokens: Any) -> list[str]:
    """The texts of tokens: a text, an object with a `content`, or several of them in a list or by name."""
    if isinstance(tokens, str):
        return [tokens]
    if isinstance(tokens, dict):
        tokens = [tokens["content"]] if "content" in tokens else list(tokens.values())
    return [text for token in tokens or () for text in _contents(token)]
