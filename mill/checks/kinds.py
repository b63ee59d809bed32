"""The kinds of checks: each is one registered class, from which its command, help, tables, report and page follow."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from mill.api.registry import checks
from mill.checks.glossary import METRICS
from mill.checks.result import Check
from mill.options.option import hints

if TYPE_CHECKING:
    from mill.checks.subjects import CheckConfig
    from mill.options.definitions import CheckOptions

BUILTIN = {
    "compare": "mill.checks.compare:Compare",
    "sweep": "mill.checks.compare:Sweep",
    "diff": "mill.checks.compare:Diff",
    "stress": "mill.checks.stress:Stress",
    "determinism": "mill.checks.determinism:Determinism",
    "decide": "mill.checks.decide:Decide",
}
TOP_LOGPROBS = 10  # requested for each generated token


@dataclass(frozen=True)
class Chart:
    """`draw` names one of the charts in mill/view/charts.py."""

    draw: str
    metrics: tuple[str, ...] = ()
    heading: str = ""
    unit: str = ""


@dataclass(frozen=True)
class Given:
    """What the user gave: the options of this kind, those of every check, and the names of all that were typed."""

    own: Any
    options: CheckOptions
    config: CheckConfig
    typed: Collection[str] = ()


class OneModel(msgspec.Struct, kw_only=True, frozen=True):
    """The options of a kind that is about one model."""

    model: Annotated[str, Meta(description="Model spec.")]
    backend: Annotated[str | None, Meta(description="Backend.", extra=hints(default="detected from the spec"))] = None


class CheckKind:
    """A question about runs. The docstring of a subclass is the help of its command."""

    name: ClassVar[str] = ""
    examples: ClassVar[str] = ""
    prompts: ClassVar[str] = "numerics"
    """The suite where neither prompts nor tasks are given."""
    chat: ClassVar[bool | None] = None
    """The default of --chat; None applies the template to prompts where every model has one."""
    top_logprobs: ClassVar[int | None] = TOP_LOGPROBS
    Options: ClassVar[type[msgspec.Struct]] = msgspec.Struct
    """The options that this kind alone has."""
    takes: ClassVar[tuple[str, ...]] = ()
    """Which options of `CheckOptions` it takes, beside those of every check."""
    metrics: ClassVar[Collection[str]] = METRICS
    """What it may measure; rules on other metrics are not for it."""
    charts: ClassVar[Sequence[Chart]] = ()

    def make(self, given: Given) -> Check:
        """Answer the question: open the models, run them, measure."""
        raise NotImplementedError


for _name, _target in BUILTIN.items():
    checks.add(_name, _target)


def kind_of(name: str) -> CheckKind:
    """The kind of a check; that of a package which is not installed here has no charts."""
    kind: CheckKind = checks.get(name)() if name in checks else CheckKind()
    return kind
