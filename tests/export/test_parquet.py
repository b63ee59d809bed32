"""Parquet files, read with pandas and DuckDB."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from mill.export.parquet import write_parquet
from mill.export.run import ExportedRun
from tests.export.made_runs import leaks
from tests.export.odd import ESCAPED

pandas = pytest.importorskip("pandas")
duckdb = pytest.importorskip("duckdb")


@pytest.fixture(scope="module")
def folder(odd_run: ExportedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parquet")
    assert [file.name for file in write_parquet([odd_run], folder)] == ["runs.parquet", "scores.parquet", "samples.parquet"]
    return folder


def test_pandas_reads_what_the_run_has(folder: Path, odd_run: ExportedRun) -> None:
    samples = pandas.read_parquet(folder / "samples.parquet")
    assert len(samples) == 15 and set(samples["run"]) == {odd_run.uid}
    text = samples[samples["task"] == "odd_text"].set_index("id")
    responses = text["response"].fillna("(none)").to_dict()
    assert responses == {"plain": "plain answer", "hostile": ESCAPED, "fails": "(none)", "long": "cut off"}
    assert text["exact_match"].fillna(-1).to_dict() == {"plain": 1.0, "hostile": 0.0, "fails": -1.0, "long": 0.0}
    assert text["speed"]["plain"] == math.inf and math.isnan(text["speed"]["fails"])
    assert text["error"]["fails"] == "the server said \x1b[2J no"
    assert (text["reasoning"]["long"], text["category"]["plain"]) == ("first I think", "short")
    assert json.loads(text["doc"]["plain"]) == {"question": "plain", "note": ESCAPED}
    choice = samples[samples["task"] == "odd:choice,x"].set_index("id")
    assert list(choice["choices"]["plain"]) == ["yes", "no", "maybe"]
    assert [*choice["choice_logprobs"]["plain"][:2]] == [-1.5, -2.25]
    assert choice["correct"].to_dict() == {"plain": True, "hostile": True, "fails": False, "long": False}
    assert choice["pass@1,strict"].to_list() == [1.0, 1.0, 0.0, 0.0]
    assert samples[samples["task"] == "odd_document"]["word_perplexity"].to_list() == pytest.approx([math.e**2] * 4)


def test_duckdb_joins_runs_scores_and_samples(folder: Path) -> None:
    scores = duckdb.sql(
        f"""select r.model, s.task, s.metric, s.value, s.n, s.failed, s.total
        from '{folder}/scores.parquet' s join '{folder}/runs.parquet' r using (run) where s.task = 'odd_text'"""
    ).fetchall()
    assert [row[:3] + row[4:] for row in scores] == [
        ("org/odd", "odd_text", "exact_match", 3, 1, 4),
        ("org/odd", "odd_text", "speed", 3, 1, 4),
    ]
    assert scores[0][3] == pytest.approx(1 / 3) and scores[1][3] == math.inf
    (status, tasks, failed, seconds) = duckdb.sql(
        f"select status, tasks, failed, seconds from '{folder}/runs.parquet'"
    ).fetchall()[0]
    assert (status, tasks[1], failed) == ("finished", "odd:choice,x", 1) and seconds > 0
    mean = duckdb.sql(f"select avg(exact_match) from '{folder}/samples.parquet' where task = 'odd_text'").fetchall()
    assert mean[0][0] == pytest.approx(1 / 3)
    hostile = duckdb.sql(f"select response from '{folder}/samples.parquet' where id = 'hostile' and task = 'odd_text'")
    assert hostile.fetchall() == [(ESCAPED,)]


def test_the_same_run_gives_the_same_bytes(folder: Path, odd_run: ExportedRun, tmp_path: Path) -> None:
    for file in write_parquet([ExportedRun.read(odd_run.folder)], tmp_path):
        assert file.read_bytes() == (folder / file.name).read_bytes()


def test_no_samples_and_no_keys(folder: Path, odd_run: ExportedRun, tmp_path: Path) -> None:
    assert [file.name for file in write_parquet([odd_run], tmp_path, samples=False)] == ["runs.parquet", "scores.parquet"]
    assert leaks(folder) == [] and leaks(tmp_path) == []
