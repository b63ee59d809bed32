"""What the user of one call allows: code that a model wrote or that comes with it, and the sandbox for the former."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Consent:
    """The options of these names; worker processes get that of their run."""

    confirm_run_unsafe_code: bool = False
    no_remote_code: bool = False
    sandbox: str = "bubblewrap"
    sandbox_image: str = ""
    """Of a container; empty for the default one."""


_NONE = Consent()
_consent: ContextVar[Consent] = ContextVar("consent of the call", default=_NONE)


def current_consent() -> Consent:
    return _consent.get()


@contextmanager
def consenting(consent: Consent) -> Iterator[None]:
    """Inside this context, and in the threads that are started with a copy of it, this is allowed."""
    token = _consent.set(consent)
    try:
        yield
    finally:
        _consent.reset(token)
