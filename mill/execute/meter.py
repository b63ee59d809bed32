"""The meter of a run: what its requests have spent, and whether the budget has room for more.

While a request is in flight in this process it counts with the most that it may use, then with what its response says. What
other processes and earlier sessions have spent is known a second later: docs/budgets.md says how far above a limit they may
end together.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Protocol

from mill.api.budget import (
    MOST_TOKENS,
    NO_TOKENS,
    BudgetLimits,
    Prices,
    TokenUsage,
    most_output,
    shown_dollars,
    shown_seconds,
    shown_tokens,
)
from mill.api.request import Request
from mill.api.response import Response
from mill.support.terminal import warn

MODEL, JUDGE = "model", "judge"  # the accounts of a run
DIALOGS = 64  # at most so many at a time, so that the budget ends with dialogs that are over
FIRST_WINDOW = 8  # requests, while nothing is known about their tokens and their time
PART = 0.5  # of what is left, that a model computes at once
WINDOW_S = 60.0  # of computing at once, where time is limited
GRACE_S = 30.0  # for calls in flight when the time is over; no more than this time itself
TOKENS_PER_CHARACTER = 0.25  # until a response has counted some
ROUNDING = 1e-9

Amounts = dict[str, TokenUsage]
"""Tokens by account."""


class Spending(Protocol):
    """Where the processes of a run tell each other what they have spent: a session file."""

    spent: Amounts
    """Of this process; the meter adds to it."""

    def refresh(self) -> None:
        """Look again now at what others have spent."""

    def spent_elsewhere(self) -> Amounts:
        """Of other processes and of earlier sessions, as of a second ago."""

    def run_seconds(self) -> float:
        """The wall time in which any process worked on the run."""


class Meter:
    """The limits of a run, and what is spent of them. Used by several threads."""

    def __init__(self, limits: BudgetLimits, prices: Prices, spending: Spending, *, processes: int = 1) -> None:
        """Of `processes` that work side by side, as ranks do, each takes an equal part of what is left."""
        self.limits, self.prices = limits, prices
        self.stopped = ""
        """Which limit ended the run; empty as long as none did."""
        self._spending, self._part = spending, PART / processes
        self._lock = threading.RLock()
        self.use(MODEL)

    def use(self, account: str) -> None:
        """From now on requests go to the model of this account."""
        self._account, self._prompts = account, PromptLengths()
        self._in_flight: dict[str, TokenUsage] = {}
        self._pending = NO_TOKENS
        self._answered = 0
        """The estimated tokens of requests that were answered: how long others take is proportional."""

    # For the executor.

    def fitting(self, requests: Sequence[Request], *, calls: bool, answering_s: float) -> int:
        """How many of these requests the model gets next, from the first on; 0 where the budget is used up, which stops the
        run. Nothing is in flight then.

        A model that sends `calls` asks for each of them. Another one gets as many as take half of what is left, if the model
        goes on as in the `answering_s` seconds so far; at least one, and few as long as nothing was answered.
        """
        with self._lock:
            self._in_flight, self._pending = {}, NO_TOKENS
            if self.limits:
                self._spending.refresh()
            self.stopped = self.stopped or self.reached()
            if self.stopped or calls or not self.limits:
                return 0 if self.stopped else len(requests)
            tokens, dollars = (self._part * left for left in self._left())
            if self.limits.seconds is not None and self._answered:
                seconds = min(PART * self.seconds_left(), WINDOW_S)
                tokens = min(tokens, seconds * self._answered / max(answering_s, ROUNDING))
            some, total = requests if self._answered else requests[:FIRST_WINDOW], NO_TOKENS
            for count, request in enumerate(some):
                total = total + self._size(request)
                if total.total > tokens or self._most(total) > dollars:
                    return max(1, count)
            return len(some)

    def add(self, request: Request, response: Response) -> None:
        """Count a response."""
        with self._lock:
            if self.limits:
                self._answered += (self._landed(request) or self._size(request)).total
                if response.prompt_tokens:
                    self._prompts.add(response.prompt_tokens, prompt_length(request))
            self._spend(self._usage(request, response))

    def stop(self, limit: str) -> None:
        """Another rank has reached this limit."""
        self.stopped = limit

    # For a model that sends calls (CallMeter).

    def room(self, request: Request) -> bool:
        """Whether a request may be sent: it then counts as in flight. One that is larger than what is left is sent where
        nothing else is in flight, as the last one."""
        with self._lock:
            self._landed(request)
            size, (tokens, dollars) = self._size(request), self._left()
            total = self._pending + size
            fits = total.total <= tokens and self._most(total) <= dollars + ROUNDING
            if self.reached() or not (fits or not self._in_flight):
                return False
            self._in_flight[request.key], self._pending = size, total
            return True

    def spend(self, request: Request, *, whole: bool = False) -> None:
        """Count a call without a response: its prompt where it failed and its request is sent again, or the most that it may
        use where it is abandoned."""
        with self._lock:
            size = self._landed(request) or self._size(request)
            self._spend(size if whole else TokenUsage(self._prompts.mean(prompt_length(request))))

    def patience_s(self) -> float | None:
        """How long calls in flight are awaited; None where time is not limited."""
        if self.limits.seconds is None:
            return None
        return max(0.0, self.seconds_left() + min(GRACE_S, self.limits.seconds))

    # What is spent.

    def reached(self) -> str:
        """The limit that is used up, in words; empty where none is."""
        limits, (tokens, dollars) = self.limits, self._left()
        if limits.tokens is not None and tokens <= 0:
            return f"the budget of {shown_tokens(limits.tokens)} tokens"
        if limits.cost is not None and dollars <= ROUNDING:
            return f"the budget of {shown_dollars(limits.cost)}"
        if limits.seconds is not None and self.seconds_left() <= 0:
            return f"the budget of {shown_seconds(limits.seconds)}"
        return ""

    def spent(self) -> tuple[int, float]:
        """Tokens and dollars of the whole run, in all sessions."""
        tokens, dollars = 0, 0.0
        for amounts in (self._spending.spent, self._spending.spent_elsewhere()):
            for account, usage in amounts.copy().items():
                price = self.prices.get(account)
                tokens, dollars = tokens + usage.total, dollars + (0.0 if price is None else price.cost(usage))
        return tokens, dollars

    def seconds_left(self) -> float:
        return math.inf if self.limits.seconds is None else self.limits.seconds - self._spending.run_seconds()

    def spent_text(self) -> str:
        """What the whole run has spent, in words; empty where it has no limits."""
        if not self.limits:
            return ""
        tokens, dollars = self.spent()
        cost = f", {shown_dollars(dollars)}" if any(self.prices.values()) else ""
        return f"{tokens:,} tokens{cost} and {self._spending.run_seconds():.1f} s in all sessions of the run"

    def _left(self) -> tuple[float, float]:
        """Tokens and dollars that are not spent."""
        limits = self.limits
        if limits.tokens is None and limits.cost is None:
            return math.inf, math.inf
        tokens, dollars = self.spent()
        return (
            math.inf if limits.tokens is None else limits.tokens - tokens,
            math.inf if limits.cost is None else limits.cost - dollars,
        )

    def _most(self, usage: TokenUsage) -> float:
        price = self.prices.get(self._account)
        return 0.0 if price is None else price.most(usage)

    def _spend(self, usage: TokenUsage) -> None:
        self._spending.spent[self._account] = self._spending.spent.get(self._account, NO_TOKENS) + usage

    def _landed(self, request: Request) -> TokenUsage | None:
        """The size of a request that was in flight, and no longer is."""
        size = self._in_flight.pop(request.key, None)
        if size is not None:
            self._pending = self._pending - size
        return size

    def _size(self, request: Request) -> TokenUsage:
        """The estimated prompt, and the most that an answer may have. Rather too much than too little."""
        prompt = self._prompts.most(prompt_length(request) + len(request.continuation))
        return TokenUsage(min(prompt, MOST_TOKENS), most_output(request))

    def _usage(self, request: Request, response: Response) -> TokenUsage:
        """What a response used: as it says, else as estimated. An error counts its prompt; a scored text is input."""
        prompt, output = response.prompt_tokens, response.output_tokens
        text = (response.text or "") + (response.reasoning or "")
        if not prompt:
            prompt = self._estimated(prompt_length(request), "prompts", counted=prompt)
        if output is None and response.failed:
            output = 0
        elif output is None or (output == 0 and text and most_output(request)):
            output = self._estimated(len(text or request.continuation), "texts", counted=output)
        if request.continuation:
            prompt, output = prompt + output, 0
        prompt, output = min(prompt, MOST_TOKENS), min(output, MOST_TOKENS)
        return TokenUsage(
            prompt, output, min(response.cached_tokens or 0, prompt), min(response.reasoning_tokens or 0, output)
        )

    def _estimated(self, characters: int, texts: str, *, counted: int | None) -> int:
        """No text has 0 tokens: a server that says so does not count."""
        if counted == 0 and characters and self.limits:
            warn(f"responses say that their {texts} have 0 tokens: for the budget, tokens are estimated")
        return self._prompts.mean(characters)


class PromptLengths:
    """How many tokens prompts have, by their length in characters, as far as responses have counted them."""

    def __init__(self) -> None:
        self._tokens = self._characters = 0
        self._above = 0.0

    def add(self, tokens: int, characters: int) -> None:
        self._tokens, self._characters = self._tokens + min(tokens, MOST_TOKENS), self._characters + max(1, characters)
        self._above = max(self._above, min(tokens, MOST_TOKENS) - characters * self._share)

    def mean(self, characters: int) -> int:
        return math.ceil(characters * self._share)

    def most(self, characters: int) -> int:
        """As far above the mean as any prompt so far; a token for each character as long as nothing was counted."""
        return math.ceil(characters * self._share + self._above) if self._characters else characters

    @property
    def _share(self) -> float:
        return self._tokens / self._characters if self._characters else TOKENS_PER_CHARACTER


def prompt_length(request: Request) -> int:
    """The length of a prompt in characters, with the tools that it describes."""
    return len(request.text) + sum(len(str(tool.to_dict())) for tool in request.tools)
