"""The figures that checks tell: what each is called, how it is written, and what it means."""

from __future__ import annotations

import math
from dataclasses import dataclass

RATE, NATS, SECONDS, FACTOR, NUMBER = "rate", "nats", "seconds", "factor", "number"


@dataclass(frozen=True)
class Figure:
    title: str
    kind: str
    about: str


FIGURES: dict[str, Figure] = {
    "failure_rate": Figure("failed requests", RATE, "samples without an answer on either side; they count as changed"),
    "match_rate": Figure("same text", RATE, "samples whose answers are equal to the last character"),
    "similarity": Figure("similarity", NUMBER, "how alike the answers are, 0 to 1; the severity tiers stand on it"),
    "flip_rate": Figure("answer flips", RATE, "samples whose extracted answer is another one"),
    "acc_baseline": Figure("accuracy, baseline", RATE, "right answers of the baseline, where gold is known"),
    "acc": Figure("accuracy", RATE, "right answers, where gold is known"),
    "acc_drop": Figure("accuracy lost", RATE, "baseline minus this one; p by McNemar's exact test"),
    "regression_rate": Figure("regressions", RATE, "right before, wrong now"),
    "improvement_rate": Figure("improvements", RATE, "wrong before, right now"),
    "first_parting": Figure("first other token", NUMBER, "the place of the first token that differs, over texts that part"),
    "parting_margin": Figure("margin where they part", NATS, "by how much the baseline preferred its token there"),
    "clear_parting_rate": Figure("clear partings", RATE, "texts that part where the two best tokens were no near-tie"),
    "logprob_shift": Figure("log-prob shift", NATS, "mean change of a choice's or document's log-probability"),
    "logprob_shift_max": Figure("largest shift", NATS, "the largest such change"),
    "kl_mean": Figure("KL mean", NATS, "divergence from the baseline's next-token distribution, on the same tokens"),
    "kl_median": Figure("KL median", NATS, "half of the places lie below"),
    "kl_p90": Figure("KL 90 %", NATS, "nine of ten places lie below"),
    "kl_p95": Figure("KL 95 %", NATS, "19 of 20 places lie below"),
    "kl_p99": Figure("KL 99 %", NATS, "99 of 100 places lie below"),
    "kl_max": Figure("KL max", NATS, "the worst place"),
    "delta_p_rms": Figure("RMS of delta p", RATE, "root mean square change of the probability of the token there"),
    "top1_agreement": Figure("same top token", RATE, "places where both find the same token likeliest"),
    "ppl_ratio": Figure("perplexity ratio", FACTOR, "perplexity over the baseline's, on the same tokens; 1 is equal"),
    "nonfinite_rate": Figure("NaN or infinite", RATE, "places whose divergence is no finite number"),
    "identical_rate": Figure("always the same", RATE, "prompts whose answer is the same in every run"),
    "most_common_share": Figure("most common answer", RATE, "share of runs that give a prompt's most common answer"),
    "distinct_outputs": Figure("distinct answers", NUMBER, "different answers a prompt gets"),
    "logprob_noise_max": Figure("log-prob noise", NATS, "the widest spread of a log-probability over runs"),
    "requests_per_s": Figure("requests a second", NUMBER, "answered requests over the time of answering"),
    "tokens_per_s": Figure("tokens a second", NUMBER, "generated tokens over the time of answering"),
    "latency_p50": Figure("latency, median", SECONDS, "from request to whole answer"),
    "latency_p95": Figure("latency, 95 %", SECONDS, "19 of 20 answers are faster"),
    "latency_p99": Figure("latency, 99 %", SECONDS, "99 of 100 answers are faster"),
    "first_token_p50": Figure("first token, median", SECONDS, "from request to the first token"),
    "first_token_p95": Figure("first token, 95 %", SECONDS, "19 of 20 are faster"),
    "first_token_p99": Figure("first token, 99 %", SECONDS, "99 of 100 are faster"),
}


def title(name: str) -> str:
    return FIGURES[name].title if name in FIGURES else name


def written(name: str, value: float | None) -> str:
    """A figure's value as people read it: rates in percent, small divergences with their power of ten."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    kind = FIGURES[name].kind if name in FIGURES else NUMBER
    if kind == RATE:
        return f"{100 * value:.2f} %" if abs(value) < 0.1 else f"{100 * value:.1f} %"
    if kind == NATS:
        return "0" if not value else f"{value:.4f}" if abs(value) >= 1e-3 else f"{value:.1e}"
    if kind == SECONDS:
        return f"{value:.3f} s"
    if kind == FACTOR:
        return f"{value:.4f}"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:,.0f}"
