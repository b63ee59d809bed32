"""`determinism`: the same prompts again and again, alone and among others, and how often the answer is the same."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mill.checks.answers import DOCUMENT, Answer
from mill.checks.measurements import NEAR_TIE
from mill.checks.pairing import part, score_shift
from mill.checks.passes import Condition, Pass, make_passes
from mill.checks.result import Check, Variant
from mill.checks.excerpts import around, shown
from mill.checks.subjects import CheckConfig, Subject, with_template
from mill.checks.verdict import repeat_verdict
from mill.checks.warnings import answer_warnings
from mill.metrics import estimate
from mill.metrics.paired import bounded_mean, inside, largest, mean_of, rate
from mill.runs.manifest import shown_settings

WIDTHS = (None, 1, 2, 3)  # passes take turns: as many at once as the engine likes, one, two, three
ALONE, AMONG, ALL = "alone", "among others", "all runs"


def determinism(subject: Subject, asked: CheckConfig, *, runs: int) -> Check:
    """`runs` passes over all prompts. Those with one request at a time show the engine's own noise; the others, what other
    requests in the batch add to it."""
    asked = with_template(asked, [subject])
    widths = [width for width, _ in zip(itertools.cycle(WIDTHS), range(runs), strict=False)]
    wanted = [Condition(f"pass {number}", width) for number, width in enumerate(widths, 1)]
    passes, warnings = make_passes(subject, asked, wanted, resume=True)
    groups = {ALL: passes}
    if len({one.width for one in passes}) > 1:
        groups |= {ALONE: [one for one in passes if one.width == 1], AMONG: [one for one in passes if one.width != 1]}
    variants = [repeated(label, members) for label, members in groups.items() if len(members) > 1]
    for variant in variants[1:]:  # the same prompts again, over fewer passes
        variant.rows = []
    for variant in variants:
        variant.model, variant.backend = subject.model.model_name, subject.spec.backend
        variant.run = passes[0].run
    settings = {**shown_settings(asked.settings), "limit": asked.limit, "runs": runs}
    return Check("determinism", asked.tasks, variants, "", settings, warnings)


def repeated(label: str, passes: Sequence[Pass]) -> Variant:
    """How the answers to each prompt agree over passes. A failed request is an answer of its own: not the same. Prompts to
    which every answer is empty show nothing, and are left out of what is shown and counted beside it."""
    samples = list(zip(*(one.answers for one in passes), strict=True))
    rows = [_row(answers) for answers in samples if not all(answer.empty for answer in answers)]
    parted = [row for row in rows if row["distinct"] > 1 or row["failed"]]
    margins = [
        row["divergence"]["margin"] for row in parted if row.get("divergence") and row["divergence"]["margin"] is not None
    ]
    noise = [row["score_range"] for row in rows if row["score_range"] is not None]
    failed = sum(row["failed"] for row in rows)
    metrics = {
        "identical_rate": rate(len(rows) - len(parted), len(rows)),
        "most_common_share": bounded_mean([row["share"] for row in rows]),
        "distinct_outputs": inside(mean_of([float(row["distinct"]) for row in rows]), 1.0, float(len(passes))),
        "failure_rate": rate(failed, len(samples) * len(passes)),
        "empty_rate": rate(sum(any(answer.empty for answer in answers) for answers in samples), len(samples)),
        "cut_rate": rate(sum(any(answer.cut_short for answer in answers) for answers in samples), len(samples)),
    }
    if noise:
        metrics["logprob_noise_max"] = estimate.around(largest(noise), None, len(noise))
    if margins:
        metrics["divergence_margin"] = inside(mean_of(margins), last=math.inf)
    counts = {"samples": len(rows), "runs": len(passes), "failed": failed, "diverged": len(parted)}
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
    outputs = Counter((_said(answer), answer.error) for answer in answers)
    common = sorted(outputs.items(), key=lambda item: (item[0][1] is not None, -item[1]))[:2]  # answers before failures
    (_, failure), count = common[0]
    row: dict[str, Any] = {
        "task": first.task,
        "id": first.id,
        "category": first.category,
        "prompt": shown(first.prompt),
        "share": 0.0 if failure else count / len(answers),
        "distinct": len(outputs),
        "failed": sum(answer.error is not None for answer in answers),
        "texts": [text for (text, _), _ in common],
        "errors": [error for (_, error), _ in common],
        "times": [times for _, times in common],
        "score_range": _score_range(answers),
    }
    if len(common) > 1 and not any(row["errors"]):
        one, other = (next(answer for answer in answers if _said(answer) == text) for text in row["texts"])
        divergence = part(one, other)
        row["texts"], cut = around(row["texts"], divergence.char)
        row["divergence"] = {**asdict(divergence), "char": divergence.char - cut}
    return row


def _said(answer: Answer) -> str:
    """What tells one answer from another: the text, of a scored document the score."""
    return f"{answer.scores}" if answer.form == DOCUMENT else answer.text


def _score_range(answers: Sequence[Answer]) -> float | None:
    """The widest spread of any log-probability over the passes; infinite where one became impossible in some of them."""
    scores = [answer.scores for answer in answers if answer.scores]
    if not scores:
        return None
    if len({len(one) for one in scores}) > 1:
        return math.inf  # not even the same number of choices
    return largest([score_shift(min(column), max(column)) for column in zip(*scores, strict=True)])
