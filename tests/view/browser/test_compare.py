"""Two runs: the 2×2, McNemar's test, near-ties, and pairs of samples side by side."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from statsmodels.stats.contingency_tables import mcnemar  # type: ignore[import-untyped]

from mill.view.compare import PairFilter, compare_summary
from mill.view.index import ResultsIndex
from tests.browsing import needs_chromium, sync_api
from tests.view.browser.results import CATEGORIES, CHOICES, TEXTS, ResultFiles
from tests.view.browser.shown import number, params, percent, rows

pytestmark = needs_chromium
expect = sync_api.expect
CELLS = {(1.0, 1.0): "both right", (1.0, 0.0): "regression", (0.0, 1.0): "improvement", (0.0, 0.0): "both wrong"}


@pytest.fixture(scope="module")
def pairs(results: ResultFiles) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The samples of the multiple choice in both runs, in the order of the file."""
    first, second = (results.runs[name].samples(CHOICES) for name in ("base", "other"))
    of_id = {one["id"]: one for one in second}
    return [(one, of_id[one["id"]]) for one in first]


def cell(pair: tuple[dict[str, Any], dict[str, Any]]) -> str:
    return CELLS[pair[0]["values"]["acc"][0], pair[1]["values"]["acc"][0]]


def margin(sample: dict[str, Any]) -> float:
    best, second = sorted(sample["choice_logprobs"], reverse=True)[:2]
    return float(best - second)


def open_compare(screens: Any, results: ResultFiles, uids: dict[str, str], **more: str) -> Any:
    page = screens.open("compare", a=uids["base"], b=uids["other"], **{"task": results.runs["base"].task(CHOICES), **more})
    expect(page.locator(".two-by-two")).to_be_visible()
    expect(page.get_by_text(" pairs").last).to_be_visible()
    return page


def test_the_table_counts_pairs_and_its_cells_filter_them(
    screens: Any, results: ResultFiles, uids: dict[str, str], pairs: list[Any]
) -> None:
    page = open_compare(screens, results, uids)
    counts = Counter(map(cell, pairs))
    assert all(counts[name] for name in CELLS.values())
    for name in CELLS.values():
        expect(page.locator(".cell-button", has_text=name)).to_have_text(f"{counts[name]} {name}")
    page.locator(".cell-button", has_text="regression").click()
    wanted = [pair[0]["id"] for pair in pairs if cell(pair) == "regression"]
    expect(page.locator("table.list").last.locator("tbody tr")).to_have_count(len(wanted))
    assert [row[0] for row in rows(page, "table.list >> nth=-1")] == wanted
    assert params(page)["cell"] == "regression"
    page.reload()
    expect(page.locator("table.list").last.locator("tbody tr")).to_have_count(len(wanted))
    expect(page.locator(".cell-button", has_text="regression")).to_have_attribute("aria-pressed", "true")


def test_the_test_and_the_categories_are_shown(
    screens: Any, results: ResultFiles, uids: dict[str, str], pairs: list[Any]
) -> None:
    page = open_compare(screens, results, uids)
    counts = Counter(map(cell, pairs))
    table = [[counts["both right"], counts["regression"]], [counts["improvement"], counts["both wrong"]]]
    facts = dict(zip(page.locator("dt").all_inner_texts(), page.locator("dd").all_inner_texts(), strict=True))
    assert facts["McNemar's p"] == f"{mcnemar(table, exact=True).pvalue:.3f}"
    accuracies = [percent(sum(pair[side]["values"]["acc"][0] for pair in pairs) / len(pairs)) for side in (0, 1)]
    assert facts["Accuracy"] == " → ".join(accuracies)
    changed = sum(first["chosen"] != second["chosen"] for first, second in pairs)
    assert facts["Changed answers"] == f"{changed} of {len(pairs)}"
    assert sorted(row[0].partition(" / ")[2] for row in rows(page)) == sorted(CATEGORIES)


def test_the_slider_hides_near_ties(screens: Any, results: ResultFiles, uids: dict[str, str], pairs: list[Any]) -> None:
    page = open_compare(screens, results, uids)
    slider = page.get_by_role("slider")
    slider.focus()
    for _ in range(7):
        slider.press("ArrowRight")
    expect(page.locator("output")).to_have_text("1 nats")
    kept = [pair for pair in pairs if margin(pair[0]) >= 1]
    assert 0 < len(kept) < len(pairs)
    expect(page.locator(".two-by-two caption")).to_have_text(f"{len(pairs)} pairs; a cell is a filter")  # the tests have all
    flips = [sum(cell(pair) in ("regression", "improvement") for pair in some) for some in (kept, pairs)]
    expect(page.locator(".slider")).to_contain_text(f"{flips[0]} of {flips[1]} answers that became right or wrong")
    assert params(page)["margin"] == "1"
    expect(page.get_by_text(f"{len(kept)} pairs", exact=True)).to_be_visible()


def test_keys_walk_through_the_flips(screens: Any, results: ResultFiles, uids: dict[str, str], pairs: list[Any]) -> None:
    page = open_compare(screens, results, uids)
    page.get_by_role("link", name="quiz-0", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("quiz-0")
    flips = [number for number, pair in enumerate(pairs) if cell(pair) in ("regression", "improvement")]
    at = 0
    for _ in range(3):
        at = next((number for number in flips if number > at), flips[0])
        expect(page.get_by_role("button", name="Next flip")).to_be_enabled()
        page.keyboard.press("f")
        expect(page.get_by_role("heading", level=1)).to_have_text(pairs[at][0]["id"])
        expect(page.locator(".filters .tag").first).to_have_text(cell(pairs[at]))
    page.keyboard.press("n")
    expect(page.get_by_role("heading", level=1)).to_have_text(pairs[at + 1][0]["id"])
    expect(page.locator(".columns.pair")).to_be_visible()
    page.keyboard.press("p")
    expect(page.get_by_role("heading", level=1)).to_have_text(pairs[at][0]["id"])


def test_a_pair_shows_the_choices_of_both_runs(
    screens: Any, results: ResultFiles, uids: dict[str, str], pairs: list[Any]
) -> None:
    pair = next(pair for pair in pairs if cell(pair) == "regression")
    page = screens.open("pair", a=uids["base"], b=uids["other"], t=pair[0]["task"], id=pair[0]["id"])
    sides = page.locator(".columns.pair section")
    expect(sides).to_have_count(2)
    for side, sample in zip(sides.all(), pair, strict=True):
        shown = rows(side, "table.choices")
        assert [row[1] for row in shown] == [number(score) for score in sample["choice_logprobs"]]
        chosen = [row[0] for row in shown if " chosen" in row[0] and "by the other" not in row[0]]
        assert [text.split(" chosen")[0] for text in chosen] == [sample["chosen"]]
    assert "target" in sides.first.locator("tr.chosen").inner_text()


def test_threads_that_compare_at_once_count_the_same_pairs(
    results: ResultFiles, uids: dict[str, str], tmp_path: Path
) -> None:
    """The near-tie filter needs the margins of texts, which are looked up when two runs are first compared."""
    index = ResultsIndex(results.root, cache=tmp_path)
    index.sync()
    chosen = PairFilter(uids["base"], uids["other"], least_margin=0.1)
    with ThreadPoolExecutor(4) as pool:
        counts = {found["n"] for found in pool.map(lambda _: compare_summary(index, chosen), range(8))}
    index.close()
    assert len(counts) == 1


def story_pair(results: ResultFiles) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Two texts that share at least two tokens, and the number of the first token in which they differ."""
    first, second = ({one["id"]: one for one in results.runs[name].samples(TEXTS)} for name in ("base", "other"))
    for name, one in first.items():
        tokens = [[token[0] for token in side["responses"][0][0]["tokens"]] for side in (one, second[name])]
        same = next((at for at, (a, b) in enumerate(zip(*tokens, strict=False)) if a != b), None)
        if same is not None and same >= 2:
            return one, second[name], same + 1
    raise AssertionError("no two texts share a start")


def test_a_pair_of_texts_shows_where_they_diverge(screens: Any, results: ResultFiles, uids: dict[str, str]) -> None:
    first, second, token = story_pair(results)
    page = screens.open("pair", height=300, a=uids["base"], b=uids["other"], t=first["task"], id=first["id"])
    expect(page.get_by_text(f"first divergence at token {token}")).to_be_visible()
    for side, sample in zip(page.locator(".columns.pair section").all(), (first, second), strict=True):
        expect(side.locator("pre.diff mark.first")).to_have_count(1)
        same = side.locator("pre.diff").evaluate("pre => pre.firstChild.nodeType === 3 ? pre.firstChild.data : ''")
        assert len(same) > 0
        assert sample["response"].isprintable() or "\\x" in side.locator("pre.diff").inner_text()
    page.evaluate("scrollTo(0, 0)")
    page.keyboard.press("d")
    expect(page.locator("mark.first").first).to_be_in_viewport()
