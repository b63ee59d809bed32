"""Work in a thread."""

from __future__ import annotations

import pytest

from mill.support.processes import Background


def test_the_result_is_that_of_the_function() -> None:
    work = Background(lambda: 1 + 1)
    assert work.result() == 2 and work.result() == 2 and work.done


def test_an_error_is_raised_where_the_result_is_needed() -> None:
    def fails() -> None:
        raise ValueError("no such file")

    with pytest.raises(ValueError, match="no such file"):
        Background(fails).result()
