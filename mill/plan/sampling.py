"""Which samples of the data run: all, the first rows, named ones, or a random sample that represents the whole.

A random order depends on the seed, the task and the samples' ids alone, so it is the same in every process, and a larger
sample contains a smaller one.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from mill.api.errors import SpecError
from mill.api.task import Benchmark, Sample, Task
from mill.store.schema import SampledData
from mill.tasks import hooks
from mill.tasks.load import Selection

T = TypeVar("T")

SMALLEST = 5  # samples of a category, on average, for which it is a stratum
LEAST = 2  # samples of each task of a random sample: one alone shows no variance


@dataclass(frozen=True)
class SampleChoice:
    """What the user gave; at most one of limit, sample, precision and decide."""

    limit: int | float | None = None
    """The first rows of each task: a count or a fraction."""
    sample: int | float | None = None
    """A random sample of each task or benchmark: a count or a fraction."""
    precision: float | None = None
    """A random sample whose 95 % interval is at most this much to either side."""
    decide: Claim | None = None
    """Random samples until this claim about the score is decided."""
    sample_ids: Collection[str] = ()

    def __post_init__(self) -> None:
        given = [name for name in ("limit", "sample", "precision", "decide") if getattr(self, name) is not None]
        if len(given) > 1:
            raise SpecError(f"--{given[0]} and --{given[1]} both choose the samples: give one of them")
        if self.sample_ids and given and given[0] != "limit":
            raise SpecError(f"--sample_ids and --{given[0]} both choose the samples: give one of them")

    @property
    def staged(self) -> bool:
        """Whether the run takes its samples one part after another, until a part was the last."""
        return self.precision is not None or self.decide is not None

    def data(self, task: Task, samples: Sequence[Sample], seed: int) -> SampledData | None:
        """What the results of a task say about its samples; None for all of them."""
        if self.decide is not None or self.precision is not None or self.sample is not None:
            sizes = {category: len(indices) for category, indices in _by_category(task, samples).items()}
            return SampledData("random" if self.decide is None else "sequential", seed, sizes)
        if self.sample_ids:
            return SampledData("named")
        return SampledData("first") if resolve_count(self.limit, len(samples)) < len(samples) else None


@dataclass(frozen=True)
class SampleGroup:
    """What the user named, a task or a benchmark, with its tasks. A random sample is one of all of their samples."""

    name: str
    tasks: tuple[str, ...]


def groups_of(selection: Selection) -> list[SampleGroup]:
    """The largest benchmarks of a selection, and the tasks outside of them; each task is in one group."""
    known = {one.name: one for one in selection.benchmarks}
    inner = {name for one in selection.benchmarks for name in one.tasks if name in known}
    groups, taken = [], set[str]()
    for benchmark in selection.benchmarks:
        if benchmark.name not in inner:
            members = tuple(name for name in leaf_tasks(benchmark, known) if name not in taken)
            taken.update(members)
            groups.append(SampleGroup(benchmark.name, members))
    return groups + [SampleGroup(task.name, (task.name,)) for task in selection.tasks if task.name not in taken]


def leaf_tasks(benchmark: Benchmark, known: Mapping[str, Benchmark], within: tuple[str, ...] = ()) -> list[str]:
    """The tasks of a benchmark, each once. One that contains itself, which cannot run, is one of its own tasks."""
    found: dict[str, None] = {}
    for name in benchmark.tasks:
        inner = name in known and name not in within
        found |= dict.fromkeys(leaf_tasks(known[name], known, (*within, name)) if inner else [name])
    return list(found)


def resolve_count(given: int | float | None, total: int) -> int:
    """A count or a fraction as a number of samples, of which there are `total`."""
    if given is None:
        return total
    return min(total, math.ceil(total * given) if isinstance(given, float) else given)


def refuse_too_few(count: int, sizes: Collection[int], name: str, option: str) -> None:
    """A random sample of a benchmark has some samples of each of its tasks."""
    least = sum(min(LEAST, size) for size in sizes)
    if count < least:
        has = f"{name} has {len(sizes)} tasks, and each needs {LEAST} samples" if len(sizes) > 1 else f"{name} needs {least}"
        raise SpecError(f"--{option}: {count} samples are too few: {has}; give at least {least}")


def stratified_order(tasks: Mapping[str, tuple[Task, Sequence[Sample]]], seed: int) -> list[tuple[str, int]]:
    """Task and index of all samples of a group, in the order in which a stratified sample takes them: the first ones of each
    task, then all tasks in step with their sizes, and in each task its categories."""
    within = {
        name: _in_step(
            {key: _shuffled(indices, seed, name, samples) for key, indices in _by_category(task, samples).items()},
            lambda key, name=name: _draw(seed, name, f"category {key}"),  # type: ignore[misc]
        )
        for name, (task, samples) in tasks.items()
    }
    first = [(name, index) for name, order in within.items() for index in order[:LEAST]]
    order = _in_step(
        {name: [(name, index) for index in order] for name, order in within.items()}, lambda name: _draw(seed, name, "task")
    )
    known = set(first)
    return first + [one for one in order if one not in known]


def random_order(tasks: Mapping[str, tuple[Task, Sequence[Sample]]], seed: int) -> list[tuple[str, int]]:
    """Task and index of all samples of a group in a uniformly random order, in which sequential tests take them."""
    pairs = [(name, index, sample) for name, (_, samples) in tasks.items() for index, sample in enumerate(samples)]
    pairs.sort(key=lambda one: (random_position(seed, one[0], one[2]), one[0], one[1]))
    return [(name, index) for name, index, _ in pairs]


def random_position(seed: int, task: str, sample: Sample) -> float:
    """Where a sample is in the random order of its group, from 0 to 1."""
    return _draw(seed, task, f"sample {sample.id}")


def is_random(data: SampledData) -> bool:
    return data.method in ("random", "sequential")


def replaces(data: SampledData | None, earlier: SampledData | None) -> bool:
    """Whether a result over some samples replaces one over more of them, but not all: a random sample replaces first rows.
    Results of earlier versions are those of first rows."""
    new, old = data or SampledData("first"), earlier or SampledData("first")
    return is_random(new) and not is_random(old)


def describe_choice(data: SampledData, n: int, total: int) -> str:
    """What a reader of a score over some of the samples must know; empty where all ran, or none."""
    if n >= total or (n == 0 and data.method == "first"):
        return ""
    if data.method == "first":
        return f"first {n:,} rows, not a random sample (--sample draws one)"
    if data.method == "named":
        return "samples chosen by their ids, not a random sample"
    strata = f", stratified by {len(data.strata)} categories" if len(data.strata) > 1 and data.method == "random" else ""
    return f"random sample (seed {data.seed}{strata}): the intervals are about the score of the whole test set"


def _by_category(task: Task, samples: Sequence[Sample]) -> dict[str, list[int]]:
    """The samples of each category; those of all together, where categories are so small that they are no strata."""
    found: dict[str, list[int]] = {}
    for index, sample in enumerate(samples):
        found.setdefault(str(hooks.attempt(partial(task.category, sample)) or ""), []).append(index)
    return found if len(found) * SMALLEST <= len(samples) else {"": [*range(len(samples))]}


def _in_step(strata: Mapping[str, Sequence[T]], offset: Callable[[str], float]) -> list[T]:
    """All items, of each stratum in its order, such that any first part has nearly the same share of each stratum."""
    positions = [
        ((rank + offset(key)) / len(items), number, rank, item)
        for number, (key, items) in enumerate(strata.items())
        for rank, item in enumerate(items)
    ]
    return [item for *_, item in sorted(positions, key=lambda one: one[:3])]


def _shuffled(indices: Iterable[int], seed: int, task: str, samples: Sequence[Sample]) -> list[int]:
    return sorted(indices, key=lambda index: (random_position(seed, task, samples[index]), index))


def _draw(seed: int, task: str, what: str) -> float:
    """A number from 0 to 1 that depends on these alone."""
    digest = hashlib.blake2b(f"{seed}\0{task}\0{what}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


ALPHA = 0.05
_NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,2})?"
_CLAIM = re.compile(rf"\s*([A-Za-z][\w@.-]{{0,99}}?)\s*(>=|<=|>|<)\s*({_NUMBER})\s*")


@dataclass(frozen=True)
class Claim:
    """The mean of `metric` over the whole test set, compared with a bound. `alpha` is the largest error rate."""

    metric: str
    compare: str
    bound: float
    alpha: float = ALPHA

    @property
    def text(self) -> str:
        return f"{self.metric}{self.compare}{self.bound:g}"


def read_claim(text: str | None, alpha: float = ALPHA) -> Claim | None:
    if text is None:
        return None
    match = _CLAIM.fullmatch(text)
    if match is None:
        raise SpecError(f"{text[:60]!r} is no claim: give METRIC then > >= < or <= then NUMBER, such as acc>0.6")
    return Claim(match[1], match[2], float(match[3]), alpha)
