"""`stress`: the same prompts under growing load. Does the engine still answer, the same, and how fast?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mill.checks.answers import Answer
from mill.checks.compare import row_of
from mill.checks.figures import free_figures
from mill.checks.pairing import pair_up
from mill.checks.passes import Pass, make_passes
from mill.checks.result import Check, Variant
from mill.checks.subjects import Asked, Subject
from mill.metrics.estimate import Estimate, around
from mill.metrics.paired import percentile, rate
from mill.models.server import ServerModel
from mill.runs.manifest import shown_settings

SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
KEPT = ("match_rate", "similarity", "flip_rate", "acc", "acc_baseline", "acc_drop", "clear_parting_rate")


def stress(subject: Subject, asked: Asked, *, levels: Sequence[int]) -> Check:
    """A pass for each level; the lowest is what the others are held against."""
    passes, notes = make_passes(subject, asked, [(f"load {level}", level) for level in levels])
    served = isinstance(subject.model, ServerModel)
    if not served:
        notes.append("no latencies: a model in this process answers in batches")
    variants = [_level(level, one, passes[0], served=served) for level, one in zip(levels, passes, strict=True)]
    for variant in variants:
        variant.model, variant.backend = subject.model.model_name, subject.spec.backend
    settings = {**shown_settings(asked.settings), "limit": asked.limit, "concurrency": list(levels)}
    return Check("stress", asked.tasks, variants, variants[0].label, settings, notes)


def _level(level: int, one: Pass, base: Pass, *, served: bool) -> Variant:
    pairs, _ = pair_up(base.answers, one.answers)
    compared = free_figures(pairs)
    failed = sum(answer.error is not None for answer in one.answers)
    figures = {"failure_rate": rate(failed, len(one.answers))}
    figures |= {name: compared.estimates[name] for name in KEPT if name in compared.estimates}
    figures |= _speed(one)
    if served:
        figures |= _latencies("latency", [answer.seconds for answer in one.answers if answer.error is None])
        figures |= _latencies("first_token", [answer.first_token_s for answer in one.answers if answer.error is None])
    return Variant(
        f"concurrency {level}",
        run=one.run,
        figures=figures,
        p_values=compared.p_values,
        counts={**compared.counts, "failed": failed, "concurrency": level},
        series={"errors": _errors(one.answers)},
        rows=[row_of(pair, None) for pair in pairs if not pair.identical],
    )


def _speed(one: Pass) -> dict[str, Estimate]:
    """Work over the time in which the model answered, over all sessions of the pass."""
    seconds = one.total("answering_s")
    if not seconds:
        return {}
    answered = one.total("computed") - one.total("failed")
    rates = {"requests_per_s": answered / seconds, "tokens_per_s": one.total("output_tokens") / seconds}
    return {name: around(value, None, int(answered)) for name, value in rates.items() if value}


def _latencies(name: str, seconds: Sequence[float | None]) -> dict[str, Estimate]:
    known = [one for one in seconds if one is not None]
    if not known:
        return {}
    return {f"{name}_{short}": around(percentile(known, share), None, len(known)) for short, share in SHARES.items()}


def _errors(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    return [{"id": answer.id, "error": answer.error} for answer in answers if answer.error is not None]
