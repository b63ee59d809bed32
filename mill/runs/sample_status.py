"""What came of a sample, in one word. A sample that the run has not reached is neither failed nor wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOT_ANSWERED = "not answered"  # the error, in files, of a sample whose run has not reached it
PENDING, FAILED, RIGHT, WRONG, GRADED, UNSCORED = range(6)
STATUSES = ("pending", "failed", "right", "wrong", "graded", "unscored")


def status_of(error: str | None, value: float | None) -> int:
    """`value` is that of the task's first metric, None where the sample has none."""
    if error:
        return PENDING if error == NOT_ANSWERED else FAILED
    return UNSCORED if value is None else RIGHT if value == 1.0 else WRONG if value == 0.0 else GRADED


def with_status(row: Mapping[str, Any], status: str) -> dict[str, Any]:
    """A row of a data frame: what was not reached has no error, so that those with one are those that failed."""
    return {**row, "error": None if status == STATUSES[PENDING] else row.get("error"), "status": status}
