"""Work that an interrupt must not cut short."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from mill.support.processes import SIGNALS, deferred_interrupt


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Those of a command: both signals raise KeyboardInterrupt."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler)
    yield
    assert all(signal.getsignal(number) is signal.default_int_handler for number in SIGNALS)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_an_interrupt_has_its_effect_at_the_end(number: signal.Signals) -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupt():
        signal.raise_signal(number)
        done.append(1)
    assert done == [1]


def test_where_the_process_ends_anyway_an_interrupt_has_no_effect() -> None:
    with deferred_interrupt(repeat=False):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("repeat", [True, False])
def test_a_second_interrupt_has_its_effect_at_once(repeat: bool) -> None:
    with pytest.raises(KeyboardInterrupt), deferred_interrupt(repeat=repeat):
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise KeyboardInterrupt


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with deferred_interrupt():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_other_threads_work_without_handlers() -> None:
    done = []

    def work() -> None:
        with deferred_interrupt():
            done.append(signal.getsignal(signal.SIGINT) is signal.default_int_handler)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]
