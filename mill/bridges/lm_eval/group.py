"""A group of lm-eval as a benchmark: its means and their standard errors are lm-eval's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mill.api.task import Benchmark


@dataclass(frozen=True)
class LmEvalGroup(Benchmark):
    group: Any = field(default=None, compare=False, repr=False)
    """lm-eval's own object."""
