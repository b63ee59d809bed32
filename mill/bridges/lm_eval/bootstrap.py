"""lm-eval's bootstrap standard errors, with the same draws, computed as arrays.

lm-eval resamples 100,000 times in Python. Chunk i of 1,000 resamples draws from `random.Random(i)`; numpy's generator of the
same algorithm and seed gives the same numbers.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from mill.compat import replaced

CHUNK = 1000  # resamples per seed, as in lm-eval
Statistic = Callable[[Sequence[Any]], float]


def bootstrap_stderr(metrics: Any) -> AbstractContextManager[None]:
    """Inside this context `bootstrap_stderr` of a package's module `metrics`, lm-eval's or lmms-eval's, is the one below."""
    return replaced(metrics, bootstrap_stderr=functools.partial(_stderr, metrics.sample_stddev))


def _stderr(sample_stddev: Callable[[list[float]], float], f: Statistic, xs: Sequence[Any], iters: int) -> float:
    chunk = min(CHUNK, iters)
    statistic = _vectorised(f, xs)
    if statistic is not None:
        rows = _draws(0, 3, len(xs))
        expected = [f([xs[at] for at in row]) for row in rows]
        if not np.allclose(statistic(rows), expected, rtol=1e-12, atol=1e-14, equal_nan=True):
            statistic = None  # another version defines it differently
    values: list[float] = []
    for seed in range(iters // chunk):
        if statistic is None:
            generator = random.Random(seed)
            values += [f(generator.choices(xs, k=len(xs))) for _ in range(chunk)]
        else:
            values += statistic(_draws(seed, chunk, len(xs))).tolist()
    return float(sample_stddev(values))


def _draws(seed: int, resamples: int, n: int) -> np.ndarray:
    """The indices that `random.Random(seed).choices` takes."""
    uniform = np.random.RandomState([seed]).random_sample(resamples * n)
    return (uniform * n).astype(np.intp).reshape(resamples, n)


def _vectorised(f: Statistic, xs: Sequence[Any]) -> Callable[[np.ndarray], np.ndarray] | None:
    """The statistic of every row of indices; None for one that is computed resample by resample."""
    name = getattr(f, "__name__", "")
    if name in ("perplexity", "median", "nanmean"):
        numbers = np.asarray(xs, dtype=float)
        if numbers.ndim != 1:
            return None
        return {
            "perplexity": lambda rows: np.exp(-numbers[rows].mean(axis=1)),
            "median": lambda rows: np.sort(numbers[rows], axis=1)[:, len(numbers) // 2],
            "nanmean": lambda rows: np.nanmean(numbers[rows], axis=1),
        }[name]
    if name in ("f1_score", "matthews_corrcoef"):
        return _of_labels(name, xs)
    return None


def _of_labels(name: str, xs: Sequence[Any]) -> Callable[[np.ndarray], np.ndarray] | None:
    """F1 and Matthews' correlation of binary labels, from the counts of each resample."""
    pairs = np.asarray([tuple(x) for x in xs])
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not np.isin(pairs, (0, 1)).all():
        return None
    first, second = pairs[:, 0].astype(float), pairs[:, 1].astype(float)
    both, only_first, only_second = first * second, first * (1 - second), (1 - first) * second

    def statistic(rows: np.ndarray) -> np.ndarray:
        n = rows.shape[1]
        tp, fn, fp = (count[rows].sum(axis=1) for count in (both, only_first, only_second))
        if name == "f1_score":
            below = 2 * tp + fp + fn
            return _quotient(2 * tp, below)
        tn = n - tp - fn - fp
        below = np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
        return _quotient(tp * tn - fp * fn, below)

    return statistic


def _quotient(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """0 where there is nothing to divide by, as in scikit-learn."""
    found: np.ndarray = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
    return found
