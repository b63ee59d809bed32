"""The metrics that checks tell: what each is called, how it is written, and what it means."""

from __future__ import annotations

import math
from dataclasses import dataclass

RATE, NATS, SECONDS, FACTOR, NUMBER = "rate", "nats", "seconds", "factor", "number"


@dataclass(frozen=True)
class MetricInfo:
    """`low` and `high` bound the values that are possible; `interval` is False for metrics that have none, such as
    percentiles; `tested` says that there is a p-value."""

    title: str
    kind: str
    about: str
    low: float = 0.0
    high: float = math.inf
    interval: bool = True
    tested: bool = False
    quiet: bool = False
    """Left out of tables where it is 0 on all sides."""


def _rate(title: str, about: str, *, quiet: bool = False) -> MetricInfo:
    return MetricInfo(title, RATE, about, high=1.0, quiet=quiet)


def _plain(title: str, kind: str, about: str) -> MetricInfo:
    return MetricInfo(title, kind, about, interval=False)


METRICS: dict[str, MetricInfo] = {
    "failure_rate": _rate("failed requests", "samples without an answer on either side; they count as changed"),
    "unpaired_rate": _rate(
        "not compared", "samples that only one side has, or that are other data on the two sides", quiet=True
    ),
    "match_rate": _rate("same text", "samples whose answers are equal to the last character"),
    "empty_rate": _rate("empty answers", "samples where an engine generated nothing; two empty answers are no agreement"),
    "cut_rate": _rate("cut off", "samples where an answer ended at the token limit"),
    "filtered_rate": _rate(
        "filtered", "samples where a server withheld an answer (finish_reason content_filter)", quiet=True
    ),
    "similarity": MetricInfo(
        "similarity", NUMBER, "how alike the answers are, 0 to 1; severity tiers stand on it", high=1.0
    ),
    "flip_rate": _rate("answer flips", "samples whose extracted answer is another one"),
    "acc_baseline": _rate("accuracy, baseline", "right answers of the baseline, where gold is known"),
    "acc": _rate("accuracy", "right answers, where gold is known"),
    "acc_drop": MetricInfo(
        "accuracy lost", RATE, "baseline minus this one; p by McNemar's exact test", low=-1.0, high=1.0, tested=True
    ),
    "score_baseline": MetricInfo("score, baseline", NUMBER, "mean of values that are not only 0 or 1", low=-math.inf),
    "score": MetricInfo(
        "score", NUMBER, "mean of values that are not only 0 or 1; a failed request has the lowest", low=-math.inf
    ),
    "score_drop": MetricInfo(
        "score lost", NUMBER, "baseline minus this one; p by the paired t-test", low=-math.inf, tested=True
    ),
    "regression_rate": _rate("regressions", "right before, wrong now"),
    "improvement_rate": _rate("improvements", "wrong before, right now"),
    "first_divergence": MetricInfo(
        "first other token", NUMBER, "the place of the first token that differs, over texts that part"
    ),
    "divergence_margin": MetricInfo("margin where they part", NATS, "by how much the baseline preferred its token there"),
    "clear_divergence_rate": _rate("clear divergences", "texts that part where the two best tokens were no near-tie"),
    "logprob_shift": MetricInfo("log-prob shift", NATS, "mean change of a choice's or document's log-probability"),
    "logprob_shift_max": _plain("largest shift", NATS, "the largest such change"),
    "kl_mean": MetricInfo("KL mean", NATS, "divergence from the baseline's next-token distribution, on the same tokens"),
    "kl_median": _plain("KL median", NATS, "half of the places lie below"),
    "kl_p90": _plain("KL 90 %", NATS, "nine of ten places lie below"),
    "kl_p95": _plain("KL 95 %", NATS, "19 of 20 places lie below"),
    "kl_p99": _plain("KL 99 %", NATS, "99 of 100 places lie below"),
    "kl_max": _plain("KL max", NATS, "the worst place"),
    "delta_p_rms": _rate("RMS of delta p", "root mean square change of the probability of the token there"),
    "top1_agreement": _rate("same top token", "places where both find the same token likeliest"),
    "ppl_ratio": MetricInfo(
        "perplexity ratio", FACTOR, "perplexity over the baseline's, on the same tokens; 1 is equal", tested=True
    ),
    "unscored_rate": _rate(
        "texts not scored", "texts that both should have scored and one could not; they break KL rules", quiet=True
    ),
    "nonfinite_rate": _rate("NaN or infinite", "places whose divergence is no finite number"),
    "identical_rate": _rate("always the same", "prompts whose answer is the same in every run"),
    "most_common_share": _rate("most common answer", "share of runs that give a prompt's most common answer"),
    "distinct_outputs": MetricInfo("distinct answers", NUMBER, "different answers a prompt gets", low=1.0),
    "logprob_noise_max": _plain("log-prob noise", NATS, "the widest spread of a log-probability over runs"),
    "retry_rate": _rate("retried requests", "requests that were refused or cut off at first and sent again"),
    "requests_per_s": MetricInfo("requests a second", NUMBER, "answered requests over the time of answering"),
    "tokens_per_s": MetricInfo("tokens a second", NUMBER, "generated tokens over the time of answering"),
    "latency_p50": _plain(
        "latency, median", SECONDS, "from the first try of a request to its whole answer, waits between tries included"
    ),
    "latency_p95": _plain("latency, 95 %", SECONDS, "19 of 20 answers are faster"),
    "latency_p99": _plain("latency, 99 %", SECONDS, "99 of 100 answers are faster"),
    "first_token_p50": _plain("first token, median", SECONDS, "from request to the first token"),
    "first_token_p95": _plain("first token, 95 %", SECONDS, "19 of 20 are faster"),
    "first_token_p99": _plain("first token, 99 %", SECONDS, "99 of 100 are faster"),
}


_OF_REPEATS = {"identical_rate", "most_common_share", "distinct_outputs", "logprob_noise_max"}
_OF_LOAD = {name for name in METRICS if name.startswith(("latency", "first_token"))} | {
    "retry_rate",
    "requests_per_s",
    "tokens_per_s",
}
_OF_FORCED = {"delta_p_rms", "top1_agreement", "unscored_rate", "nonfinite_rate"} | {
    n for n in METRICS if n.startswith("kl_")
}
_OF_PAIRS = set(METRICS) - _OF_REPEATS - _OF_LOAD
MEASURED: dict[str, set[str]] = {
    "determinism": _OF_REPEATS | {"failure_rate", "empty_rate", "cut_rate", "divergence_margin"},
    "stress": _OF_LOAD | (_OF_PAIRS - _OF_FORCED - {"unpaired_rate", "ppl_ratio"}),
    "compare": _OF_PAIRS,
    "sweep": _OF_PAIRS,
    "diff": _OF_PAIRS,
}
"""What each kind of check measures."""


def title(name: str) -> str:
    return METRICS[name].title if name in METRICS else name


def format_value(name: str, value: float | None) -> str:
    """A figure's value as people read it: rates in percent, small divergences with their power of ten."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    kind = METRICS[name].kind if name in METRICS else NUMBER
    if kind == RATE:
        return f"{100 * value:.2f} %" if abs(value) < 0.1 else f"{100 * value:.1f} %"
    if kind == NATS:
        return "0" if not value else f"{value:.4f}" if abs(value) >= 1e-3 else f"{value:.1e}"
    if kind == SECONDS:
        return f"{value:.3f} s"
    if kind == FACTOR:
        return f"{value:.4f}"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:,.0f}"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
