"""`--decide`: a claim about a score or a change of score, decided on random samples; the check that reports it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from mill.api.errors import RunError, SpecError
from mill.checks.kinds import CheckKind
from mill.checks.result import Check, Variant
from mill.checks.subjects import CheckConfig, CompletedRun, Subject
from mill.execute.sample_state import SampleState
from mill.metrics.differences import LOWER, UNKNOWN, direction
from mill.plan.sampling import SampleGroup
from mill.runs.adaptive import (
    FIRST_BLOCK,
    UNIT,
    GroupOrder,
    GroupTest,
    Range,
    describe_decision,
    make_orders,
    next_block,
    value_range,
)
from mill.runs.evaluate import Plan, Run
from mill.score.run_scores import Outcome
from mill.store.samples import RunSample
from mill.store.schema import Decision


class Decide(CheckKind):
    """A claim about one run; `mill eval --decide` makes it."""

    name = "decide"


def answer_until_decided(
    subjects: Sequence[Subject], plans: Sequence[Plan], config: CheckConfig
) -> tuple[list[CompletedRun], Decision]:
    """Both models answer the same random samples, block after block, until the claim about their difference is decided. Both
    are loaded at the same time."""
    claim = config.decide
    assert claim is not None
    for task in plans[0].tasks:
        name = next(iter(task.task.metrics), "")
        if name and direction(name) == UNKNOWN:
            raise SpecError(f"--decide {claim.text}: whether a higher {name} of {task.task.name} is better is not known")
    orders = [_order(plan) for plan in plans]
    names = [[(plan.requested, state.sample.id) for plan, state in order.order] for order in orders]
    if names[0] != names[1]:
        raise SpecError("--decide: the two models have different samples of these tasks")
    total = orders[0].total
    test = GroupTest(claim, total, limits=(-1.0, 1.0))
    blocks = [order.take(FIRST_BLOCK) for order in orders]
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(plan.open(quiet=config.quiet)) for plan in plans]
        while blocks[0] and _answer_block(runs, blocks, test):
            blocks = [order.take(0 if test.over else next_block(order.used)) for order in orders]
        outcomes = [run.finish() for run in runs]
    completed = [
        CompletedRun(subject, run.plan, outcome, run.tasks)
        for subject, run, outcome in zip(subjects, runs, outcomes, strict=True)
    ]
    return completed, test.decision(", ".join(config.tasks))


def _answer_block(runs: Sequence[Run], blocks: Sequence[Sequence[SampleState]], test: GroupTest) -> bool:
    """False where a run stopped before the end of the block: what happened to finish is not tested."""
    for run, block in zip(runs, blocks, strict=True):
        run.answer(block)
    if any(state.open_requests() for block in blocks for state in block):
        return False
    sides = [run.scores.score_states(block) for run, block in zip(runs, blocks, strict=True)]
    test.add([_loss(a, b) for a, b in zip(*sides, strict=True)])
    return True


def _loss(a: RunSample, b: RunSample) -> Range:
    """By how much the first metric of a sample got worse."""
    name = next(iter(a.values or b.values), "")
    first, second = (value_range(one, name) if name and one.values else UNIT for one in (a, b))
    if name and direction(name) == UNKNOWN:
        raise RunError(f"--decide: whether a higher {name} is better is not known")
    if direction(name) == LOWER:
        first, second = second, first
    return first[0] - second[1], first[1] - second[0]


def _order(plan: Plan) -> GroupOrder:
    """All samples of all tasks together: the drop is over all pairs."""
    group = SampleGroup("all", tuple(task.requested for task in plan.tasks))
    return make_orders([group], plan.tasks, plan.config.settings.seed or 0, stratified=False)[0]


def add_decision(variant: Variant, decision: Decision) -> None:
    """Put the decision into a variant, with the confidence sequence as the interval of what was decided."""
    variant.decision = decision
    last = decision.looks[-1] if decision.looks and decision.n < decision.total else None
    if last is not None and decision.metric in variant.metrics:
        known = variant.metrics[decision.metric]
        variant.metrics = {**variant.metrics, decision.metric: replace(known, low=float(last.low), high=float(last.high))}
    variant.p_values.pop(decision.metric, None)  # that of a fixed number of samples
    variant.verdict = describe_decision(decision)
    variant.warnings.append(f"only the interval of {decision.metric} accounts for when the run stopped")


def decision_checks(outcome: Outcome, model: str, backend: str) -> list[Check]:
    """A check for each decision of an evaluation, which reports and gates read."""
    checks = []
    metrics = {one.task: one.metrics for one in outcome.tasks} | {one.benchmark: one.metrics for one in outcome.benchmarks}
    for decision in outcome.decisions:
        if decision.metric not in metrics.get(decision.of, {}):
            continue
        variant = Variant(model, model=model, backend=backend, run=str(outcome.folder.path), decision=decision)
        variant.metrics = {decision.metric: metrics[decision.of][decision.metric]}
        variant.counts = {"samples": decision.n, "failed": decision.failed}
        variant.verdict = describe_decision(decision)
        settings = {"claim": decision.claim, "alpha": decision.alpha}
        checks.append(Check(Decide.name, [decision.of], [variant], settings=settings))
    return checks
