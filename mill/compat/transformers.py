"""Importing transformers without what it imports for options that mill does not use."""

from __future__ import annotations

import importlib
import sys


def import_transformers() -> None:
    """Import what loading a model needs. Where scikit-learn is installed, transformers imports it for one option of assisted
    decoding, which takes two seconds: it is hidden meanwhile."""
    hidden = "sklearn" not in sys.modules
    if hidden:
        sys.modules["sklearn"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("transformers.generation.utils")
        importlib.import_module("transformers.modeling_utils")
    finally:
        if hidden:
            sys.modules.pop("sklearn", None)
