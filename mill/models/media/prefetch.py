"""Prefetching in threads: while the model computes, the next inputs are read and decoded."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from mill.api.errors import MissingPackage

In = TypeVar("In")
Out = TypeVar("Out")


class Prefetch(Generic[In, Out]):
    """Runs `load` for every item in order, at most `ahead` items in advance.

    A result stays until it is dropped, so that a batch that did not fit memory can be taken again. `take` raises what `load`
    raised. Decoding releases the GIL, so threads are as fast as processes and need no copies.
    """

    def __init__(self, load: Callable[[In], Out], items: Iterable[In], *, ahead: int, workers: int | None = None) -> None:
        self._load, self._waiting, self._ahead = load, deque(items), ahead
        self._pool = ThreadPoolExecutor(workers or default_workers(), thread_name_prefix="prefetch")
        self._running: dict[int, Future[Out]] = {}
        self._fill()

    def take(self, item: In) -> Out:
        future = self._running.get(id(item))
        while future is None:  # taken out of order: start items until this one is started
            self._start_next()
            future = self._running.get(id(item))
        return future.result()

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


def default_workers() -> int:
    return min(16, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
