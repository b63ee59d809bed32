"""Samples of a finished test set: how often early decisions are wrong, how soon they come, how often intervals are right.

    python benchmarks/sequential.py results/base/default results/quantized/default --metric acc --output sequential.json

The two run folders have the same tasks. Their values are the population, so the true means are known; each permutation is an
order in which a run could have met the samples. Decisions are those of `mill.metrics.sequential`, intervals those of
`mill.metrics.finite_population` with the tasks as strata. Needs numpy and scipy; 3 minutes of one core for MMLU.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import stopping_rules as rules

from mill.metrics.finite_population import UNIT, Stratum, planned_size, stratified_mean
from mill.metrics.sequential import Bets, ShareEvidence
from mill.store.folder import RunFolder
from mill.store.sample_row import read_rows

ALPHA = 0.05
EVERY = 100  # values between the looks of a decision
CHUNK = 100  # orders in memory
POINTS = (1, 2, 4, 8)
SIZES = (300, 1000, 2000, 5000)
POWER = 0.8416212335729143  # the normal quantile of a power of 80 %
CHECKED = 5  # orders that also go through mill's classes
Rule = Callable[..., np.ndarray]


def read_values(folder: Path, metric: str) -> dict[str, dict[str, float]]:
    """Task -> sample -> value, the mean over repeats."""
    run, found = RunFolder(folder), {}
    for task in run.manifest()["tasks"]:
        rows = (row for _, row in read_rows(run.samples_file(task)))
        values = {str(row.id): row.values.get(metric) for row in rows}
        found[task] = {name: math.fsum(repeats) / len(repeats) for name, repeats in values.items() if repeats}
    return found


def paired(first: dict[str, dict[str, float]], second: dict[str, dict[str, float]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """The values of both runs on the samples that both have, task by task."""
    pairs = []
    for task in sorted(set(first) & set(second)):
        names = sorted(set(first[task]) & set(second[task]))
        if names:
            pairs.append((np.array([first[task][name] for name in names]), np.array([second[task][name] for name in names])))
    return pairs


def orders(values: np.ndarray, permutations: int) -> Iterator[np.ndarray]:
    random = np.random.default_rng(0)
    for start in range(0, permutations, CHUNK):
        rows = min(CHUNK, permutations - start)
        yield random.permuted(np.tile(values, (rows, 1)), axis=1)


def decisions(values: np.ndarray, methods: dict[str, Rule], evidence: Any, permutations: int) -> dict[str, Any]:
    """For each method, each distance of the bound below the mean in points and each number of values between looks: when it
    decides, and whether it decides that the mean is above the bound or below. `evidence` is mill's class for such values."""
    size, truth, whole = len(values), float(values.mean()), evidence is ShareEvidence
    found: dict[str, Any] = defaultdict(lambda: defaultdict(list))
    for number, chunk in enumerate(orders(values, permutations)):
        for points in (0, *POINTS):
            bound = truth - points / 100 * (1 if whole else 0.5)  # differences between -1 and 1 are scaled to half
            below = round(size * bound) if whole else bound
            above = size - below if whole else 1 - bound
            for name, rule in methods.items():
                hits = rule(chunk, below, ALPHA), rule(1 - chunk, above, ALPHA)
                for every in (EVERY,) if points else (rules.STEP, EVERY):
                    up, down = (rules.first_look(one, size, every) for one in hits)
                    found[name]["n", points, every] += [np.minimum(up, down)]
                    found[name]["above", points, every] += [up < down]
                    found[name]["below", points, every] += [down < up]
                    if not number and name == "mill":
                        check(chunk[:CHECKED], partial(evidence, size, below), up, every)
                        check(1 - chunk[:CHECKED], partial(evidence, size, above), down, every)
    return {name: {key: np.concatenate(parts) for key, parts in entry.items()} for name, entry in found.items()}


def check(chunk: np.ndarray, start: Callable[[], Any], expected: np.ndarray, every: int) -> None:
    """mill's own class stops at the same look."""
    size = chunk.shape[1]
    for row, n in zip(chunk.tolist(), expected, strict=False):
        evidence, seen = start(), 0
        while evidence.capital < 1 / ALPHA and seen < size:
            evidence.update(row[seen : seen + every])
            seen = min(seen + every, size)
        assert seen in (n, size), (seen, n)


def fixed_size(values: np.ndarray, distance: float) -> int:
    """The sample of a one-sided z-test at 5 % with a power of 80 %, planned with the true spread and the true distance."""
    plain = ((rules.Z90 + POWER) * float(values.std()) / distance) ** 2
    return math.ceil(plain / (1 + plain / len(values)))


def show_decisions(title: str, values: np.ndarray, scale: float, found: dict[str, Any]) -> dict[str, Any]:
    """Two tables, and their content."""
    result: dict[str, Any] = {"null": {}, "distances": {}}
    keys = [(side, every) for side in ("above", "below") for every in (rules.STEP, EVERY)]
    heads = " | ".join(f"{side}, a look each {every}" for side, every in keys)
    print(f"\n| {title}, mean equal to the bound: decided as, % | {heads} |")
    print("| --- |" + " ---: |" * 4)
    for name, entry in found.items():
        result["null"][name] = {f"{side}, each {every}": float(entry[side, 0, every].mean()) for side, every in keys}
        print(f"| {name} | " + " | ".join(f"{100 * share:.1f}" for share in result["null"][name].values()) + " |")
    print(
        f"\n| {title}: samples until a decision, median (90 %), wrong % | "
        + " | ".join(f"{p} points" for p in POINTS)
        + " |"
    )
    print("| --- |" + " ---: |" * len(POINTS))
    for name, entry in found.items():
        cells = {}
        for points in POINTS:
            n, wrong = entry["n", points, EVERY], entry["below", points, EVERY]
            cells[points] = {"median": float(np.median(n)), "p90": float(np.quantile(n, 0.9)), "wrong": float(wrong.mean())}
        result["distances"][name] = cells
        shown = (f"{one['median']:,.0f} ({one['p90']:,.0f}), {100 * one['wrong']:.1f}" for one in cells.values())
        print(f"| {name} | " + " | ".join(shown) + " |")
    planned = {points: fixed_size(values, points / 100 / scale) for points in POINTS}
    result["distances"]["fixed sample"] = planned
    print("| one test of a fixed sample, power 80 % | " + " | ".join(f"{n:,}" for n in planned.values()) + " |")
    return result


def draw_strata(groups: list[np.ndarray], n: int, random: np.random.Generator) -> list[Stratum]:
    """A sample in proportion to the strata, largest remainders first."""
    exact = np.array([len(values) for values in groups], dtype=float)
    exact *= n / exact.sum()
    counts = np.floor(exact).astype(int)
    counts[np.argsort(counts - exact, kind="stable")[: n - counts.sum()]] += 1
    strata = []
    for values, count in zip(groups, counts, strict=True):
        chosen = random.permutation(len(values))[:count]
        strata.append(Stratum(values[chosen].tolist(), len(values)))
    return strata


def intervals(tasks: list[np.ndarray], permutations: int) -> dict[str, Any]:
    """The share of intervals that have the true mean, and half their mean length."""
    together = np.concatenate(tasks)
    truth, random = float(together.mean()), np.random.default_rng(1)
    ways = {"simple random sample": [together], **({"stratified by task": tasks} if len(tasks) > 1 else {})}
    result: dict[str, Any] = {}
    for name, groups in ways.items():
        for n in (size for size in SIZES if size < len(together)):
            found = [stratified_mean(draw_strata(groups, n, random), limits=UNIT) for _ in range(permutations)]
            ends = np.array([(one.low, one.high) for one in found], dtype=float)
            inside = (ends[:, 0] <= truth) & (truth <= ends[:, 1])
            result.setdefault(name, {})[n] = {
                "coverage": float(inside.mean()),
                "half_width": float((ends[:, 1] - ends[:, 0]).mean() / 2),
            }
    return result


def show_intervals(result: dict[str, Any]) -> None:
    sizes = list(next(iter(result.values())))
    print("\n| 95 % interval: has the true mean, % (half its length) | " + " | ".join(f"n = {n:,}" for n in sizes) + " |")
    print("| --- |" + " ---: |" * len(sizes))
    for name, cells in result.items():
        shown = (f"{100 * one['coverage']:.1f} (± {one['half_width']:.4f})" for one in cells.values())
        print(f"| {name} | " + " | ".join(shown) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs=2, type=Path, help="run folders with the same tasks; the second is sampled")
    parser.add_argument("--metric", default="acc", help="a metric of zeros and ones")
    parser.add_argument("--permutations", type=int, default=2000)
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    arguments = parser.parse_args()
    pairs = paired(*(read_values(folder, arguments.metric) for folder in arguments.runs))
    first, second = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    print(
        f"{len(first):,} samples of {len(pairs)} tasks, {arguments.metric} {first.mean():.4f} and {second.mean():.4f}, "
        f"different on {100 * (first != second).mean():.1f} %; {arguments.permutations:,} permutations"
    )
    count = arguments.permutations
    shares: dict[str, Rule] = {"mill": rules.share_evidence, "prior-posterior ratio": rules.prior_posterior}
    means: dict[str, Rule] = {"mill": rules.bets, "hedged bets": rules.hedged, "z-test at each look": rules.z_test}
    result: dict[str, Any] = {"samples": len(first), "tasks": len(pairs), "permutations": count}
    result["share"] = show_decisions(arguments.metric, second, 1.0, decisions(second, shares, ShareEvidence, count))
    scaled = (second - first + 1) / 2
    result["difference"] = show_decisions("difference", scaled, 2.0, decisions(scaled, means, Bets, count))
    result["intervals"] = intervals([values for _, values in pairs], count)
    show_intervals(result["intervals"])
    result["planned for ± 2 points"] = planned_size(len(first), 0.02)
    print(f"\nplanned for ± 2 points: {result['planned for ± 2 points']:,} samples")
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
