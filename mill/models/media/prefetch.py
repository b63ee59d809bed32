"""Prefetching in threads: while the model computes, the next inputs are read and decoded."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mill.api.errors import MissingPackage

In = TypeVar("In")
Out = TypeVar("Out")


@dataclass
class _Loading(Generic[In, Out]):
    """One call of `load`, the item it was for, and the ids of the items that share its result and are not dropped."""

    future: Future[Out]
    item: In
    users: set[int] = field(default_factory=set)


class Prefetch(Generic[In, Out]):
    """Runs `load` for every item in order, with at most `ahead` results in advance.

    A result stays until it is dropped, so that a batch that did not fit memory can be taken again. `take` raises what `load`
    raised. Decoding releases the GIL, so threads are as fast as processes and need no copies.

    Items of equal `key` that follow each other share one result, but no failure: its message names the item's own file.
    """

    def __init__(
        self,
        load: Callable[[In], Out],
        items: Iterable[In],
        *,
        ahead: int,
        workers: int | None = None,
        key: Callable[[In], Hashable] = id,
    ) -> None:
        self._load, self._waiting, self._ahead, self._key = load, deque(items), ahead, key
        self._pool = ThreadPoolExecutor(workers or default_workers(), thread_name_prefix="prefetch")
        self._running: dict[Hashable, _Loading[In, Out]] = {}
        self._fill()

    def take(self, item: In) -> Out:
        found = self._running.get(self._key(item))
        while found is None or id(item) not in found.users:  # taken out of order: start items until this one is started
            self._start_next()
            found = self._running.get(self._key(item))
        if found.item is not item and found.future.exception() is not None:
            return self._load(item)
        return found.future.result()

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
        """Free the result of an item that is done, with the last of those that share it."""
        found = self._running.get(self._key(item))
        if found is not None:
            found.users.discard(id(item))
            if not found.users:
                del self._running[self._key(item)]
        self._fill()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._ahead:
            self._start_next()

    def _start_next(self) -> None:
        """The next item, with those after it that share its result."""
        item = self._waiting.popleft()
        key = self._key(item)
        if key not in self._running:
            self._running[key] = _Loading(self._pool.submit(self._load, item), item)
        self._running[key].users.add(id(item))
        while self._waiting and self._key(self._waiting[0]) == key:
            self._running[key].users.add(id(self._waiting.popleft()))

    def __enter__(self) -> Prefetch[In, Out]:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def default_workers() -> int:
    return min(16, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
