"""Options that hold for one call, wherever they are given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from mill.api.consent import Consent, consenting
from mill.api.registry import own_names
from mill.support.terminal import own_warnings


@contextmanager
def one_call(given: Mapping[str, Any]) -> Iterator[None]:
    """What the options allow, the names that their files register, and which warnings were logged end with this context."""
    consent = Consent(**{field.name: given[field.name] for field in fields(Consent) if given.get(field.name)})
    with consenting(consent), own_names(), own_warnings():
        yield
