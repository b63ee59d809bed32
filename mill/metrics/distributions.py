"""The beta and Student's t distribution, for intervals and p-values of small samples. Pure Python, without scipy."""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300
_PRECISION = 3e-15
_MAX_TERMS = 100_000  # of the continued fraction, which needs about the square root of its parameters


def beta_cdf(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function I_x(a, b)."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1.0) / (a + b + 2.0):  # the fraction converges quickly on the other side
        return 1.0 - _lower_beta(1.0 - x, b, a)
    return _lower_beta(x, a, b)


def _lower_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b) for an `x` near the mean or below it."""
    return math.exp(_log_weight(x, a, b)) / a * _continued_fraction(x, a, b)


def _log_weight(x: float, a: float, b: float) -> float:
    return math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)


def _continued_fraction(x: float, a: float, b: float) -> float:
    """Lentz's method."""
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    value = d
    for m in range(1, _MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d, c = 1.0 + term * d, 1.0 + term / c
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = c if abs(c) > _TINY else _TINY
            step = d * c
            value *= step
        if abs(step - 1.0) < _PRECISION:
            return value
    return value


@lru_cache(maxsize=4096)
def beta_quantile(share: float, a: float, b: float) -> float:
    """Where I_x(a, b) reaches `share`: Newton's method, inside a bracket that only shrinks."""
    low, high = 0.0, 1.0
    x = a / (a + b)
    for _ in range(200):
        gap = beta_cdf(x, a, b) - share
        low, high = (low, x) if gap > 0 else (x, high)
        density = math.exp(_log_weight(x, a, b) - math.log(x) - math.log1p(-x)) if 0.0 < x < 1.0 else 0.0
        following = x - gap / density if density else -1.0
        if not low < following < high:
            following = (low + high) / 2
        if abs(following - x) <= 1e-15 * max(x, 1e-3):
            return following
        x = following
    return x


def t_p_value(t: float, df: float) -> float:
    """The two-sided p-value of Student's t."""
    if math.isnan(t):
        return math.nan
    return 0.0 if math.isinf(t) else beta_cdf(df / (df + t * t), df / 2, 0.5)


@lru_cache(maxsize=4096)
def t_quantile(df: float, confidence: float = 0.95) -> float:
    """Half the length of a two-sided interval of this confidence, in standard errors."""
    x = beta_quantile(1.0 - confidence, df / 2, 0.5)
    return math.sqrt(df * (1.0 - x) / x)
