"""Examples never hold the question itself, and a draw depends on the seed and the sample, on nothing else."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mill
from mill.api.task import RenderSettings, Sample
from mill.tasks.commonsense import Piqa
from mill.tasks.prompted import drawn_shots, first_shots

POOL: list[dict[str, Any]] = [{"q": number} for number in range(50)]
ELSEWHERE = {"q": "not in the pool"}


def drawn(*, count: int = 5, sample_id: str = "0", seed: int = 0, doc: dict[str, Any] = ELSEWHERE) -> list[int]:
    return [shot["q"] for shot in drawn_shots(POOL, count, doc, sample_id=sample_id, seed=seed)]


crowded = st.lists(st.integers(0, 4), max_size=40)
"""Pools of few different rows, so that most have several copies of the question."""


@settings(deadline=None)
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


def test_a_draw_that_skips_nothing_would_hold_the_question() -> None:
    """The twin: in the same pool a plain draw shows the question to nearly every sample."""
    pool, doc = [{"q": 1}] * 9 + [{"q": 2}, {"q": 3}], {"q": 1}
    plain = [random.Random(seed).sample(pool, 2) for seed in range(20)]
    assert sum(doc in shots for shots in plain) >= 18
    ours = [drawn_shots(pool, 2, doc, sample_id="0", seed=seed) for seed in range(20)]
    assert all(sorted(shot["q"] for shot in shots) == [2, 3] for shots in ours)


@settings(deadline=None)
@given(crowded, st.integers(0, 4), st.integers(0, 45))
def test_first_shots_are_the_first_others_in_order(numbers: list[int], question: int, count: int) -> None:
    others = [number for number in numbers if number != question]
    shots = first_shots([{"q": number} for number in numbers], count, {"q": question})
    assert [shot["q"] for shot in shots] == others[:count]


@pytest.mark.parametrize("count", [0, 1, 5, 49, 50])
def test_the_count_is_respected_and_rows_are_different(count: int) -> None:
    assert len(set(drawn(count=count))) == len(drawn(count=count)) == count


def test_a_pool_that_is_too_small_gives_all_it_has() -> None:
    assert sorted(drawn(count=80)) == list(range(50))
    assert len(drawn(count=80, doc=POOL[7])) == 49
    assert drawn_shots([], 3, ELSEWHERE, sample_id="0", seed=0) == []


def test_the_same_seed_and_sample_draw_the_same() -> None:
    assert drawn(sample_id="17", seed=3) == drawn(sample_id="17", seed=3)


def test_other_seeds_and_other_samples_draw_differently() -> None:
    draws = [drawn(sample_id=sample_id, seed=seed) for sample_id in "0123456789" for seed in range(10)]
    assert len({tuple(draw) for draw in draws}) == 100


def test_seed_and_sample_are_not_mixed_up() -> None:
    draws = [drawn(sample_id="1", seed=12), drawn(sample_id="2", seed=11), drawn(sample_id="12", seed=1)]
    assert len({tuple(draw) for draw in draws}) == 3


def test_a_draw_leaves_the_global_generator_alone() -> None:
    random.seed(5)
    expected = random.random()
    random.seed(5)
    drawn()
    assert random.random() == expected


def test_every_row_is_drawn_about_equally_often() -> None:
    seen = [number for sample in range(2000) for number in drawn(sample_id=str(sample))]
    counts = [seen.count(number) for number in range(50)]
    assert sum(counts) == 10_000
    assert 140 < min(counts) <= max(counts) < 260  # 200 expected, standard deviation 13.4


SCRIPT = """
from mill.tasks.prompted import drawn_shots
pool = [{"q": number} for number in range(50)]
print([[shot["q"] for shot in drawn_shots(pool, 5, {}, sample_id=str(k), seed=4)] for k in range(3)])
"""


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_another_process_draws_the_same(hash_seed: str) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(mill.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, check=True)
    assert json.loads(done.stdout) == [drawn(sample_id=str(k), seed=4, doc={}) for k in range(3)]


@pytest.fixture
def piqa(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Piqa:
    """Eight questions; the 20 rows to draw examples from hold copies of all eight."""
    rows = [{"goal": f"goal {k}", "sol1": "one", "sol2": "two", "label": k % 2} for k in range(12)]
    folder = tmp_path / "piqa"
    folder.mkdir()
    for split, chosen in (("validation", rows[:8]), ("train", rows + rows[:8])):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chosen))
    monkeypatch.setenv("MILL_DATA", str(tmp_path))
    return Piqa("piqa")


def contexts(task: Piqa, samples: list[Sample], seed: int = 0) -> dict[str, Any]:
    settings = RenderSettings(n_shots=3, seed=seed)
    return {sample.id: task.requests(sample, settings)[0].context for sample in samples}


def test_prompts_do_not_depend_on_order_or_limit(piqa: Piqa) -> None:
    samples = list(piqa.samples())
    full = contexts(piqa, samples)
    assert contexts(Piqa("piqa"), samples[::-1]) == full
    assert contexts(Piqa("piqa"), samples[5:6]) == {"5": full["5"]}


def test_prompts_depend_on_the_seed(piqa: Piqa) -> None:
    samples = list(piqa.samples())
    assert contexts(piqa, samples, seed=1) != contexts(piqa, samples, seed=2)


def test_a_prompt_has_its_question_once_and_the_count_of_examples(piqa: Piqa) -> None:
    for sample_id, context in contexts(piqa, list(piqa.samples())).items():
        assert context.count(f"Question: goal {sample_id}\n") == 1
        assert context.count("Question: ") == 4
        assert context.endswith(f"Question: goal {sample_id}\nAnswer:")
