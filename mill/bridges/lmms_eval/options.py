"""Decoding options of lmms-eval's tasks as mill's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEFAULT_MAX_GEN_TOKS = 1024  # of most of lmms-eval's models, for tasks that give no limit
# Options that change nothing: at these values, for any model but LLaVA (image_aspect_ratio), or for all of lmms-eval's.
_WITHOUT_EFFECT: Mapping[str, Any] = {"num_beams": 1, "num_return_sequences": 1, "use_cache": True}
_UNUSED = ("image_aspect_ratio", "stop_sequences")


def decoding_options(given: Mapping[str, Any] | None, delimiter: str, *, plain: bool) -> dict[str, Any]:
    """lmms-eval adds the delimiter of few-shot examples as a stop string where a task has none; its chat models do not stop
    at it, so it counts for `plain` text alone."""
    options = {
        name: value
        for name, value in (given or {}).items()
        if name not in _UNUSED and not (name in _WITHOUT_EFFECT and value == _WITHOUT_EFFECT[name])
    }
    if not plain and options.get("until") == [delimiter]:
        del options["until"]
    if not {"max_new_tokens", "max_gen_toks", "max_tokens"} & options.keys():
        options["max_gen_toks"] = DEFAULT_MAX_GEN_TOKS
    return options
