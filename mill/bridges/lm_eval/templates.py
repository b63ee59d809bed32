"""lm-eval compiles a Jinja template each time it renders one; here each is compiled once."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def compiled_once() -> Iterator[None]:
    """Inside this context lm-eval's `apply_template` keeps its compiled templates."""
    from lm_eval import utils

    original = utils.apply_template
    utils.apply_template = _apply
    try:
        yield
    finally:
        utils.apply_template = original


def _apply(template: str, doc: dict[str, Any]) -> str:
    return str(_compiled(template).render(**doc))


@functools.lru_cache(maxsize=4096)
def _compiled(template: str) -> Any:
    from lm_eval import utils

    return utils.env.from_string(template)
