"""A group of lmms-eval as a benchmark: its means and their standard errors are lmms-eval's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mill.api.task import TaskScores
from mill.bridges.lm_eval.group import LmEvalGroup


@dataclass(frozen=True)
class LmmsEvalGroup(LmEvalGroup):
    suffix: str = ""
    utilities: ClassVar[str] = "lmms_eval.evaluator_utils"

    def aggregate(self, scores: TaskScores) -> dict[str, tuple[float, float | None]]:
        return super().aggregate({name.removesuffix(self.suffix): metrics for name, metrics in scores.items()})
