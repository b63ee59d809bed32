"""`determinism`: the same prompts several times, alone and in batches, and how often the answer is the same."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from msgspec import Meta

from mill.checks.answers import DOCUMENT, Answer, answer_warnings, truncation_warnings
from mill.checks.glossary import GROUPS
from mill.checks.kinds import Chart, CheckKind, Given, OneModel
from mill.checks.measurements import NEAR_TIE
from mill.checks.pairing import excerpt, excerpts_around, find_divergence, score_shift
from mill.checks.result import Check, Variant
from mill.checks.subjects import CheckConfig, Pass, Subject, label_of, make_passes, open_subject, with_template
from mill.checks.verdict import repeat_verdict
from mill.metrics import estimate
from mill.metrics.estimate import mean_of
from mill.metrics.paired import bounded_mean, inside, largest, rate
from mill.models.spec.parse import make_spec

CONCURRENCY = (None, 1, 2, 3)  # requests in flight, in turn; None is the backend's default
ALONE, BATCHED, ALL = "alone", "batched", "all runs"


class RepeatOptions(OneModel, kw_only=True, frozen=True):
    runs: Annotated[int, Meta(ge=2, description="Times that each prompt is sent.")] = 100


class Determinism(CheckKind):
    """Is the answer the same every time? The runs alternate between one, two, three and many requests in flight, so that
    effects of batch composition show too."""

    name = prompts = "determinism"
    examples = """
\b
Examples:
  mill determinism --model my-model --backend llama-cpp --base_url http://127.0.0.1:8080 --prompts determinism --runs 20
  mill determinism --model ./model --tasks mmlu_anatomy --limit 50 --runs 8 --fail_on "identical_rate<1"
"""
    Options, takes = RepeatOptions, ("base_url",)
    metrics = frozenset({*GROUPS["repeats"], "failure_rate", "empty_rate", "cut_rate", "divergence_margin"})
    charts = (Chart("dots", ("identical_rate", "most_common_share")),)

    def make(self, given: Given) -> Check:
        own = given.own
        spec = make_spec(own.model, backend=own.backend or "", base_url=given.options.base_url or "")
        return determinism(open_subject(label_of(spec), spec, given.config), given.config, runs=own.runs)


def determinism(subject: Subject, config: CheckConfig, *, runs: int) -> Check:
    """Make `runs` passes over all prompts. Passes with one request in flight show the noise of the engine itself, the others
    what the batch composition adds to it."""
    config = with_template(config, [subject])
    levels = {f"pass {number + 1}": CONCURRENCY[number % len(CONCURRENCY)] for number in range(runs)}
    passes, warnings = make_passes(subject, config, levels, resume=True)
    warnings += truncation_warnings(passes[0].answers)
    groups = {ALL: passes}
    if len({made.concurrency for made in passes}) > 1:
        groups[ALONE] = [made for made in passes if made.concurrency == 1]
        groups[BATCHED] = [made for made in passes if made.concurrency != 1]
    variants = [repeated(label, members) for label, members in groups.items() if len(members) > 1]
    for variant in variants[1:]:  # the same prompts, over fewer passes
        variant.rows = []
    for variant in variants:
        variant.model, variant.backend = subject.model.model_name, subject.spec.backend
        variant.run, variant.answered = passes[0].run, passes[0].answered
    settings = {**config.shown, "runs": runs}
    return Check("determinism", config.tasks, variants, "", settings, warnings)


def repeated(label: str, passes: Sequence[Pass]) -> Variant:
    """How the answers to each prompt agree over passes. A failed request differs from every answer. Prompts to which every
    answer is empty are left out and counted in a warning."""
    samples = list(zip(*(made.answers for made in passes), strict=True))
    rows = [_row(answers) for answers in samples if not all(answer.empty for answer in answers)]
    diverged = [row for row in rows if row["distinct"] > 1 or row["failed"]]
    margins = [
        row["divergence"]["margin"] for row in diverged if row.get("divergence") and row["divergence"]["margin"] is not None
    ]
    noise = [row["score_range"] for row in rows if row["score_range"] is not None]
    failed = sum(row["failed"] for row in rows)
    metrics = {
        "identical_rate": rate(len(rows) - len(diverged), len(rows)),
        "most_common_share": bounded_mean([row["share"] for row in rows]),
        "distinct_outputs": inside(mean_of([float(row["distinct"]) for row in rows]), 1.0, float(len(passes))),
        "failure_rate": rate(failed, len(samples) * len(passes)),
        "empty_rate": rate(sum(any(answer.empty for answer in answers) for answers in samples), len(samples)),
        "cut_rate": rate(sum(any(answer.cut_short for answer in answers) for answers in samples), len(samples)),
    }
    reasoned = [answers for answers in samples if any(answer.reasoning is not None for answer in answers)]
    if reasoned:
        same = sum(len({answer.reasoning for answer in answers}) == 1 for answers in reasoned)
        metrics["reasoning_identical_rate"] = rate(same, len(reasoned))
    if noise:
        metrics["logprob_noise_max"] = estimate.around(largest(noise), None, len(noise))
    if margins:
        metrics["divergence_margin"] = inside(mean_of(margins), last=math.inf)
    counts = {"samples": len(rows), "runs": len(passes), "failed": failed, "diverged": len(diverged)}
    counts["near_ties"] = sum(margin < NEAR_TIE for margin in margins)
    rows.sort(key=lambda row: (row["share"], row["task"], row["id"]))
    variant = Variant(label, metrics=metrics, counts=counts, rows=rows, warnings=_warnings(samples))
    variant.verdict = repeat_verdict(variant)
    return variant


def _warnings(samples: Sequence[Sequence[Answer]]) -> list[str]:
    empty = [answers for answers in samples if any(answer.empty for answer in answers)]
    return answer_warnings(
        {
            "samples": len(samples),
            "empty": len(empty),
            "both_empty": sum(all(answer.empty for answer in answers) for answers in empty),
            "cut_short": sum(any(answer.cut_short for answer in answers) for answers in samples),
            "filtered": sum(any(answer.filtered for answer in answers) for answers in samples),
        }
    )


def _row(answers: Sequence[Answer]) -> dict[str, Any]:
    first = answers[0]
    outputs = Counter((_output(answer), answer.error) for answer in answers)
    common = sorted(outputs.items(), key=lambda item: (item[0][1] is not None, -item[1]))[:2]  # answers before failures
    (_, failure), count = common[0]
    row: dict[str, Any] = {
        "task": first.task,
        "id": first.id,
        "category": first.category,
        "prompt": excerpt(first.prompt),
        "share": 0.0 if failure else count / len(answers),
        "distinct": len(outputs),
        "failed": sum(answer.error is not None for answer in answers),
        "texts": [text for (text, _), _ in common],
        "errors": [error for (_, error), _ in common],
        "times": [times for _, times in common],
        "score_range": _score_range(answers),
    }
    if len(common) > 1 and not any(row["errors"]):
        a, b = (next(answer for answer in answers if _output(answer) == text) for text in row["texts"])
        divergence = find_divergence(a, b)
        row["texts"], removed = excerpts_around(row["texts"], divergence.char)
        row["divergence"] = {**asdict(divergence), "char": divergence.char - removed}
    return row


def _output(answer: Answer) -> str:
    """What is compared: the text, or the scores of a document."""
    return f"{answer.scores}" if answer.form == DOCUMENT else answer.text


def _score_range(answers: Sequence[Answer]) -> float | None:
    """The largest range of a log-probability over the passes; infinite if a choice is impossible in some of them."""
    scores = [answer.scores for answer in answers if answer.scores]
    if not scores:
        return None
    if len({len(values) for values in scores}) > 1:
        return math.inf  # the number of choices differs
    return largest([score_shift(min(column), max(column)) for column in zip(*scores, strict=True)])
