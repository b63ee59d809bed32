"""In few words, what a score is over where that is not all data of all tasks, and what was decided on it: for columns, tags
and notes that a reader filters by."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from mill.plan.sampling import describe_choice, is_random
from mill.store.schema import BenchmarkResult, Decision, TaskResult

_METHODS = {"sequential": "random, until decided:"}  # in words, where the name of the method does not say it


def sampled_text(tasks: Iterable[TaskResult]) -> str:
    """`random 300 of 3000, seed 0`, over all tasks with the same method and seed together; empty where all samples ran."""
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    for task in tasks:
        if task.sampled is not None:
            method = _METHODS.get(task.sampled.method, task.sampled.method)
            key = method, f", seed {task.sampled.seed}" if is_random(task.sampled) else ""
            n, total = counts.get(key, (0, 0))
            counts[key] = n + task.n, total + task.total
    return "; ".join(f"{method} {n} of {total}{seed}" for (method, seed), (n, total) in counts.items())


def sampled_sentences(tasks: Iterable[TaskResult]) -> str:
    """`sampled_text` with what it means for the scores, for formats whose own fields cannot say which samples ran."""
    known = [task for task in tasks if task.sampled is not None]
    meant = (describe_choice(task.sampled, task.n, task.total) for task in known if task.sampled is not None)
    return "; ".join(dict.fromkeys(filter(None, [sampled_text(known), *meant])))


def first_rows(tasks: Iterable[TaskResult]) -> int | None:
    """The limit with which these samples are the first rows of each task; None where all ran, or others than those."""
    known = list(tasks)
    limit = max((task.n for task in known if task.n < task.total), default=None)
    if limit is None or not all(_is_start(task) and task.n == min(limit, task.total) for task in known):
        return None
    return limit


def _is_start(task: TaskResult) -> bool:
    """Whether the samples of a task are its first rows. Results of earlier versions do not say it; those of a run that
    stopped at its budget do."""
    return task.sampled.method == "first" if task.sampled is not None else not (task.pending and task.n)


def decision_text(decisions: Iterable[Decision], about: Collection[str] | None = None) -> str:
    """`toy_exam: acc>0.6 is true`; empty where nothing was decided, of these tasks and benchmarks where they are given."""
    return "; ".join(f"{one.of}: {one.claim} is {one.outcome}" for one in decisions if about is None or one.of in about)


def mean_of_tasks(result: TaskResult | BenchmarkResult) -> str:
    """`1 of 3` for a benchmark's mean over some of its tasks, since the others have no value; else empty."""
    if isinstance(result, TaskResult) or not result.missing:
        return ""
    return f"{len(result.tasks) - len(result.missing)} of {len(result.tasks)}"


def mean_name(benchmark: str, of: str) -> str:
    """The name of a benchmark's mean in tables; `of` is that of `mean_of_tasks`."""
    return f"{benchmark} (mean of {of})" if of else f"{benchmark} (mean)"
