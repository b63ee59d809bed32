"""`stress`: the same prompts under growing load. Does the engine still answer, the same, and how fast?

Every level is measured now, several times, the levels taking turns, after a pass that is not counted: otherwise the first
level would pay for a cold engine, and a prompt cache that the first level filled would make the others look fast.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mill.api.errors import ServerGone
from mill.checks.answers import Answer
from mill.checks.compare import baseline_failures, row_of
from mill.checks.measurements import answer_measurements
from mill.checks.pairing import AnswerPair, pair_up
from mill.checks.passes import Condition, Pass, make_passes
from mill.checks.result import Check, Variant
from mill.checks.subjects import CheckConfig, Subject, with_template
from mill.checks.verdict import load_verdict
from mill.checks.warnings import answer_warnings
from mill.metrics.estimate import Estimate, around
from mill.metrics.paired import inside, mean_of, percentile, rate
from mill.models.http.server import ServerModel
from mill.runs.manifest import shown_settings

SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
KEPT = (
    "match_rate", "similarity", "flip_rate", "acc", "acc_baseline", "acc_drop", "score", "score_baseline", "score_drop",
    "empty_rate", "cut_rate", "filtered_rate", "clear_divergence_rate",
)  # fmt: skip
CACHED = (
    "prompts were sent before they were measured, so a server's prompt cache may serve them: --distinct_prompts avoids that"
)
DISTINCT = "each pass put a line of its own before every prompt, so no prompt cache serves it; answers are not compared"


def stress(
    subject: Subject,
    asked: CheckConfig,
    *,
    levels: Sequence[int],
    repetitions: int = 3,
    distinct_prompts: bool = False,
) -> Check:
    """A variant for each level; the lowest is what the others are held against."""
    asked = with_template(asked, [subject])
    _warm_up(subject, asked, levels[0])
    by_level: dict[int, list[Pass]] = {level: [] for level in levels}
    warnings: list[str] = []
    gone: tuple[int, ServerGone] | None = None
    for number, level in _turns(levels, repetitions):
        wanted = [Condition(f"load {level}, {number + 1} of {repetitions}", level)]
        try:
            these = _distinct(asked) if distinct_prompts else asked
            passes, warnings = make_passes(subject, these, wanted, resume=False, keep_model=True)
        except ServerGone as error:  # that is what a load test is there to find
            if not by_level[levels[0]]:
                raise
            gone = (level, error)
            break
        by_level[level] += passes
    subject.model.clean()
    served = isinstance(subject.model, ServerModel)
    if not served:
        warnings.append("no latencies: a model in this process answers in batches")
    warnings.append(DISTINCT if distinct_prompts else CACHED)
    base = by_level[levels[0]]
    measured = [level for level in levels if by_level[level]]
    variants = [_level(level, by_level[level], base, served=served, compared=not distinct_prompts) for level in measured]
    for variant in variants:
        variant.model, variant.backend = subject.model.model_name, subject.spec.backend
        variant.verdict = load_verdict(variant, variants[0])
    if gone is not None:
        _say_it_died(variants, *gone)
    settings = {**shown_settings(asked.settings), "limit": asked.limit, "concurrency": list(levels)}
    settings |= {"repetitions": repetitions, "distinct_prompts": distinct_prompts}
    return Check("stress", asked.tasks, variants, variants[0].label, settings, warnings)


def _turns(levels: Sequence[int], repetitions: int) -> list[tuple[int, int]]:
    """(repetition, level) in the order in which they are measured: no level is always the first."""
    shifted = [[*levels[n % len(levels) :], *levels[: n % len(levels)]] for n in range(repetitions)]
    return [(number, level) for number, turn in enumerate(shifted) for level in turn]


def _say_it_died(variants: list[Variant], level: int, gone: ServerGone) -> None:
    """At the level under which the server went away: nothing was answered after that."""
    label = f"concurrency {level}"
    found = next((variant for variant in variants if variant.label == label), None)
    if found is None:
        found = Variant(label, counts={"samples": variants[0].counts["samples"], "concurrency": level})
        variants.append(found)
    found.counts["failed"] = found.counts["samples"]
    found.metrics["failure_rate"] = rate(found.counts["failed"], found.counts["samples"])
    found.warnings.append(str(gone))
    found.verdict = f"worse: the server went away under this load: {gone}"


def _warm_up(subject: Subject, asked: CheckConfig, level: int) -> None:
    """Every prompt once, for one token: the engine is loaded, and all levels find its caches as full. At the lowest
    level, so that a server which load brings down is brought down by a level that is measured."""
    short = replace(asked.settings, gen_kwargs={**asked.settings.gen_kwargs, "max_gen_toks": 1})
    make_passes(
        subject, replace(asked, settings=short, quiet=True), [Condition("warm-up", level)], resume=False, keep_model=True
    )


def _distinct(asked: CheckConfig) -> CheckConfig:
    """Prompts that no cache has seen: a line in front of each that says nothing."""
    line = f"[{secrets.token_hex(4)}]"
    system = f"{line}\n{asked.settings.system_prompt or ''}".strip()
    return replace(asked, settings=replace(asked.settings, system_prompt=system))


def _level(level: int, passes: Sequence[Pass], base: Sequence[Pass], *, served: bool, compared: bool) -> Variant:
    answers = [answer for one in passes for answer in one.answers]
    failed = sum(answer.error is not None for answer in answers)
    metrics = {"failure_rate": rate(failed, len(answers))}
    variant = Variant(f"concurrency {level}", run=passes[0].run, series={"errors": _errors(answers)})
    variant.counts = {"samples": len(passes[0].answers), "repetitions": len(passes)}
    if compared:
        pairs = _least_alike(passes, base)
        found = answer_measurements(pairs)
        metrics |= {name: found.estimates[name] for name in KEPT if name in found.estimates}
        variant.p_values = {name: p for name, p in found.p_values.items() if name in metrics}
        variant.counts |= found.counts
        variant.rows = [row_of(pair, None) for pair in pairs if not pair.identical]
        variant.warnings = answer_warnings(found.counts)
        variant.unmeasured = baseline_failures(pairs)
    variant.counts |= {"failed": failed, "concurrency": level, "retries": sum(answer.retries for answer in answers)}
    if served:
        metrics["retry_rate"] = rate(sum(answer.retries > 0 for answer in answers), len(answers))
        good = [answer for answer in answers if answer.error is None]
        metrics |= _latencies("latency", [answer.seconds for answer in good])
        metrics |= _latencies("first_token", [answer.first_token_s for answer in good])
    variant.metrics = metrics | _speed(passes)
    return variant


def _least_alike(passes: Sequence[Pass], base: Sequence[Pass]) -> list[AnswerPair]:
    """For each prompt, of all repetitions, the answer that is least like the first one at the lowest level. At the lowest
    level itself that is the engine's own noise."""
    reference, found = base[0].answers, dict[int, AnswerPair]()
    for one in passes if passes is not base else passes[1:] or passes:
        for pair in pair_up(reference, one.answers).pairs:
            known = found.get(id(pair.a))
            if known is None or (pair.identical, pair.similarity) < (known.identical, known.similarity):
                found[id(pair.a)] = pair
    return list(found.values())


def _speed(passes: Sequence[Pass]) -> dict[str, Estimate]:
    """Work over the time in which the model answered: the mean over repetitions, and their spread as the interval."""
    rates: dict[str, list[float]] = {"requests_per_s": [], "tokens_per_s": []}
    for one in passes:
        seconds = one.total("answering_s")
        if seconds:
            rates["requests_per_s"].append((one.total("computed") - one.total("failed")) / seconds)
            rates["tokens_per_s"].append(one.total("output_tokens") / seconds)
    return {name: inside(mean_of(values), last=math.inf) for name, values in rates.items() if any(values)}


def _latencies(name: str, seconds: Sequence[float | None]) -> dict[str, Estimate]:
    known = [one for one in seconds if one is not None]
    if not known:
        return {}
    return {f"{name}_{short}": around(percentile(known, share), None, len(known)) for short, share in SHARES.items()}


def _errors(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    return [{"id": answer.id, "error": answer.error} for answer in answers if answer.error is not None]
