"""Filters, sample metrics, aggregation and groups of lm-eval, called as its evaluator does; the metric of programs, whose
sandbox is mill's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from mill.api.consent import current_consent
from mill.api.errors import DataError, SpecError
from mill.api.task import Benchmark, TaskScores
from mill.bridges.lm_eval import library
from mill.compat import replaced
from mill.sandbox.programs import require_imports, run_programs
from mill.support.terminal import describe

_NO_STDERR = "N/A"  # as lm-eval writes it


@dataclass(frozen=True)
class LmEvalGroup(Benchmark):
    """`group` is lm-eval's own object."""

    group: Any = field(default=None, compare=False, repr=False)
    prefix: str = ""

    def aggregate(self, scores: TaskScores) -> dict[str, tuple[float, float | None]]:
        table = {name.removeprefix(self.prefix): _as_lm_eval(metrics) for name, metrics in scores.items()}
        with library.quiet():
            found = self.aggregated(table)
        means = {}
        for key, value in found.items():
            name, comma, filter_name = str(key).partition(",")
            if comma and not name.endswith("_stderr"):
                stderr = found.get(f"{name}_stderr,{filter_name}", _NO_STDERR)
                means[metric_name(name, filter_name)] = (float(value), None if stderr == _NO_STDERR else float(stderr))
        return means

    def aggregated(self, table: Mapping[str, dict[str, Any]]) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.group.aggregate(table)
        return found


def _as_lm_eval(metrics: Mapping[str, tuple[float, float | None, int]]) -> dict[str, Any]:
    """A task's scores in the form of lm-eval's results."""
    counted = max((n for _, _, n in metrics.values()), default=0)
    row: dict[str, Any] = {"alias": "", "sample_len": counted, "samples": counted}
    for name, (value, stderr, _) in metrics.items():
        metric, filter_name = split_metric(name)
        row[f"{metric},{filter_name}"] = value
        row[f"{metric}_stderr,{filter_name}"] = _NO_STDERR if stderr is None else stderr
    return row


_NO_FILTER = "none"
BOOTSTRAP = 100_000
_LIMITS = {  # of metrics that are not means, by the function that aggregates them
    "perplexity": (1.0, math.inf),
    "weighted_perplexity": (1.0, math.inf),
    "bits_per_byte": (0.0, math.inf),
    "brier_score": (0.0, math.inf),
    "f1_score": (0.0, 1.0),
    "matthews_corrcoef": (-1.0, 1.0),
    "bleu": (0.0, 100.0),
    "chrf": (0.0, 100.0),
    "chrfpp": (0.0, 100.0),
    "ter": (0.0, math.inf),
}
_SHARES = (
    "acc",
    "exact_match",
    "em",
    "pass@",
    "prompt_level",
    "inst_level",
    "bleu_acc",
    "rouge1_acc",
    "rouge2_acc",
    "rougeL_acc",
)
_PERCENT = ("bleu_max", "rouge1_max", "rouge2_max", "rougeL_max")
_SLOW = {"bleu", "chrf", "chrf++", "ter"}  # which are resampled 100 times


def metric_name(metric: str, filter_name: str) -> str:
    """`acc`, or `exact_match,strict-match` where a filter has a name."""
    return metric if filter_name == _NO_FILTER else f"{metric},{filter_name}"


def split_metric(name: str) -> tuple[str, str]:
    """The metric and the filter of a name."""
    metric, comma, filter_name = name.partition(",")
    return (metric, filter_name) if comma else (name, _NO_FILTER)


def scored(task: Any, doc: Mapping[str, Any], responses: Sequence[Any], repeats: int) -> dict[tuple[str, str], Any]:
    """The values of a document by metric and filter, from the responses to its instances, `repeats` to each."""
    by_filter = filtered(task, doc, responses, repeats)
    return {
        (metric, name): value
        for name, filtered_responses in by_filter.items()
        for metric, value in task.process_results(doc, filtered_responses).items()
    }


def filtered(task: Any, doc: Mapping[str, Any], responses: Sequence[Any], repeats: int) -> dict[str, list[Any]]:
    """What each filter makes of the responses to a document's instances."""
    from lm_eval.api.instance import Instance

    each = [list(responses[at : at + repeats]) for at in range(0, len(responses), repeats)]
    instances = [
        Instance(request_type="loglikelihood", doc=doc, arguments=("",), idx=number, resps=given)
        for number, given in enumerate(each)
    ]
    for ensemble in task._filters:
        ensemble.apply(instances)
    return {name: [one.filtered_resps[name] for one in instances] for name in instances[0].filtered_resps}


def aggregated(task: Any, name: str, values: Sequence[Any]) -> tuple[float, float | None]:
    """The value and standard error of a metric over all documents that have one."""
    from lm_eval.api import metrics

    metric, _ = split_metric(name)
    how = task.aggregation().get(metric, metrics.mean)
    value = float(how(values))
    return value, standard_error(metrics, metric, how, values)


def standard_error(metrics: Any, metric: str, how: Any, values: Sequence[Any]) -> float | None:
    """That of the module `metrics` of a package, lm-eval's or lmms-eval's, for values that `how` aggregates."""
    from mill.bridges.lm_eval.bootstrap import bootstrap_stderr  # imports numpy

    if len(values) < 2:
        return None
    with bootstrap_stderr(metrics):
        stderr = metrics.stderr_for_metric(metric=how, bootstrap_iters=min(BOOTSTRAP, 100) if metric in _SLOW else BOOTSTRAP)
        return None if stderr is None else float(stderr(values))


def limits_of(task: Any, name: str) -> tuple[float, float]:
    """The smallest and largest possible value of a metric, where they are known."""
    metric = split_metric(name)[0]
    if metric in _PERCENT:
        return 0.0, 100.0
    known = (0.0, 1.0) if metric.startswith(_SHARES) else (-math.inf, math.inf)
    return _LIMITS.get(getattr(task.aggregation().get(metric), "__name__", ""), known)


_CODE_EVAL = "code_eval"
_TIMEOUT_S = 3.0


def hub_metrics() -> AbstractContextManager[None]:
    """Inside this context `evaluate.load` gives the metric below, and one line for one that cannot be had."""
    import evaluate

    original = evaluate.load

    def load(path: str, *more: Any, **options: Any) -> Any:
        if path == _CODE_EVAL:
            return CodeEval()
        try:
            return original(path, *more, **options)
        except Exception as error:
            raise DataError(f"the metric {path} cannot be loaded from the hub: {describe(error)}") from error

    return replaced(evaluate, load=load)


class CodeEval:
    """Programs that pass their tests: pass@k by the unbiased estimator, and each program's result."""

    def compute(
        self,
        *,
        references: Sequence[str],
        predictions: Sequence[Sequence[str]],
        k: Sequence[int] = (1, 10, 100),
        num_workers: int | None = None,
        timeout: float = _TIMEOUT_S,
    ) -> tuple[dict[str, float], dict[int, list[tuple[int, dict[str, Any]]]]]:
        if not current_consent().confirm_run_unsafe_code:
            raise SpecError("it executes code that the model wrote: --confirm_run_unsafe_code allows it")
        require_imports(references)
        programs = [
            (task, number, f"{program}\n{test}")
            for task, (test, candidates) in enumerate(zip(references, predictions, strict=True))
            for number, program in enumerate(candidates)
        ]
        results: dict[int, list[tuple[int, dict[str, Any]]]] = {task: [] for task in range(len(references))}
        executions = run_programs([source for _, _, source in programs], timeout=timeout, workers=num_workers)
        for (task, number, _), execution in zip(programs, executions, strict=True):
            result = f"{execution.outcome}: {execution.error}" if execution.error else execution.outcome
            entry = {"task_id": task, "passed": execution.passed, "result": result, "completion_id": number}
            results[task].append((number, entry))
        counts = [(len(found), sum(one["passed"] for _, one in found)) for found in results.values()]
        return {
            # 1 - the probability that none of `draws` of the n programs passes
            f"pass@{draws}": sum(1.0 - math.comb(n - passed, draws) / math.comb(n, draws) for n, passed in counts)
            / len(counts)
            for draws in k
            if counts and all(n >= draws for n, _ in counts)
        }, results
