"""The budget of a run while it executes: how many requests it has room for, and what each of them spent.

All amounts are those of the whole run: of this process, of others that work on it at the same time, and of earlier ones. A
request counts from the moment it is sent: with its estimated prompt and the most tokens it may generate until its response
is there, then with what the response says.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mill.api.budget import (
    NO_TOKENS,
    BudgetLimits,
    Prices,
    TokenUsage,
    shown_dollars,
    shown_seconds,
    shown_tokens,
)

MODEL, JUDGE = "model", "judge"  # the accounts of a run
DIALOGS = 64  # at most so many at a time, so that the budget ends with dialogs that are over
_TIGHT_PART, _TIGHT_REQUESTS = 1 / 8, 64  # so near to the limit what others spend is read before every request
ROUNDING = 1e-9

Amounts = dict[str, TokenUsage]
"""Tokens by account."""


@dataclass
class Spending:
    """What one process has spent, what it has in flight, and what it has given to a model without a gate that does not
    compute it yet. Of a process that was killed, requests in flight count as if they had used all they may; what its model
    had not begun does not count."""

    spent: Amounts = field(default_factory=dict)
    in_flight: Amounts = field(default_factory=dict)
    planned: Amounts = field(default_factory=dict)


@dataclass(frozen=True)
class OtherSpending:
    """The sums over all other processes. `pending` is in flight or planned by those that are alive."""

    spent: Amounts = field(default_factory=dict)
    pending: Amounts = field(default_factory=dict)


class SpendingLedger(Protocol):
    """Where processes of a run find what the others spend."""

    name: str
    """Of this process in the run."""

    def write(self, own: Spending, *, at_once: bool) -> None:
        """Publish what this process has spent: before this returns, or what it is by then within a second."""

    def others(self, *, fresh: bool) -> OtherSpending:
        """What the others had spent, half a second ago at most, or now."""

    def seconds(self) -> float:
        """The wall time in which any process worked on the run."""


class RunBudget:
    """The limits of a run, and what is spent of them. Used by several threads."""

    def __init__(self, ledger: SpendingLedger, limits: BudgetLimits, prices: Prices, *, processes: int = 1) -> None:
        """`processes` share what is left equally, as ranks do."""
        self.limits, self.prices, self.processes = limits, prices, processes
        self.stopped = ""
        """Which limit ended the run; empty as long as none did."""
        self.lock = threading.RLock()
        self.own = Spending()
        self.name, self._ledger = ledger.name, ledger
        ledger.write(self.own, at_once=bool(limits))

    def publish(self) -> None:
        """Without limits no process waits for it: the ledger then reads it from time to time."""
        if self.limits:
            own = self.own
            self._ledger.write(Spending(dict(own.spent), dict(own.in_flight), dict(own.planned)), at_once=True)

    def reached(self, *, fresh: bool = False) -> str:
        """The limit that is used up, in words; empty where none is."""
        limits = self.limits
        tokens, dollars = self.spent(fresh=fresh) if limits.tokens is not None or limits.cost is not None else (0, 0.0)
        if limits.tokens is not None and tokens >= limits.tokens:
            return f"the budget of {shown_tokens(limits.tokens)} tokens"
        if limits.cost is not None and dollars >= limits.cost - ROUNDING:
            return f"the budget of {shown_dollars(limits.cost)}"
        if limits.seconds is not None and self._ledger.seconds() >= limits.seconds:
            return f"the budget of {shown_seconds(limits.seconds)}"
        return ""

    def spent(self, *, fresh: bool = False) -> tuple[int, float]:
        """Tokens and dollars of the whole run, without requests that are in flight."""
        with self.lock:
            return self._sums([self.own.spent, self._ledger.others(fresh=fresh).spent])

    def spent_text(self) -> str:
        """What the whole run has spent, in words; empty where it has no limits."""
        if not self.limits:
            return ""
        tokens, dollars = self.spent(fresh=True)
        cost = f", {shown_dollars(dollars)}" if any(self.prices.values()) else ""
        return f"{tokens:,} tokens{cost} and {self._ledger.seconds():.1f} s in all sessions of the run"

    def seconds_left(self) -> float:
        return math.inf if self.limits.seconds is None else self.limits.seconds - self._ledger.seconds()

    def room(self) -> tuple[float, float]:
        """Tokens and dollars that are neither spent nor in flight anywhere."""
        with self.lock:
            others = self._ledger.others(fresh=False)
            tokens, dollars = self._sums([self.own.spent, others.spent])
            pending, most = self._sums([self.own.in_flight, self.own.planned, others.pending], most=True)
        limits = self.limits
        return (
            math.inf if limits.tokens is None else limits.tokens - tokens - pending,
            math.inf if limits.cost is None else limits.cost - dollars - most,
        )

    def others_pending(self) -> bool:
        """Whether other processes have requests in flight that may leave room. Ranks do not wait for each other."""
        pending = self._ledger.others(fresh=False).pending
        return self.processes == 1 and any(usage.total for usage in pending.values())

    def reserve(self, where: Amounts, account: str, usage: TokenUsage) -> bool:
        """Count an amount as in flight or planned, unless there is no room for it. Where nothing else is in flight, it is
        counted in any case: a request larger than what is left is still sent, as the last one.

        The amount is published before the others are read, so that two processes cannot take the same room.
        """
        with self.lock:
            room = self.room()
            tokens, dollars = self._sums([{account: usage}], most=True)
            limit = self.limits.tokens or math.inf
            tight = room[0] - tokens < max(limit * _TIGHT_PART, tokens * _TIGHT_REQUESTS)
            tight |= room[1] - dollars < max((self.limits.cost or math.inf) * _TIGHT_PART, dollars * _TIGHT_REQUESTS)
            alone = not any(one.total for amounts in (self.own.in_flight, self.own.planned) for one in amounts.values())
            where[account] = where.get(account, NO_TOKENS) + usage
            self.publish()
            if tight:
                self._ledger.others(fresh=True)
            left = self.room()
            fits = left[0] >= 0 and left[1] >= -ROUNDING
            if fits or (alone and not self.others_pending()):
                return True
            where[account] -= usage
            self.publish()
            return False

    def _sums(self, amounts: Sequence[Amounts], *, most: bool = False) -> tuple[int, float]:
        tokens, dollars = 0, 0.0
        for account, usage in (pair for one in amounts for pair in one.items()):
            price = self.prices.get(account)
            tokens += usage.total
            dollars += 0.0 if price is None else price.most(usage) if most else price.cost(usage)
        return tokens, dollars


def summed(amounts: Sequence[Mapping[str, TokenUsage]]) -> Amounts:
    total: Amounts = {}
    for account, usage in (pair for one in amounts for pair in one.items()):
        total[account] = total.get(account, NO_TOKENS) + usage
    return total
