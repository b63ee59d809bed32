"""Two runs side by side, against the samples files and scipy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from scipy.stats import binomtest, ttest_1samp  # type: ignore[import-untyped]
from statsmodels.stats.multitest import multipletests  # type: ignore[import-untyped]

from mill.api.errors import MillError
from mill.metrics.paired import holm
from mill.view.comparing import compare_summary, find_pair, list_pairs, pair_neighbours, read_pair_filter
from mill.view.index import ResultsIndex
from tests.view.conftest import lines_of, uid_of_model


def given(index: ResultsIndex, **more: str) -> dict[str, str]:
    return {"a": uid_of_model(index, "one"), "b": uid_of_model(index, "two"), **more}


def outcomes(results: Path, task: str, metric: str) -> list[tuple[str, bool, bool]]:
    """Id, and whether each run is right; a failed sample is not."""
    sides = [{line["id"]: line for line in lines_of(results, model, task)} for model in ("one", "two")]
    return [(name, sides[0][name][metric] == 1.0, sides[1][name].get(metric) == 1.0) for name in sides[0]]


def test_the_cells_and_p_are_those_of_the_files(index: ResultsIndex, results: Path) -> None:
    found = compare_summary(index, read_pair_filter(given(index, task="toy_gen")))
    pairs = outcomes(results, "toy_gen", "exact_match")
    worse = sum(a and not b for _, a, b in pairs)
    better = sum(b and not a for _, a, b in pairs)
    assert found["cells"]["regression"] == worse
    assert found["cells"]["improvement"] == better
    assert found["cells"]["both_right"] == sum(a and b for _, a, b in pairs)
    assert found["n"] == 40
    assert found["p"] == pytest.approx(binomtest(worse, worse + better).pvalue if worse + better else 1.0)
    assert found["lost"]["value"] == pytest.approx((worse - better) / 40)


def test_unpaired_samples_and_tasks_are_reported(index: ResultsIndex) -> None:
    assert compare_summary(index, read_pair_filter(given(index)))["unpaired"] == 0  # of the tasks that both have
    assert {group["task"] for group in compare_summary(index, read_pair_filter(given(index)))["groups"]} == {
        "toy_gen",
        "toy_choice",
        "toy_text",
    }


def test_a_cell_is_a_filter(index: ResultsIndex, results: Path) -> None:
    found = list_pairs(index, read_pair_filter(given(index, task="toy_gen", cell="regression")))
    assert [row["id"] for row in found["rows"]] == [
        name for name, a, b in outcomes(results, "toy_gen", "exact_match") if a and not b
    ]
    assert found["total"] == len(found["rows"]) > 0


def test_near_ties_can_be_hidden(index: ResultsIndex, results: Path) -> None:
    """The margin of multiple choice is that of the baseline's two best choices."""
    margins = {}
    for line in lines_of(results, "one", "toy_choice"):
        best, second = sorted(line["choice_logprobs"], reverse=True)[:2]
        margins[line["id"]] = best - second
    wanted = [name for name, margin in margins.items() if margin >= 0.5]
    for margin in ("0.5", "0.4999999"):  # a step of the slider, whose counts are stored, and one that is not
        found = list_pairs(index, read_pair_filter(given(index, task="toy_choice", margin=margin)))
        assert [row["id"] for row in found["rows"]] == wanted
        summary = compare_summary(index, read_pair_filter(given(index, task="toy_choice", margin=margin)))
        assert sum(summary["above"].values()) == len(wanted)
        assert summary["n"] == 40  # the tests are over all pairs
    assert 0 < len(wanted) < 40


def test_runs_are_compared_by_any_metric_that_they_share(index: ResultsIndex) -> None:
    found = compare_summary(index, read_pair_filter(given(index, metric="acc")))
    assert {group["task"] for group in found["groups"]} == {"toy_choice"}
    assert found["cells"] == compare_summary(index, read_pair_filter(given(index, task="toy_choice")))["cells"]
    with pytest.raises(MillError, match="no task that both runs have is scored by nonsense"):
        compare_summary(index, read_pair_filter(given(index, metric="nonsense")))


@pytest.mark.parametrize("margin", ["x", "nan", "-1", "inf"])
def test_a_margin_is_a_number_of_nats(margin: str) -> None:
    with pytest.raises(MillError, match="nats"):
        read_pair_filter({"margin": margin})


def test_changed_answers_are_not_changed_texts(results: Path, tmp_path: Path) -> None:
    """Two texts from which the same answer is read are one answer."""
    folder = Path(shutil.copytree(results, tmp_path / "results"))
    for model, extracted in (("one", "5"), ("two", "5")):
        (file,) = folder.glob(f"{model}-*/default/samples/toy_gen.jsonl")
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        changed = [{**line, "extracted": extracted, "response": f"{model} says so", "error": None} for line in lines]
        changed[0]["extracted"] = model
        file.write_text("".join(json.dumps(line) + "\n" for line in changed))
    index = ResultsIndex(folder, cache=tmp_path / "index")
    index.sync()
    found = compare_summary(index, read_pair_filter(given(index, task="toy_gen")))
    assert (found["changed"], found["flipped"]) == (40, 1)
    index.close()


def test_samples_without_an_answer_are_not_compared(results: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(results, tmp_path / "results"))
    (file,) = folder.glob("two-*/default/samples/toy_gen.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    unanswered = [{**line, "status": "pending", "values": {}} for line in lines]
    file.write_text("".join(json.dumps(line) + "\n" for line in unanswered))
    index = ResultsIndex(folder, cache=tmp_path / "index")
    index.sync()
    found = compare_summary(index, read_pair_filter(given(index, task="toy_gen")))
    assert (found["n"], found["unpaired"], found["p"], found["sentences"]) == (0, 80, None, [])
    index.close()


def test_graded_scores_are_compared_by_their_means(results: Path, tmp_path: Path) -> None:
    """Of 40 samples 10 are 0 or 1 in both runs: they are not a sample of the others. One that failed counts as 0."""
    folder, values = Path(shutil.copytree(results, tmp_path / "results")), {}
    for model, scale in (("one", 1.0), ("two", 0.9)):
        (file,) = folder.glob(f"{model}-*/default/samples/toy_gen.jsonl")
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        values[model] = [float(number % 2) if number < 10 else scale * number / 40 for number in range(40)]
        for line, value in zip(lines, values[model], strict=True):
            line |= {"status": "graded", "error": None, "means": {"exact_match": value}, "values": {"exact_match": [value]}}
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    lines[39] |= {"status": "failed", "error": "HTTP 500", "means": {}, "values": {}}
    values["two"][39] = 0.0
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    index = ResultsIndex(folder, cache=tmp_path / "index")
    index.sync()
    found = compare_summary(index, read_pair_filter(given(index, task="toy_gen")))
    assert (found["cells"]["other"], found["lost"], found["n"]) == (40, None, 40)
    losses = [a - b for a, b in zip(values["one"], values["two"], strict=True)]
    assert found["scores"][2]["value"] == pytest.approx(sum(losses) / 40)
    assert found["p"] == pytest.approx(ttest_1samp(losses, 0).pvalue)
    assert found["sentences"][0].startswith("The mean score fell from")
    index.close()


def test_the_next_flip_is_found_from_anywhere(index: ResultsIndex, results: Path) -> None:
    chosen = read_pair_filter(given(index, task="toy_gen"))
    flips = [name for name, a, b in outcomes(results, "toy_gen", "exact_match") if a != b]
    names = [row["id"] for row in list_pairs(index, chosen)["rows"]]
    for number, name in enumerate(names):
        pair, _, _ = find_pair(index, chosen, "toy_gen", name)
        expected = next((other for other in names[number + 1 :] if other in flips), flips[0])
        assert pair_neighbours(index, chosen, pair)["next_flip"]["id"] == expected


def test_pairs_follow_the_data_and_not_the_ids(results: Path, tmp_path: Path) -> None:
    """The same data under other ids and in another order is the same sample."""
    folder = Path(shutil.copytree(results, tmp_path / "results"))
    (file,) = folder.glob("two-*/default/samples/toy_gen.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    renamed = [{**line, "id": f"renamed {line['id']}"} for line in reversed(lines)]
    file.write_text("".join(json.dumps(line) + "\n" for line in renamed))
    index = ResultsIndex(folder, cache=tmp_path / "index")
    index.sync()
    chosen = read_pair_filter(given(index, task="toy_gen"))
    assert compare_summary(index, chosen)["n"] == 40
    _, first, second = find_pair(index, chosen, "toy_gen", "3")
    assert (first["name"], second["name"]) == ("3", "renamed 3")
    index.close()


def test_a_changed_run_is_compared_anew(results: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(results, tmp_path / "results"))
    index = ResultsIndex(folder, cache=tmp_path / "index")
    index.sync()
    chosen = read_pair_filter(given(index, task="toy_gen"))
    assert compare_summary(index, chosen)["n"] == 40
    (file,) = folder.glob("two-*/default/samples/toy_gen.jsonl")
    kept = file.read_text().splitlines()[:10]
    file.unlink()
    file.write_text("\n".join(kept) + "\n")
    index.sync()
    summary = compare_summary(index, chosen)
    assert (summary["n"], summary["unpaired"]) == (10, 30)
    index.close()


def test_holm_is_that_of_statsmodels() -> None:
    p_values = [0.01, 0.04, 0.03, 0.005, 0.5, 0.04]
    assert holm(p_values) == pytest.approx(list(multipletests(p_values, method="holm")[1]))
    assert holm([]) == []


def test_runs_without_a_common_task_are_refused(index: ResultsIndex) -> None:
    uid = uid_of_model(index, "one")
    with pytest.raises(MillError, match="not compared with itself"):
        compare_summary(index, read_pair_filter({"a": uid, "b": uid}))
    with pytest.raises(MillError, match="run"):
        compare_summary(index, read_pair_filter({"a": uid, "b": "nothing"}))
