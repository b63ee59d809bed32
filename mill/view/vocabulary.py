"""Texts of tokens that a run recorded by id alone: from the tokenizer of a local model, where it is still there."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from mill.view.run_info import RunInfo, file_signature

_FILE = "tokenizer.json"
LARGEST = 1 << 27  # bytes


class TokenTexts:
    """Looks up ids in texts that are known already, then in the tokenizer. An unknown id is `#id`."""

    def __init__(self, run: RunInfo | None, known: dict[int, str]) -> None:
        self._known, self._tokenizer = known, _tokenizer_of(run)

    def __call__(self, name: int | str) -> str:
        if isinstance(name, str):
            return name
        if name not in self._known:
            text = self._tokenizer.decode([name], skip_special_tokens=False) if self._tokenizer is not None else ""
            self._known[name] = text or f"#{name}"
        return self._known[name]


def _tokenizer_of(run: RunInfo | None) -> Any:
    path = ((run.manifest.get("model") or {}).get("arguments") or {}).get("path") if run is not None else None
    if not isinstance(path, str) or not path:
        return None
    file = Path(path) / _FILE
    signature = file_signature(file)
    return _load(file, signature) if signature is not None and signature[0] <= LARGEST else None


@lru_cache(maxsize=8)
def _load(file: Path, signature: Any) -> Any:
    try:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(file))
    except Exception:  # tokenizers raises plain Exceptions; without texts, ids are shown
        return None
