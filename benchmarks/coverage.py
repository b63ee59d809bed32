"""How often the intervals and tests that tables print are right: 95 % intervals, and tests at 5 % without a difference.

    python benchmarks/coverage.py              # the tables of docs/benchmarks.md, some minutes
    python benchmarks/coverage.py --trials 200 # quicker, rougher

Every line simulates data whose truth is known and counts how often the interval holds it. Needs numpy.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from mill.metrics import bits_per_unit, mean, perplexity, pool
from mill.metrics.aggregate import kappa
from mill.metrics.differences import paired_loss
from mill.metrics.estimate import Estimate
from mill.metrics.paired import (
    bounded_mean,
    clustered_mean,
    clustered_percentiles,
    clustered_rate,
    exponential,
    mcnemar,
    p_of_zero,
    positive_mean,
    rate,
    rate_difference,
)

SIZES = (2, 3, 5, 10, 30, 100, 1000)
Draw = Callable[[int], Estimate]
random = np.random.default_rng(20)


def held(draw: Draw, truth: float, n: int, trials: int) -> float:
    """The share of trials whose interval holds the truth; NaN where there are too few samples for an interval."""
    found = [draw(n) for _ in range(trials)]
    known = [(one.low, one.high) for one in found if one.low is not None and one.high is not None]
    return sum(low <= truth <= high for low, high in known) / trials if known else math.nan


def exact_rate(p: float) -> list[float]:
    """Without a simulation: the interval of every count, weighed by how often the count comes up."""
    found = []
    for n in SIZES:
        counts = np.arange(n + 1)
        logs = [math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in counts]
        weights = np.exp(np.array(logs) + counts * math.log(p) + (n - counts) * math.log1p(-p))
        inside = [(one.low or 0.0) <= p <= (one.high or 1.0) for one in (rate(int(k), n) for k in counts)]
        found.append(float(weights[inside].sum()))
    return found


def ones(p: float, n: int) -> list[list[float]]:
    return [[float(hit)] for hit in random.random(n) < p]


def grouped(p: float, correlation: float, groups: int, size: int) -> list[list[float]]:
    """Zeros and ones in groups with this intraclass correlation."""
    shares = random.beta(p * (1 / correlation - 1), (1 - p) * (1 / correlation - 1), groups)
    return [[float(hit) for hit in random.random(size) < share] for share in shares]


def skewed(n: int, spread: float) -> list[list[float]]:
    """Positive values of texts with 32 positions, log-normal between and within texts, as divergences are."""
    return [list(np.exp(random.normal(level, 0.5, 32))) for level in random.normal(0, spread, n)]


def documents(n: int) -> list[list[tuple[float, float]]]:
    """Log-likelihoods of documents of 20 to 800 words, 2.5 nats a word, each with its own difficulty."""
    words = random.integers(20, 800, n)
    return [[(-float(count) * float(random.normal(2.5, 0.4)), float(count))] for count in words]


def ratings(n: int) -> list[list[tuple[float, float]]]:
    first = random.random(n) < 0.5
    second = np.where(random.random(n) < 0.8, first, ~first)
    return [[(float(a), float(b))] for a, b in zip(first, second, strict=True)]


def changed(n: int, worse: float, better: float) -> Estimate:
    lost, won, _ = random.multinomial(n, [worse, better, 1 - worse - better])
    return rate_difference(int(lost), int(won), n)


def graded_drop(n: int) -> Estimate:
    """Scores between 0 and 1 that fall by a tenth, with independent noise on both sides."""
    base = random.beta(4, 2, n)
    return paired_loss(list(zip(base, np.clip(base - 0.1 + random.normal(0, 0.1, n), 0, 1), strict=True))).estimate


def _repeated_accuracy(p: float, n: int) -> Estimate:
    return mean(grouped(p, 0.5, n, 4))


def _pooled(p: float, tasks: int, weighted: bool, n: int) -> Estimate:
    return pool([mean(ones(p, n)) for _ in range(tasks)], weighted=weighted)


def _top_token_rate(p: float, n: int) -> Estimate:
    return clustered_rate(grouped(p, 0.1, n, 32))


def _mean_divergence(spread: float, n: int) -> Estimate:
    return positive_mean(skewed(n, spread))


def _percentile(spread: float, share: float, n: int) -> Estimate:
    return clustered_percentiles(skewed(n, spread), {"": share})[""]


def intervals(trials: int) -> list[tuple[str, list[float]]]:
    rows = [(f"rate (exact), p = {p}", exact_rate(p)) for p in (0.5, 0.7, 0.9, 0.95, 0.97, 0.99)]

    def add(name: str, draw: Draw, truth: float) -> None:
        rows.append((name, [held(draw, truth, n, trials if n < 1000 else max(50, trials // 4)) for n in SIZES]))

    for p in (0.5, 0.9, 0.99):
        add(f"accuracy over n samples of 4 repeats, p = {p}", partial(_repeated_accuracy, p), p)
    for p in (0.6, 0.9, 0.97, 0.99):
        for tasks, weighted in ((2, True), (5, False)):
            name = f"benchmark of {tasks} tasks of n, {'by samples' if weighted else 'plain'}, p = {p}"
            add(name, partial(_pooled, p, tasks, weighted), p)
    add("mean of graded scores (beta 4, 2)", lambda n: mean([[float(v)] for v in random.beta(4, 2, n)]), 4 / 6)
    add("similarity (beta 8, 1)", lambda n: bounded_mean(list(random.beta(8, 1, n))), 8 / 9)
    for worse, better in ((0.01, 0.005), (0.02, 0.0), (0.05, 0.02), (0.1, 0.1), (0.3, 0.1)):
        name = f"accuracy lost, {worse:.1%} worse and {better:.1%} better"
        add(name, partial(changed, worse=worse, better=better), worse - better)
    add("score lost, graded", graded_drop, 0.1)
    for p in (0.7, 0.9, 0.99):
        add(f"same top token over n texts of 32, p = {p}", partial(_top_token_rate, p), p)
    add("perplexity ratio over n texts of 32", lambda n: exponential(clustered_mean(_ratios(n, 0.02))), math.exp(0.02))
    add("perplexity of n documents", lambda n: perplexity(documents(n)), math.exp(2.5))
    add("bits per word of n documents", lambda n: bits_per_unit(documents(n)), 2.5 / math.log(2))
    for spread in (0.5, 1.0):
        truth = math.exp((spread**2 + 0.25) / 2)
        add(f"KL mean over n texts of 32 (log-normal, {spread})", partial(_mean_divergence, spread), truth)
    for spread in (0.5, 1.0):
        for share, quantile in ((0.5, 0.0), (0.9, 1.2815515655446004), (0.99, 2.3263478740408408)):
            truth = math.exp(quantile * math.sqrt(spread**2 + 0.25))
            add(
                f"KL p{100 * share:.0f} over n texts of 32 (log-normal, {spread})",
                partial(_percentile, spread, share),
                truth,
            )
    add("kappa of two raters, n ratings", lambda n: kappa(ratings(n)), 0.6)
    return rows


def _ratios(n: int, middle: float) -> list[list[float]]:
    return [list(random.normal(level, 0.3, 32)) for level in random.normal(middle, 0.05, n)]


def tests(trials: int) -> list[tuple[str, list[float]]]:
    """How often a test at 5 % finds a difference where there is none."""

    def wrong(p_value: Callable[[int], float], n: int) -> float:
        count = trials if n < 1000 else max(50, trials // 4)
        return sum(p_value(n) < 0.05 for _ in range(count)) / count

    def accuracy(n: int) -> float:
        lost, won, _ = random.multinomial(n, [0.1, 0.1, 0.8])
        return mcnemar(int(lost), int(won))

    def score(n: int) -> float:
        return paired_loss(list(zip(random.beta(4, 2, n), random.beta(4, 2, n), strict=True))).p

    def ratio(n: int) -> float:
        return p_of_zero(clustered_mean(_ratios(n, 0.0)), n - 1)

    named = {"accuracy lost (McNemar)": accuracy, "score lost": score, "perplexity ratio (t over texts)": ratio}
    return [(name, [wrong(test, n) for n in SIZES]) for name, test in named.items()]


def show(title: str, rows: Sequence[tuple[str, list[float]]]) -> None:
    print(f"\n| {title} | " + " | ".join(f"n = {n}" for n in SIZES) + " |")
    print("| --- |" + " ---: |" * len(SIZES))
    for name, shares in rows:
        print(f"| {name} | " + " | ".join("-" if math.isnan(share) else f"{100 * share:.1f}" for share in shares) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000)
    trials = parser.parse_args().trials
    found = intervals(trials)
    show("95 % interval of: holds the truth, %", found)
    show("test at 5 % without a difference: finds one, %", tests(trials))
    low = [(name, n, share) for name, shares in found for n, share in zip(SIZES, shares, strict=True) if share < 0.93]
    print(f"\n{len(low)} of {len(found) * len(SIZES)} below 93 %:")
    for name, n, share in low:
        print(f"- {name}, n = {n}: {share:.1%}")


if __name__ == "__main__":
    main()
