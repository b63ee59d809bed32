"""Batches for a hook: longest requests first, half as many when memory runs out, a failing request isolated."""

from __future__ import annotations

import gc
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mill.api.errors import MillError, ModelBroken, ModelError
from mill.api.request import CLASSIFY, GENERATE, LOGLIKELIHOOD, MULTI_ROUND, ROLLING, ZERO_SHOT, Request
from mill.api.response import ROUNDING, Response
from mill.api.tools import ToolCall
from mill.support.terminal import describe

WINDOW = 65536  # requests of a run that are given to a backend at once
GROW_AFTER = 4
GIVE_UP_AFTER = 8
_OOM_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")


Completed = tuple[Request, Response]
"""A completed request with its response: what backends stream."""


@dataclass(frozen=True)
class BatchLimits:
    """At most `requests` a batch and, padded to its longest, at most `tokens`; None means no such limit."""

    requests: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, eq=False)
class Unit:
    """Requests that are computed together: one, or several that share one computation. `cost` is its length in tokens."""

    requests: Sequence[Request]
    cost: int
    data: Any = None


Hook = Callable[[list[Unit]], Sequence[Sequence[Response]]]


def run_batches(
    units: Sequence[Unit],
    hook: Hook,
    *,
    limits: BatchLimits,
    healthy: bool = False,
) -> Iterator[Completed]:
    """Every request with its response. Out of memory halves the batch; the size grows again while batches fit.

    A unit that fails alone becomes error responses. A hook that fails `GIVE_UP_AFTER` times before its first success, on the
    longest units and then on the shortest, raises ModelBroken, unless the model is `healthy`: it has answered before.
    """
    queue = deque(sorted(units, key=lambda unit: unit.cost, reverse=True))
    largest = limits.requests or len(queue) or 1
    size, successes, failures, succeeded = largest, 0, 0, healthy
    while queue:
        count = size  # the queue is sorted, so its first unit decides the padded length
        if limits.tokens is not None:
            count = max(1, min(size, limits.tokens // max(1, queue[0].cost)))
        batch = [queue.popleft() for _ in range(min(count, len(queue)))]
        started = time.perf_counter()
        answers, error = _call(hook, batch)
        if error is not None:
            out_of_memory = is_out_of_memory(error)
            if out_of_memory:
                free_memory()  # here no traceback refers to the failed batch's tensors any more
            if len(batch) > 1:
                queue.extendleft(reversed(batch))
                size, successes = (len(batch) // 2 if out_of_memory else 1), 0
                continue
            # The longest come first and may be the only ones that do not fit.
            failures += not out_of_memory
            if failures >= GIVE_UP_AFTER and not succeeded:
                raise ModelBroken(f"the model failed on each of the first {failures} requests: {describe(error)}") from error
            too_long = f"out of memory on a single request of length {batch[0].cost}"
            for request in batch[0].requests:
                yield request, Response(error=too_long if out_of_memory else describe(error))
            if failures >= GIVE_UP_AFTER // 2 and not succeeded and queue:
                queue.appendleft(queue.pop())  # only the long ones may fail
            continue
        succeeded = True
        seconds = (time.perf_counter() - started) / sum(len(unit.requests) for unit in batch)
        successes += 1
        if successes >= GROW_AFTER and size < largest:
            size, successes = min(largest, size * 2), 0
        for unit, responses in zip(batch, answers, strict=True):
            for request, response in zip(unit.requests, responses, strict=True):
                yield request, response.timed(seconds)


def _call(hook: Hook, batch: list[Unit]) -> tuple[list[Sequence[Response]], BaseException | None]:
    """The hook's responses, or its error without the traceback, whose frames refer to tensors.

    exit() ends the run, because a signal handler may have called it, but as an error: exit code 0 would look like success.
    """
    try:
        answers = list(hook(batch))
    except (MillError, KeyboardInterrupt):
        raise
    except SystemExit as error:
        raise ModelError(f"the backend called exit(): {describe(error)}") from error
    except BaseException as error:
        return [], error.with_traceback(None)
    if [len(responses) for responses in answers] != [len(unit.requests) for unit in batch]:
        sent, returned = sum(len(unit.requests) for unit in batch), sum(map(len, answers))
        raise ModelError(f"the backend answered {returned} of {sent} requests of a batch")
    return answers, None


def as_response(answer: Any, kind: str) -> Response:
    """What a hook returned, as a Response. A log-probability of NaN or above 0 is an error, not a score."""
    if isinstance(answer, Response):
        response = answer
    elif isinstance(answer, str):
        response = Response(text=answer)
    elif isinstance(answer, tuple) and len(answer) == 2 and not any(isinstance(part, str) for part in answer):
        response = Response(score=float(answer[0]), is_greedy=bool(answer[1]))
    elif isinstance(answer, (int, float)):
        response = Response(score=float(answer))
    else:
        return Response(error=f"the backend returned {type(answer).__name__} for {kind}")
    if response.failed:
        return response
    is_nan = response.score is not None and math.isnan(response.score)
    if is_nan or (response.ranking and any(math.isnan(score) for _, score in response.ranking)):
        return Response(error="the score is NaN", prompt_tokens=response.prompt_tokens)
    if kind in (LOGLIKELIHOOD, ROLLING) and response.score is not None and response.score > ROUNDING:
        error = f"the log-probability is {response.score:g}, which is above 0"
        return Response(error=error, prompt_tokens=response.prompt_tokens)
    field = ANSWER_FIELD[kind]
    answered = getattr(response, field)
    if answered is None:
        return Response(error=f"the backend returned no {field} for {kind}")
    if field != "score" and not isinstance(answered, str):
        return Response(error=f"the backend returned a {field} of type {type(answered).__name__} for {kind}")
    if response.reasoning is not None and not isinstance(response.reasoning, str):
        return Response(error=f"the backend returned reasoning of type {type(response.reasoning).__name__} for {kind}")
    if not all(isinstance(call, ToolCall) for call in response.tool_calls):
        return Response(error=f"the backend returned tool_calls that are not ToolCalls for {kind}")
    return _with_valid_counts(response)


def checked(kind: str, hook: Hook) -> Hook:
    """A hook whose responses without what their kind needs, or with NaN, become errors of their requests."""
    return lambda batch: [[as_response(response, kind) for response in responses] for responses in hook(batch)]


def _with_valid_counts(response: Response) -> Response:
    """Without token counts that are none: they would be summed, and no reader of the record would accept them."""
    invalid: dict[str, Any] = {
        name: None
        for name in ("prompt_tokens", "output_tokens", "reasoning_tokens", "cached_tokens")
        if not _is_count(getattr(response, name))
    }
    return replace(response, **invalid) if invalid else response


def _is_count(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53)


# The field that a response of each kind must have.
ANSWER_FIELD = {
    GENERATE: "text",
    MULTI_ROUND: "text",
    LOGLIKELIHOOD: "score",
    ROLLING: "score",
    ZERO_SHOT: "label",
    CLASSIFY: "label",
}


def free_memory() -> None:
    """Free what nothing refers to any more, also on the device."""
    gc.collect()
    empty_caches()


def empty_caches() -> None:
    """Return cached blocks to the device; does nothing if torch was never imported."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch is not None and torch.backends.mps.is_available():
        torch.mps.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """By type name and message, so that no framework has to be imported."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _OOM_WORDS)
