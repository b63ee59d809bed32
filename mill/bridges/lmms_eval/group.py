"""A group of lmms-eval as a benchmark: its means and their standard errors are lmms-eval's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mill.api.task import TaskScores
from mill.bridges.lm_eval.group import LmEvalGroup


@dataclass(frozen=True)
class LmmsEvalGroup(LmEvalGroup):
    suffix: str = ""

    def aggregate(self, scores: TaskScores) -> dict[str, tuple[float, float | None]]:
        return super().aggregate({name.removesuffix(self.suffix): metrics for name, metrics in scores.items()})

    def _consolidated(self, table: Mapping[str, dict[str, Any]]) -> Mapping[str, Any]:
        from lmms_eval.evaluator_utils import consolidate_group_results

        results: Any = defaultdict(dict, table)
        consolidate_group_results(results, defaultdict(lambda: None), self.members)
        means: Mapping[str, Any] = results[self.group.group_name]
        return means
