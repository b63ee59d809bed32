"""What tests cost: a pytest plugin that measures each test and shared fixture, and names the dearest at the end.

Seconds of a processor are those of the testing process and of those that it started and waited for.
"""

from __future__ import annotations

import resource
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import pytest

from tests import forking

SLOWEST = 10
DEAREST = 50


@dataclass
class Cost:
    wall: float = 0.0
    own: float = 0.0
    children: float = 0.0
    count: int = 0

    def add(self, wall: float, own: float, children: float) -> None:
        self.wall, self.own, self.children = self.wall + wall, self.own + own, self.children + children
        self.count += 1

    @property
    def processor(self) -> float:
        return self.own + self.children


def clocks() -> tuple[float, float, float]:
    """Wall, own processor and children's processor seconds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic(), time.process_time(), usage.ru_utime + usage.ru_stime + forking.children_seconds


def since(start: tuple[float, float, float]) -> list[float]:
    return [now - then for now, then in zip(clocks(), start, strict=True)]


class Meter:
    """In each testing process: measures, and hands the figures to the report of the test."""

    def __init__(self) -> None:
        self.start = clocks()
        self.fixtures: list[list[Any]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any], request: Any) -> Generator[None, Any, Any]:
        start = clocks()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                where = getattr(fixturedef.func, "__module__", "").removeprefix("tests.")
                self.fixtures.append([f"{where}:{fixturedef.argname}", *since(start)])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, Any]:
        report = yield
        report.cost, report.fixtures = since(self.start), self.fixtures
        self.start, self.fixtures = clocks(), []
        return report


class Table:
    """In the process that prints: adds up what the reports say."""

    def __init__(self, show_all: bool) -> None:
        self.show_all = show_all
        self.files: dict[str, Cost] = defaultdict(Cost)
        self.fixtures: dict[str, Cost] = defaultdict(Cost)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.files[report.nodeid.partition("::")[0].removeprefix("tests/")].add(*getattr(report, "cost", (0, 0, 0)))
        for name, *cost in getattr(report, "fixtures", []):
            self.fixtures[name].add(*cost)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        write = terminalreporter.write_line
        by_wall = sorted(self.files.items(), key=lambda entry: -entry[1].wall)
        slowest = ", ".join(f"{name} {cost.wall:.0f} s" for name, cost in by_wall[:SLOWEST] if cost.wall >= 1)
        if slowest:
            write(f"slowest files: {slowest}")
        if not self.show_all:
            return
        total = sum(cost.processor for cost in self.files.values())
        write(f"{total / 60:.1f} minutes of processor time in {len(self.files)} files")
        for title, costs in (("file", self.files), ("shared fixture", self.fixtures)):
            write(f"\n| {title} | processor s | of it in other processes | wall s | times |")
            write("| --- | ---: | ---: | ---: | ---: |")
            for name, cost in sorted(costs.items(), key=lambda entry: -entry[1].processor)[:DEAREST]:
                times = cost.count // 3 if title == "file" else cost.count  # set-up, call and tear-down are a report each
                write(f"| {name} | {cost.processor:.1f} | {cost.children:.1f} | {cost.wall:.1f} | {times} |")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", action="store_true", help="print what the dearest files and shared fixtures cost")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Meter(), "mill-meter")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Table(config.getoption("--times")), "mill-times")
