"""Ray's own messages."""

from __future__ import annotations

import contextlib
from typing import Any


def silence_node_reports(ray: Any) -> None:
    """Drop the pages that Ray prints on standard output, where results go, when a node dies; the pool logs one line."""
    with contextlib.suppress(AttributeError):  # a private name, which a later version may not have
        ray._private.worker.print_to_stdstream = _discard


def _discard(*_: Any, **__: Any) -> None:
    return None
