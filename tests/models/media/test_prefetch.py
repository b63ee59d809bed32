"""Items are prefetched in order and within a limit; what cannot be loaded is an error of its requests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest

from mill.api.batching import Unit
from mill.api.errors import DataError, MissingPackage
from mill.api.request import GENERATE, Request
from mill.api.response import Response
from mill.models.media import inputs
from mill.models.media.inputs import Prefetch, loaded_ahead
from tests.waiting import DEADLINE_S


class Item:
    """Items are compared by identity, as requests are."""

    def __init__(self, number: int) -> None:
        self.number = number


def items(count: int) -> list[Item]:
    return [Item(number) for number in range(count)]


class Loader:
    """Squares, and remembers which items were started; `hold(number)` may wait."""

    def __init__(self, hold: Callable[[int], object] = lambda number: None) -> None:
        self.started: list[int] = []
        self._hold, self._lock = hold, threading.Lock()

    def __call__(self, item: Item) -> int:
        with self._lock:
            self.started.append(item.number)
        self._hold(item.number)
        return item.number**2


class AtOnce(Executor):
    """Runs what is submitted in the calling thread, so that `started` has all that will be loaded for now."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """One thread is enough."""

    def submit(self, call: Any, /, *arguments: Any, **more: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*arguments, **more))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "ThreadPoolExecutor", AtOnce)


@pytest.mark.usefixtures("at_once")
def test_loading_starts_before_anything_is_taken_and_stops_at_the_bound() -> None:
    given, load = items(10), Loader()
    with Prefetch(load, given, ahead=4) as loaded:
        assert load.started == [0, 1, 2, 3]
        assert [loaded.take(item) for item in (*given[:4], given[0])] == [0, 1, 4, 9, 0]
        assert load.started == [0, 1, 2, 3]  # taking alone lets nothing new in
        loaded.drop(given[0])
        assert load.started == [0, 1, 2, 3, 4]
        assert loaded.take(given[7]) == 49 and load.started == list(range(8))  # out of order


def test_items_are_loaded_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at once, each waiting for the other: they only finish together."""
    monkeypatch.setattr(inputs, "ThreadPoolExecutor", lambda *_, **__: ThreadPoolExecutor(2))
    meeting = threading.Barrier(2, timeout=DEADLINE_S)
    given = items(2)
    with Prefetch(lambda item: meeting.wait() >= 0, given, ahead=2) as loaded:
        assert [loaded.take(item) for item in given] == [True, True]


def test_what_cannot_be_loaded_is_an_error_of_its_requests() -> None:
    def load(number: int) -> int:
        if number == 1:
            raise DataError("picture 1 is damaged")
        if number == 2:
            raise OSError("the disk is gone")
        return number * 10

    def answer(numbers: list[int], contents: list[int]) -> list[list[Response]]:
        return [[Response(text=f"{number}: {content}")] for number, content in zip(numbers, contents, strict=True)]

    units = [Unit([Request(GENERATE, str(number))], 1, number) for number in range(4)]
    with loaded_ahead(load, units, GENERATE, answer, ahead=2) as hook:
        found = [response for (response,) in hook(units)]
    assert [response.text for response in found] == ["0: 0", None, None, "3: 30"]
    assert found[1].error == "picture 1 is damaged" and "the disk is gone" in (found[2].error or "")


@pytest.mark.usefixtures("at_once")
def test_a_batch_that_fails_is_taken_again_in_parts_without_loading_again() -> None:
    load = Loader()

    def answer(batch: list[Item], contents: list[int]) -> list[list[Response]]:
        if len(batch) > 1:
            raise RuntimeError("out of memory")
        return [[Response(text=str(content))] for content in contents]

    units = [Unit([Request(GENERATE, str(item.number))], 1, item) for item in items(2)]
    with loaded_ahead(load, units, GENERATE, answer, ahead=2) as hook:
        with pytest.raises(RuntimeError, match="out of memory"):
            hook(units)
        assert [hook([unit])[0][0].text for unit in units] == ["0", "1"]
    assert load.started == [0, 1]


def test_a_missing_package_concerns_all() -> None:
    def load(number: int) -> int:
        raise MissingPackage("reading audio", "soundfile", "media")

    units = [Unit([Request(GENERATE, "x")], 1, 0)]
    with loaded_ahead(load, units, GENERATE, lambda *_: [], ahead=1) as hook, pytest.raises(MissingPackage):
        hook(units)


def test_threads_end_at_exit_and_waiting_items_are_never_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The items after the first are loaded until the shutdown has begun."""
    shutdown_begun = threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            shutdown_begun.set()
            super().shutdown(wait=wait)

    monkeypatch.setattr(inputs, "ThreadPoolExecutor", lambda _, **named: Pool(2, **named))
    given, load = items(50), Loader(lambda number: number and shutdown_begun.wait(DEADLINE_S))
    with pytest.raises(RuntimeError, match="the model failed"), Prefetch(load, given, ahead=50) as loaded:
        loaded.take(given[0])
        raise RuntimeError("the model failed")
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")] == []
    assert set(load.started) <= {0, 1, 2}
