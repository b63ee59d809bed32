"""The metrics of checks: their titles, how their values are formatted, and what they mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mill.metrics.estimate import Estimate

RATE, NATS, SECONDS, FACTOR, NUMBER = "rate", "nats", "seconds", "factor", "number"


@dataclass(frozen=True)
class MetricInfo:
    """`low` and `high` bound the possible values; `interval` is False for metrics without one, such as maxima;
    `tested` marks metrics with a p-value."""

    title: str
    kind: str
    about: str
    low: float = 0.0
    high: float = math.inf
    interval: bool = True
    tested: bool = False
    quiet: bool = False
    """Left out of tables where it is 0 for all variants."""
    against: bool = False
    """Whether it compares a candidate with its baseline, whose failures leave it unmeasured."""


def _rate(title: str, about: str, *, quiet: bool = False, against: bool = False) -> MetricInfo:
    return MetricInfo(title, RATE, about, high=1.0, quiet=quiet, against=against)


def _plain(title: str, kind: str, about: str) -> MetricInfo:
    return MetricInfo(title, kind, about, interval=False)


_BY_GROUP: dict[str, dict[str, MetricInfo]] = {
    "failures": {
        "failure_rate": _rate("failed requests", "samples whose request failed on either side; they count as changed"),
        "nonfinite_rate": _rate("NaN or infinite", "positions whose KL is NaN or infinite"),
        "retry_rate": _rate("retried requests", "requests that were sent more than once"),
        "empty_rate": _rate(
            "empty answers", "samples where an engine generated no text; two empty answers are no agreement"
        ),
        "cut_rate": _rate("truncated answers", "samples where an answer ended at the token limit"),
        "filtered_rate": _rate(
            "filtered", "samples where a server filtered an answer (finish_reason content_filter)", quiet=True
        ),
        "unpaired_rate": _rate(
            "not compared", "samples that only one side has, or whose data differ between the sides", quiet=True
        ),
        "unscored_rate": _rate(
            "texts not scored",
            "texts that an engine failed to score or tokenizes differently; failures break KL rules",
            quiet=True,
        ),
    },
    "load": {
        "requests_per_s": MetricInfo("requests per second", NUMBER, "completed requests divided by the time of the pass"),
        "tokens_per_s": MetricInfo("tokens per second", NUMBER, "generated tokens divided by the time of the pass"),
        "latency_p50": _plain(
            "latency p50", SECONDS, "from the first attempt of a request to its complete answer, with retries and waits"
        ),
        "latency_p95": _plain("latency p95", SECONDS, "95 % of answers are faster"),
        "latency_p99": _plain("latency p99", SECONDS, "99 % of answers are faster"),
        "first_token_p50": _plain("time to first token p50", SECONDS, "from the request to the first token"),
        "first_token_p95": _plain("time to first token p95", SECONDS, "95 % of answers are faster"),
        "first_token_p99": _plain("time to first token p99", SECONDS, "99 % of answers are faster"),
    },
    "repeats": {
        "identical_rate": _rate("always the same", "prompts with the same answer in every run"),
        "most_common_share": _rate("most common answer", "share of runs with a prompt's most common answer"),
        "distinct_outputs": MetricInfo("distinct answers", NUMBER, "number of different answers to a prompt", low=1.0),
        "logprob_noise_max": _plain("log-prob noise", NATS, "the largest range of a log-probability over runs"),
        "reasoning_identical_rate": _rate("always the same reasoning", "prompts with equal reasoning in all runs"),
    },
    "text": {
        "match_rate": _rate("same text", "samples with exactly equal answers", against=True),
        "clear_divergence_rate": _rate(
            "clear divergences", "texts that diverge where the two best tokens were not nearly tied", against=True
        ),
        "divergence_margin": MetricInfo(
            "divergence margin", NATS, "by how much the baseline preferred its token to the next best there", against=True
        ),
        "first_divergence": MetricInfo(
            "first divergence",
            NUMBER,
            "mean position of the first token that differs, over texts that diverge; token 1 is the first",
            low=1.0,
            against=True,
        ),
        "similarity": MetricInfo(
            "similarity",
            NUMBER,
            "similarity of the answers, 0 to 1; severity tiers are ranges of it",
            high=1.0,
            against=True,
        ),
        "reasoning_match_rate": _rate(
            "same reasoning", "samples with exactly equal reasoning before the answer", against=True
        ),
        "reasoning_similarity": MetricInfo(
            "similarity of reasoning",
            NUMBER,
            "similarity of the reasoning before the answers, 0 to 1",
            high=1.0,
            against=True,
        ),
    },
    "answers": {
        "acc_drop": MetricInfo(
            "accuracy lost",
            RATE,
            "accuracy of the baseline minus accuracy; p by McNemar's exact test",
            low=-1.0,
            high=1.0,
            tested=True,
            against=True,
        ),
        "acc_baseline": _rate("accuracy, baseline", "correct answers of the baseline, where a gold answer is known"),
        "acc": _rate("accuracy", "correct answers, where a gold answer is known"),
        "score_drop": MetricInfo(
            "score lost",
            NUMBER,
            "by how much the score got worse: that of the baseline minus it, or the reverse where lower is better",
            low=-math.inf,
            tested=True,
            against=True,
        ),
        "score_baseline": MetricInfo(
            "score, baseline", NUMBER, "mean of graded values (not only 0 or 1) of the baseline", low=-math.inf
        ),
        "score": MetricInfo(
            "score",
            NUMBER,
            "mean of graded values (not only 0 or 1); a failed request counts as 0 on a scale of 0 to 1",
            low=-math.inf,
        ),
        "flip_rate": _rate("answer flips", "samples whose extracted answer changed", against=True),
        "regression_rate": _rate("regressions", "samples that only the baseline answered correctly", against=True),
        "improvement_rate": _rate("improvements", "samples that only the baseline answered wrongly", against=True),
        "logprob_shift": MetricInfo(
            "log-prob shift", NATS, "mean absolute change of the log-probability of a choice or document"
        ),
        "logprob_shift_max": _plain("largest shift", NATS, "the largest such change"),
    },
    "distributions": {
        "kl_mean": MetricInfo(
            "KL mean", NATS, "KL divergence from the baseline's next-token distribution, after the same tokens"
        ),
        "top1_agreement": _rate("same top token", "positions where both engines rank the same token first"),
        "ppl_ratio": MetricInfo(
            "perplexity ratio per token",
            FACTOR,
            "perplexity divided by the baseline's, on the same tokens; 1 is equal",
            tested=True,
        ),
        "word_ppl_ratio": MetricInfo(
            "perplexity ratio per word",
            FACTOR,
            "the same per word of a document, where the numbers of its tokens differ or are not known",
            tested=True,
        ),
        "kl_median": MetricInfo("KL median", NATS, "50 % of positions are below"),
        "kl_p90": MetricInfo("KL p90", NATS, "90 % of positions are below"),
        "kl_p95": MetricInfo("KL p95", NATS, "95 % of positions are below"),
        "kl_p99": MetricInfo("KL p99", NATS, "99 % of positions are below"),
        "kl_max": _plain("KL max", NATS, "the largest value of a position"),
        "delta_p_rms": _rate("RMS of delta p", "root mean square change of the probability of the scored token"),
    },
}
"""The rows of tables, in their order: what matters most is first in each group."""

RATIOS = ("ppl_ratio", "word_ppl_ratio")
METRICS = {name: info for group in _BY_GROUP.values() for name, info in group.items()}
GROUPS = {group: list(infos) for group, infos in _BY_GROUP.items()}
AGAINST = [name for name, info in METRICS.items() if info.against]


def title(name: str) -> str:
    return METRICS[name].title if name in METRICS else name


def format_value(name: str, value: float | None) -> str:
    """A value for display: rates in percent, small divergences in scientific notation."""
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


def format_interval(name: str, estimate: Estimate, between: str = "to") -> str:
    """In brackets, empty where there is none. The upper end may be open: few texts do not bound a percentile."""
    if estimate.low is None or estimate.high is None:
        return ""
    low = format_value(name, estimate.low)
    if estimate.high == math.inf and math.isfinite(estimate.value):
        return f"(at least {low})"
    return f"({low} {between} {format_value(name, estimate.high)})"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
