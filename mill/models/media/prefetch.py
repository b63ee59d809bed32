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

    def take_each(self, items: Iterable[In]) -> list[Out | Exception]:
        """For each item its result or its exception; a missing package concerns all items and is raised."""
        results: list[Out | Exception] = []
        for item in items:
            try:
                results.append(self.take(item))
            except MissingPackage:
                raise
            except Exception as error:
                results.append(error)
        return results

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
            results = loaded.take_each(unit.data for unit in batch)
            items, contents = [], []
            for unit, result in zip(batch, results, strict=True):
                if not isinstance(result, Exception):
                    items.append(unit.data)
                    contents.append(result)
            done = len(batch) == 1  # a larger batch that fails is retried in parts
            try:
                answers = iter(answer(items, contents) if items else [])
                done = True
            finally:
                if done:
                    for unit in batch:
                        loaded.drop(unit.data)
            return [
                [failure(result)] * len(unit.requests)
                if isinstance(result, Exception)
                else [as_response(response, kind) for response in next(answers)]
                for unit, result in zip(batch, results, strict=True)
            ]

        yield hook


def failure(error: Exception) -> Response:
    """The response to a request whose media cannot be read."""
    return Response(error=str(error) if isinstance(error, MillError) else describe(error))
