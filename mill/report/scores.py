"""The scores of a run on the terminal: every metric with its uncertainty, and warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from mill.execute.executor import Tally
from mill.metrics.estimate import NOTHING, Estimate
from mill.report.tables import console, dash, number, print_table
from mill.runs.adaptive import describe_decision
from mill.score.run_scores import Outcome
from mill.store.sample_row import FLAGS
from mill.store.schema import BenchmarkResult, Decision, TaskResult, failed_samples

COLUMNS = ("task", "shots", "metric", "value", "stderr", "95 % interval", "n", "failed")
SHARED = 2  # tasks that have the same warning, for one line
MOST_NAMED = 5  # samples in a line
NUMBERS = ("shots", "value", "stderr", "95 % interval", "n", "failed")


def print_outcome(outcome: Outcome) -> None:
    print_table(outcome.model, COLUMNS, score_table(outcome.tasks, outcome.benchmarks, dash()), numbers=NUMBERS)
    out = console()
    for line in [*score_warnings(outcome), *model_warnings(outcome)]:
        out.print(line, markup=False, soft_wrap=True)
    tally = outcome.tally
    if tally.requested:
        requests = "request" if tally.computed == 1 else "requests"
        done = f"{tally.computed} {requests} computed in {outcome.seconds:.1f} s, {tally.known} read from the record"
        tokens = f"; {_shown_tokens(tally)}" if tally.prompt_tokens else ""
        padded = f"; {tally.padded} more to keep ranks in step" if tally.padded else ""
        out.print(done + tokens + padded, markup=False, soft_wrap=True)
    if outcome.spent:
        out.print(f"spent: {outcome.spent}", markup=False, soft_wrap=True)
    if outcome.stopped:
        hint = "the same command with a larger budget continues"
        out.print(f"{outcome.stopped}; {hint}", markup=False, soft_wrap=True)
    out.print(f"results: {outcome.folder.path}", markup=False, soft_wrap=True)


def _shown_tokens(tally: Tally) -> str:
    """Tokens of prompts, of answers that were given and scored, and of answers that were generated."""
    generated = tally.output_tokens - tally.scored_tokens
    counts = [f"{tally.prompt_tokens:,} prompt"]
    counts += [f"{tally.scored_tokens:,} scored"] if tally.scored_tokens else []
    counts += [f"{generated:,} output"] if generated or not tally.scored_tokens else []
    reasoning = f" ({tally.reasoning_tokens:,} of them reasoning)" if tally.reasoning_tokens else ""
    return f"{', '.join(counts[:-1])} and {counts[-1]} tokens{reasoning}"


def score_table(tasks: Iterable[TaskResult], benchmarks: Iterable[BenchmarkResult], between: str) -> list[list[str]]:
    """Rows of `COLUMNS`: the tasks with their categories, then the means of benchmarks. `between` joins an interval."""
    rows = []
    for task in tasks:
        rows += _rows(task.task, str(task.n_shots), task.metrics, task.total, task, between)
        for category, metrics in task.categories.items():
            total = max((metric.n for metric in metrics.values()), default=0)
            rows += _rows(f"- {category}", "", metrics, total, None, between)
    for mean in benchmarks:
        rows += _rows(f"{mean.benchmark} ({mean_of(mean)})", "", mean.metrics, mean.total, mean, between)
    return rows


def mean_of(mean: BenchmarkResult) -> str:
    count = len(mean.tasks)
    return f"mean of {count}" if not mean.missing else f"mean of {count - len(mean.missing)} of {count}"


def score_warnings(outcome: Outcome) -> list[str]:
    """What a reader of the scores must know, each line with the name of its task or benchmark."""
    lines = result_warnings(outcome.tasks, outcome.benchmarks, outcome.decisions)
    lines += [f"{name}: {line}" for name, line in outcome.precision.items()]
    return lines + [f"{name} is not scored again: {reason}" for name, reason in outcome.left_out.items()]


def result_warnings(
    tasks: Sequence[TaskResult],
    benchmarks: Sequence[BenchmarkResult],
    decisions: Sequence[Decision] = (),
    *,
    failures: bool = True,
) -> list[str]:
    """What several tasks share is one line. `failures` is whether failed samples are listed."""
    lines = by_task({task.task: warnings(task, failures) for task in tasks}, {task.task: task.warnings for task in tasks})
    lines += [f"{mean.benchmark}: no value of {', '.join(mean.missing)}" for mean in benchmarks if mean.missing]
    return lines + [f"{decision.of}: {describe_decision(decision)}" for decision in decisions]


def by_task(lines: Mapping[str, Sequence[str]], shareable: Mapping[str, Sequence[str]] | None = None) -> list[str]:
    """The lines of each task, after its name; those that several tasks have once. `shareable` are the lines that may be."""
    known = lines if shareable is None else shareable
    shared = Counter(line for some in known.values() for line in dict.fromkeys(some))
    common = {line: count for line, count in shared.items() if count >= SHARED}
    found = [f"{count} tasks: {line}" for line, count in common.items()]
    return found + [f"{name}: {line}" for name, some in lines.items() for line in some if line not in common]


def model_warnings(outcome: Outcome) -> list[str]:
    """The warnings of the model and the judge, which were logged when they arose."""
    return [f"{outcome.model}: {line}" for line in outcome.warnings]


def warnings(task: TaskResult, failures: bool = True) -> list[str]:
    """Warnings of the task, flags of its samples, and failed samples."""
    lines = list(task.warnings)
    if task.errors < task.n and not any(estimate.n for estimate in task.metrics.values()):
        lines.append(f"none of the {task.n} samples has a score")
    for name, flagged in task.flags.items():
        says = FLAGS[name].says if name in FLAGS else f"have the flag {name}"
        lines.append(f"{flagged.n} of {task.n} samples {says}{f' ({_named(flagged.samples)})' if flagged.samples else ''}")
    if task.errors and failures:
        lines.append(f"{task.errors} of {task.n} samples failed and have no score:")
        for error, ids in failures_by_error(task).items():
            lines.append(f"  {f'sample {ids[0]}' if len(ids) == 1 else f'{len(ids)} ({_named(ids)})'}: {error}")
        if task.errors > len(task.failures):
            lines.append(f"  and {task.errors - len(task.failures)} more")
    return lines


def failures_by_error(task: TaskResult) -> dict[str, list[str | int]]:
    """The samples of each error, those that the results list."""
    by_error: dict[str, list[str | int]] = {}
    for failure in task.failures:
        by_error.setdefault(failure["error"], []).append(failure["id"])
    return by_error


def _named(ids: Sequence[str | int]) -> str:
    return f"samples {', '.join(map(str, ids[:MOST_NAMED]))}{', ...' if len(ids) > MOST_NAMED else ''}"


def _rows(
    name: str,
    shots: str,
    metrics: dict[str, Estimate],
    total: int,
    result: TaskResult | BenchmarkResult | None,
    between: str,
) -> list[list[str]]:
    """`n` is the number of samples with a value of the metric; `result` has the numbers of failed ones. A task without any
    metric has a row, too."""
    rows = []
    for index, (metric, estimate) in enumerate((metrics or {"": NOTHING}).items()):
        count = str(estimate.n) if estimate.n == total else f"{estimate.n}/{total}"
        interval = "-" if estimate.low is None else f"{number(estimate.low, 3)}{between}{number(estimate.high, 3)}"
        failed = "" if result is None else str(failed_samples(result, metric))
        cells = [metric, number(estimate.value), number(estimate.stderr), interval, count, failed]
        rows.append([name if index == 0 else "", shots if index == 0 else "", *cells])
    return rows
