"""Checks a LiteLLM model name and its key without importing LiteLLM, which takes seconds.

Only certain errors are refused here; LiteLLM checks the rest.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

from mill.api.errors import ModelError

_LIST = "model_prices_and_context_window_backup.json"  # the models that LiteLLM knows by name
_KEYS = {
    "openai": ("OPENAI_API_KEY",),
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "groq": ("GROQ_API_KEY",),
    "mistral": ("MISTRAL_API_KEY",),
    "deepseek": ("DEEPSEEK_API_KEY",),
    "openrouter": ("OPENROUTER_API_KEY",),
    "xai": ("XAI_API_KEY",),
}


def check_name(model: str, *, has_key: bool, has_address: bool) -> None:
    """Refuse a name without a provider, and a provider whose key is not set."""
    known = _known_models()
    if known is None:
        return
    provider, slash, _ = model.partition("/")
    if not slash:
        provider = known.get(model, {}).get("litellm_provider", "")
        if not provider and not has_address and ":" not in model and not model.startswith("gpt-image"):
            raise ModelError(f"litellm does not know the provider of {model!r}: write provider/model")
    keys = _KEYS.get(provider, ())
    if keys and not has_key and not any(os.environ.get(key) for key in keys) and not _has_dotenv():
        raise ModelError(f"{model} needs a key: set {' or '.join(keys)}, or pass api_key=...")


def _known_models() -> dict[str, Any] | None:
    """None where this version of LiteLLM stores its list elsewhere."""
    folder = _folder()
    if folder is None:
        return None
    try:
        models = json.loads((folder / _LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return models if isinstance(models, dict) else None


def _has_dotenv() -> bool:
    """Whether LiteLLM may find variables in a file: when imported, it reads the .env of a parent folder."""
    folders = [Path.cwd(), *([folder] if (folder := _folder()) else [])]
    return any((above / ".env").exists() for folder in folders for above in (folder, *folder.parents))


def _folder() -> Path | None:
    spec = importlib.util.find_spec("litellm")
    return Path(spec.origin).parent if spec and spec.origin else None
