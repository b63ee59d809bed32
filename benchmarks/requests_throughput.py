"""What do the executor and the record cost a request, and does their memory grow with the number of requests?

    python benchmarks/requests_throughput.py [--most 400000]

A model that answers at once gets a stream of different requests; every answer is written to a record in a temporary
folder. Prints, for growing numbers, requests a second and how much memory the process took beyond what it had before, then
the same of whole runs, from the data to the scores, which hold all their samples in memory.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mill.api.model import MillModel, ModelCapabilities
from mill.api.request import LOGLIKELIHOOD, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Task, TaskType, Value
from mill.execute.executor import Executor, LocalBackend
from mill.models.spec.parse import Spec
from mill.runs.evaluate import RunConfig
from mill.runs.plan import plan_run
from mill.store.record import Record
from mill.tasks.load import Selection

COUNTS = (20_000, 50_000, 100_000, 200_000, 400_000)


class AtOnce(MillModel):
    """Answers without computing anything."""

    capabilities = ModelCapabilities(supports_logprobs=True)
    batch_size = 256

    @property
    def model_name(self) -> str:
        return "at-once"

    def _loglikelihood_batch(self, batch: list[Request]) -> list[tuple[float, bool]]:
        return [(-1.0, True)] * len(batch)


def questions(count: int) -> Iterator[Request]:
    for number in range(count // 4):
        context = f"Question {number}: which of these four is the right one? " * 3
        for choice in "ABCD":
            yield Request(LOGLIKELIHOOD, context, f" {choice}")


def measure(count: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        record = Record(Path(temporary))
        executor = Executor(LocalBackend(AtOnce()), record, quiet=True)
        executor.run(questions(1000))
        gc.collect()
        before, started = resident(), time.perf_counter()
        executor.run(questions(count))
        seconds = time.perf_counter() - started
        record.close()
        taken = resident() - before
        started = time.perf_counter()
        known = Executor(LocalBackend(AtOnce()), Record(Path(temporary)), quiet=True)
        known.run(questions(count))
        assert known.tally.computed == 0 and executor.tally.computed >= count
        again = time.perf_counter() - started
        print(f"{count:9,} {count / seconds:12,.0f} {taken / 2**20:12.1f} {count / again:14,.0f}", flush=True)


class FourChoices(Task):
    """The requested number of samples, each with four choices."""

    task_type = TaskType.MULTIPLE_CHOICE
    metrics = {"acc": "mean"}

    def __init__(self, count: int) -> None:
        super().__init__("four_choices")
        self.count = count

    def samples(self) -> Sequence[Sample]:
        return [Sample(str(number), {"number": number}) for number in range(self.count // 4)]

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        context = f"Question {sample.id}: which of these four is the right one? " * 3
        return [Request(LOGLIKELIHOOD, context, f" {choice}") for choice in "ABCD"]

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {"acc": float(responses[0].score == -1.0)}


def measure_run(count: int) -> None:
    """A whole run: planned, computed, scored and written."""
    with tempfile.TemporaryDirectory() as temporary:
        before, started = resident(), time.perf_counter()
        selection = Selection((FourChoices(count),), ())
        run = plan_run(Spec("at-once"), AtOnce(), selection, RunConfig(output_dir=Path(temporary)))
        planned = time.perf_counter() - started
        started = time.perf_counter()
        outcome = run.execute(quiet=True)
        executed = time.perf_counter() - started
        assert outcome.tally.computed == count
        taken = (resident() - before) / count
        print(f"{count:9,} {count / planned:12,.0f} {count / executed:12,.0f} {taken:14,.0f}", flush=True)


def resident() -> int:
    status: dict[str, Any] = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]) * 1024


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--most", type=int, default=COUNTS[-1])
    parser.add_argument("--only", type=int, help="one number of requests, in this process")
    parser.add_argument("--run", action="store_true", help="a whole run, with --only")
    given = parser.parse_args()
    if given.only:
        (measure_run if given.run else measure)(given.only)
        return 0
    for more, title in (
        ([], " requests   requests/s   MiB more   known again/s"),
        (["--run"], " requests    planned/s   executed/s  bytes each"),
    ):
        print(title, flush=True)
        for count in (count for count in COUNTS if count <= given.most):  # each in its own process
            subprocess.run([sys.executable, __file__, "--only", str(count), *more], check=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
