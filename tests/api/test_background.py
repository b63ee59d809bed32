"""Work in a thread."""

from __future__ import annotations

import sys
import threading

import pytest

from mill.api.background import SWITCH_INTERVAL_S, Background


@pytest.fixture(autouse=True)
def _interval_of_five_ms() -> None:
    sys.setswitchinterval(0.005)


def test_the_result_is_that_of_the_function() -> None:
    work = Background(lambda: 1 + 1)
    assert work.result() == 2 and work.result() == 2 and work.done


def test_an_error_is_raised_where_the_result_is_needed() -> None:
    def fails() -> None:
        raise ValueError("no such file")

    with pytest.raises(ValueError, match="no such file"):
        Background(fails).result()
    assert sys.getswitchinterval() == pytest.approx(0.005)


def test_threads_take_turns_quickly_until_the_last_one_ends() -> None:
    ends, begun = [threading.Event(), threading.Event()], threading.Barrier(3)
    works = [Background(lambda end=end: (begun.wait(), end.wait())) for end in ends]  # type: ignore[misc]
    begun.wait()
    for end, work in zip(ends, works, strict=True):
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
        end.set()
        work.result()
    assert sys.getswitchinterval() == pytest.approx(0.005)


def test_a_shorter_interval_is_left_as_it_is() -> None:
    sys.setswitchinterval(1e-5)
    assert Background(sys.getswitchinterval).result() == pytest.approx(1e-5)
    sys.setswitchinterval(0.005)
