"""Warnings: what a user must know while the work continues.

They go to the logger `mill`, each text once a process: a program that embeds mill controls them with `logging`, and the
command line prints them on standard error (`mill/cli/main.py`). Those about a model, a task or a check are stored in the
manifest, the results and check.json as well.
"""

from __future__ import annotations

import logging

from mill.api.printing import message_line
from mill.api.secrets import scrub

logger = logging.getLogger("mill")
_reported: set[str] = set()


def warn(text: str) -> None:
    """Log a warning as one printable line, once for each text."""
    text = message_line(scrub(text))
    if text not in _reported:
        _reported.add(text)
        logger.warning("%s", text)


class CollectingHandler(logging.Handler):
    """Collects the warnings of a worker on another machine, for the driver to log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._texts.append(record.getMessage())

    def take(self) -> list[str]:
        """What came since the last call."""
        found, self._texts = self._texts, []
        return found
