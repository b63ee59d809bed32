"""Feeding requests to a batch hook: longest first, halved when memory runs out, one bad request never takes others along."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mill.api.errors import MillError, ModelBroken, ModelError
from mill.api.request import CLASSIFY, GENERATE, LOGLIKELIHOOD, MULTI_ROUND, ROLLING, ZERO_SHOT, Request
from mill.api.response import Response
from mill.api.secrets import scrub

GROW_AFTER = 4
GIVE_UP_AFTER = 8
_OOM_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")


class Observer(Protocol):
    """Told of every answer the moment it is there, so that it can be written down before the next batch starts."""

    def answered(self, request: Request, response: Response) -> None: ...


@dataclass(frozen=True)
class BatchLimits:
    """At most `requests` a batch and, padded to its longest, at most `tokens`; None means no such limit."""

    requests: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, eq=False)
class Unit:
    """What is computed together: one request, or several that share one computation. `cost` is its length in tokens."""

    requests: Sequence[Request]
    cost: int
    data: Any = None


Hook = Callable[[list[Unit]], Sequence[Sequence[Response]]]


def run_batches(
    units: Sequence[Unit],
    hook: Hook,
    *,
    limits: BatchLimits,
    free_memory: Callable[[], None] = lambda: None,
    proven: bool = False,
) -> Iterator[tuple[Request, Response]]:
    """Yield every request with its response. Memory running out halves the batch; the size grows again when it fits.

    A unit that fails alone becomes error responses. A hook that fails `GIVE_UP_AFTER` times before its first success, on the
    longest units and then on the shortest, is broken, not unlucky: that raises, unless it is `proven`.
    """
    queue = deque(sorted(units, key=lambda unit: unit.cost, reverse=True))
    widest = limits.requests or len(queue) or 1
    width, successes, failures, succeeded = widest, 0, 0, proven
    while queue:
        batch = _take(queue, width, limits.tokens)
        started = time.perf_counter()
        answers, error = _call(hook, batch)
        if error is not None:
            out_of_memory = is_out_of_memory(error)
            if out_of_memory:
                free_memory()  # here, where no traceback holds the failed batch's tensors any more
            if len(batch) > 1:
                queue.extendleft(reversed(batch))
                width, successes = (len(batch) // 2 if out_of_memory else 1), 0
                continue
            # The longest come first and may be the only ones that do not fit: that says nothing about the rest.
            failures += not out_of_memory
            if failures >= GIVE_UP_AFTER and not succeeded:
                raise ModelBroken(f"the model failed on each of the first {failures} requests: {describe(error)}") from error
            for request in batch[0].requests:
                yield request, Response(error=_single_failure(error, batch[0]))
            if failures >= GIVE_UP_AFTER // 2 and not succeeded and queue:
                queue.appendleft(queue.pop())  # what is wrong may be wrong with long ones alone
            continue
        succeeded = True
        seconds = (time.perf_counter() - started) / sum(len(unit.requests) for unit in batch)
        successes += 1
        if successes >= GROW_AFTER and width < widest:
            width, successes = min(widest, width * 2), 0
        for unit, responses in zip(batch, answers, strict=True):
            for request, response in zip(unit.requests, responses, strict=True):
                yield request, response.timed(seconds)


def _call(hook: Hook, batch: list[Unit]) -> tuple[list[Sequence[Response]], Exception | None]:
    """The hook's answers, or the error that it raised, stripped of the frames that hold its memory."""
    try:
        answers = list(hook(batch))
    except MillError:
        raise
    except Exception as error:
        return [], error.with_traceback(None)
    if [len(responses) for responses in answers] != [len(unit.requests) for unit in batch]:
        asked, got = sum(len(unit.requests) for unit in batch), sum(map(len, answers))
        raise ModelError(f"the backend answered {got} of {asked} requests of a batch")
    return answers, None


def _take(queue: deque[Unit], width: int, tokens: int | None) -> list[Unit]:
    """The next batch: the queue is sorted, so its first unit decides the padded length."""
    if tokens is not None:
        width = max(1, min(width, tokens // max(1, queue[0].cost)))
    return [queue.popleft() for _ in range(min(width, len(queue)))]


def as_response(answer: Any, kind: str) -> Response:
    """Whatever a hook may return, as a Response. A log-probability that is not a number is an error, not a score."""
    if isinstance(answer, Response):
        response = answer
    elif isinstance(answer, str):
        response = Response.of(text=answer)
    elif isinstance(answer, tuple) and len(answer) == 2:
        response = Response.of(score=float(answer[0]), is_greedy=bool(answer[1]))
    elif isinstance(answer, (int, float)):
        response = Response.of(score=float(answer))
    else:
        return Response(error=f"the backend returned {type(answer).__name__} for {kind}")
    if response.failed:
        return response
    senseless = response.score is not None and math.isnan(response.score)
    if senseless or (response.ranking and any(math.isnan(score) for _, score in response.ranking)):
        return Response(error="the score is NaN", prompt_tokens=response.prompt_tokens)
    field = ANSWER_FIELD[kind]
    if getattr(response, field) is None:
        return Response(error=f"the backend returned no {field} for {kind}")
    return response


# What an answer of each kind must have.
ANSWER_FIELD = {
    GENERATE: "text",
    MULTI_ROUND: "text",
    LOGLIKELIHOOD: "score",
    ROLLING: "score",
    ZERO_SHOT: "label",
    CLASSIFY: "label",
}


def is_out_of_memory(error: BaseException) -> bool:
    """By type name and wording, so that no framework has to be imported to ask."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _OOM_WORDS)


def describe(error: BaseException) -> str:
    """An exception in one short line; also one of other people's that cannot even be shown."""
    try:
        first = scrub(str(error)).strip().split("\n", 1)[0][:300]
    except Exception:
        first = ""
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _single_failure(error: BaseException, unit: Unit) -> str:
    if is_out_of_memory(error):
        return f"out of memory on a single request of length {unit.cost}"
    return describe(error)
