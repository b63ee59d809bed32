"""Rate and time left: of tokens where they are planned, and no estimate before it means something."""

from __future__ import annotations

import pytest

from mill.support import terminal
from mill.support.terminal import Progress, TokenCount


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(terminal, "time", clock)
    return clock


def test_the_time_left_follows_from_tokens_where_they_are_planned(clock: Clock) -> None:
    """One of 288 requests is complete after a fifth of the tokens: it takes 40 s more, not 2,870."""
    count = TokenCount(planned=5000)
    with Progress("loglikelihood", 288, quiet=True, tokens=lambda: count) as progress:
        clock.now += 10
        count.computed = 1000
        progress.advance()
        assert progress.seconds_left() == pytest.approx(40.0)
        count.computed = 5000  # what is left is not planned: requests count again
        for _ in range(143):
            progress.advance()
        assert progress.seconds_left() == pytest.approx(10.0)


def test_lines_have_the_rate_of_tokens_and_the_time_left(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    count = TokenCount(planned=100_000)
    with Progress("loglikelihood", 4, tokens=lambda: count) as progress:
        clock.now += 20
        count.computed = 25_000
        progress.advance()
        clock.now += 60
        count.computed = 100_000
        for _ in range(3):
            progress.advance(failed=True)
    assert capsys.readouterr().err.splitlines() == [
        "loglikelihood: 1/4, 1,250 tokens/s, 1 min 0 s left",
        "loglikelihood: 2/4, 1,250 tokens/s, 1 min 20 s left, 1 failed",
        "loglikelihood: 4/4, 1,250 tokens/s, 3 failed",
    ]
