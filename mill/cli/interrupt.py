"""What Ctrl-C leaves behind."""

from __future__ import annotations

from mill.api.errors import Interrupted


def interrupted(how: str = "the same command") -> Interrupted:
    return Interrupted(f"interrupted; all completed requests are recorded: {how} resumes from there")
