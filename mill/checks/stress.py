"""`stress`: the same prompts at growing concurrency. Do requests fail, do answers change, and how fast are they?

Every level is measured several times, in turn, after a warm-up pass that is not counted. Otherwise the first level would pay
for a cold engine, and the prompt cache that it fills would make the others look fast.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from msgspec import Meta

from mill.api.errors import ServerGone, SpecError
from mill.checks.answers import Answer, answer_warnings, truncation_warnings
from mill.checks.compare import baseline_failures, row_of
from mill.checks.glossary import GROUPS
from mill.checks.kinds import Chart, CheckKind, Given, OneModel
from mill.checks.measurements import measure_answers
from mill.checks.pairing import AnswerPair, pair
from mill.checks.result import Check, Variant
from mill.checks.subjects import CheckConfig, Pass, Subject, label_of, make_passes, open_subject, with_template
from mill.checks.verdict import load_verdict
from mill.metrics.estimate import Estimate, around, mean_of
from mill.metrics.paired import inside, percentile, rate
from mill.models.spec.open import resolve_spec, takes_argument
from mill.models.spec.parse import make_spec

MOST_REASONS = 3
MAX_CONCURRENCY = 1024
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
ANSWER_METRICS = (
    "match_rate", "similarity", "flip_rate", "acc", "acc_baseline", "acc_drop", "score", "score_baseline", "score_drop",
    "empty_rate", "cut_rate", "filtered_rate", "clear_divergence_rate",
)  # fmt: skip
CACHED = "every prompt was sent before it was measured, so the server's prompt cache may contain it; see --distinct_prompts"
DISTINCT = (
    "each pass puts a different line before every prompt, so that no prompt cache contains it; answers are not compared"
)


class LoadOptions(OneModel, kw_only=True, frozen=True):
    concurrency: Annotated[str, Meta(description="Levels; the lowest is the baseline.")] = "1,2,4,8,16"
    repetitions: Annotated[int, Meta(ge=1, description="Times each level is measured.")] = 3
    distinct_prompts: Annotated[
        bool,
        Meta(
            description="A unique line before every prompt, so that no prompt cache serves it; answers are not compared "
            "then."
        ),
    ] = False


class Stress(CheckKind):
    """Does load change the answers? Each level shows consistency, failures, throughput and latencies. Every call measures
    again; the levels take turns after a warm-up."""

    name = "stress"
    examples = """
\b
Examples:
  mill stress --model my-model --backend openai-compat --base_url http://my-server:8000/v1 --concurrency 1,2,4,8
  mill stress --model ./model --tasks gsm8k --limit 64 --concurrency 1,8,32 --fail_on "match_rate<0.99"
"""
    prompts, top_logprobs, takes = "reasoning", None, ("base_url",)
    Options = LoadOptions
    metrics = frozenset({"failure_rate", "retry_rate", *GROUPS["load"], *ANSWER_METRICS})
    charts = (
        Chart("levels", ("latency_p50", "latency_p95", "latency_p99"), "Latency", ", seconds"),
        Chart("levels", ("first_token_p50", "first_token_p95", "first_token_p99"), "Time to first token", ", seconds"),
        Chart("levels", ("tokens_per_s",), "Throughput", ", tokens per second"),
        Chart("levels", ("match_rate",), "Consistency with the lowest level"),
        Chart("levels", ("failure_rate",), "Failed requests"),
    )

    def make(self, given: Given) -> Check:
        own = given.own
        levels = _levels(own.concurrency)
        spec = resolve_spec(make_spec(own.model, backend=own.backend or "", base_url=given.options.base_url or ""))
        if takes_argument(spec.backend, "stream"):  # only streams show the time of the first token
            spec = replace(spec, arguments={"stream": True, **spec.arguments})
        subject = open_subject(label_of(spec), spec, given.config)
        how = {"repetitions": own.repetitions, "distinct_prompts": own.distinct_prompts}
        return stress(subject, given.config, levels=levels, **how)


def _levels(text: str) -> list[int]:
    try:
        levels = sorted({int(part) for part in text.split(",")})
    except ValueError:
        levels = []
    if not levels or not 1 <= levels[0] <= levels[-1] <= MAX_CONCURRENCY:
        raise SpecError(f"--concurrency {text}: give counts from 1 to {MAX_CONCURRENCY}, such as 1,2,4,8")
    return levels


def stress(
    subject: Subject,
    config: CheckConfig,
    *,
    levels: Sequence[int],
    repetitions: int = 3,
    distinct_prompts: bool = False,
) -> Check:
    """One variant for each level; the others are compared with the lowest."""
    config = with_template(config, [subject])
    _warm_up(subject, config, levels[0])
    by_level: dict[int, list[Pass]] = {level: [] for level in levels}
    warnings: list[str] = []
    crash: tuple[int, ServerGone] | None = None
    turns = [(number, levels[(at + number) % len(levels)]) for number in range(repetitions) for at in range(len(levels))]
    for number, level in turns:  # no level is always the first
        name = f"load {level}, {number + 1} of {repetitions}"
        try:
            pass_config = config
            if distinct_prompts:  # that no cache contains: a random line before each
                system = f"[{secrets.token_hex(4)}]\n{config.settings.system_prompt or ''}".strip()
                pass_config = config.with_settings(system_prompt=system)
            passes, warnings = make_passes(subject, pass_config, {name: level}, resume=False, keep_model=True)
        except ServerGone as error:  # a result of the load test, not an error of the command
            if not by_level[levels[0]]:
                raise
            crash = (level, error)
            break
        by_level[level] += passes
    subject.model.clean()
    served = subject.model.is_server
    if not served:
        warnings.append("no latencies: a model in this process runs in batches")
    warnings.append(DISTINCT if distinct_prompts else CACHED)
    base = by_level[levels[0]]
    warnings += truncation_warnings(base[0].answers)
    measured = [level for level in levels if by_level[level]]
    variants = [_level(level, by_level[level], base, served=served, compared=not distinct_prompts) for level in measured]
    for variant in variants:
        variant.model, variant.backend = subject.model.model_name, subject.spec.backend
        variant.verdict = load_verdict(variant, variants[0])
    if crash is not None:
        _report_crash(variants, *crash)
    settings = {**config.shown, "concurrency": list(levels)}
    settings |= {"repetitions": repetitions, "distinct_prompts": distinct_prompts}
    return Check("stress", config.tasks, variants, variants[0].label, settings, warnings)


def _report_crash(variants: list[Variant], level: int, crash: ServerGone) -> None:
    """The level at which the server became unreachable fails as a whole."""
    label = f"concurrency {level}"
    crashed = next((variant for variant in variants if variant.label == label), None)
    if crashed is None:
        crashed = Variant(label, counts={"samples": variants[0].counts["samples"], "concurrency": level})
        variants.append(crashed)
    crashed.counts["failed"] = crashed.counts["samples"]
    crashed.metrics["failure_rate"] = rate(crashed.counts["failed"], crashed.counts["samples"])
    crashed.warnings.append(str(crash))
    crashed.verdict = f"worse: the server crashed under this load: {crash}"


def _warm_up(subject: Subject, config: CheckConfig, level: int) -> None:
    """Send every prompt once, for one token: the engine is loaded, and all levels start with the same caches. At the lowest
    level, so that a server which crashes under load crashes at a level that is measured."""
    short = config.with_settings(gen_kwargs={**config.settings.gen_kwargs, "max_gen_toks": 1})
    make_passes(subject, replace(short, quiet=True), {"warm-up": level}, resume=False, keep_model=True)


def _level(level: int, passes: Sequence[Pass], base: Sequence[Pass], *, served: bool, compared: bool) -> Variant:
    answers = [answer for made in passes for answer in made.answers]
    failed = sum(answer.error is not None for answer in answers)
    errors = [{"id": answer.id, "error": answer.error} for answer in answers if answer.error is not None]
    variant = Variant(f"concurrency {level}", run=passes[0].run, series={"errors": errors})
    variant.counts = {"samples": len(passes[0].answers), "repetitions": len(passes)}
    if compared:
        pairs = _least_similar(passes, base)
        measure_answers(variant, pairs)
        variant.metrics = {name: variant.metrics[name] for name in ANSWER_METRICS if name in variant.metrics}
        variant.p_values = {name: p for name, p in variant.p_values.items() if name in variant.metrics}
        variant.rows = [row_of(pair, None) for pair in pairs if not pair.identical]
        variant.warnings = answer_warnings(variant.counts)
        variant.unmeasured = baseline_failures(pairs)
    variant.counts |= {"failed": failed, "concurrency": level, "retries": sum(answer.retries for answer in answers)}
    variant.metrics["failure_rate"] = rate(failed, len(answers))
    if served:
        variant.metrics["retry_rate"] = rate(sum(answer.retries > 0 for answer in answers), len(answers))
        variant.warnings += _retry_reasons(answers)
        completed = [answer for answer in answers if answer.error is None]
        variant.metrics |= _latencies("latency", [answer.seconds for answer in completed])
        variant.metrics |= _latencies("first_token", [answer.first_token_s for answer in completed])
    variant.metrics |= _speed(passes)
    return variant


def _retry_reasons(answers: Sequence[Answer]) -> list[str]:
    """Why requests were sent again, the most common reasons first."""
    reasons = Counter(answer.retry_reason for answer in answers if answer.retry_reason)
    if not reasons:
        return []
    shown = ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common(MOST_REASONS))
    more = f", and {len(reasons) - MOST_REASONS} more" if len(reasons) > MOST_REASONS else ""
    return [f"{reasons.total()} of {len(answers)} requests were retried: {shown}{more}"]


def _least_similar(passes: Sequence[Pass], base: Sequence[Pass]) -> list[AnswerPair]:
    """For each prompt the answer, of all repetitions, that is least similar to the first one at the lowest level. At the
    lowest level itself this is the noise of the engine."""
    reference, least = base[0].answers, dict[int, AnswerPair]()
    for made in passes if passes is not base else passes[1:] or passes:
        for one in (AnswerPair(a, b) for a, b in pair(reference, made.answers).pairs):
            known = least.get(id(one.a))
            if known is None or (one.identical, one.similarity) < (known.identical, known.similarity):
                least[id(one.a)] = one
    return list(least.values())


def _speed(passes: Sequence[Pass]) -> dict[str, Estimate]:
    """Completed work divided by the time of the pass: the mean over repetitions, with its interval."""
    rates: dict[str, list[float]] = {"requests_per_s": [], "tokens_per_s": []}
    for made in passes:
        seconds = made.total("answering_s")
        if seconds:
            rates["requests_per_s"].append((made.total("computed") - made.total("failed")) / seconds)
            rates["tokens_per_s"].append(made.total("output_tokens") / seconds)
    return {name: inside(mean_of(values), last=math.inf) for name, values in rates.items() if any(values)}


def _latencies(name: str, seconds: Sequence[float | None]) -> dict[str, Estimate]:
    known = [value for value in seconds if value is not None]
    if not known:
        return {}
    return {f"{name}_{short}": around(percentile(known, share), None, len(known)) for short, share in SHARES.items()}
