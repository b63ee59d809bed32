"""The tokens of a sample and whole distributions, as pages read them."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mill.api.response import Response, Token
from mill.view.run_info import RunInfo
from mill.view.tokens import with_alternatives


class Waste:
    """Garbage whose collection lets another thread run, in the middle of whatever this one does."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.sleep(0)


@pytest.fixture
def collected_often() -> Iterator[None]:
    threshold = gc.get_threshold()
    gc.set_threshold(20)
    yield
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("collected_often")
def test_threads_read_distributions_at_the_same_time(tmp_path: Path) -> None:
    """As requests of one page do: numpy's own reader fails in half of these cases on CPython 3.11."""
    run = tmp_path / "model/run"
    (run / "distributions").mkdir(parents=True)
    np.save(run / "distributions/one.npy", np.log(np.array([[0.7, 0.2, 0.1]], np.float32)))
    response = Response(score=-1.0, tokens=(Token(1, "a", -1.6),), distribution="run/distributions/one.npy")
    info = RunInfo("uid", "run", run, signature=())  # type: ignore[arg-type]

    def read(_: int) -> Any:
        Waste()
        return with_alternatives(info, response)[0][0].top

    with ThreadPoolExecutor(4) as threads:
        tops = list(threads.map(read, range(400)))
    assert {tuple(name for name, _ in top) for top in tops} == {(0, 1, 2)}
