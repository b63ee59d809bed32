"""Sequential decisions: evidence against confseq, scipy and every possible order; the guarantee in simulations that a test
with peeking fails."""

from __future__ import annotations

import math
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats  # type: ignore[import-untyped]

from mill.api.errors import DataError
from mill.metrics.sequential import Bets, Decider, ShareEvidence

SIZE = 600
VALUES = [((37 * i * i + 11 * i) % 101) / 100 for i in range(400)]
PARTS = ((0, 50), (50, 200), (200, 400))

# Computed by confseq 0.0.11 with numpy 1.26.4, after 50, 200 and 400 of 600 values:
#
#     import numpy as np
#     from confseq.betting import betting_lower_cs, diversified_betting_mart, mu_t
#     normal = (-1.645, -1.036, -0.674, -0.385, -0.126, 0.126, 0.385, 0.674, 1.036, 1.645)
#     shares = [min(0.95, 0.3 * np.exp(0.8 * z)) for z in normal]
#     size, x = 600, np.array([((37 * i * i + 11 * i) % 101) / 100 for i in range(400)])
#     bets = [lambda x, m, share=share: share / mu_t(x, m, size) for share in shares]
#     for y in (x, 1 - x):
#         for m in (0.4, 0.45, 0.5, 0.6):
#             capital = diversified_betting_mart(y, m, bets, N=size, theta=1, trunc_scale=1)
#             print(m, [capital[n - 1] for n in (50, 200, 400)])
#         print([betting_lower_cs(y, bets, alpha=0.025, N=size, breaks=10000, trunc_scale=1)[n - 1] for n in (50, 200, 400)])
CAPITALS = {
    (False, 0.4): (5.190782938963925, 3885865.335495953, 7.443157425520803e26),
    (False, 0.45): (0.8754371863703678, 15.593863222579456, 49957.154853893895),
    (False, 0.5): (0.301079318032722, 0.1324801018323481, 0.033976607771842325),
    (False, 0.6): (0.08859886028715486, 0.003218341683223524, 1.487526500255236e-05),
    (True, 0.4): (132.59803798090806, 2147426238.3926404, 7.095177044552732e39),
    (True, 0.45): (4.978975792107246, 267.1647732017093, 81741132329.57709),
    (True, 0.5): (0.8719548235400508, 0.38659375148666164, 0.6635631863497716),
    (True, 0.6): (0.1594012909184426, 0.005399468416923459, 5.871374577157793e-05),
}
BOUNDS = {False: (0.3644, 0.4442, 0.4652), True: (0.4148, 0.4599, 0.4847)}  # on a grid of 1e-4


def turned(values: list[float], turn: bool) -> list[float]:
    return [1 - value for value in values] if turn else values


@pytest.mark.parametrize(("turn", "candidate"), CAPITALS)
def test_the_capital_of_bets_is_that_of_confseq(turn: bool, candidate: float) -> None:
    bets, values = Bets(SIZE, candidate), turned(VALUES, turn)
    for (first, last), expected in zip(PARTS, CAPITALS[turn, candidate], strict=True):
        bets.update(values[first:last])
        assert bets.capital == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("turn", [False, True])
def test_the_bound_by_bets_is_that_of_confseq(turn: bool) -> None:
    bets, values = Bets(SIZE, 0.5), turned(VALUES, turn)
    for (first, last), expected in zip(PARTS, BOUNDS[turn], strict=True):
        bets.update(values[first:last])
        assert bets.lower_bound(40) == pytest.approx(expected, abs=1.5e-4)


@pytest.mark.parametrize(("ones", "n", "candidate"), [(9, 12, 20), (15, 20, 25), (3, 20, 25), (1, 1, 5), (18, 30, 25)])
def test_the_evidence_of_zeros_and_ones_is_the_ratio_of_two_probabilities(ones: int, n: int, candidate: int) -> None:
    """Above the candidate: the mean over a cut-off beta distribution. Up to it: the largest of all numbers of ones."""
    size, share = 50, candidate / 50
    strength = 1.7 * math.sqrt(size)
    prior = stats.beta(strength * share, strength * (1 - share))
    above = integrate.quad(lambda p: prior.pdf(p) * p**ones * (1 - p) ** (n - ones), share, 1)[0] / prior.sf(share)
    orders = math.comb(n, ones)
    best = max(stats.hypergeom(size, count, n).pmf(ones) / orders for count in range(candidate + 1))
    evidence = ShareEvidence(size, candidate)
    evidence.update([1.0] * ones + [0.0] * (n - ones))
    assert evidence.capital == pytest.approx(above / best, rel=1e-6)


@given(size=st.integers(2, 400), data=st.data())
def test_the_bound_of_a_share_is_the_smallest_number_that_is_not_refuted(size: int, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, size))
    ones = data.draw(st.integers(0, n))

    def evidence(candidate: int) -> ShareEvidence:
        found = ShareEvidence(size, candidate)
        found.update([1.0] * ones + [0.0] * (n - ones))
        return found

    left = [count for count in range(ones, size) if evidence(count).capital < 40]
    assert evidence(0).lower_bound(40) == (left[0] if left else size) / size


@pytest.mark.parametrize(("total", "candidate"), [(6, 6), (3, 3), (9, 9), (5, 7)])
def test_evidence_against_a_true_share_is_rare_over_all_orders(total: int, candidate: int) -> None:
    """Every order of 12 values: the mean of the evidence is at most 1 at all times, and it seldom ever reaches 5."""
    size, reached, orders = 12, 0, list(combinations(range(12), total))
    sums = [0.0] * (size + 1)
    for ones in orders:
        evidence, most = ShareEvidence(size, candidate), 0.0
        for index in range(size):
            evidence.update([float(index in ones)])
            sums[index] += evidence.capital
            most = max(most, evidence.capital)
        reached += most >= 5
    assert max(sums) / len(orders) <= 1 + 1e-9
    assert 0 < reached / len(orders) <= 0.2 or candidate > total


@pytest.mark.parametrize("values", [[0.0, 0.1, 0.5, 0.6, 0.9, 1.0, 1.0], [0.5, 0.5, 0.5, 1.0, 1.0, 1.0, 0.0]])
@pytest.mark.parametrize("above", [0.0, 0.05])
def test_bets_against_the_true_mean_are_fair_over_all_orders(values: list[float], above: float) -> None:
    orders = list(permutations(values))
    sums, candidate = [0.0] * len(values), sum(values) / len(values) + above
    for order in orders:
        bets = Bets(len(values), candidate)
        for index, value in enumerate(order):
            bets.update([value])
            sums[index] += bets.capital
    means = [one / len(orders) for one in sums]
    assert means == pytest.approx([1.0] * len(values)) if not above else max(means) < 1


def decided(values: np.ndarray, bound: float, step: int, **options: object) -> tuple[bool | None, int]:
    """The first decision of a look after every `step` values."""
    decider = Decider(bound, ">", len(values), **options)  # type: ignore[arg-type]
    for start in range(0, len(values) - step, step):
        decider.update(list(values[start : start + step]))
        if decider.decision is not None:
            break
    return decider.decision, decider.n


def peeked(values: np.ndarray, bound: float, step: int, **_: object) -> tuple[bool | None, int]:
    """A one-sided z-test at 5 % in either direction, with the finite-population correction, after every `step` values."""
    for n in range(step, len(values) - step + 1, step):
        error = values[:n].std(ddof=1) * math.sqrt((1 - n / len(values)) / n)
        if abs(values[:n].mean() - bound) > 1.645 * error:
            return bool(values[:n].mean() > bound), n
    return None, len(values)


def differences(size: int, better: float, worse: float) -> np.ndarray:
    up, down = round(better * size), round(worse * size)
    return np.array([1.0] * up + [-1.0] * down + [0.0] * (size - up - down))


NULLS: dict[str, tuple[np.ndarray, dict]] = {
    "differences": (differences(1000, 0.1, 0.1), {"limits": (-1.0, 1.0)}),
    "shares": (np.array([0.0, 1.0, 1.0, 1.0] * 250), {"binary": True}),
    "graded": (np.random.default_rng(8).beta(2, 3, 1000), {}),
}


@pytest.mark.parametrize("name", NULLS)
def test_a_mean_at_the_bound_is_seldom_decided_and_a_test_with_peeking_does_so_often(name: str) -> None:
    values, options = NULLS[name]
    random, bound = np.random.default_rng(11), float(values.mean())
    orders = [random.permutation(values) for _ in range(200)]
    wrong = {test: sum(test(order, bound, 20, **options)[0] is True for order in orders) / 200 for test in (decided, peeked)}
    assert wrong[decided] <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 200)
    assert wrong[peeked] > 0.2


@pytest.mark.parametrize("name", NULLS)
def test_the_interval_contains_the_mean_at_all_times(name: str) -> None:
    values, options = NULLS[name]
    random, truth, missed = np.random.default_rng(12), float(values.mean()), 0
    for _ in range(40):
        order, decider, held = random.permutation(values), Decider(0.3, "<", len(values), **options), True  # type: ignore[arg-type]
        for start in range(0, len(values), 100):
            decider.update(list(order[start : start + 100]))
            low, high = decider.interval
            held = held and low <= truth + 1e-12 and truth - 1e-12 <= high
        missed += not held
        assert decider.interval == (decider.value, decider.value) and decider.value == pytest.approx(truth)
    assert missed <= 5  # at most 2 are expected; 6 or more have a probability of 1 %


@settings(max_examples=60)
@given(data=st.data(), binary=st.booleans(), direction=st.sampled_from([">", ">=", "<", "<="]))
def test_an_interval_without_the_bound_comes_with_its_decision(data: st.DataObject, binary: bool, direction: str) -> None:
    value = st.sampled_from([0.0, 1.0]) if binary else st.sampled_from([0.0, 0.25, 0.5, 1.0])
    values = data.draw(st.lists(value, min_size=1, max_size=120))
    bound = data.draw(st.floats(-0.1, 1.1))
    decider = Decider(bound, direction, len(values), binary=binary)
    last = (0.0, 1.0)
    for start in range(0, len(values), 10):
        decider.update(values[start : start + 10])
        low, high = decider.interval
        assert last[0] <= low <= high <= last[1] or decider.n == len(values)
        last = low, high
        if decider.n < len(values) and (bound < low or bound > high):
            assert decider.decision == ((bound < low) == direction.startswith(">"))
    mean = math.fsum(values) / len(values)
    exact = {">": mean > bound, ">=": mean >= bound, "<": mean < bound, "<=": mean <= bound}
    assert decider.decision == exact[direction] and decider.value == mean


@pytest.mark.parametrize("binary", [True, False])
def test_a_mean_at_the_bound_is_above_only_where_that_counts(binary: bool) -> None:
    """35 of 100 are 0.35; the order ends with ones, so that nothing is certain before."""
    values = [0.0] * 65 + [1.0] * 35
    for direction, expected in ((">", False), (">=", True), ("<", False), ("<=", True)):
        decider = Decider(0.35, direction, 100, alpha=1e-300, binary=binary)
        decider.update(values[:-1])
        assert decider.decision == (None if direction in (">=", "<") else expected)  # 0.34 or 0.35: above in neither case
        decider.update(values[-1:])
        assert decider.decision is expected


def test_what_no_value_can_change_is_decided() -> None:
    """36 ones among 100 are more than 0.35, whatever the others are; 65 zeros leave 0.35 at most."""
    for values, expected in (([1.0] * 36, True), ([0.0] * 65, False)):
        for binary in (True, False):
            decider = Decider(0.35, ">", 100, alpha=1e-300, binary=binary)
            decider.update(values[:-1])
            assert decider.decision is None
            decider.update(values[-1:])
            assert decider.decision is expected


@pytest.mark.parametrize("value", [1.5, -0.1, math.nan, math.inf])
def test_values_outside_of_the_limits_are_refused(value: float) -> None:
    with pytest.raises(DataError, match="between 0 and 1"):
        Decider(0.5, ">", 10).update([0.5, value])
    with pytest.raises(DataError, match="0 or 1"):
        Decider(0.5, ">", 10, binary=True).update([1.0, 0.5])
    with pytest.raises(DataError, match="3 values"):
        Decider(0.5, ">", 2).update([1.0, 0.5, 0.5])


@pytest.mark.parametrize("binary", [True, False])
def test_a_wrong_decision_is_corrected_once_that_is_certain(binary: bool) -> None:
    """30 ones and 50 zeros of 100: 0.5 can be reached, but not exceeded."""
    decider = Decider(0.5, ">", 100, binary=binary)
    decider.update([1.0] * 30)
    assert decider.decision is True
    decider.update([0.0] * 49)
    assert decider.decision is True
    decider.update([0.0])
    assert decider.decision is False
