"""Event loops for synchronous code: in a separate thread, so that they also work where a loop is running (notebooks)."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


def run_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, in another thread where this one has a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    ended: queue.SimpleQueue[T | _Ended] = queue.SimpleQueue()
    thread = _LoopThread(coroutine, ended)
    try:
        thread.raise_error(ended.get())
    except BaseException:
        thread.cancel()
        raise
    value: T = thread.value
    return value


def stream_results(start: Callable[[Callable[[T], None]], Coroutine[Any, Any, None]]) -> Generator[T, None, None]:
    """Run `start(emit)` on an event loop in another thread and yield the emitted values in order.

    An interrupt, an exception of the consumer or close() cancels the coroutine and waits until it has ended.
    """
    results: queue.SimpleQueue[T | _Ended] = queue.SimpleQueue()
    thread = _LoopThread(start(results.put), results)
    try:
        while not isinstance(result := results.get(), _Ended):
            yield result
        thread.raise_error(result)
    finally:
        thread.cancel()


class _Ended:
    """The last item in the queue of a loop thread."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _LoopThread:
    """A coroutine on an event loop in a thread; puts `_Ended` into the queue when it has ended."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], results: queue.SimpleQueue[Any]) -> None:
        self._coroutine, self._results = coroutine, results
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        self._ended = threading.Event()  # an interrupted join() would report the thread as ended
        self.value: Any = None
        context = contextvars.copy_context()
        threading.Thread(target=lambda: context.run(self._run), name="mill-http", daemon=True).start()

    def raise_error(self, ended: Any) -> None:
        if isinstance(ended, _Ended) and ended.error is not None:
            raise ended.error

    def cancel(self) -> None:
        """Cancel the coroutine unless it has ended, and wait for it."""
        self._cancelled = True
        if not self._ended.is_set() and self._loop is not None and self._task is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._ended.wait()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self.value = asyncio.run(self._main())
        except BaseException as raised:
            error = raised
        finally:
            self._ended.set()
            self._results.put(_Ended(error))

    async def _main(self) -> Any:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self._cancelled:
            self._coroutine.close()
            raise asyncio.CancelledError
        return await self._coroutine
