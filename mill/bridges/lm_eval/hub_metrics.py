"""Metrics of the hub: `code_eval`, which lm-eval's code tasks load, runs each program in mill's sandbox here."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

from mill.api.batching import describe
from mill.api.consent import current_consent
from mill.api.errors import DataError, SpecError
from mill.sandbox import Execution, require_imports, run_programs

NAME = "code_eval"
_TIMEOUT_S = 3.0


@contextlib.contextmanager
def hub_metrics() -> Iterator[None]:
    """Inside this context `evaluate.load` gives the metric below, and one line for one that cannot be had."""
    import evaluate

    original = evaluate.load

    def load(path: str, *more: Any, **options: Any) -> Any:
        if path == NAME:
            return CodeEval()
        try:
            return original(path, *more, **options)
        except Exception as error:
            raise DataError(f"the metric {path} cannot be loaded from the hub: {describe(error)}") from error

    evaluate.load = load
    try:
        yield
    finally:
        evaluate.load = original


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
            results[task].append((number, _as_result(task, number, execution)))
        counts = [(len(found), sum(one["passed"] for _, one in found)) for found in results.values()]
        return {
            f"pass@{draws}": sum(_pass_at(draws, n, passed) for n, passed in counts) / len(counts)
            for draws in k
            if counts and all(n >= draws for n, _ in counts)
        }, results


def _as_result(task: int, number: int, execution: Execution) -> dict[str, Any]:
    result = f"{execution.outcome}: {execution.error}" if execution.error else execution.outcome
    return {"task_id": task, "passed": execution.passed, "result": result, "completion_id": number}


def _pass_at(draws: int, n: int, passed: int) -> float:
    """The probability that one of `draws` of the n programs passes."""
    return 1.0 - math.comb(n - passed, draws) / math.comb(n, draws)
