"""Budgets of a run: tokens, dollars and seconds that it may spend, prices, and what a model asks before each call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Protocol

from msgspec import Meta

from mill.api.errors import MillError
from mill.api.request import GENERATE, MULTI_ROUND, Request
from mill.api.response import Response

MILLION = 1_000_000
MOST_TOKENS = 10**9  # of one prompt or answer: a larger count is taken as this

TokenSum = Annotated[int, Meta(ge=0, le=10**18)]


class BudgetReached(MillError):
    """The budget is used up: a call was not sent, whose request has no response and stays open, or a run that another one
    needs is not complete."""

    exit_code = 4


@dataclass(slots=True)
class TokenUsage:
    """Tokens. `cached` are those of the prompt that the server read from its cache, `reasoning` those of the output that
    are reasoning. It does not change; it is not frozen because every response makes some, and that takes longer."""

    prompt: TokenSum = 0
    output: TokenSum = 0
    cached: TokenSum = 0
    reasoning: TokenSum = 0

    @property
    def total(self) -> int:
        return self.prompt + self.output

    def to_dict(self) -> dict[str, int]:
        return {"prompt": self.prompt, "output": self.output, "cached": self.cached, "reasoning": self.reasoning}

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            self.prompt + other.prompt,
            self.output + other.output,
            self.cached + other.cached,
            self.reasoning + other.reasoning,
        )

    def __sub__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            self.prompt - other.prompt,
            self.output - other.output,
            self.cached - other.cached,
            self.reasoning - other.reasoning,
        )


NO_TOKENS = TokenUsage()


@dataclass(frozen=True)
class Price:
    """Dollars for a million tokens. Cached and reasoning tokens cost as others, unless they have a price of their own."""

    prompt: float
    output: float
    cached: float | None = None
    reasoning: float | None = None

    def cost(self, usage: TokenUsage) -> float:
        cached = min(usage.cached, usage.prompt) if self.cached is not None else 0
        reasoning = min(usage.reasoning, usage.output) if self.reasoning is not None else 0
        dollars = self.prompt * (usage.prompt - cached) + (self.cached or 0.0) * cached
        dollars += self.output * (usage.output - reasoning) + (self.reasoning or 0.0) * reasoning
        return dollars / MILLION

    def most(self, usage: TokenUsage) -> float:
        """The cost where none of the prompt is cached and all of the output may be reasoning."""
        return (self.prompt * usage.prompt + max(self.output, self.reasoning or 0.0) * usage.output) / MILLION

    def __str__(self) -> str:
        names = {"prompt": "in", "output": "out"}
        known = {names.get(one.name, one.name): getattr(self, one.name) for one in fields(self)}
        return ",".join(f"{name}={value:g}" for name, value in known.items() if value is not None)


@dataclass(frozen=True)
class BudgetLimits:
    """What a whole run may spend; None means no such limit."""

    tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.tokens, self.cost, self.seconds))


Prices = Mapping[str, Price | None]
"""The price of each account of a run: of its model, and of its judge where it has one."""


class CallMeter(Protocol):
    """What a model that sends calls asks of the run's meter. Used by several threads."""

    def room(self, request: Request) -> bool:
        """Whether a request, or one whose call failed, may be sent now; it then counts as in flight."""

    def add(self, request: Request, response: Response) -> None:
        """Count a response that is not used; the executor counts the others."""

    def spend(self, request: Request, *, whole: bool = False) -> None:
        """Count a call that failed and is sent again, or with `whole` one that is abandoned."""

    def patience_s(self) -> float | None:
        """How long calls in flight are awaited; None where time is not limited."""

    def reached(self) -> str:
        """The limit that is used up; empty where none is."""


def most_output(request: Request) -> int:
    """The most tokens that an answer may have; 0 for requests that generate no text."""
    return min(int(request.options.get("max_gen_toks", 0)), MOST_TOKENS) if request.kind in (GENERATE, MULTI_ROUND) else 0


_SUFFIXES = ((10**9, "B"), (10**6, "M"), (10**3, "k"))


def shown_tokens(count: int) -> str:
    """20M, 1.5M, 500k or 812, whichever is exact."""
    for unit, suffix in _SUFFIXES:
        if count >= unit and count * 100 % unit == 0:
            return f"{count / unit:g}{suffix}"
    return f"{count:,}"


def shown_seconds(seconds: float) -> str:
    """1h30m, 90s or 0.5s."""
    if seconds < 60 or seconds != int(seconds):
        return f"{seconds:g}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (rest, "s"))
    return "".join(f"{count}{unit}" for count, unit in parts if count)


def shown_dollars(dollars: float) -> str:
    """Cents, or as many digits as a small amount needs."""
    cents = dollars >= 1 or dollars == round(dollars, 2)
    return f"${dollars:,.2f}" if cents else f"${dollars:.3g}"
