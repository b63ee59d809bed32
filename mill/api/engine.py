"""What gave an answer: the build that ran (versions, weights, settings) and the instance of it (one start of a server).

An answer keeps the id of its engine, `build.instance`: two digests, each empty where nothing is known. Whether a recorded
answer may stand for one that would be given now depends on them, and on its age.
"""

from __future__ import annotations

import calendar
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from typing import Any

from mill import __version__
from mill.support.files import time_of
from mill.support.terminal import one_line

_TIME = "%Y-%m-%dT%H:%M:%SZ"
UNKNOWN = "an unknown build"
EVERY, BUILD, SAME, INSTANCE = "every", "build", "same", "instance"


@dataclass(frozen=True)
class Engine:
    """`build` and `instance` are plain values by name, as they stand in the manifest. Nothing known is an unknown engine."""

    build: Mapping[str, Any] = field(default_factory=dict)
    instance: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def id(self) -> str:
        return f"{_digest(self.build)}.{_digest(self.instance)}" if self.build or self.instance else ""

    def differs(self, other: Engine) -> str:
        """What another build says otherwise; empty where nothing that both say differs."""
        shared = [name for name in self.build if name in other.build and self.build[name] != other.build[name]]
        return ", ".join(
            f"{name} was {_short(self.build[name])}, is {_short(other.build[name])}"
            if isinstance(self.build[name], str)
            else f"other {name}"
            for name in shared
        )

    @property
    def label(self) -> str:
        """A name for people, such as `vllm 0.31.0`."""
        return next((f"{name} {_short(value)}" for name, value in self.build.items() if isinstance(value, str)), UNKNOWN)


def _short(value: Any) -> str:
    return one_line(str(value)[:40])


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:8] if values else ""


def build_of(engine: str) -> str:
    """The build of an engine's id; empty where it is unknown, as of records of earlier versions."""
    return engine.partition(".")[0]


def package_versions(*names: str) -> dict[str, str]:
    """Those of the packages that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def local_engine(*packages: str, **settings: Any) -> Engine:
    """A model in this process: mill is a part of what computes its answers."""
    return Engine({**package_versions(*packages), "mill": __version__, **settings})


@dataclass(frozen=True)
class Reuse:
    """Which recorded answers stand for those that the engines of `now` would give.

    | rule | takes answers of |
    | --- | --- |
    | `every` | every engine |
    | `build` | the same build, and where either build is unknown |
    | `same` | the same build; an unknown one where today's is unknown too |
    | `instance` | the same known instance, or such as `same` takes that were given less than `within_s` seconds ago |
    """

    rule: str = BUILD
    now: frozenset[str] = frozenset()
    within_s: float = 0.0

    def allows(self, engine: str, recorded: float) -> bool:
        """`recorded` is when the answer was given, in seconds since the epoch."""
        build, builds = build_of(engine), {build_of(one) for one in self.now} or {""}
        if self.rule in (EVERY, BUILD):
            return self.rule == EVERY or build in builds or not build or "" in builds
        known_instance = engine in self.now and engine != "" and not engine.endswith(".")
        recent = time.time() - recorded < self.within_s
        return build in builds and (self.rule == SAME or known_instance or recent)


ANY = Reuse(EVERY)


@dataclass(frozen=True)
class Answered:
    """By which builds answers were given, and since when (in UTC)."""

    builds: tuple[str, ...] = ()
    since: str = ""

    def __str__(self) -> str:
        """Empty where there are no answers."""
        if not self.since:
            return ""
        seconds = time.time() - calendar.timegm(time.strptime(self.since, _TIME))
        return f"given {_ago(seconds)} by {' and '.join(self.builds)}"


def answered_by(engines: Mapping[str, Engine], answers: Sequence[tuple[str, str]]) -> Answered:
    """`answers` are ids of engines, each with the name of a file with answers of it, which is empty for those given now."""
    if not answers:
        return Answered()
    labels = {build_of(name): engine.label for name, engine in engines.items()}
    since = min(time_of(name) if name else time.time() for _, name in answers)
    builds = dict.fromkeys(labels.get(build_of(engine), UNKNOWN) for engine, _ in answers)
    return Answered(tuple(builds), time.strftime(_TIME, time.gmtime(since)))


def _ago(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60), ("seconds", 1)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit} ago"
    return "just now"
