"""A group of lm-eval as a benchmark: its means and their standard errors are lm-eval's."""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mill.api.task import Benchmark, TaskScores
from mill.bridges.lm_eval import library
from mill.bridges.lm_eval.scoring import metric_name, split_metric

_NO_STDERR = "N/A"  # as lm-eval writes it


@dataclass(frozen=True)
class LmEvalGroup(Benchmark):
    """`group` is lm-eval's own object; before 0.4.12 that does not know its members, so `members` are needed too."""

    group: Any = field(default=None, compare=False, repr=False)
    members: Mapping[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    prefix: str = ""
    utilities: ClassVar[str] = "lm_eval.evaluator_utils"

    def aggregate(self, scores: TaskScores) -> dict[str, tuple[float, float | None]]:
        table = {name.removeprefix(self.prefix): _as_lm_eval(metrics) for name, metrics in scores.items()}
        with library.quiet():
            found = self.group.aggregate(table) if hasattr(self.group, "aggregate") else self._consolidated(table)
        means = {}
        for key, value in found.items():
            name, comma, filter_name = str(key).partition(",")
            if comma and not name.endswith("_stderr"):
                stderr = found.get(f"{name}_stderr,{filter_name}", _NO_STDERR)
                means[metric_name(name, filter_name)] = (float(value), None if stderr == _NO_STDERR else float(stderr))
        return means

    def _consolidated(self, table: Mapping[str, dict[str, Any]]) -> Mapping[str, Any]:
        """The means of lmms-eval and of versions before 0.4.12, from their nested dictionaries."""
        results: Any = defaultdict(dict, table)
        importlib.import_module(self.utilities).consolidate_group_results(results, defaultdict(lambda: None), self.members)
        means: Mapping[str, Any] = results[self.group.group_name]
        return means


def _as_lm_eval(metrics: Mapping[str, tuple[float, float | None, int]]) -> dict[str, Any]:
    """A task's scores in the form of lm-eval's results."""
    counted = max((n for _, _, n in metrics.values()), default=0)
    row: dict[str, Any] = {"alias": "", "sample_len": counted, "samples": counted}
    for name, (value, stderr, _) in metrics.items():
        metric, filter_name = split_metric(name)
        row[f"{metric},{filter_name}"] = value
        row[f"{metric}_stderr,{filter_name}"] = _NO_STDERR if stderr is None else stderr
    return row
