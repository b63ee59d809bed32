"""KL divergences against torch, and lower bounds against the exact value."""

from __future__ import annotations

import difflib
import math
import random

import numpy as np
import pytest
import torch

from mill.metrics.divergence import Gap, Known, bounded_gap, exact_gaps, severity, similarity


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return torch.from_numpy(logits).double().log_softmax(-1).numpy()


def torch_kl(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """KL(p || q) of each row by torch, which takes its arguments the other way round."""
    kl = torch.nn.functional.kl_div(torch.from_numpy(q), torch.from_numpy(p), reduction="none", log_target=True)
    return kl.sum(-1).numpy()


@pytest.mark.parametrize(("kind", "reach"), [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_exact_divergences_equal_torchs(kind: type, reach: float, scale: float) -> None:
    draw = np.random.default_rng(1)
    p, q = log_softmax(draw.normal(size=(40, 500)) * scale), log_softmax(draw.normal(size=(40, 500)) * scale)
    tokens = [int(token) for token in draw.integers(0, 500, size=40)]
    gaps = exact_gaps(p.astype(kind), q.astype(kind), tokens)
    assert [gap.kl for gap in gaps] == pytest.approx(torch_kl(p, q), abs=reach)
    assert [gap.first for gap in gaps] == pytest.approx(p[range(40), tokens], abs=reach)
    assert [gap.second for gap in gaps] == pytest.approx(q[range(40), tokens], abs=reach)
    assert [gap.same_top for gap in gaps] == list(p.argmax(-1) == q.argmax(-1))
    assert all(gap.exact for gap in gaps)


def test_rounding_makes_no_divergence_negative() -> None:
    draw = np.random.default_rng(3)
    p = log_softmax(draw.normal(size=(100, 2000)) * 3)
    q = log_softmax(p + draw.normal(size=p.shape) * 1e-4)
    assert min(gap.kl for gap in exact_gaps(p.astype(np.float32), q.astype(np.float32), [0] * 100)) >= 0


def test_nan_stays_nan_and_does_not_affect_other_positions() -> None:
    p = log_softmax(np.zeros((3, 4)))
    q = p.copy()
    q[1, 2] = math.nan
    kl = [gap.kl for gap in exact_gaps(p, q, [0, 0, 0])]
    assert (kl[0], kl[2]) == (0.0, 0.0)
    assert math.isnan(kl[1])
    assert math.isnan(exact_gaps(q, p, [0, 0, 0])[1].kl)


def test_a_token_without_probability() -> None:
    p, q = np.array([[math.log(0.5), math.log(0.5), -math.inf]]), np.log(np.array([[0.25, 0.25, 0.5]]))
    assert exact_gaps(p, q, [0])[0].kl == pytest.approx(math.log(2))
    assert exact_gaps(q, p, [0])[0].kl == math.inf
    assert exact_gaps(p, p, [0])[0].kl == 0.0


def gap_of(p: np.ndarray, q: np.ndarray, count: int, token: int) -> Gap:
    """From the `count` top_logprobs of each side, as an engine returns them."""
    first: Known = {int(i): float(p[i]) for i in np.argsort(-p)[:count]}
    second: Known = {int(i): float(q[i]) for i in np.argsort(-q)[:count]}
    return bounded_gap(first, second, token, float(p[token]), float(q[token]))


def test_a_bound_is_never_above_the_divergence() -> None:
    draw = np.random.default_rng(4)
    for _ in range(1500):
        size = int(draw.integers(3, 60))
        p = log_softmax(draw.normal(size=size) * draw.uniform(0.1, 6))
        q = log_softmax(draw.normal(size=size) * draw.uniform(0.1, 6))
        gap = gap_of(p, q, int(draw.integers(1, size + 1)), int(draw.integers(0, size)))
        assert 0 <= gap.kl <= torch_kl(p[None], q[None])[0] + 1e-9
        assert not gap.exact


def test_a_bound_holds_for_log_probabilities_in_float32() -> None:
    """The remaining probability of the second engine is then lost in rounding, and may be negative."""
    draw = np.random.default_rng(7)
    for _ in range(500):
        head, rest = draw.normal(size=(2, 8)), draw.normal(size=(2, 22))
        p, q = log_softmax(np.concatenate([head[0], rest[0] - 6])), log_softmax(np.concatenate([head[1], rest[1] - 18]))
        first: Known = {i: float(np.float32(p[i])) for i in range(8)}
        second: Known = {i: float(np.float32(q[i])) for i in range(8)}
        gap = bounded_gap(first, second, 0, first[0], second[0])
        assert gap.kl <= torch_kl(p[None], q[None])[0] + 1e-3


def test_a_bound_with_nan_or_without_probability() -> None:
    known: Known = {1: -0.5, 2: -1.5}
    assert math.isnan(bounded_gap(known, {1: math.nan, 2: -1.0}, 1, -0.5, math.nan).kl)
    assert bounded_gap(known, {1: -math.inf, 2: -0.1}, 1, -0.5, -math.inf).kl == math.inf
    assert math.isfinite(bounded_gap({1: -math.inf, 2: -0.1}, known, 1, -math.inf, -0.5).kl)


def test_a_bound_where_an_engine_returns_no_top_logprobs() -> None:
    assert bounded_gap({}, {}, 5, math.log(0.5), math.log(0.5)).kl == 0.0
    expected = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert bounded_gap({5: math.log(0.5)}, {}, 5, math.log(0.5), math.log(0.25)).kl == pytest.approx(expected)


def test_one_changed_character_costs_that_character() -> None:
    draw = random.Random(1)
    for _ in range(200):
        text = "".join(draw.choice("abc ") for _ in range(draw.randint(1, 3000)))
        index = draw.randrange(len(text))
        assert similarity(text, f"{text[:index]}#{text[index + 1 :]}") == pytest.approx((len(text) - 1) / len(text))


def test_an_inner_part_is_matched_as_difflib_does() -> None:
    one, other = "(the quick brown fox)", "[the slow brown dog]"
    assert similarity(one, other) == difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()


def test_long_texts_without_spaces_are_matched() -> None:
    """Chinese, Japanese and Thai put no spaces between words."""
    text = "".join(chr(0x4E00 + index % 997) for index in range(3000))
    assert similarity(f"\u4e00{text}\u4e01", f"\u4e02{text}\u4e03") > 0.99


def test_a_long_text_whose_ends_differ_is_nearly_identical() -> None:
    """Repeated words are no junk: a text that repeats one sentence is matched like any other."""
    text = "the cat sat on the mat and the dog ran. " * 120
    assert similarity(f"A {text}one", f"B {text}two") == pytest.approx(1 - 4 / len(f"A {text}one"), abs=1e-9)
    dots = "ab. " * 1200
    assert similarity(f"x{dots}y", f"z{dots}w") > 0.999


def test_very_long_texts_are_compared_in_bounded_memory() -> None:
    words = "alpha beta gamma delta " * 20_000
    assert similarity(f"x {words} y", f"z {words} w") > 0.999


@pytest.mark.parametrize(
    ("value", "name"),
    [(1.0, "identical"), (0.99, "minor"), (0.8, "minor"), (0.79, "moderate"), (0.5, "moderate"), (0, "severe")],
)
def test_severity(value: float, name: str) -> None:
    assert severity(value) == name
