"""What the requests to one model spend from the budget of a run, and how many of them it has room for."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from mill.api.budget import MOST_TOKENS, NO_TOKENS, BudgetReached, TokenUsage, most_output, shown_seconds
from mill.api.errors import MillError
from mill.api.request import Request
from mill.api.response import Response
from mill.api.warnings import warn
from mill.execute.budget import ROUNDING, Amounts, RunBudget
from mill.execute.prompt_lengths import PromptLengths, prompt_length

GRACE_S = 30.0  # for responses at the end of a run's time; no more than this time itself
FIRST_WINDOW = 8  # requests, while nothing is known about their tokens or their time
PART = 0.5  # of what is left, that is given at once to a model without a gate
WINDOW_S = 60.0  # of computing at once, where time is limited
WAIT_S = 0.2  # between two checks of processes whose requests in flight leave no room
_COUNTED = 32  # requests whose tokens are counted for the first estimate


class Account:
    """The budget as the executor of one model sees it; a CallGate for models on servers."""

    def __init__(self, budget: RunBudget, name: str, count_tokens: Callable[[Sequence[Request]], int | None]) -> None:
        self.budget, self.name, self._count_tokens = budget, name, count_tokens
        self._in_flight: dict[str, TokenUsage] = {}
        self._planned: dict[str, TokenUsage] = {}
        self._started: dict[str, TokenUsage] = {}
        """The sizes of requests that were sent, given to the model, or are being computed by it, as they were estimated, by
        key."""
        self._prompts = PromptLengths()
        self._first: str | None = None
        """The key of the request whose response is awaited before any other is sent."""
        self._known = False
        self._answered_size, self._answering_s = 0, 0.0
        self._counted = self._waited = False

    # For the executor.

    def fitting(self, requests: Sequence[Request], *, gated: bool) -> int:
        """How many of these requests, from the first on, there is room for; 0 where the budget is used up, which ends the
        run. Waits while requests of other processes in flight leave no room.

        `gated` is whether the model calls `admit` before each request. Else the amount is planned, and at most half of what
        is left: what is known of the requests are estimates.
        """
        budget = self.budget
        if not budget.limits:
            return len(requests)
        self._calibrate(requests)
        while not (reached := budget.reached(fresh=True)):
            count = self._fitting(requests, gated=gated)
            if count and (gated or self._plan(requests[:count])):
                return count
            if not self._waited:
                warn("other processes have in flight what is left of the budget: waiting for them")
            self._waited = True
            time.sleep(WAIT_S * random.uniform(0.5, 1.5))
        budget.stopped = reached
        return 0

    def _fitting(self, requests: Sequence[Request], *, gated: bool) -> int:
        whole = self.budget.room()
        part = 1.0 if gated else PART / self.budget.processes
        room = (whole[0] * part, whole[1] * part)
        most = math.inf if gated else self._most_tokens()
        count, total = 0, NO_TOKENS
        for request in requests[: FIRST_WINDOW if not gated and self._is_unknown() else None]:
            total = total + self.size(request)
            if not self._within(total, room) or total.total > most:
                break
            count += 1
        if count:
            return count
        return int(self._within(self.size(requests[0]), whole) or not self.budget.others_pending())

    def _within(self, usage: TokenUsage, room: tuple[float, float]) -> bool:
        price = self.budget.prices.get(self.name)
        return usage.total <= room[0] and (price is None or price.most(usage) <= room[1] + ROUNDING)

    def _is_unknown(self) -> bool:
        """Whether a limit applies to what is not known yet: how many tokens the prompts have, or how long they take."""
        limits = self.budget.limits
        counts = limits.tokens is not None or limits.cost is not None
        return (counts and not self._prompts) or (limits.seconds is not None and not self._answering_s)

    def _most_tokens(self) -> float:
        """The tokens, as estimated, that the model computes in half of the time that is left, or in a minute: how long
        requests take may change with the next task."""
        if self.budget.limits.seconds is None or not self._answering_s:
            return math.inf
        return min(self.budget.seconds_left() * PART, WINDOW_S) * self._answered_size / self._answering_s

    @contextmanager
    def window(self, requests: Sequence[Request]) -> Iterator[None]:
        """While the model has these requests. Those that were not sent in the end are released; what was being computed
        when the work was interrupted is lost, and counts."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._answering_s += time.monotonic() - started
            with self.budget.lock:
                self._planned.clear()
                self.budget.own.planned.pop(self.name, None)
                lost = sum(self._started.values(), NO_TOKENS)
                self._started.clear()
                self._move(lost, self.budget.own.in_flight, self.budget.own.spent)
                for request in requests:
                    if request.key in self._in_flight:
                        self._taken(request)
                with contextlib.suppress(MillError):  # a full disk is reported by what is being written to it
                    self.budget.publish()

    def charge(self, request: Request, response: Response) -> None:
        """Count the response of a model without a gate."""
        with self.budget.lock:
            self.learn(request, response)
            if request.key in self._planned:  # the model does not say what it computes: it may be computing all of them
                self._start(list(self._planned))
            size = self._started.pop(request.key, None)
            if size is not None:
                self.budget.own.in_flight[self.name] -= size
                self._answered_size += size.total
            self._spend(self._usage(request, response, size))

    def _plan(self, requests: Sequence[Request]) -> bool:
        with self.budget.lock:
            sizes = {request.key: self.size(request) for request in requests}
            if not self.budget.reserve(self.budget.own.planned, self.name, sum(sizes.values(), NO_TOKENS)):
                return False
            self._planned = sizes
            return True

    def start(self, requests: Sequence[Request]) -> None:
        with self.budget.lock:
            self._start([request.key for request in requests])
            self.budget.publish()

    def _start(self, keys: Sequence[str]) -> None:
        sizes = {key: self._planned.pop(key) for key in keys if key in self._planned}
        self._started |= sizes
        self._move(sum(sizes.values(), NO_TOKENS), self.budget.own.planned, self.budget.own.in_flight)

    def _move(self, usage: TokenUsage, source: Amounts, target: Amounts) -> None:
        if usage.total:
            source[self.name] -= usage
            target[self.name] = target.get(self.name, NO_TOKENS) + usage

    # For the client of a server (CallGate).

    def closed(self) -> bool:
        return bool(self.budget.reached())

    def admit(self, request: Request) -> bool:
        with self.budget.lock:
            if self.closed():
                return False
            if request.key in self._in_flight:  # it was admitted before, and then not sent
                return True
            size = self.size(request)
            if not self.budget.reserve(self.budget.own.in_flight, self.name, size):
                return False
            self._in_flight[request.key] = size
            return True

    def may_send(self, request: Request) -> bool:
        with self.budget.lock:
            limits = self.budget.limits
            if self._known or (limits.tokens is None and limits.cost is None):
                return True
            self._first = self._first or request.key
            return self._first == request.key

    def patience_s(self) -> float:
        return self.budget.seconds_left() + self._grace_s

    @property
    def _grace_s(self) -> float:
        return min(GRACE_S, self.budget.limits.seconds or 0.0)

    def abandon(self, request: Request) -> None:
        with self.budget.lock:
            limit = shown_seconds(self.budget.limits.seconds or 0.0)
            warn(f"the time of {limit} is over: requests without a response {self._grace_s:g} s later are abandoned")
            self.lose(request)

    def begin(self, request: Request) -> None:
        if request.key not in self._in_flight and not self.admit(request):
            raise BudgetReached("the budget is used up")

    def retry(self, request: Request) -> None:
        with self.budget.lock:
            size = self._in_flight[request.key]
            self._spend(TokenUsage(prompt=size.prompt))
            alone = self.budget.own.in_flight[self.name] == size and not self.budget.others_pending()
            if self.closed() or (min(self.budget.room()) < 0 and not alone):
                raise BudgetReached("the budget is used up")

    def discard(self, request: Request, response: Response) -> None:
        with self.budget.lock:
            self._spend(self._usage(request, response, self._in_flight[request.key]))

    def settle(self, request: Request, response: Response) -> None:
        with self.budget.lock:
            self.learn(request, response)
            self._known = self._known or not response.failed
            self._spend(self._usage(request, response, self._taken(request)))

    def release(self, request: Request) -> None:
        with self.budget.lock:
            self._taken(request)
            self.budget.publish()

    def lose(self, request: Request) -> None:
        with self.budget.lock:
            self._spend(self._taken(request))

    def _taken(self, request: Request) -> TokenUsage:
        """The size of a request that is no longer in flight. Two workers may send the same canary: it is in flight once."""
        if self._first == request.key:
            self._first = None
        size = self._in_flight.pop(request.key, None)
        if size is None:
            return self.size(request)
        self.budget.own.in_flight[self.name] -= size
        return size

    def _spend(self, usage: TokenUsage) -> None:
        spent = self.budget.own.spent
        spent[self.name] = spent.get(self.name, NO_TOKENS) + usage
        self.budget.publish()

    # Estimates.

    def size(self, request: Request) -> TokenUsage:
        """The estimated prompt, and the most that an answer may have; of a scored text its estimated tokens. Rather too much
        than too little."""
        scored = 1 + self._prompts.most(len(request.continuation)) if request.continuation else 0
        prompt = 1 + self._prompts.most(prompt_length(request)) + scored
        return TokenUsage(min(prompt, MOST_TOKENS), min(most_output(request), MOST_TOKENS))

    def _calibrate(self, requests: Sequence[Request]) -> None:
        """Count the tokens of some requests, where the model has its tokenizer here."""
        limits = self.budget.limits
        if self._counted or (limits.tokens is None and limits.cost is None):
            return
        self._counted = True
        some = requests[:_COUNTED]
        tokens = self._count_tokens(some)
        if tokens is not None:
            self._prompts.add(tokens, sum(prompt_length(request) + len(request.continuation) for request in some))

    def learn(self, request: Request, response: Response) -> None:
        """Take a response into account for the estimates; it costs nothing."""
        prompt = self._prompt_tokens(request, response)
        if self.budget.limits and prompt is not None:
            self._known = True
            self._prompts.add(prompt, max(1, prompt_length(request)))

    def _prompt_tokens(self, request: Request, response: Response) -> int | None:
        """As the response says. No prompt has 0 tokens: a server that says so does not count."""
        if response.prompt_tokens == 0 and prompt_length(request):
            if self.budget.limits:
                warn("responses say that their prompts have 0 tokens: for the budget, tokens are estimated")
            return None
        return response.prompt_tokens

    def _usage(self, request: Request, response: Response, size: TokenUsage | None) -> TokenUsage:
        """What a response used: as it says, else as estimated. An error counts its prompt; a scored text is input."""
        prompt, output = self._prompt_tokens(request, response), response.output_tokens
        text = (response.text or "") + (response.reasoning or "")
        if output is None and response.failed:
            output = 0
        elif most_output(request) and (output is None or (output == 0 and text)):
            if output == 0 and self.budget.limits:
                warn("responses say that their texts have 0 tokens: for the budget, tokens are estimated")
            output = 1 + self._prompts.mean(len(text))
        if prompt is None or output is None:
            size = size or self.size(request)
            prompt, output = size.prompt if prompt is None else prompt, size.output if output is None else output
        if request.continuation:
            prompt, output = prompt + output, 0
        prompt, output = min(prompt, MOST_TOKENS), min(output, MOST_TOKENS)
        return TokenUsage(
            prompt, output, min(response.cached_tokens or 0, prompt), min(response.reasoning_tokens or 0, output)
        )
