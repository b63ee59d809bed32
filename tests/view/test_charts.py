"""What the charts of a check show, and the samples that changed: as data, before anything is drawn."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mill.checks.determinism import repeated
from mill.checks.forced import ForcedGaps
from mill.checks.pairing import MAX_CHARS
from mill.checks.result import Check, Variant, read_check
from mill.checks.subjects import Pass
from mill.metrics.divergence import Gap
from mill.metrics.estimate import Estimate
from mill.store.schema import Decision, Look
from mill.support.files import json_text
from mill.view.charts import LEAST_POWER, Plot, charts, sequence_chart
from mill.view.check_queries import changes, show_check
from tests.view.saved_checks import (
    BASE,
    ESSAY,
    GIB,
    Q4,
    Q8,
    TICKS,
    answered,
    chosen,
    compare_check,
    compared,
    crowded_check,
    determinism_check,
    failed_check,
    sized,
    stress_check,
    sweep_check,
    unchanged_check,
)

CURVES = ["KL mean, nats", "Answer flips", "Accuracy lost"]
FORCED = ["Distribution of KL over positions", "Same top token, by position in the answer"]
CATEGORIES = ["Answer flips by category", "Same text by category"]
HEAT = "Every prompt, by how much its answer changed"
LOAD = ["Latency, seconds", "Time to first token, seconds", "Throughput, tokens per second"]
EXPECTED: dict[Callable[[], Check], list[str]] = {
    compare_check: [*CURVES, *FORCED, *CATEGORIES, HEAT],
    sweep_check: [*CURVES, *FORCED, *CATEGORIES, HEAT],
    unchanged_check: [*FORCED, *CATEGORIES, HEAT],
    failed_check: [*CATEGORIES, HEAT],
    stress_check: [*LOAD, "Consistency with the lowest level", "Failed requests"],
    determinism_check: ["Always the same", "Most common answer"],
}


def chart(check: Check, title: str) -> Plot:
    (found,) = [one for one in charts(check) if one["title"] == title]
    return found


@pytest.mark.parametrize("make", EXPECTED)
def test_every_kind_of_check_has_its_charts(make: Callable[[], Check]) -> None:
    assert [one["title"] for one in charts(make())] == EXPECTED[make]


def test_charts_show_the_values_of_the_check() -> None:
    check = compare_check()
    (line,) = chart(check, CURVES[1])["series"]
    # Of three samples whose answer can flip, none does with Q8_0 and all do with Q4_K_M.
    assert [(one["name"], one["x"], one["y"]) for one in line["points"]] == [("Q4_K_M", 4.5, 1.0), ("Q8_0", 8.0, 0.0)]
    heat = chart(check, HEAT)
    kinds = [[kind for kind, _ in cells] for _, cells in heat["rows"]]
    assert kinds[0] == ["identical", "identical", "identical", "minor", "identical", "identical"]
    assert kinds[1] == [row["severity"] for row in check.variants[1].rows]
    assert (kinds[1][3], kinds[1][4], kinds[1][5]) == ("severe", "failed", "identical")
    assert heat["kinds"] == ["identical", "minor", "moderate", "severe", "empty", "failed"]


def test_variants_of_unknown_size_are_dots_in_named_rows() -> None:
    check = Check("compare", ["maths"], [sized("Q8_0", Q8, -8, None), sized("Q4_K_M", Q4, -4, None)], "F16")
    rows = chart(check, CURVES[1])["rows"]
    assert [(name, point["tooltip"], colour) for name, point, colour in rows] == [
        ("Q8_0", "Q8_0: 0.00 % (0.00 % to 70.8 %)", 0),
        ("Q4_K_M", "Q4_K_M: 100.0 % (29.2 % to 100.0 %)", 1),
    ]
    assert rows[0][1]["high"] == pytest.approx(0.708, abs=0.001)


def estimated(*values: tuple[float, float, float]) -> Plot:
    """The chart of a sweep whose KL means are given with their bounds."""
    variants = [
        Variant(f"v{index}", size=(9 - index) * GIB, metrics={"kl_mean": Estimate(value, 0.1, low, high, 9)})
        for index, (value, low, high) in enumerate(values)
    ]
    return chart(Check("sweep", ["maths"], variants, "F16"), CURVES[0])


def test_divergences_far_apart_are_drawn_in_powers_of_ten() -> None:
    plot = estimated((1e-3, 5e-4, 2e-3), (1e-2, 5e-3, 2e-2), (1.0, 0.5, 2.0))
    assert plot["y"]["log"] and (plot["y"]["first"], plot["y"]["last"]) == (-4, 1)
    assert [point["y"] for point in plot["series"][0]["points"]] == pytest.approx([0, -2, -3])
    assert plot["series"][0]["points"][0]["tooltip"] == "v2: 1.0000 (0.5000 to 2.0000)"


def test_an_interval_down_to_zero_reaches_below_every_power_of_ten() -> None:
    plot = estimated((1e-3, 0.0, 2e-3), (1.0, 0.5, 2.0))
    assert plot["series"][0]["points"][1]["low"] == LEAST_POWER < plot["y"]["first"]


def test_agreement_is_shown_for_four_positions_that_enough_texts_reach() -> None:
    reach = [*[10] * 5, 14]  # tokens of six texts
    of_texts = {
        f"maths/{number}": [Gap(0.1, -0.5, -0.6, index != 5 or number > 2, True) for index in range(length)]
        for number, length in enumerate(reach)
    }
    check = Check("compare", ["maths"], [compared("B", BASE, BASE, ForcedGaps(of_texts))], "A")
    assert [point["tooltip"] for point in chart(check, FORCED[1])["series"][0]["points"]] == [
        "B: tokens 1 to 4, 100.0 % of 24 positions",
        "B: tokens 5 to 8, 87.5 % of 24 positions",
        "B: tokens 9 to 10, 100.0 % of 12 positions",
    ]


def cells(check: Check, title: str) -> list[list[Any]]:
    """The rows of a matrix with their percentages."""
    rows = chart(check, title)["rows"]
    return [[name, *(None if one is None else 100 * one["y"] for one in points)] for name, points in rows]


def test_categories_are_a_matrix_with_the_worst_first() -> None:
    check = compare_check()
    assert cells(check, CATEGORIES[0]) == [["arithmetic", 0, 100], ["logic", 0, 100]]
    assert cells(check, CATEGORIES[1]) == [["logic", 50, 0], ["arithmetic", 100, 0], ["words", 100, 50]]
    tooltips = [[point["tooltip"] for point in points] for _, points in chart(check, CATEGORIES[1])["rows"]]
    assert tooltips[0] == ["50.0 % of 2, 1.26 % to 98.7 %", "0.00 % of 2, 0.00 % to 84.2 %"]
    flips = chart(check, CATEGORIES[0])["rows"][1][1][1]
    assert flips["tooltip"] == "100.0 % of 1, 2.50 % to 100.0 %"  # nothing is extracted from the essay


def test_one_category_in_two_tasks_is_two_rows_and_one_that_a_variant_lacks_is_empty() -> None:
    first = [answered(name, "logic", f"It is {name}") for name in "abcd"]
    first = [replace(one, task="maths" if one.id in "ab" else "words") for one in first]
    second = [replace(one, text="Other") if one.id in "acd" else one for one in first]
    check = Check("compare", ["maths", "words"], [compared("B", first, second, None)], "A")
    assert cells(check, CATEGORIES[1]) == [["words / logic", 0], ["maths / logic", 50]]
    alone = [one for one in Q4 if one.category != "words"]
    check = Check("compare", ["maths"], [compared("all", BASE, Q4, None), compared("some", BASE, alone, None)], "F16")
    assert [row for row in cells(check, CATEGORIES[1]) if row[0] == "words"] == [["words", 50, None]]


BOUNDS = ((math.nan, math.inf), (-math.inf, math.nan), (-math.inf, math.inf), (None, math.nan))


def test_what_is_not_finite_is_not_drawn() -> None:
    for make in (compare_check, sweep_check, crowded_check, stress_check, determinism_check):
        check = make()
        for index, variant in enumerate(check.variants):
            low, high = BOUNDS[index % len(BOUNDS)]
            variant.metrics = {name: replace(one, low=low, high=high) for name, one in variant.metrics.items()}
            variant.p_values = dict.fromkeys(variant.p_values, math.nan)
        last = check.variants[-1].metrics
        check.variants[-1].metrics = {name: replace(one, value=math.nan) for name, one in last.items()}
        text = json.dumps([one for one in charts(check) if one["kind"] != "matrix"], allow_nan=False)
        assert "NaN" not in text and "inf" not in text
        assert "NaN" in json_text(show_check("uid", check)["groups"])


def test_the_course_of_a_decision_is_a_band_and_its_bound() -> None:
    looks = [Look(100, 0.7, 0.5, 0.9), Look(200, 0.6, 0.5, 0.7)]
    (plot,) = sequence_chart(Decision("exam", "acc", ">", 0.4, 0.05, "true", 200, 1000, reached=0.5, looks=looks))
    course, bound = plot["series"]
    assert course["band"] and [(one["x"], one["low"], one["high"]) for one in course["points"]] == [
        (100, 0.5, 0.9),
        (200, 0.5, 0.7),
    ]
    assert bound["dashed"] and {one["y"] for one in bound["points"]} == {0.4}


# --- The samples that changed


def rows_of(check: Check) -> list[dict[str, Any]]:
    return list(changes(check)["rows"])


def change(check: Check, name: str) -> dict[str, Any]:
    (found,) = [row for row in rows_of(check) if row["id"] == name and row["variant"] == check.variants[-1].label]
    return found


def test_changed_samples_of_all_variants_are_in_one_order() -> None:
    found = rows_of(Check("compare", ["maths"], [compared(label, BASE, Q4, None) for label in "AB"], "F16"))
    names = ["broken", "sum", "knights", "difference", "essay"]  # failed, lost, flipped, changed
    assert [(row["id"], row["variant"]) for row in found] == [(name, label) for name in names for label in "AB"]
    kinds = {row["id"]: row["kind"] for row in rows_of(compare_check()) if row["variant"] == "Q4_K_M"}
    assert kinds == {
        "broken": "failed",
        "sum": "regression",
        "knights": "flip",
        "difference": "improvement",
        "essay": "severe",
    }
    assert rows_of(unchanged_check()) == []


def test_the_token_where_answers_diverge_is_marked() -> None:
    check = compare_check()
    found = change(check, "sum")
    assert [side["text"][:2] for side in found["sides"]] == [["The sum is", " 4"], ["The sum is", " 5"]]
    assert ["".join(side["text"]) for side in found["sides"]] == [BASE[0].text, Q4[0].text]
    assert [side["right"] for side in found["sides"]] == [True, False] and found["gold"] == "4"
    largest = max(check.variants[1].rows[0]["kl_positions"])
    assert found["facts"] == ["94 % similar", "diverges at token 4", "margin 2.500 nats", f"KL up to {largest:.3g}"]


def test_a_choice_is_shown_with_the_log_probabilities_of_all() -> None:
    first, second = chosen("one", (-2.0, -1.0, -1.459), 1), chosen("one", (-math.inf, -1.5, -1.25), 1)
    found = change(Check("compare", ["quiz"], [compared("B", [first], [second], None)], "A"), "one")
    assert found["facts"] == ["the baseline preferred its choice by 0.459 nats"]
    assert found["choices"] == [("a", [-2.0, "-Infinity"]), ("b", [-1.0, -1.5]), ("c", [-1.459, -1.25])]


def test_a_check_without_choices_in_its_file_is_still_read(tmp_path: Any) -> None:
    first, second = chosen("one", (-2.0, -1.0, -1.459), 1), chosen("one", (-2.0, -1.5, -math.inf), 1)
    file = Check("compare", ["quiz"], [compared("B", [first], [second], None)], "A").save(tmp_path)
    data = json.loads(file.read_text())
    (row,) = data["variants"][0]["rows"]
    del row["choices"]
    file.write_text(json.dumps(data))
    assert read_check(file).variants[0].rows == [row]


LATE = {("left", "right"): ["left", "right"], ("left", "left over"): ["", "over"], ("left […]", ""): ["left", ""]}


@pytest.mark.parametrize("tokenized", [True, False], ids=["tokens", "characters"])
@pytest.mark.parametrize("ends", [*LATE], ids=["different ends", "one is longer", "one ends with the mark"])
def test_texts_that_diverge_late_show_where(ends: tuple[str, str], tokenized: bool) -> None:
    start = "".join(f"{number} on and " for number in range(900))
    assert len(start) > 2 * MAX_CHARS
    pair = [answered("tale", "words", start + end) for end in ends]
    pair = [replace(one, tokens=one.tokens if tokenized else None) for one in pair]
    sides = change(Check("compare", ["maths"], [compared("B", pair[:1], pair[1:], None)], "A"), "tale")["sides"]
    for one, side in zip(pair, sides, strict=True):
        text = "".join(side["text"])
        assert text.startswith("[…] ") and one.text.endswith(text[4:])
        assert MAX_CHARS / 2 <= len(text) <= MAX_CHARS
    assert [side["text"][1].strip() for side in sides] == LATE[ends]


def test_a_long_text_that_diverges_early_is_cut_at_the_end() -> None:
    first, second = (answered("tale", "words", f"{word} {'and on ' * 900}") for word in ("Off", "On"))
    sides = change(Check("compare", ["maths"], [compared("B", [first], [second], None)], "A"), "tale")["sides"]
    assert [side["text"][1] for side in sides] == ["Off", "On"]
    for one, side in zip((first, second), sides, strict=True):
        assert "".join(side["text"]) == one.text[:MAX_CHARS] + " […]"


def test_unstable_samples_show_their_two_most_common_answers() -> None:
    check = determinism_check()
    found = next(row for row in rows_of(check) if row["id"] == "essay")
    assert [side["name"] for side in found["sides"]] == ["most common", "next"]
    assert "".join(found["sides"][0]["text"]) == ESSAY
    assert found["facts"][0] == "3 answers, the first 2 times"
    broken = next(row for row in rows_of(check) if row["id"] == "broken")
    assert (broken["kind"], broken["prompt"]) == ("failed", TICKS)
    assert [side["error"] for side in broken["sides"]] == [None, "HTTP 500: ```out of memory``` <b>"]


def test_a_prompt_that_fails_in_every_run_is_listed_once() -> None:
    passes = [
        Pass(f"pass {number}", 1, [replace(BASE[0], text="", error="HTTP 503"), BASE[1]], "", []) for number in range(3)
    ]
    (row,) = rows_of(Check("determinism", ["maths"], [repeated("all runs", passes)]))
    assert (row["kind"], [side["error"] for side in row["sides"]]) == ("failed", ["HTTP 503"])
