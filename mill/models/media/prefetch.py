"""Prefetching in threads: while the model computes, the next inputs are read and decoded."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, TypeVar

from mill.api.batching import Hook, Unit, as_response
from mill.api.errors import MillError, MissingPackage
from mill.api.response import Response
from mill.support.terminal import describe

In = TypeVar("In")
Out = TypeVar("Out")


class Prefetch(Generic[In, Out]):
    """Runs `load` for every item in order, with at most `ahead` results in advance.

    A result stays until it is dropped, so that a batch that did not fit memory can be taken again. `take` raises what `load`
    raised. Decoding releases the GIL, so threads are as fast as processes and need no copies.
    """

    def __init__(self, load: Callable[[In], Out], items: Iterable[In], *, ahead: int) -> None:
        self._load, self._waiting, self._ahead = load, deque(items), ahead
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(min(16, cores), thread_name_prefix="prefetch")
        self._running: dict[int, Future[Out]] = {}
        self._fill()

    def take(self, item: In) -> Out:
        while id(item) not in self._running:  # taken out of order: start items until this one is started
            self._start_next()
        return self._running[id(item)].result()

    def drop(self, item: In) -> None:
        """Free the result of an item that is done."""
        self._running.pop(id(item), None)
        self._fill()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._ahead:
            self._start_next()

    def _start_next(self) -> None:
        item = self._waiting.popleft()
        self._running[id(item)] = self._pool.submit(self._load, item)

    def __enter__(self) -> Prefetch[In, Out]:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def loaded_ahead(
    load: Callable[[In], Out],
    units: Sequence[Unit],
    kind: str,
    answer: Callable[[list[In], list[Out]], list[list[Response]]],
    *,
    ahead: int,
) -> Iterator[Hook]:
    """A hook for batches of these units, whose data are loaded in advance. `answer` gets the data of a batch, and what was
    loaded for each; what cannot be loaded is an error of its requests."""
    with Prefetch(load, [unit.data for unit in units], ahead=ahead) as loaded:

        def hook(batch: list[Unit]) -> list[list[Response]]:
            contents: dict[int, Out] = {}
            failures: dict[int, Response] = {}
            for index, unit in enumerate(batch):
                try:
                    contents[index] = loaded.take(unit.data)
                except MissingPackage:  # of all units
                    raise
                except Exception as error:
                    failures[index] = failure(error)
            done = len(batch) == 1  # a larger batch that fails is retried in parts
            try:
                answered = answer([batch[index].data for index in contents], [*contents.values()]) if contents else []
                done = True
            finally:
                if done:
                    for unit in batch:
                        loaded.drop(unit.data)
            answers = dict(zip(contents, answered, strict=True))
            return [
                [as_response(response, kind) for response in answers[index]]
                if index in answers
                else [failures[index]] * len(unit.requests)
                for index, unit in enumerate(batch)
            ]

        yield hook


def failure(error: Exception) -> Response:
    """The response to a request whose media cannot be read."""
    return Response(error=str(error) if isinstance(error, MillError) else describe(error))
