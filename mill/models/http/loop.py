"""Running a coroutine to its end from ordinary code, also where an event loop runs already, as in a notebook."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, in a thread of its own where this one has a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    found: T = _Beside(coroutine).result()
    return found


class _Beside:
    """A coroutine on an event loop in another thread, which an interrupt of the waiting one cancels."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._interrupted = False
        self._ended = threading.Event()  # an interrupted join() takes its thread for ended
        self._value: Any = None
        self._error: BaseException | None = None

    def result(self) -> Any:
        context = contextvars.copy_context()
        thread = threading.Thread(target=lambda: context.run(self._run), name="mill-http", daemon=True)
        thread.start()
        try:
            self._ended.wait()
        except BaseException:
            self._cancel()
            self._ended.wait()
            raise
        if self._error is not None:
            raise self._error
        return self._value

    def _run(self) -> None:
        try:
            self._value = asyncio.run(self._main())
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()

    async def _main(self) -> Any:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self._interrupted:
            self._coroutine.close()
            raise asyncio.CancelledError
        return await self._coroutine

    def _cancel(self) -> None:
        self._interrupted = True
        if self._loop is not None and self._task is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._task.cancel)
