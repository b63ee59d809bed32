"""What a record keeps beside answers: distributions, and which answers other runs may have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mill.api.errors import RunError
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request
from mill.api.response import Response
from mill.store.record import Record

ASKED = Request(LOGLIKELIHOOD, "a", " b", options={"logprobs": "all"})
PLAIN = Request(GENERATE, "a", options={"temperature": 0.0})
VALUES = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]], dtype=np.float32))


def scored(values: np.ndarray = VALUES) -> Response:
    return Response(score=-1.5, is_greedy=False, distribution=values)


def put(folder: Path, request: Request, response: Response, *, shareable: bool = True) -> Response:
    record = Record(folder, shareable=shareable)
    found = record.put(request, response)
    record.close()
    return found


def test_a_distribution_goes_to_a_file_that_the_response_names(tmp_path: Path) -> None:
    found = put(tmp_path / "run", ASKED, scored())
    assert found.distribution == f"run/distributions/{ASKED.key}.npy"
    again = Record(tmp_path / "run").get(ASKED)
    assert again is not None and again.distribution == found.distribution
    assert np.array_equal(np.load(tmp_path / again.distribution), VALUES)


def test_an_answer_whose_distribution_was_removed_is_computed_again(tmp_path: Path) -> None:
    found = put(tmp_path / "run", ASKED, scored())
    (tmp_path / str(found.distribution)).unlink()
    assert Record(tmp_path / "run").get(ASKED) is None


def test_a_run_takes_deterministic_answers_from_its_siblings_but_no_distributions(tmp_path: Path) -> None:
    put(tmp_path / "one", ASKED, scored())
    put(tmp_path / "one", PLAIN, Response(text="x"))
    record = Record(tmp_path / "two", [tmp_path / "one"])
    assert record.get(PLAIN) == Response(text="x")
    assert record.get(ASKED) is None
    record.close()


def test_a_run_that_is_not_shareable_shares_no_responses(tmp_path: Path) -> None:
    put(tmp_path / "one", PLAIN, Response(text="x"), shareable=False)
    assert Record(tmp_path / "two", [tmp_path / "one"]).get(PLAIN) is None
    assert Record(tmp_path / "one", shareable=False).get(PLAIN) == Response(text="x")


def test_a_folder_that_cannot_be_written_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/distributions").write_text("")
    with pytest.raises(RunError, match=r"cannot write .*npy"):
        put(tmp_path / "run", ASKED, scored())
