"""What a run would spend, estimated before it starts: from earlier runs of the same model, else from token limits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from mill.api.budget import TokenUsage, most_output
from mill.api.errors import RunError
from mill.api.request import Request
from mill.execute.meter import MODEL, TOKENS_PER_CHARACTER
from mill.runs.evaluate import Plan
from mill.store.folder import MANIFEST, RunFolder
from mill.store.schema import Manifest
from mill.store.session import spent_so_far
from mill.support.validate import convert


@dataclass(frozen=True)
class EarlierRates:
    """What requests of an earlier run of the same model took on average: those that were scored, and those for which text
    was generated."""

    run: Path
    requests: int
    prompt_tokens: float
    output_tokens: float
    """Of a generated text."""
    scoring_s: float
    generating_s: float


@dataclass(frozen=True)
class RunEstimate:
    """What the requests without a response will take. `rates` is None where no earlier run of the model says more: the
    output is then the most that it may be, and the time is not known."""

    usage: TokenUsage
    exact_prompt: bool
    """Whether the tokenizer counted the prompts."""
    without_media: bool
    """Whether images, videos and audio are not in the estimate."""
    seconds: float | None
    cost: float | None
    rates: EarlierRates | None
    samples: int
    """Those with a request that has no response yet."""


def estimate(plan: Plan, todo: Sequence[Request], counted: int | None, samples: int) -> RunEstimate:
    """`todo` are the requests without a response, and `counted` their tokens, where the tokenizer counted them."""
    rates, price = earlier_rates(plan, todo), plan.prices.get(MODEL)
    prompt, output = counted, sum(map(most_output, todo))
    if prompt is None and rates is not None and rates.prompt_tokens:
        prompt = round(rates.prompt_tokens * len(todo))
    elif prompt is None:
        characters = sum(len(request.text) + len(request.continuation) for request in todo)
        prompt = round(characters * TOKENS_PER_CHARACTER)
    generated = sum(most_output(request) > 0 for request in todo)
    seconds = None
    if rates is not None:
        output = min(output, round(rates.output_tokens * generated))
        seconds = rates.generating_s * generated + rates.scoring_s * (len(todo) - generated)
    usage = TokenUsage(prompt, output)
    return RunEstimate(
        usage,
        exact_prompt=counted is not None,
        without_media=counted is None and rates is None and any(request.media for request in todo),
        seconds=seconds,
        cost=None if price is None else price.most(usage),
        rates=rates,
        samples=samples,
    )


def reach(plan: Plan, expected: RunEstimate) -> float:
    """The share of what is left of a run that its budget has room for, after what was spent already; 1 where all fits."""
    limits, (spent, seconds) = plan.config.limits, spent_so_far(plan.folder)
    needed: list[tuple[float, float]] = []
    if limits.tokens is not None:
        needed.append((limits.tokens - sum(usage.total for usage in spent.values()), expected.usage.total))
    if limits.cost is not None and expected.cost is not None:
        prices = ((plan.prices.get(account), usage) for account, usage in spent.items())
        cost = sum(price.cost(usage) for price, usage in prices if price is not None)
        needed.append((limits.cost - cost, expected.cost))
    if limits.seconds is not None and expected.seconds is not None:
        needed.append((limits.seconds - seconds, expected.seconds))
    return min((max(0.0, min(1.0, left / wanted)) for left, wanted in needed if wanted > 0), default=1.0)


def earlier_rates(plan: Plan, todo: Sequence[Request]) -> EarlierRates | None:
    """Those of the same run, else of the run of this model with the most tasks in common; None where there is none. A run
    that only scored says nothing about texts, nor one that only generated about scores: a text takes longer."""
    types = {one.task.task_type.value for one in plan.tasks}
    names = {one.task.name for one in plan.tasks}
    generates = {most_output(request) > 0 for request in todo}
    found = []
    for path in (plan.folder.path, *plan.folder.other_runs):
        manifest = _manifest(path)
        if manifest is None or not types & {task.task_type for task in manifest.tasks.values()}:
            continue
        rates = _rates(path, manifest, generates)
        if rates is not None:
            found.append((path == plan.folder.path, len(names & set(manifest.tasks)), rates.requests, rates))
    return max(found, key=lambda one: one[:3])[3] if found else None


def _manifest(path: Path) -> Manifest | None:
    """None where the run has none that can be read."""
    try:
        return convert(RunFolder(path).manifest(), Manifest, path / MANIFEST, RunError)
    except RunError:
        return None


def _rates(path: Path, manifest: Manifest, generates: Collection[bool]) -> EarlierRates | None:
    """None where the run has no requests of one of the kinds, with text or without it."""
    sessions = [one for one in manifest.sessions if one.computed and one.scored >= 0]  # -1 of an older version
    requests, scored = (sum(getattr(one, name) for one in sessions) for name in ("computed", "scored"))
    generated = requests - scored
    if not requests or (True in generates and not generated) or (False in generates and not scored):
        return None
    seconds, scoring_s = (sum(getattr(one, name) for one in sessions) for name in ("answering_s", "scoring_s"))
    output = sum(one.output_tokens - one.scored_tokens for one in sessions)
    return EarlierRates(
        path,
        requests,
        prompt_tokens=sum(one.prompt_tokens for one in sessions) / requests,
        output_tokens=output / max(1, generated),
        scoring_s=scoring_s / max(1, scored),
        generating_s=(seconds - scoring_s) / max(1, generated),
    )
