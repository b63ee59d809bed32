"""An instance of lm-eval as a request of mill."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mill.api.errors import DataError
from mill.api.request import GENERATE, LOGLIKELIHOOD, ROLLING, Request
from mill.bridges.lm_eval.prompts import context_of

# Options that change nothing at these values.
_WITHOUT_EFFECT = {"num_beams": 1, "num_return_sequences": 1, "use_cache": True, "early_stopping": False}


def as_request(instance: Any, decoding: Callable[..., dict[str, Any]], *, repeats: int = 1, draw: int = 0) -> Request:
    """`decoding` turns the decoding options of the instance into those of the request."""
    kind, arguments = instance.request_type, instance.args
    if kind == ROLLING:
        return Request(ROLLING, str(arguments[0]), repeats=repeats)
    context = context_of(arguments[0], arguments[2] if len(arguments) > 2 else None)
    if kind == LOGLIKELIHOOD:
        return Request(LOGLIKELIHOOD, context, str(arguments[1]), repeats=repeats)
    if kind != GENERATE:
        raise DataError(f"lm-eval sends {kind} requests here, which mill does not have")
    return Request(GENERATE, context, options=decoding(**_effective(arguments[1])), repeats=repeats, draw=draw)


def _effective(given: Mapping[str, Any]) -> dict[str, Any]:
    """Decoding options without those that change nothing, such as an empty stop string."""
    options = {name: value for name, value in given.items() if _WITHOUT_EFFECT.get(name, _WITHOUT_EFFECT) != value}
    until = options.get("until")
    if until is not None:
        options["until"] = [stop for stop in ([until] if isinstance(until, str) else until) if stop]
    return options
