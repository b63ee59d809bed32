"""Three calls of `mill.evaluate` at once, in threads of one process, are as good as three processes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mill
from mill.api.consent import current_consent
from mill.api.model import MillModel
from mill.api.request import Request
from mill.api.task import Sample, Value
from tests.fixed_answers import FixedTask
from tests.outcomes import recorded, samples, scores, sessions
from tests.waiting import DEADLINE_S

CALLS = 3
FILE = """
from mill.api.registry import register_metric
from mill.api.task import Sample
from mill.metrics.aggregate import mean

@register_metric("own_metric")
def own(samples):
    return mean([[{value}] for _ in samples])
"""


class Answerer(MillModel):
    """Answers only while all calls are at work."""

    model_name = "answerer"
    batch_size = 4

    def __init__(self, together: threading.Barrier | None) -> None:
        self._together = together

    def identity(self) -> dict[str, Any]:
        return {"class": "Answerer"}

    def _generate_batch(self, batch: list[Request], gen_kwargs: dict[str, Any]) -> list[str]:
        if self._together is not None:
            self._together.wait()
        return ["right" if request.text.endswith("2") else "wrong" for request in batch]


class OwnTask(FixedTask):
    """Has a metric of the file of its call, and says what its call allows."""

    metrics = {"exact_match": "mean", "own": "own_metric"}
    allowed: frozenset[bool] = frozenset()

    def score(self, sample: Sample, responses: Sequence[Any]) -> dict[str, Value]:
        self.allowed |= {current_consent().confirm_run_unsafe_code}
        return {**super().score(sample, responses), "own": 1.0}


def run(number: int, folder: Path, out: Path, together: threading.Barrier | None) -> tuple[list[float], frozenset[bool]]:
    file, task = folder / f"{number}" / "own.py", OwnTask(f"part{number}", 12)
    file.parent.mkdir(exist_ok=True)
    file.write_text(FILE.format(value=number))
    options: dict[str, Any] = {"task_paths": [str(file)], "output_dir": out, "confirm_run_unsafe_code": number == 1}
    found = mill.evaluate(Answerer(together), task, **options)
    return found.scores.value.to_list(), task.allowed


def test_calls_in_threads_end_as_calls_one_after_another(tmp_path: Path) -> None:
    """They share the folder of a run, and the name of a metric of their own files; each has its own consent."""
    alone = [run(number, tmp_path, tmp_path / "alone", None) for number in range(CALLS)]
    assert alone == [([1 / 12, float(number)], frozenset({number == 1})) for number in range(CALLS)]
    together = threading.Barrier(CALLS, timeout=DEADLINE_S)
    with ThreadPoolExecutor(CALLS) as pool:
        calls = [pool.submit(run, number, tmp_path, tmp_path / "out", together) for number in range(CALLS)]
        assert [call.result() for call in calls] == alone
    assert recorded(tmp_path / "out") == recorded(tmp_path / "alone")
    assert samples(tmp_path / "out") == samples(tmp_path / "alone")
    assert scores(tmp_path / "out")["tasks"] == scores(tmp_path / "alone")["tasks"]
    assert [session["ended"] for session in sessions(tmp_path / "out")] == ["finished"] * CALLS
    assert all("scoring" in session["timing"] for session in sessions(tmp_path / "out"))
