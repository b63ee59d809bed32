"""Examples never hold the question itself, and a draw depends on the seed and the sample, on nothing else."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mill.tasks.prompted import drawn_shots

POOL: list[dict[str, Any]] = [{"q": number} for number in range(50)]
ELSEWHERE = {"q": "not in the pool"}


def drawn(*, count: int = 5, sample_id: str = "0", seed: int = 0, doc: dict[str, Any] = ELSEWHERE) -> list[int]:
    return [shot["q"] for shot in drawn_shots(POOL, count, doc, sample_id=sample_id, seed=seed)]


crowded = st.lists(st.integers(0, 4), max_size=40)
"""Pools of few different rows, so that most have several copies of the question."""


@given(crowded, st.integers(0, 4), st.integers(0, 45), st.text(max_size=5), st.integers())
def test_a_draw_never_holds_the_question_and_has_the_count(
    numbers: list[int], question: int, count: int, sample_id: str, seed: int
) -> None:
    pool, doc = [{"q": number} for number in numbers], {"q": question}
    shots = drawn_shots(pool, count, doc, sample_id=sample_id, seed=seed)
    assert doc not in shots
    assert len(shots) == min(count, len(numbers) - numbers.count(question))
    drawn_from = list(numbers)
    for shot in shots:  # without replacement
        drawn_from.remove(shot["q"])


def test_a_draw_is_the_same_on_every_machine_and_in_every_process() -> None:
    assert drawn(sample_id="1", seed=12) == [38, 19, 46, 44, 36]
