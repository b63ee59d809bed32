"""Two runs side by side, against the samples files and scipy."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binomtest  # type: ignore[import-untyped]
from statsmodels.stats.multitest import multipletests  # type: ignore[import-untyped]

from mill.api.errors import MillError
from mill.report.score_diff import diff_scores
from mill.view.compare import compare_summary, find_pair, list_pairs, pair_neighbours, read_pair_filter
from mill.view.index import ResultsIndex
from mill.view.queries import list_samples, read_filter
from tests.view.conftest import lines_of, uid_of_model

Lines = list[dict[str, Any]]
NO_INTERVAL = {"stderr": 0.1, "low": None, "high": None, "n": 40}
Edit = Callable[[str, str, Callable[[Lines], Lines]], None]


def given(index: ResultsIndex, **more: str) -> dict[str, str]:
    return {"a": uid_of_model(index, "one"), "b": uid_of_model(index, "two"), **more}


def summary(index: ResultsIndex, **more: str) -> dict[str, Any]:
    index.sync()
    return compare_summary(index, read_pair_filter(given(index, **more)))


@pytest.fixture
def edited(results: Path, tmp_path: Path) -> Iterator[tuple[Path, ResultsIndex, Edit]]:
    """A copy of the results, its index, and a function that changes the samples of a model."""
    folder = Path(shutil.copytree(results, tmp_path / "results"))
    index = ResultsIndex(folder, cache=tmp_path / "index")

    def edit(model: str, task: str, change: Callable[[Lines], Lines]) -> None:
        (file,) = folder.glob(f"{model}-*/default/samples/{task}.jsonl")
        lines = change([json.loads(line) for line in file.read_text().splitlines()])
        file.unlink()
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))

    yield folder, index, edit
    index.close()


def scored(line: dict[str, Any], **values: Any) -> dict[str, Any]:
    repeats = {name: [value] for name, value in values.items()}
    return {**line, "status": "graded", "error": None, "means": values, "values": repeats}


def with_values(*values: dict[str, Any]) -> Callable[[Lines], Lines]:
    """Samples with these values, the last ones for all that are left."""
    return lambda lines: [scored(line, **values[min(at, len(values) - 1)]) for at, line in enumerate(lines)]


def with_columns(**columns: Any) -> Callable[[Lines], Lines]:
    return lambda lines: [{**line, **columns} for line in lines]


def failed(line: dict[str, Any]) -> dict[str, Any]:
    return {**line, "status": "failed", "error": "HTTP 500", "means": {}, "values": {}}


def outcomes(results: Path, task: str, metric: str) -> list[tuple[str, bool, bool]]:
    """Id, and whether each run is right; a failed sample is not."""
    sides = [{line["id"]: line for line in lines_of(results, model, task)} for model in ("one", "two")]
    return [(name, sides[0][name][metric] == 1.0, sides[1][name].get(metric) == 1.0) for name in sides[0]]


def test_the_cells_and_p_are_those_of_the_files(index: ResultsIndex, results: Path) -> None:
    found = summary(index, task="toy_gen")
    pairs = outcomes(results, "toy_gen", "exact_match")
    worse = sum(a and not b for _, a, b in pairs)
    better = sum(b and not a for _, a, b in pairs)
    assert found["cells"]["regression"] == worse
    assert found["cells"]["improvement"] == better
    assert found["cells"]["both_right"] == sum(a and b for _, a, b in pairs)
    assert found["n"] == 40
    assert found["p"] == pytest.approx(binomtest(worse, worse + better).pvalue if worse + better else 1.0)
    assert found["lost"]["value"] == pytest.approx((worse - better) / 40)
    listed = list_pairs(index, read_pair_filter(given(index, task="toy_gen", cell="regression")))  # a cell is a filter
    assert [row["id"] for row in listed["rows"]] == [name for name, a, b in pairs if a and not b]
    assert listed["total"] == len(listed["rows"]) > 0
    everything = summary(index)
    assert everything["unpaired"] == 0  # of the tasks that both have
    assert {group["task"] for group in everything["groups"]} == {"toy_gen", "toy_choice", "toy_text"}
    corrected = multipletests([group["p"] for group in everything["groups"]], method="holm")[1]
    assert [group["p_corrected"] for group in everything["groups"]] == pytest.approx(list(corrected))


@pytest.mark.parametrize("margin", ["x", "nan", "-1", "inf"])
def test_a_margin_that_is_no_number_is_refused(margin: str) -> None:
    with pytest.raises(MillError, match="nats"):
        read_pair_filter({"margin": margin})


def test_changed_answers_are_not_changed_texts(edited: tuple[Path, ResultsIndex, Edit]) -> None:
    """Two texts from which the same answer is read are one answer."""
    _, index, edit = edited
    for model in ("one", "two"):
        edit(model, "toy_gen", with_columns(extracted="5", response=f"{model} says so", error=None))
    edit("two", "toy_gen", lambda lines: [{**lines[0], "extracted": "6"}, *lines[1:]])
    found = summary(index, task="toy_gen")
    assert (found["changed"], found["flipped"]) == (40, 1)


def test_samples_without_an_answer_are_not_compared(edited: tuple[Path, ResultsIndex, Edit]) -> None:
    """Each of the 40 that one run has answered is one that the other has not."""
    _, index, edit = edited
    edit("two", "toy_gen", with_columns(status="pending", values={}))
    found = summary(index, task="toy_gen")
    assert (found["n"], found["unpaired"], found["p"], found["sentences"]) == (0, 40, None, [])


@pytest.mark.parametrize("sides", [("one",), ("two",), ("one", "two")])
def test_a_run_in_which_all_samples_failed_shows_no_gain_and_no_loss(
    edited: tuple[Path, ResultsIndex, Edit], sides: tuple[str, ...]
) -> None:
    _, index, edit = edited
    for side in sides:
        edit(side, "toy_gen", lambda lines: list(map(failed, lines)))
    for found in (summary(index, task="toy_gen"), *([summary(index, metric="exact_match")] if len(sides) < 2 else [])):
        assert (found["cells"]["other"], found["p"], found["lost"], found["accuracy"]) == (40, None, None, None)
        assert "inconclusive" in " ".join(found["sentences"]) or len(sides) == 2
        assert not any(word in " ".join(found["sentences"]) for word in ("fell", "rose", "unchanged"))


def test_a_sample_that_is_not_paired_does_not_make_a_task_graded(edited: tuple[Path, ResultsIndex, Edit]) -> None:
    _, index, edit = edited
    edit("two", "toy_gen", lambda lines: [scored({**lines[0], "data_hash": "ff" * 16}, exact_match=0.5), *lines[1:]])
    found = summary(index, task="toy_gen")
    assert (found["n"], found["cells"]["other"], found["unpaired"]) == (39, 0, 2)


def test_less_of_an_error_rate_is_no_loss(edited: tuple[Path, ResultsIndex, Edit]) -> None:
    _, index, edit = edited
    for model, scale in (("one", 1.0), ("two", 1.5)):
        edit(model, "toy_gen", with_values(*({"wer": scale * (1 + at)} for at in range(40))))
    found = summary(index, task="toy_gen")
    assert found["scores"][2]["value"] == pytest.approx(20.5 / 2)
    assert [one.startswith("wer rose from 20.5000 to 30.75") for one in found["sentences"]] == [True]
    for model, value in (("one", 0.0), ("two", 1.0)):  # neither is one of which 1 is wrong
        edit(model, "toy_gen", with_values({"failed_calls": value}))
    found = summary(index, task="toy_gen")
    assert (found["cells"]["other"], found["scores"][2]["value"]) == (40, 1.0)


def test_perplexities_are_those_of_all_documents_together(edited: tuple[Path, ResultsIndex, Edit]) -> None:
    """As `mill diff-scores` has them: ratios of sums. The mean over documents would be a gain here, and it is a loss."""
    folder, index, edit = edited
    sides = {"one": [(-300.0, 100.0)] * 20 + [(-40.0, 10.0)] * 20, "two": [(-330.0, 100.0)] * 20 + [(-20.0, 10.0)] * 20}
    values = {"one": math.exp(6800 / 2200), "two": math.exp(7000 / 2200)}
    for model, pairs in sides.items():
        edit(model, "toy_text", with_values(*({"ppl": pair} for pair in pairs)))
        (results,) = folder.glob(f"{model}-*/default/results.json")
        found = json.loads(results.read_text())
        found["tasks"]["toy_text"]["metrics"] = {"ppl": {**NO_INTERVAL, "value": values[model]}}
        results.write_text(json.dumps(found))
    compared = summary(index, task="toy_text")
    one, two = (next(folder.glob(f"{model}-*/default")) for model in sides)
    (row,) = (row for row in diff_scores(one, two).rows if row.name == "toy_text")
    loss = values["two"] - values["one"]
    assert [side["value"] for side in compared["scores"]] == pytest.approx([*values.values(), loss])
    assert row.found.difference.estimate.value == pytest.approx(loss)
    assert (compared["score_name"], compared["p"]) == ("ppl", pytest.approx(row.found.difference.p))
    assert compared["sentences"][0].startswith("No change of ppl detected: from 21.9971 to 24.0905 (a rise of 2.0934")


def test_metrics_are_matched_by_their_names(edited: tuple[Path, ResultsIndex, Edit]) -> None:
    """The runs list theirs in another order, and more than six of them."""
    _, index, edit = edited
    names = ["exact_match", *(f"m{number}" for number in range(8))]
    for model, order in (("one", names), ("two", names[::-1])):
        edit(model, "toy_gen", with_values({name: float(name == "m7") for name in order}))
    found = summary(index, task="toy_gen")
    assert (found["cells"]["both_wrong"], found["metrics"]) == (40, names)
    assert summary(index, task="toy_gen", metric="m7")["cells"]["both_right"] == 40
    chosen = read_filter({"run": uid_of_model(index, "one"), "task": "toy_gen", "sort": "v8"})
    row = list_samples(index, chosen)["rows"][0]
    assert row["values"]["m7"] == 1.0
    with pytest.raises(MillError, match="no task that both runs have is scored by nonsense"):
        summary(index, metric="nonsense")


def test_the_next_flip_is_found_from_anywhere(index: ResultsIndex, results: Path) -> None:
    chosen = read_pair_filter(given(index, task="toy_gen"))
    flips = [name for name, a, b in outcomes(results, "toy_gen", "exact_match") if a != b]
    names = [row["id"] for row in list_pairs(index, chosen)["rows"]]
    for number, name in enumerate(names):
        pair, _, _ = find_pair(index, chosen, "toy_gen", name)
        expected = next((other for other in names[number + 1 :] if other in flips), flips[0])
        assert pair_neighbours(index, chosen, pair)["next_flip"]["id"] == expected


def test_pairs_follow_the_data_and_not_the_ids(edited: tuple[Path, ResultsIndex, Edit]) -> None:
    """The same data under other ids and in another order is the same sample. A run that changed is compared anew."""
    _, index, edit = edited
    edit("two", "toy_gen", lambda lines: [{**line, "id": f"renamed {line['id']}"} for line in reversed(lines)])
    assert summary(index, task="toy_gen")["n"] == 40
    _, first, second = find_pair(index, read_pair_filter(given(index, task="toy_gen")), "toy_gen", "3")
    assert (first["name"], second["name"]) == ("3", "renamed 3")
    edit("two", "toy_gen", lambda lines: lines[:10])
    found = summary(index, task="toy_gen")
    assert (found["n"], found["unpaired"]) == (10, 30)


def test_runs_without_a_common_task_are_refused(index: ResultsIndex) -> None:
    uid = uid_of_model(index, "one")
    with pytest.raises(MillError, match="not compared with itself"):
        compare_summary(index, read_pair_filter({"a": uid, "b": uid}))
    with pytest.raises(MillError, match="run"):
        compare_summary(index, read_pair_filter({"a": uid, "b": "nothing"}))
