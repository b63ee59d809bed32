"""`mill eval --dry_run`: the requests of a run, and estimates of its tokens, cost and time."""

from __future__ import annotations

from mill.api.budget import shown_dollars, shown_seconds, shown_tokens
from mill.api.model import CountsTokens, HasPaths, InputTokens
from mill.api.request import GENERATE, MULTI_ROUND, Request
from mill.plan.task_plan import TaskPlan
from mill.report.scores import by_task
from mill.report.tables import print_table
from mill.runs.estimate import RunEstimate, estimate, reach
from mill.runs.evaluate import Plan
from mill.support.terminal import echo

_COLUMNS = ("task", "runs as", "shots", "samples", "requests", "distinct", "recorded", "input tokens")


def print_plan(plan: Plan) -> None:
    """For each task: all requests, the distinct ones, those already recorded, and the tokens of the rest."""
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
        samples += _unanswered(task, todo)
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
    for line in [*by_task({task.requested: _not_logged(task) for task in tasks}), *by_task(truncated)]:
        echo(line)
    planned = plan.model.planned_paths() if isinstance(plan.model, HasPaths) else {}
    needed = {"decoding" if request.kind in (GENERATE, MULTI_ROUND) else "scoring" for request in left.values()}
    paths = [f"{stage} {path}" for stage, path in planned.items() if stage in needed]
    if paths:
        echo(f"batching: {', '.join(paths)}")


def _not_logged(plan: TaskPlan) -> list[str]:
    """The warnings of a plan without those that were logged already."""
    return plan.warnings()[: -len(plan.without_effect()) or None]


def _unanswered(plan: TaskPlan, todo: dict[str, Request]) -> int:
    """Samples that lack a response."""
    keys = ([clone.key for request in state.open_requests() for clone in request.clones()] for state in plan.states)
    return sum(any(key in todo for key in one) for one in keys)


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
    share = reach(plan, expected)
    enough = "would be enough for the first part" if plan.config.samples.staged else "would be enough"
    far = enough if share >= 1 else f"would reach about {int(share * expected.samples):,}"
    which = "" if share >= 1 else f" of the {expected.samples:,} samples that are left"
    unknown = "" if limits.seconds is None or expected.seconds is not None else "; its time is not known"
    return [f"the budget of {' and '.join(amounts)} {far}{which}{unknown}"]
