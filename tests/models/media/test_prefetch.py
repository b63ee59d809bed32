"""Items are prefetched in order and within a limit; a failure is raised where the item is taken."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest

from mill.api.errors import DataError
from mill.models.media import prefetch
from mill.models.media.prefetch import Prefetch
from tests.waiting import DEADLINE_S


class Item:
    """Items are compared by identity, as requests are."""

    def __init__(self, number: int) -> None:
        self.number = number


class Loader:
    """Squares, and remembers which items were started and finished; `hold(number)` may wait in between."""

    def __init__(self, hold: Callable[[int], object] = lambda number: None) -> None:
        self.started: list[int] = []
        self.finished: list[int] = []
        self.kept = self.most_kept = 0
        self._hold, self._lock = hold, threading.Lock()

    def __call__(self, item: Item) -> int:
        with self._lock:
            self.started.append(item.number)
            self.kept += 1
            self.most_kept = max(self.most_kept, self.kept)
        self._hold(item.number)
        with self._lock:
            self.finished.append(item.number)
        return item.number**2

    def forget(self) -> None:
        with self._lock:
            self.kept -= 1


def items(count: int) -> list[Item]:
    return [Item(number) for number in range(count)]


class AtOnce(Executor):
    """Runs what is submitted in the calling thread, so that `started` has all that will be loaded for now."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """One thread is enough."""

    def submit(self, call: Any, /, *arguments: Any, **more: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(call(*arguments, **more))
        return future


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "ThreadPoolExecutor", AtOnce)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")]


@pytest.mark.usefixtures("at_once")
def test_loading_starts_before_anything_is_taken_and_stops_at_the_bound() -> None:
    given, load = items(10), Loader()
    with Prefetch(load, given, ahead=4) as loaded:
        assert load.started == [0, 1, 2, 3]
        assert [loaded.take(item) for item in given[:4]] == [0, 1, 4, 9]
        assert load.started == [0, 1, 2, 3]  # taking alone lets nothing new in
        loaded.drop(given[0])
        assert load.started == [0, 1, 2, 3, 4]
        loaded.drop(given[1])
        loaded.drop(given[2])
        assert load.started == list(range(7))


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("ahead", "batch"), [(1, 1), (4, 2), (6, 3), (8, 4)])
def test_never_more_than_the_bound_is_loaded_and_not_dropped(ahead: int, batch: int) -> None:
    given, load = items(40), Loader()
    with Prefetch(load, given, ahead=ahead) as loaded:
        for start in range(0, 40, batch):
            chunk = given[start : start + batch]
            assert loaded.take_each(chunk) == [item.number**2 for item in chunk]
            for item in chunk:
                load.forget()
                loaded.drop(item)
    assert load.most_kept == ahead
    assert sorted(load.finished) == list(range(40))


def test_the_bound_is_used_fully() -> None:
    """Six at once, each waiting for the others: they only finish together."""
    meeting = threading.Barrier(6, timeout=DEADLINE_S)
    given = items(6)
    with Prefetch(lambda item: meeting.wait() >= 0, given, ahead=6, workers=6) as loaded:
        assert loaded.take_each(given) == [True] * 6


def test_an_exception_of_load_is_raised_by_take() -> None:
    def load(item: Item) -> int:
        if item.number == 1:
            raise DataError("picture 1 is damaged")
        if item.number == 2:
            raise OSError("the disk is gone")
        return item.number

    given = items(4)
    with Prefetch(load, given, ahead=4) as loaded:
        assert loaded.take(given[0]) == 0
        with pytest.raises(DataError, match="picture 1 is damaged"):
            loaded.take(given[1])
        with pytest.raises(OSError, match="the disk is gone"):
            loaded.take(given[2])
        assert loaded.take(given[3]) == 3
        with pytest.raises(DataError, match="picture 1 is damaged"):
            loaded.take(given[1])


def test_take_each_returns_results_and_exceptions_in_order() -> None:
    def load(item: Item) -> int:
        if item.number % 2:
            raise DataError(f"picture {item.number} is damaged")
        return item.number * 10

    given = items(5)
    with Prefetch(load, given, ahead=2) as loaded:
        found = loaded.take_each(given)
    assert [str(one) for one in found] == ["0", "picture 1 is damaged", "20", "picture 3 is damaged", "40"]
    assert [type(one) for one in found] == [int, DataError, int, DataError, int]


def test_an_item_taken_again_before_it_is_dropped_is_not_loaded_again() -> None:
    given = items(3)
    calls: list[int] = []

    def load(item: Item) -> list[int]:
        calls.append(item.number)
        return [item.number]

    with Prefetch(load, given, ahead=3, workers=1) as loaded:
        first = loaded.take(given[1])
        assert loaded.take(given[1]) is first
        assert loaded.take_each(given)[1] is first
    assert calls == [0, 1, 2]


@pytest.mark.usefixtures("at_once")
def test_items_of_equal_key_that_follow_each_other_are_loaded_once() -> None:
    given, load = items(12), Loader()
    with Prefetch(load, given, ahead=2, key=lambda item: item.number // 3) as loaded:
        assert load.started == [0, 3]
        for item in given[:5]:
            assert loaded.take(item) == (item.number // 3 * 3) ** 2
            loaded.drop(item)
        assert load.started == [0, 3, 6]  # the result of 3 stays until 5 is dropped
        assert loaded.take(given[5]) == 9
        loaded.drop(given[5])
        assert loaded.take_each(given[6:]) == [36] * 3 + [81] * 3
    assert load.started == [0, 3, 6, 9]


def test_a_failure_is_that_of_each_item_alone() -> None:
    def load(item: Item) -> int:
        if item.number != 2:
            raise DataError(f"picture {item.number} is damaged")
        return 4

    given = items(3)
    with Prefetch(load, given, ahead=1, key=lambda _: "same") as loaded:
        assert list(map(str, loaded.take_each(given))) == ["picture 0 is damaged", "picture 1 is damaged", "4"]


def test_threads_end_at_exit_and_waiting_items_are_never_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The items after the first are loaded until the shutdown has begun."""
    shutdown_begun = threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            shutdown_begun.set()
            super().shutdown(wait=wait)

    monkeypatch.setattr(prefetch, "ThreadPoolExecutor", Pool)
    given, load = items(50), Loader(lambda number: number and shutdown_begun.wait(DEADLINE_S))
    with Prefetch(load, given, ahead=50, workers=2) as loaded:
        loaded.take(given[0])
        assert 1 <= len(threads()) <= 2
    assert threads() == []
    assert set(load.finished) == set(load.started) <= {0, 1, 2}


def test_threads_end_when_the_block_raises() -> None:
    given = items(20)
    with pytest.raises(RuntimeError, match="the model failed"), Prefetch(Loader(), given, ahead=8) as loaded:
        loaded.take(given[0])
        raise RuntimeError("the model failed")
    assert threads() == []
