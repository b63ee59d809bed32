"""What a number of samples can show, against simulation and scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]

from mill.metrics.paired import mcnemar
from mill.metrics.power import POWER, detectable_loss, needed_samples, power


def whole_sum(n: int, loss: float, gains: float) -> float:
    """The power by scipy, over every number of changed samples: losses are significant by the binomial test."""
    changed = loss + 2 * gains
    total = 0.0
    for count in range(n + 1):
        fewest = next((k for k in range(count // 2 + 1, count + 1) if 2 * stats.binom.sf(k - 1, count, 0.5) < 0.05), None)
        if fewest is not None:
            total += stats.binom.pmf(count, n, changed) * stats.binom.sf(fewest - 1, count, (loss + gains) / changed)
    return float(total)


@pytest.mark.parametrize(("n", "loss", "gains"), [(12, 0.6, 0.03), (60, 0.15, 0.01), (200, 0.05, 0.05), (7, 0.9, 0.0)])
def test_the_power_is_that_of_the_binomial_test(n: int, loss: float, gains: float) -> None:
    assert power(n, loss, gains) == pytest.approx(whole_sum(n, loss, gains), abs=1e-6)


def test_many_samples_are_summed_in_steps() -> None:
    """The range of changed samples has 400 numbers here, of which a third are summed."""
    random, n, loss, gains = np.random.default_rng(1), 9000, 0.01, 0.05
    drawn = random.multinomial(n, [loss + gains, gains, 1 - loss - 2 * gains], 4000)
    losses, both = drawn[:, 0], drawn[:, 0] + drawn[:, 1]
    found = float(np.mean((2 * losses > both) & (2 * stats.binom.sf(losses - 1, both, 0.5) < 0.05)))
    assert power(n, loss, gains) == pytest.approx(found, abs=0.02)


@pytest.mark.parametrize(("n", "gains"), [(12, 0.035), (60, 0.01), (400, 0.03)])
def test_a_detectable_loss_is_found_in_four_of_five_cases(n: int, gains: float) -> None:
    loss = detectable_loss(n, gains)
    assert loss is not None
    random = np.random.default_rng(2)
    drawn = random.multinomial(n, [loss + gains, gains, 1 - loss - 2 * gains], 3000)
    found = sum(mcnemar(int(a), int(b)) < 0.05 and a > b for a, b, _ in drawn) / 3000
    assert found == pytest.approx(POWER, abs=0.03)


@pytest.mark.parametrize(("loss", "gains"), [(0.02, 0.01), (0.05, 0.05), (0.3, 0.0)])
def test_the_needed_samples_are_enough_and_fewer_are_not(loss: float, gains: float) -> None:
    n = needed_samples(loss, gains)
    assert power(n, loss, gains) >= POWER > power(round(0.9 * n), loss, gains)
