"""A run on the terminal: what `mill eval --dry_run` estimates of it, and its scores with their uncertainty and warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from mill.api.budget import shown_dollars, shown_seconds, shown_tokens
from mill.api.model import CountsTokens, HasPaths, InputTokens
from mill.api.request import GENERATE, MULTI_ROUND, Request
from mill.execute.executor import Tally
from mill.metrics.estimate import NOTHING, Estimate
from mill.report.tables import console, dash, number, print_table
from mill.runs.adaptive import describe_decision
from mill.score.run_scores import Outcome
from mill.store.sample_row import FLAGS
from mill.store.schema import BenchmarkResult, Decision, TaskResult, failed_samples
from mill.support.terminal import echo

if TYPE_CHECKING:
    from mill.runs.estimate import RunEstimate
    from mill.runs.evaluate import Plan

_COLUMNS = ("task", "runs as", "shots", "samples", "requests", "distinct", "recorded", "input tokens")


def print_plan(plan: Plan) -> None:
    """For each task: all requests, the distinct ones, those already recorded, and the tokens of the rest."""
    from mill.runs.estimate import estimate  # of the model's tokens and rates: a run needs neither

    stages = plan.stages()
    tasks = plan.tasks if stages is None else plan.tasks_with(stages.take(stages.start()))
    rows = []
    totals, unknown, samples = [0, 0, 0, 0], 0, 0
    truncated: dict[str, list[str]] = {}
    left: dict[str, Request] = {}
    everything = [[clone for request in task.requests() for clone in request.clones()] for task in tasks]
    all_distinct = [list({request.key: request for request in requests}.values()) for requests in everything]
    waiting = [{one.key: one for one in distinct if plan.record.peek(one) is None} for distinct in all_distinct]
    # All at once: what tasks share is tokenized once. Without waiting requests no tokenizer is loaded.
    counted: list[InputTokens | None] = [None if any(waiting) else InputTokens(0)] * len(waiting)
    if any(waiting) and isinstance(plan.model, CountsTokens):
        counted = plan.model.input_tokens([list(todo.values()) for todo in waiting])
    for task, requests, distinct, todo, tokens in zip(tasks, everything, all_distinct, waiting, counted, strict=True):
        keys = ([clone.key for request in state.open_requests() for clone in request.clones()] for state in task.states)
        samples += sum(any(key in todo for key in one) for one in keys)  # which lack a response
        left |= todo
        counts = [len(requests), len(distinct), len(distinct) - len(todo), tokens.count if tokens is not None else 0]
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        unknown += tokens is None
        cells = [*map(str, counts[:3]), "unknown" if tokens is None else f"{tokens.count:,}"]
        if tokens is not None and tokens.truncated:
            cut = f"{tokens.truncated} of {len(todo)} prompts will be truncated on the left to fit the context"
            truncated[task.requested] = [cut]
        rounds = " (first round)" if task.task.multi_round else ""
        shown = f"{len(task.states)}/{task.total}"
        rows.append([task.requested, task.task.name + rounds, str(task.n_shots), shown, *cells])
    if len(rows) > 1:
        least = "" if not unknown else "unknown" if unknown == len(rows) else "at least "
        rows.append(["total", "", "", "", *map(str, totals[:3]), least if least == "unknown" else f"{least}{totals[3]:,}"])
    print_table(f"{plan.model.model_name}: would write to {plan.folder.path}", _COLUMNS, rows, numbers=_COLUMNS[2:])
    expected = estimate(plan, list(left.values()), None if unknown else totals[3], samples)
    for line in [_estimate_line(plan, expected), *_budget_lines(plan, expected)]:
        echo(line)
    if stages is not None:
        for order in stages.orders:
            echo(f"{order.group.name}: {order.used:,} samples first, up to {order.total:,} if they are needed")
    # The warnings without those that were logged already.
    unseen = {task.requested: task.warnings()[: -len(task.without_effect()) or None] for task in tasks}
    for line in [*by_task(unseen), *by_task(truncated)]:
        echo(line)
    planned = plan.model.planned_paths() if isinstance(plan.model, HasPaths) else {}
    needed = {"decoding" if request.kind in (GENERATE, MULTI_ROUND) else "scoring" for request in left.values()}
    paths = [f"{stage} {path}" for stage, path in planned.items() if stage in needed]
    if paths:
        echo(f"batching: {', '.join(paths)}")


def _estimate_line(plan: Plan, expected: RunEstimate) -> str:
    """One line about what the requests that are left will take."""
    usage, rates = expected.usage, expected.rates
    if not expected.samples:
        return f"nothing to compute with {plan.model.model_name}: all responses are recorded"
    most = "at most" if rates is None and usage.output else "about"
    prompt = f"{'' if expected.exact_prompt else 'about '}{usage.prompt:,} input"
    output = f"{most} {usage.output:,} output tokens" if usage.output else "no output tokens"
    cost = "cost unknown: --price gives it" if expected.cost is None else f"{most} {shown_dollars(expected.cost)}"
    seconds = "time unknown" if expected.seconds is None else f"about {shown_seconds(max(1, round(expected.seconds)))}"
    source = f" (rates of {rates.requests:,} requests in {rates.run})" if rates is not None else ""
    first = ", of dialogs the first round alone" if any(one.task.multi_round for one in plan.tasks) else ""
    first += ", of the first part of the samples" if plan.config.samples.staged else ""
    judge = ", without the judge" if plan.judging is not None else ""
    first += ", without the tokens of images, video and audio" if expected.without_media else ""
    return f"estimate for {plan.model.model_name}: {prompt} and {output}, {cost}, {seconds}{source}{first}{judge}"


def _budget_lines(plan: Plan, expected: RunEstimate) -> list[str]:
    """How far the budget reaches."""
    limits = plan.config.limits
    if not limits:
        return []
    amounts = [f"{shown_tokens(limits.tokens)} tokens"] if limits.tokens is not None else []
    amounts += [shown_dollars(limits.cost)] if limits.cost is not None else []
    amounts += [shown_seconds(limits.seconds)] if limits.seconds is not None else []
    from mill.runs.estimate import reach

    share = reach(plan, expected)
    enough = "would be enough for the first part" if plan.config.samples.staged else "would be enough"
    far = enough if share >= 1 else f"would reach about {int(share * expected.samples):,}"
    which = "" if share >= 1 else f" of the {expected.samples:,} samples that are left"
    unknown = "" if limits.seconds is None or expected.seconds is not None else "; its time is not known"
    return [f"the budget of {' and '.join(amounts)} {far}{which}{unknown}"]


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
    tasks: Sequence[TaskResult], benchmarks: Sequence[BenchmarkResult], decisions: Sequence[Decision]
) -> list[str]:
    """What several tasks share is one line."""
    lines = by_task({task.task: warnings(task) for task in tasks}, {task.task: task.warnings for task in tasks})
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


def warnings(task: TaskResult) -> list[str]:
    """Warnings of the task, flags of its samples, and failed samples."""
    lines = list(task.warnings)
    if task.errors < task.n and not any(estimate.n for estimate in task.metrics.values()):
        lines.append(f"none of the {task.n} samples has a score")
    for name, flagged in task.flags.items():
        says = FLAGS[name].says if name in FLAGS else f"have the flag {name}"
        lines.append(f"{flagged.n} of {task.n} samples {says}{f' ({_named(flagged.samples)})' if flagged.samples else ''}")
    if task.errors:
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
