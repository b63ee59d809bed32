"""The HTML report in a real browser: charts, filters, and that no text of a model becomes markup."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mill.api.response import Token
from mill.checks.answers import Answer
from mill.checks.compare import compared as compare_pairs
from mill.checks.compare import row_of
from mill.checks.determinism import repeated
from mill.checks.forced import ForcedGaps
from mill.checks.pairing import MAX_CHARS, AnswerPair, pair
from mill.checks.passes import Pass
from mill.checks.result import Check, Variant, read_check
from mill.cli.main import run
from mill.metrics.divergence import Gap
from mill.metrics.estimate import Estimate, around
from mill.metrics.paired import rate
from mill.report.html import write_report
from tests.browsing import sync_api

GIB = 2**30
Open = Callable[..., Any]


# --- checks to report -----------------------------------------------------------------------------------------------------


def tokens(text: str) -> tuple[Token, ...]:
    """Words with the space before them, each 2.5 nats above the second token."""
    return tuple(Token(None, piece, -0.1, ((piece, -0.1), ("second", -2.6))) for piece in re.findall(r"\s*\S+|\s+$", text))


def compared(label: str, first: list[Answer], second: list[Answer], gaps: ForcedGaps | None) -> Variant:
    return compare_pairs(label, pair(first, second), gaps)


def answered(name: str, category: str, text: str, **more: Any) -> Answer:
    prompt = more.pop("prompt", f"Question {name}?")
    return Answer("maths", name, category, prompt, more.pop("gold", None), text, tokens=tokens(text), **more)


def solved(name: str, text: str, gold: str) -> Answer:
    final = text.rpartition(" ")[2]
    return answered(name, "arithmetic", text, gold=gold, extracted=final, comparable=True, value=float(final == gold))


def extracted(name: str, text: str) -> Answer:
    return answered(name, "logic", text, extracted=text.rpartition(" ")[2], comparable=True)


ESSAY = "A river runs past the mill, and the wheel turns as long as there is water in it."
TICKS = "Explain\n```py\nprint('````')\n```\nand `this`."
BASE = [
    solved("sum", "The sum is 4 and so the answer: 4", "4"),
    solved("difference", "The answer: 9", "8"),
    extracted("knights", "After some thought: yes"),
    answered("essay", "logic", ESSAY),
    answered("broken", "words", "All is well", prompt=TICKS),
    answered("same", "words", "Nothing changes here"),
]
Q8 = [*BASE[:3], answered("essay", "logic", ESSAY.replace("water", "weight")), *BASE[4:]]
Q4 = [
    solved("sum", "The sum is 5 and so the answer: 5", "4"),
    solved("difference", "The answer: 8", "8"),
    extracted("knights", "After some thought: no"),
    answered("essay", "logic", "Qqq zzz xxx kkk jjj vvv"),
    answered("broken", "words", "", prompt=TICKS, error="HTTP 500: ```out of memory``` <b>"),
    BASE[5],
]


def gaps(typical: float, answers: Sequence[Answer] = BASE) -> ForcedGaps:
    draw = random.Random(typical)
    of_texts = {}
    for one in answers:
        values = [draw.lognormvariate(typical, 1.5) for _ in one.tokens or ()]
        of_texts[f"{one.task}/{one.id}"] = [Gap(value, -0.5, -0.6, value < 0.02, True) for value in values]
    return ForcedGaps(of_texts)


def sized(label: str, answers: list[Answer], typical: float, size: float | None) -> Variant:
    variant = compared(label, BASE, answers, gaps(typical))
    variant.size = None if size is None else int(size * GIB)
    return variant


def compare_check() -> Check:
    return Check("compare", ["maths"], [sized("Q8_0", Q8, -8, 8.0), sized("Q4_K_M", Q4, -4, 4.5)], "F16")


def sweep_check() -> Check:
    steps = (("Q8_0", BASE, -9, 8.0), ("Q6_K", Q8, -7, 6.2), ("Q4_K_M", Q4, -5, 4.5), ("Q2_K", Q4, -2, 2.6))
    return Check("sweep", ["maths"], [sized(*step) for step in steps], "F16")


def unchanged_check() -> Check:
    return Check("compare", ["maths"], [sized("twin", BASE, -12, None)], "F16")


def crowded_check() -> Check:
    labels = [f"Qwen2.5-7B-Instruct-{name}" for name in ("FP8", "AWQ", "GPTQ-Int4", "GPTQ-Int8", "GGUF-Q4_K_M", "MLX-4bit")]
    return Check("compare", ["maths"], [sized(label, Q4, -5, None) for label in labels], "Qwen2.5-7B-Instruct")


def close_check() -> Check:
    """The weights of a 7B model's usual quantizations: some sizes are nearly the same, and so are the divergences."""
    steps = (("Q4_K_S", 4.15), ("Q4_K_M", 4.36), ("Q5_K_S", 4.95), ("Q5_K_M", 5.07), ("Q6_K", 5.82), ("Q8_0", 7.54))
    return Check("sweep", ["maths"], [sized(label, Q8, -7, size) for label, size in steps], "F16")


def failed_check() -> Check:
    failed = [answered(one.id, one.category, "", error=f"HTTP 503 at {one.id}") for one in BASE]
    return Check("compare", ["maths"], [compared("down", BASE, failed, None)], "up")


def stress_check() -> Check:
    variants = []
    for level in (1, 8, 64):
        changed = [AnswerPair(a, b) for a, b in zip(BASE, Q4, strict=True) if level == 64 and a != b]
        metrics: dict[str, Estimate] = {"failure_rate": rate(level // 64, 6), "match_rate": rate(6 - len(changed), 6)}
        metrics["tokens_per_s"] = around(90.0 * level**0.6, None, 6)
        for name, share in (("p50", 1.0), ("p95", 1.8), ("p99", 2.4)):
            metrics[f"latency_{name}"] = around(0.8 * share * level**0.4, None, 6)
            metrics[f"first_token_{name}"] = around(0.05 * share * level**0.5, None, 6)
        errors = [{"id": "broken", "error": "HTTP 500"}] if changed else []
        counts = {"samples": 6, "failed": len(errors), "concurrency": level}
        rows = [row_of(pair, None) for pair in changed]
        variants.append(
            Variant(f"concurrency {level}", metrics=metrics, counts=counts, series={"errors": errors}, rows=rows)
        )
    return Check("stress", ["maths"], variants, "concurrency 1")


def determinism_check() -> Check:
    passes = [
        Pass(f"pass {number}", 1 + number % 2, list(answers), "", []) for number, answers in enumerate((BASE, BASE, Q8, Q4))
    ]
    alone = [made for made in passes if made.concurrency == 1]
    return Check("determinism", ["maths"], [repeated("all runs", passes), repeated("alone", alone)])


HACKS = (
    "<script>window.hacked=1</script>",
    "</pre></details><img src=x onerror=window.hacked=1>",
    "\"><svg onload=window.hacked=1>'",
    "</title></style></script><iframe src=javascript:window.hacked=1>",
    "javascript:window.hacked=1",
    "&lt;b&gt; &amp;",
)
HOSTILE = " ".join(HACKS)
CONTROL = "\x00\x07\x1b[31m\r\x0b\u202e\udfff\ud800\U0001f600"
LEGAL = CONTROL.replace("\udfff\ud800", "\\udfff\\ud800")  # lone surrogates are no UTF-8: they are written as escapes
SEEN = "␀␇␛[31m␍␋␦\\udfff\\ud800\U0001f600"
LONG = "W" * 300


def hostile_check(control: str = CONTROL) -> Check:
    bad = HOSTILE + control

    def answer(index: int, text: str, error: str | None = None) -> Answer:
        about: dict[str, Any] = {"gold": {bad: [bad]}, "extracted": text, "comparable": True, "error": error}
        about |= {"value": float(not index), "tokens": tokens(text)}
        return Answer(bad, f"{index} {bad}", f"{index} {bad}", f"\n{index} {bad}", text=text, **about)

    first = [answer(index, f"{bad} {index} {LONG}") for index in range(3)]
    second = [answer(0, f"{bad} other"), answer(1, "", error=bad), answer(2, LONG)]
    variants = []
    for label in (bad, f"{LONG} {bad}"):
        variant = compared(label, first, second, gaps(-4, first))
        variant.warnings.append(bad)
        variant.series["errors"] = [{"id": bad, "error": bad}]
        variants.append(variant)
    return Check("compare", [bad], variants, bad, warnings=[bad])


CURVES = ["KL mean, nats", "Answer flips", "Accuracy lost"]
FORCED = ["Distribution of KL over positions", "Same top token, by position in the answer"]
CATEGORIES = ["Answer flips by category", "Same text by category"]
HEAT = "Every prompt, by how much its answer changed"
LOAD = ["Latency, seconds", "Time to first token, seconds", "Throughput, tokens per second"]
CHARTS: dict[Callable[[], Check], list[str]] = {
    compare_check: [*CURVES, *FORCED, *CATEGORIES, HEAT],
    sweep_check: [*CURVES, *FORCED, *CATEGORIES, HEAT],
    unchanged_check: [*FORCED, *CATEGORIES, HEAT],
    failed_check: [*CATEGORIES, HEAT],
    stress_check: [*LOAD, "Consistency with the lowest level", "Failed requests"],
    determinism_check: ["Always the same", "Most common answer"],
    hostile_check: [*CURVES, FORCED[0], *CATEGORIES, HEAT],  # three texts are too few for agreement by position
}
ALL = [*CHARTS]


# --- the browser ----------------------------------------------------------------------------------------------------------


def texts(page: Any, selector: str) -> list[str]:
    return [str(text) for text in page.locator(selector).all_text_contents()]


def visible(page: Any) -> int:
    return int(page.evaluate("[...document.querySelectorAll('.sample')].filter(one => one.checkVisibility()).length"))


def open_all(page: Any) -> None:
    page.evaluate("document.querySelectorAll('.sample').forEach(one => { one.open = true; })")


def sample(page: Any, name: str, variant: str) -> Any:
    """A sample's element, opened."""
    found = page.locator(".sample", has=page.locator("summary", has_text=f"{name} · {variant}"))
    found.locator("summary").click()
    return found


def background(page: Any) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


# --- what is drawn --------------------------------------------------------------------------------------------------------

DRAWN = """() => [...document.querySelectorAll("figure")].flatMap((figure) =>
  [...figure.querySelectorAll("svg, table")].map((one) => {
    const box = one.getBoundingClientRect();
    return [one.tagName.toLowerCase(), box.width, box.height, one.querySelectorAll("circle, rect, td").length];
  }))"""

OUTSIDE = """() => [...document.querySelectorAll("figure svg")].flatMap((svg) => {
  const box = svg.viewBox.baseVal, wrong = [];
  const inside = (x, y) => x >= -0.01 && y >= -0.01 && x <= box.width + 0.01 && y <= box.height + 0.01;
  const number = (shape, name) => Number(shape.getAttribute(name));
  for (const shape of svg.querySelectorAll("circle, rect, line, polyline")) {
    const at = {
      circle: () => [[number(shape, "cx"), number(shape, "cy")]],
      rect: () => [[number(shape, "x"), number(shape, "y")],
                   [number(shape, "x") + number(shape, "width"), number(shape, "y") + number(shape, "height")]],
      line: () => [[number(shape, "x1"), number(shape, "y1")], [number(shape, "x2"), number(shape, "y2")]],
      polyline: () => [...shape.points].map((point) => [point.x, point.y]),
    }[shape.tagName]();
    if (!at.length || !at.every(([x, y]) => inside(x, y))) wrong.push(shape.outerHTML);
  }
  return wrong;
})"""

OVERLAPS = """() => [...document.querySelectorAll("figure svg")].flatMap((svg) => {
  const labels = [...svg.querySelectorAll("text")].filter((one) => one.textContent);
  const boxes = labels.map((one) => [one.textContent, one.getBoundingClientRect()]);
  const meet = (a, b) => a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom;
  return boxes.flatMap(([name, box], index) =>
    boxes.slice(index + 1).filter(([, other]) => meet(box, other)).map(([other]) => `${name} / ${other}`));
})"""

CLIPPED = """() => [...document.querySelectorAll("figure:has(svg)")].flatMap((figure) => {
  const svg = figure.querySelector("svg");
  const card = (getComputedStyle(svg).overflow === "visible" ? figure : svg).getBoundingClientRect();
  return [...figure.querySelectorAll("text")].filter((one) => {
    const box = one.getBoundingClientRect();
    return box.width && (box.left < card.left || box.right > card.right + 0.5 || box.bottom > card.bottom + 0.5);
  }).map((one) => one.textContent);
})"""


@pytest.mark.parametrize("make", ALL)
def test_every_chart_is_drawn_inside_its_frame(open_report: Open, make: Callable[[], Check]) -> None:
    page = open_report(make())
    assert texts(page, "figure figcaption") == CHARTS[make]
    for kind, width, height, marks in page.evaluate(DRAWN):
        assert width > {"svg": 300, "table": 180}[kind]
        assert height > 30
        assert marks > 0
    assert page.locator("table.matrix").count() == sum(name in CATEGORIES for name in CHARTS[make])
    assert page.evaluate(OUTSIDE) == []
    assert make is hostile_check or page.evaluate(CLIPPED) == []  # its names are longer than real ones


@pytest.mark.parametrize(
    "make",
    [compare_check, sweep_check, stress_check, determinism_check, failed_check, crowded_check, close_check],
)
def test_labels_of_charts_do_not_run_into_each_other(open_report: Open, make: Callable[[], Check]) -> None:
    assert open_report(make()).evaluate(OVERLAPS) == []


def test_charts_show_the_values_of_the_check(open_report: Open) -> None:
    check = compare_check()
    page = open_report(check)
    curve = page.locator("figure", has_text="answer flips").first
    assert curve.locator("circle").count() == 2
    # Of three samples whose answer can flip, none does with Q8_0 and all do with Q4_K_M.
    assert [text.split(" (")[0] for text in texts(page, "figure >> nth=1 >> circle title")] == [
        "Q4_K_M: 100.0 %",
        "Q8_0: 0.00 %",
    ]
    lower, higher = (float(dot.get_attribute("cy")) for dot in curve.locator("circle").all())
    assert lower < higher  # 100 % is above 0 %
    assert curve.locator(".name").all_text_contents() == ["Q4_K_M", "Q8_0"]
    heat = page.locator("figure", has_text=HEAT)
    kinds = [cell.get_attribute("class").removeprefix("cell s-") for cell in heat.locator("rect").all()]
    assert kinds[:6] == ["identical", "identical", "identical", "minor", "identical", "identical"]
    assert kinds[6:] == [row["severity"] for row in check.variants[1].rows]
    assert (kinds[9], kinds[10], kinds[11]) == ("severe", "failed", "identical")


COLOURS = "all => all.map(one => getComputedStyle(one).color)"


def numbers(found: Any, *names: str) -> list[list[float]]:
    return [[float(one.get_attribute(name)) for name in names] for one in found.all()]


def test_variants_of_unknown_size_are_dots_in_named_rows(open_report: Open) -> None:
    check = Check("compare", ["maths"], [sized("Q8_0", Q8, -8, None), sized("Q4_K_M", Q4, -4, None)], "F16")
    page = open_report(check)
    flips = page.locator("figure", has_text="Answer flips").first
    assert flips.locator(".name").all_text_contents() == ["Q8_0", "Q4_K_M"]
    assert flips.locator("circle title").all_text_contents() == [
        "Q8_0: 0.00 % (0.00 % to 70.8 %)",
        "Q4_K_M: 100.0 % (29.2 % to 100.0 %)",
    ]
    names, dots = numbers(flips.locator(".name"), "y"), numbers(flips.locator("circle"), "cx", "cy")
    assert [abs(name[0] - dot[1]) < 8 for name, dot in zip(names, dots, strict=True)] == [True, True]
    grid = {tick.text_content(): float(tick.get_attribute("x")) for tick in flips.locator(".tick").all()}
    assert [dot[0] for dot in dots] == [grid["0 %"], grid["100 %"]]
    (first, second), width = numbers(flips.locator(".whisker"), "x1", "x2"), grid["100 %"] - grid["0 %"]
    assert first == pytest.approx([grid["0 %"], grid["0 %"] + 0.708 * width], abs=0.2)
    assert second == pytest.approx([grid["0 %"] + 0.292 * width, grid["100 %"]], abs=0.2)
    keys = page.locator("figure", has_text="Distribution of KL").locator(".swatch")
    assert flips.locator("circle").evaluate_all(COLOURS) == keys.evaluate_all(COLOURS)  # one variant, one colour


def test_dots_of_many_variants_are_seen(open_report: Open) -> None:
    page = open_report(Check("compare", ["maths"], [compared(f"v{n}", BASE, Q8, None) for n in range(21)], "F16"))
    fills = "all => [...new Set(all.map(one => getComputedStyle(one).fill))].length"
    assert page.locator("figure").first.locator("circle").count() == 21
    assert page.locator("figure").first.locator("circle").evaluate_all(fills) == 6


def estimated(*values: tuple[float, float, float]) -> Check:
    """A sweep whose KL means are given with their bounds."""
    variants = [
        Variant(f"v{index}", size=(9 - index) * GIB, metrics={"kl_mean": Estimate(value, 0.1, low, high, 9)})
        for index, (value, low, high) in enumerate(values)
    ]
    return Check("sweep", ["maths"], variants, "F16")


def test_divergences_far_apart_are_drawn_in_powers_of_ten(open_report: Open) -> None:
    page = open_report(estimated((1e-3, 5e-4, 2e-3), (1e-2, 5e-3, 2e-2), (1.0, 0.5, 2.0)))
    ticks = {tick.text_content(): float(tick.get_attribute("y")) - 4 for tick in page.locator("figure .tick").all()}
    dots = [dot[0] for dot in numbers(page.locator("figure circle"), "cy")]
    assert dots == pytest.approx([ticks["1e0"], ticks["1e-2"], ticks["1e-3"]], abs=0.1)
    assert page.locator("figure .whisker").count() == 3
    assert texts(page, "figure circle title")[0] == "v2: 1.0000 (0.5000 to 2.0000)"


def test_divergences_near_each_other_are_drawn_from_zero(open_report: Open) -> None:
    page = open_report(estimated((0.1, 0.05, 0.2), (0.2, 0.1, 0.3), (1.0, 0.9, 1.1)))
    ticks = {tick.text_content(): float(tick.get_attribute("y")) - 4 for tick in page.locator("figure .tick").all()}
    assert ticks["0"] > ticks["0.5"] > ticks["1"]
    assert numbers(page.locator("figure circle"), "cy")[0] == pytest.approx([ticks["1"]], abs=0.1)
    ((zero,),) = numbers(page.locator("figure .zero"), "y1")
    assert zero == pytest.approx(ticks["0"], abs=0.1)


def test_an_axis_of_powers_of_ten_has_no_zero(open_report: Open) -> None:
    page = open_report(estimated((1e-3, 5e-4, 2e-3), (1.0, 0.5, 2.0)))
    assert page.locator("figure .grid").count() > 3
    assert page.locator("figure .zero").count() == 0


def test_an_interval_down_to_zero_reaches_the_lowest_power_of_ten(open_report: Open) -> None:
    page = open_report(estimated((1e-3, 0.0, 2e-3), (1.0, 0.5, 2.0)))
    assert page.locator("figure .whisker").count() == 2
    lowest = max(max(ends) for ends in numbers(page.locator("figure .whisker"), "y1", "y2"))
    assert lowest == max(line[0] for line in numbers(page.locator("figure .grid"), "y1"))


def test_agreement_is_shown_for_four_positions_that_enough_texts_reach(open_report: Open) -> None:
    reach = [*[10] * 5, 14]  # tokens of six texts
    of_texts = {
        f"maths/{number}": [Gap(0.1, -0.5, -0.6, index != 5 or number > 2, True) for index in range(length)]
        for number, length in enumerate(reach)
    }
    page = open_report(Check("compare", ["maths"], [compared("B", BASE, BASE, ForcedGaps(of_texts))], "A"))
    assert page.locator("figure", has_text=FORCED[1]).locator("circle title").all_text_contents() == [
        "B: tokens 1 to 4, 100.0 % of 24 positions",
        "B: tokens 5 to 8, 87.5 % of 24 positions",
        "B: tokens 9 to 10, 100.0 % of 12 positions",
    ]


def cells(page: Any, heading: str) -> list[list[str]]:
    """The rows of a matrix, with its head."""
    rows = page.locator("figure", has_text=heading).locator("tr").all()
    return [row.locator("th, td").all_text_contents() for row in rows]


def test_categories_are_a_matrix_with_the_worst_first(open_report: Open) -> None:
    page = open_report(compare_check())
    assert cells(page, CATEGORIES[0]) == [["", "Q8_0", "Q4_K_M"], ["arithmetic", "0 %", "100 %"], ["logic", "0 %", "100 %"]]
    assert cells(page, CATEGORIES[1]) == [
        ["", "Q8_0", "Q4_K_M"],
        ["logic", "50 %", "0 %"],
        ["arithmetic", "100 %", "0 %"],
        ["words", "100 %", "50 %"],
    ]
    same = page.locator("figure", has_text=CATEGORIES[1]).locator("td")
    tooltips = same.evaluate_all("all => all.map(one => one.title)")
    assert tooltips[:3] == [
        "50.0 % of 2, 1.26 % to 98.7 %",
        "0.00 % of 2, 0.00 % to 84.2 %",
        "100.0 % of 2, 15.8 % to 100.0 %",
    ]
    shades = same.evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")
    assert shades[0] == shades[5]  # 50 %
    assert shades[1] == shades[3]  # 0 %
    assert len(set(shades)) == 3


def test_a_rate_of_flips_counts_samples_that_can_flip(open_report: Open) -> None:
    page = open_report(compare_check())
    logic = page.locator("figure", has_text=CATEGORIES[0]).locator("tr", has_text="logic").locator("td").last
    assert logic.get_attribute("title") == "100.0 % of 1, 2.50 % to 100.0 %"  # nothing is extracted from the essay


def test_one_category_in_two_tasks_is_two_rows(open_report: Open) -> None:
    first = [answered(name, "logic", f"It is {name}") for name in "abcd"]
    first = [replace(one, task="maths" if one.id in "ab" else "words") for one in first]
    second = [replace(one, text="Other") if one.id in "acd" else one for one in first]
    page = open_report(Check("compare", ["maths", "words"], [compared("B", first, second, None)], "A"))
    assert cells(page, CATEGORIES[1]) == [["", "B"], ["words / logic", "0 %"], ["maths / logic", "50 %"]]


def test_a_category_that_a_variant_lacks_is_a_dash(open_report: Open) -> None:
    alone = [one for one in Q4 if one.category != "words"]
    check = Check("compare", ["maths"], [compared("all", BASE, Q4, None), compared("some", BASE, alone, None)], "F16")
    rows = cells(open_report(check), CATEGORIES[1])
    assert [row for row in rows if row[0] == "words"] == [["words", "50 %", "-"]]


def test_a_matrix_of_many_variants_is_read_without_scrolling(open_report: Open) -> None:
    check = crowded_check()
    for variant in check.variants:  # of two tasks
        variant.groups += [{**group, "task": "reasoning", "category": "probability"} for group in variant.groups[:1]]
    page = open_report(check)
    assert page.locator(".matrix").count() == 2
    assert page.locator(".chart .scroll").evaluate_all("all => all.map(one => one.scrollWidth - one.clientWidth)") == [0, 0]
    heights = page.locator(".matrix tbody tr").evaluate_all("all => all.map(one => one.getBoundingClientRect().height)")
    assert max(heights) < 30  # no name is broken


def test_severities_are_named_by_colour(open_report: Open) -> None:
    heat = open_report(compare_check()).locator("figure", has_text=HEAT)
    kinds = ["identical", "minor", "moderate", "severe", "empty", "failed"]
    assert heat.locator(".key").all_text_contents() == kinds
    keys = heat.locator(".swatch").evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")
    assert len(set(keys)) == 6
    fills = heat.locator("rect").evaluate_all("all => all.map(one => [one.classList[1], getComputedStyle(one).fill])")
    named = dict(zip([f"s-{kind}" for kind in kinds], keys, strict=True))
    assert {kind: named[kind] for kind, _ in fills} == dict(fills)
    assert {kind for kind, _ in fills} == {"s-identical", "s-minor", "s-severe", "s-failed"}


BOUNDS = ((math.nan, math.inf), (-math.inf, math.nan), (-math.inf, math.inf), (None, math.nan))


def test_bounds_that_are_not_finite_are_not_drawn(open_report: Open, tmp_path: Path) -> None:
    checks = [compare_check(), sweep_check(), crowded_check(), stress_check(), determinism_check()]
    for check in checks:
        for index, variant in enumerate(check.variants):
            low, high = BOUNDS[index % len(BOUNDS)]
            variant.metrics = {name: replace(one, low=low, high=high) for name, one in variant.metrics.items()}
            variant.p_values = dict.fromkeys(variant.p_values, math.nan)
            for group in variant.groups:
                group |= {name: [rates[0], low, high] for name, rates in group.items() if isinstance(rates, list)}
        last = check.variants[-1].metrics
        check.variants[-1].metrics = {name: replace(one, value=math.nan) for name, one in last.items()}
    page = open_report(write_report(checks, tmp_path / "all.html"))  # read from a file, they would be refused
    assert page.locator(".check").count() == 5
    assert page.evaluate(OUTSIDE) == []
    assert page.locator("figure circle").count() > 50
    assert page.locator("figure .whisker").count() == 0
    assert not [text for text in texts(page, "figure circle title") if "NaN" in text or "inf" in text]
    assert "NaN" in page.locator(".metrics").first.inner_text()


def test_a_category_whose_rate_is_nan_is_listed(open_report: Open) -> None:
    check = compare_check()
    check.variants[0].groups[0]["match_rate"] = [math.nan, None, None]
    assert ["arithmetic", "-", "0 %"] in cells(open_report(check), CATEGORIES[1])


def test_series_are_in_legends_and_have_different_colours(open_report: Open) -> None:
    page = open_report(sweep_check())
    figure = page.locator("figure", has_text="Distribution of KL")
    assert figure.locator(".key").all_text_contents() == ["Q8_0", "Q6_K", "Q4_K_M", "Q2_K"]
    swatches = [key.evaluate("one => getComputedStyle(one).backgroundColor") for key in figure.locator(".swatch").all()]
    lines = [line.evaluate("one => getComputedStyle(one).stroke") for line in figure.locator("polyline").all()]
    assert swatches == lines
    assert len(set(lines)) == 4


def test_the_table_has_every_metric(open_report: Open) -> None:
    page = open_report(compare_check())
    assert texts(page, ".metrics thead th") == ["", "Q8_0", "Q4_K_M"]
    flips = page.locator(".metrics tbody tr", has_text="answer flips")
    assert flips.locator("td").all_inner_texts() == ["0.00 % (0.00 % – 70.8 %)", "100.0 % (29.2 % – 100.0 %)"]
    assert flips.locator("td small").all_text_contents() == [" (0.00 % – 70.8 %)", " (29.2 % – 100.0 %)"]
    assert page.locator(".metrics tr", has_text="accuracy lost").locator("small").last.inner_text().endswith(") p=1")
    assert flips.locator("th").get_attribute("title") == "samples whose extracted answer changed"
    assert texts(page, ".metrics tr.group") == ["failures", "text", "answers", "distributions"]
    severities = page.locator(".metrics tr", has_text="identical / minor").locator("td")
    assert severities.all_text_contents() == ["5 / 1 / 0 / 0 / 0 / 0", "1 / 3 / 0 / 1 / 0 / 1"]


def test_a_check_names_its_baseline(open_report: Open) -> None:
    page = open_report(compare_check(), stress_check(), determinism_check())
    against, load, repeated_runs = page.locator(".sub").all_inner_texts()[:3]
    assert against.startswith("Q8_0, Q4_K_M against F16 · ")
    assert load.startswith("concurrency 1, concurrency 8, concurrency 64 · ")
    assert repeated_runs.startswith("all runs, alone · ")


# --- samples --------------------------------------------------------------------------------------------------------------


def test_filters_choose_samples_and_count_them(open_report: Open) -> None:
    page = open_report(compare_check())

    def after(**wanted: str) -> int:
        for name in ("variant", "category", "kind"):
            page.locator(f"select[name={name}]").select_option(wanted.get(name, ""))
        page.locator("input[name=search]").fill(wanted.get("search", ""))
        shown = visible(page)
        assert page.locator(".count").inner_text() == f"{shown} of 6 samples"
        return shown

    assert after() == 6
    assert (after(variant="Q8_0"), after(variant="Q4_K_M")) == (1, 5)
    assert (after(category="arithmetic"), after(category="logic"), after(category="words")) == (2, 3, 1)
    kinds = ["failed", "flip", "improvement", "minor", "regression", "severe"]
    assert texts(page, "select[name=kind] option") == ["all", *kinds]
    assert [after(kind=kind) for kind in kinds] == [1] * 6
    assert (after(search="RIVER runs"), after(search="question sum"), after(search="nowhere")) == (2, 1, 0)
    assert after(search="difference · q4") == 1
    assert after(variant="Q4_K_M", category="logic", kind="severe", search="qqq") == 1
    assert after(variant="Q8_0", kind="severe") == 0


def test_samples_of_all_variants_are_in_one_order(open_report: Open) -> None:
    page = open_report(Check("compare", ["maths"], [compared(label, BASE, Q4, None) for label in "AB"], "F16"))
    shown = [text.split(" · ")[1:3] for text in texts(page, "summary")]
    names = ["broken", "sum", "knights", "difference", "essay"]  # failed, lost, flipped, changed
    assert [name for name, _ in shown] == [name for name in names for _ in "AB"]
    assert [label[0] for _, label in shown] == ["A", "B"] * 5


def test_filters_of_one_check_leave_the_others_alone(open_report: Open) -> None:
    page = open_report(compare_check(), determinism_check(), unchanged_check())
    counts = page.locator(".count")
    before = counts.last.inner_text()
    page.locator(".check").first.locator("select[name=kind]").select_option("flip")
    assert counts.first.inner_text() == "1 of 6 samples"
    assert counts.last.inner_text() == before
    assert page.locator("h1").inner_text() == "3 checks"


def test_enter_in_the_search_box_does_not_leave_the_page(open_report: Open) -> None:
    page = open_report(compare_check())
    page.locator("input[name=search]").fill("river")
    page.keyboard.press("Enter")
    assert visible(page) == 2


def test_a_check_without_changes_says_so(open_report: Open) -> None:
    page = open_report(unchanged_check())
    assert page.locator(".none").inner_text() == "No sample changed."
    assert page.locator(".sample, .filters").count() == 0


def test_failed_samples_show_their_errors(open_report: Open) -> None:
    page = open_report(failed_check())
    assert page.locator(".k-failed").count() == 6
    shown = sample(page, "sum", "down")
    assert shown.locator(".error").inner_text() == "HTTP 503 at sum"
    assert shown.locator(".side pre").inner_text() == "The sum is 4 and so the answer: 4"


def test_the_token_where_answers_diverge_is_marked(open_report: Open) -> None:
    page = open_report(compare_check())
    shown = sample(page, "sum", "Q4_K_M")
    assert shown.locator("mark").all_text_contents() == [" 4", " 5"]
    assert shown.locator(".same").all_text_contents() == ["The sum is"] * 2
    assert shown.locator(".facts").inner_text() == "94 % similar · diverges at token 4 · margin 2.500 nats · KL up to " + (
        f"{max(compare_check().variants[1].rows[0]['kl_positions']):.3g}"
    )
    assert shown.locator("pre").all_inner_texts()[1:] == [BASE[0].text, Q4[0].text]
    assert shown.locator(".right").inner_text() == "right"
    assert shown.locator(".wrong").inner_text() == "wrong"
    assert shown.locator(".gold").inner_text() == "gold: 4"


def chosen(name: str, scores: tuple[float, ...], right: int) -> Answer:
    """A question with three choices, whose answer is the one with the largest log-probability."""
    best = "abc"[scores.index(max(scores))]
    about: dict[str, Any] = {"extracted": best, "comparable": True, "value": float(best == "abc"[right])}
    return Answer(
        "quiz", name, "quiz", "Which?", "abc"[right], best, "choice", scores=scores, choices=("a", "b", "c"), **about
    )


def test_a_choice_is_shown_with_the_log_probabilities_of_all(open_report: Open) -> None:
    """exp(-1) is half of exp(-1) + exp(-2) + exp(-1.459); the baseline preferred its choice by 0.459 nats."""
    first, second = chosen("one", (-2.0, -1.0, -1.459), 1), chosen("one", (-2.0, -1.5, -1.25), 1)
    check = Check("compare", ["quiz"], [compared("B", [first], [second], None)], "A")
    page = open_report(check)
    shown = sample(page, "one", "B")
    assert shown.locator(".facts").inner_text() == "the baseline preferred its choice by 0.459 nats"
    rows = [row.locator("th, td").all_text_contents() for row in shown.locator(".choices tr").all()]
    assert rows == [["choice", "A", "B"], ["a", "-2.000", "-2.000"], ["b", "-1.000", "-1.500"], ["c", "-1.459", "-1.250"]]
    assert shown.locator(".choices .best").all_text_contents() == ["-1.000", "-1.250"]
    total = sum(math.exp(score) for score in first.scores)
    shares = [
        float(bar.get_attribute("style").removeprefix("width:").removesuffix("%")) for bar in shown.locator(".bar").all()
    ]
    assert shares[::2] == pytest.approx([100 * math.exp(score) / total for score in first.scores], abs=0.06)
    assert "another choice" in texts(page, "figure rect title")[0] and "similar" not in page.content()


def test_a_check_without_choices_in_its_file_is_still_read(open_report: Open, tmp_path: Path) -> None:
    first, second = chosen("one", (-2.0, -1.0, -1.459), 1), chosen("one", (-2.0, -1.5, -math.inf), 1)
    file = Check("compare", ["quiz"], [compared("B", [first], [second], None)], "A").save(tmp_path)
    data = json.loads(file.read_text())
    (row,) = data["variants"][0]["rows"]
    assert row["choices"][2] == {"text": "c", "logprobs": [-1.459, "-Infinity"]}
    del row["choices"]
    file.write_text(json.dumps(data))
    assert read_check(file).variants[0].rows == [row]


SIGN = "one => getComputedStyle(one, '::after').content"


def test_an_answer_that_ends_early_is_marked_at_its_end(open_report: Open) -> None:
    short, long = answered("tale", "words", "It ends here"), answered("tale", "words", "It ends here not")
    page = open_report(Check("compare", ["maths"], [compared("talks", [short], [long], None)], "stops"))
    shown = sample(page, "tale", "talks")
    assert shown.locator("mark").all_text_contents() == ["", " not"]
    assert shown.locator("mark").first.evaluate(SIGN) == '"end of text"'


LATE = {("left", "right"): ["left", "right"], ("left", "left over"): ["", "over"], ("left […]", ""): ["left", ""]}


@pytest.mark.parametrize("tokenized", [True, False], ids=["tokens", "characters"])
@pytest.mark.parametrize("ends", [*LATE], ids=["different ends", "one is longer", "one ends with the mark"])
def test_texts_that_diverge_late_show_where(open_report: Open, ends: tuple[str, str], tokenized: bool) -> None:
    start = "".join(f"{number} on and " for number in range(900))
    assert len(start) > 2 * MAX_CHARS
    pair = [answered("tale", "words", start + end) for end in ends]
    pair = [replace(one, tokens=one.tokens if tokenized else None) for one in pair]
    page = open_report(Check("compare", ["maths"], [compared("B", pair[:1], pair[1:], None)], "A"))
    shown = sample(page, "tale", "B")
    for one, seen in zip(pair, shown.locator(".side pre").all_text_contents(), strict=True):
        assert seen.startswith("[…] ")
        assert one.text.endswith(seen[4:])
        assert MAX_CHARS / 2 <= len(seen) <= MAX_CHARS
    marked = shown.locator("mark").all_text_contents()
    assert [text.strip() for text in marked] == LATE[ends]
    signs = shown.locator("mark").evaluate_all(f"all => all.map({SIGN})")
    assert signs == ["none" if text else '"end of text"' for text in LATE[ends]]


def test_a_long_text_that_diverges_early_is_cut_at_the_end(open_report: Open) -> None:
    first, second = (answered("tale", "words", f"{word} {'and on ' * 900}") for word in ("Off", "On"))
    page = open_report(Check("compare", ["maths"], [compared("B", [first], [second], None)], "A"))
    shown = sample(page, "tale", "B")
    assert shown.locator("mark").all_text_contents() == ["Off", "On"]
    for one, side in zip((first, second), shown.locator(".side pre").all_text_contents(), strict=True):
        assert side == one.text[:MAX_CHARS] + " […]"


def test_texts_keep_the_newlines_they_start_with(open_report: Open) -> None:
    first, second = (answered("tale", "words", f"\n\nOnce {word}", prompt="\n\nTell me") for word in ("upon", "again"))
    failed = (
        answered("none", "words", "\nNothing", prompt="\r\nWhy"),
        answered("none", "words", "", prompt="", error="\ngone"),
    )
    check = Check("compare", ["maths"], [compared("B", [first, failed[0]], [second, failed[1]], None)], "A")
    page = open_report(check)
    assert sample(page, "tale", "B").locator("pre").all_text_contents() == ["\n\nTell me", "\n\nOnce upon", "\n\nOnce again"]
    shown = sample(page, "none", "B")
    assert shown.locator("pre").all_text_contents() == ["␍\nWhy", "\nNothing"]
    assert shown.locator(".error").text_content() == "\ngone"


def test_a_long_answer_is_scrolled_to_the_divergence(open_report: Open) -> None:
    start = "word " * 600
    first, second = answered("long", "words", f"{start}left {start}"), answered("long", "words", f"{start}right {start}")
    page = open_report(Check("compare", ["maths"], [compared("B", [first], [second], None)], "A"))
    shown = sample(page, "long", "B")
    page.wait_for_function("document.querySelector('.side pre').scrollTop > 0")
    for side in shown.locator(".side").all():
        outer, mark = side.locator("pre").bounding_box(), side.locator("mark").bounding_box()
        assert outer["y"] <= mark["y"] <= outer["y"] + outer["height"] - mark["height"]


def test_unstable_samples_show_their_two_most_common_answers(open_report: Open) -> None:
    page = open_report(determinism_check())
    shown = sample(page, "essay", "all runs")
    assert shown.locator("h5").all_inner_texts() == ["prompt", "most common", "next"]
    assert shown.locator(".side pre").all_inner_texts()[0] == ESSAY
    assert shown.locator(".facts").inner_text().startswith("3 answers, the first 2 times")


def test_a_prompt_that_fails_in_some_runs_shows_an_answer_and_the_error(open_report: Open) -> None:
    page = open_report(determinism_check())
    shown = sample(page, "broken", "all runs")
    assert shown.get_attribute("data-kind") == "failed"
    assert shown.locator("pre").all_inner_texts() == [TICKS, "All is well"]
    assert shown.locator(".error").all_inner_texts() == ["HTTP 500: ```out of memory``` <b>"]


def test_a_prompt_that_fails_in_every_run_is_listed(open_report: Open) -> None:
    passes = [
        Pass(f"pass {number}", 1, [replace(BASE[0], text="", error="HTTP 503"), BASE[1]], "", []) for number in range(3)
    ]
    page = open_report(Check("determinism", ["maths"], [repeated("all runs", passes)]))
    assert page.locator(".sample").count() == 1
    shown = sample(page, "sum", "all runs")
    assert shown.get_attribute("data-kind") == "failed"
    assert shown.locator(".error").all_inner_texts() == ["HTTP 503"]


# --- copied Markdown ------------------------------------------------------------------------------------------------------


def blocks(markdown: str) -> tuple[str, list[str]]:
    """The text outside of fenced blocks, and the blocks, parsed as CommonMark does."""
    outside: list[str] = []
    inside: list[list[str]] = []
    fence = ""
    for line in markdown.split("\n"):
        ticks = line[: len(line) - len(line.lstrip("`"))]
        if fence and len(ticks) >= len(fence) and line.strip("` ") == "":
            fence = ""
        elif fence:
            inside[-1].append(line)
        elif len(ticks) >= 3 and "`" not in line[len(ticks) :]:
            fence = ticks
            inside.append([])
        else:
            outside.append(line)
    assert not fence, "a block is not closed"
    return "\n".join(outside), ["\n".join(lines) for lines in inside]


def test_an_issue_is_copied_as_markdown_that_survives_backticks(open_report: Open) -> None:
    page = open_report(compare_check(), permissions=["clipboard-read", "clipboard-write"])
    shown = sample(page, "broken", "Q4_K_M")
    page.evaluate("() => { window.setTimeout = (work, wait) => { window.later = work; window.wait = wait; }; }")
    shown.locator(".copy").click()
    sync_api.expect(shown.locator(".copy")).to_have_text("Copied")
    assert page.evaluate("window.wait") == 1500
    page.evaluate("window.later()")
    assert shown.locator(".copy").inner_text() == "Copy as issue"
    copied = str(shown.locator(".copy").get_attribute("data-copied"))
    assert page.evaluate("navigator.clipboard.readText()") == copied
    around_them, found = blocks(copied)
    assert found == [TICKS, "All is well", "HTTP 500: ```out of memory``` <b>"]
    assert around_them.startswith("### failed: `maths · broken · Q4_K_M`\n")
    assert "compare on maths" in around_them


def test_an_issue_is_copied_where_the_clipboard_is_refused(open_report: Open) -> None:
    page = open_report(compare_check())
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('refused')); }")
    page.evaluate("() => document.addEventListener('copy', () => { window.copied = document.activeElement.value; })")
    shown = sample(page, "sum", "Q4_K_M")
    shown.locator(".copy").click()
    page.wait_for_function("document.querySelector('.copy[data-copied]') !== null")
    copied = page.evaluate("window.copied")
    assert copied == shown.locator(".copy").get_attribute("data-copied")
    around_them, found = blocks(copied)
    assert found == ["Question sum?", BASE[0].text, Q4[0].text]
    assert "gold: `4`" in around_them
    assert "**answer** `F16 → 4 right`" in around_them
    assert page.locator("textarea").count() == 0


def test_hostile_text_in_an_issue_stays_code(open_report: Open) -> None:
    page = open_report(hostile_check(), permissions=["clipboard-read", "clipboard-write"])
    page.evaluate("document.querySelectorAll('.copy').forEach(one => one.click())")
    page.wait_for_function("document.querySelectorAll('.copy[data-copied]').length === 6")
    for copied in page.locator(".copy").evaluate_all("all => all.map(one => one.dataset.copied)"):
        around_them, found = blocks(copied)
        assert len(found) == 3
        assert HOSTILE in found[0]
        assert "hacked" not in re.sub(r"`[^`\n]*`", "", around_them)


# --- texts of models are no markup ----------------------------------------------------------------------------------------


def is_harmless(page: Any) -> None:
    assert page.evaluate("window.hacked") is None
    assert page.locator("script").count() == 1
    assert page.locator("style").count() == 1
    assert page.locator("img, iframe, a:not([href^='#section-']), object, embed, link, base").count() == 0
    assert page.locator("svg").count() + page.locator(".matrix").count() == page.locator("figure").count()
    assert page.locator("figure svg, figure table").count() == page.locator("figure").count()
    names = (
        "[...document.querySelectorAll('*')].flatMap(one => one.getAttributeNames()).filter(name => name.startsWith('on'))"
    )
    assert page.evaluate(names) == []


def test_hostile_text_is_shown_and_never_run(open_report: Open) -> None:
    page = open_report(hostile_check())
    open_all(page)
    page.wait_for_timeout(200)
    is_harmless(page)
    for selector in (
        "h2",
        ".sub b >> nth=0",
        ".metrics thead th >> nth=1",
        ".warnings li >> nth=0",
        ".warnings li >> nth=-1",
    ):
        assert HOSTILE in page.locator(selector).inner_text()
    gold = HOSTILE + CONTROL.replace("\u202e", "␦")
    assert json.loads(page.locator(".gold code").first.text_content())[gold] == [gold]
    for selector in ("summary", ".prompt", ".side h5", ".error", "option"):
        assert HOSTILE in " ".join(page.locator(selector).all_inner_texts())
        assert SEEN in " ".join(page.locator(selector).all_text_contents())
    assert [text[:3] for text in texts(page, ".prompt")] == [f"\n{index} " for index in (1, 1, 0, 0, 2, 2)]
    assert HOSTILE in page.locator(".side pre").first.inner_text()
    assert HOSTILE in page.locator("figure", has_text=HEAT).locator("rect title").first.text_content()
    assert [HOSTILE in text for text in texts(page, ".matrix th")] == [False, True, True, True, True, True] * 2


def test_no_script_runs_but_the_page_s_own(browser: Any, tmp_path: Path) -> None:
    file = write_report([compare_check()], tmp_path / "report.html")
    planted = "<b id='bad' onclick='window.hacked=1'>x</b><a href='javascript:window.hacked=1'>x</a>" + HACKS[0]
    file.write_text(file.read_text().replace("</main>", f"{planted}</main>"))
    context = browser.new_context(offline=True)
    page, logged = context.new_page(), []
    page.on("console", lambda message: logged.append(message.text))
    page.goto(file.as_uri())
    policy = page.locator("meta[http-equiv=Content-Security-Policy]").get_attribute("content")
    digest = hashlib.sha256(str(page.locator("script").last.text_content()).encode()).digest()
    assert f"script-src 'sha256-{base64.b64encode(digest).decode()}';" in policy
    assert page.locator(".count").inner_text() == "6 of 6 samples"  # the page's own did run
    page.locator("#theme").click()
    assert page.locator("html").get_attribute("data-theme") in ("light", "dark")
    page.locator("#bad").click()
    page.locator("a").click()
    page.wait_for_timeout(100)
    assert page.evaluate("window.hacked") is None
    refused = [text for text in logged if "Content Security Policy" in text]
    assert len(refused) == len(logged) == 3
    context.close()


def test_hostile_names_can_be_filtered_by(open_report: Open) -> None:
    page = open_report(hostile_check())
    assert visible(page) == 6
    page.locator("select[name=variant]").select_option(index=2)
    assert visible(page) == 3
    page.locator("select[name=category]").select_option(index=1)
    assert visible(page) == 1
    page.locator("input[name=search]").fill(HACKS[0].upper())
    assert visible(page) == 1


@pytest.mark.parametrize("control", [LEGAL, CONTROL], ids=["characters", "surrogates"])
def test_the_command_reports_hostile_checks_from_their_files(open_report: Open, tmp_path: Path, control: str) -> None:
    hostile_check(control).save(tmp_path)
    compare_check().save(tmp_path)
    assert run(["report", str(tmp_path), "--output", str(tmp_path / "all.html")]) == 0
    page = open_report(tmp_path / "all.html")
    assert page.locator(".check").count() == 2
    assert page.locator("figure").count() == len(CHARTS[hostile_check]) + len(CHARTS[compare_check])
    assert SEEN in page.locator(".prompt", has_text=HACKS[0]).first.text_content()
    is_harmless(page)


# --- how it looks ---------------------------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    red, green, blue = map(int, re.findall(r"\d+", colour)[:3])
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_system_until_its_theme_is_chosen(open_report: Open, scheme: str) -> None:
    page = open_report(compare_check(), color_scheme=scheme)

    def is_dark() -> bool:
        page_dark = luminance(background(page)) < 0.2
        ink = page.evaluate("getComputedStyle(document.querySelector('h1')).color")
        tick = page.evaluate("getComputedStyle(document.querySelector('.tick')).fill")
        assert (luminance(ink) > 0.8) == page_dark
        assert (luminance(tick) > 0.5) == page_dark
        return page_dark

    assert is_dark() == (scheme == "dark")
    page.locator("#theme").click()
    assert is_dark() == (scheme == "light")
    page.emulate_media(color_scheme="light")
    assert is_dark() == (scheme == "light")
    page.locator("#theme").click()
    assert is_dark() == (scheme == "dark")


def test_without_scripts_the_page_is_still_read(open_report: Open) -> None:
    page = open_report(compare_check(), java_script_enabled=False, color_scheme="dark")
    sample = page.locator(".sample", has=page.locator("mark")).first
    sample.locator("summary").click()
    assert sample.locator("mark").first.is_visible()


@pytest.mark.parametrize("make", ALL)
def test_a_phone_needs_no_sideways_scrolling(open_report: Open, make: Callable[[], Check]) -> None:
    page = open_report(make(), width=380)
    open_all(page)
    assert page.evaluate("document.scrollingElement.scrollWidth") == 380
    sizes = "[...document.querySelectorAll('main *')].filter(one => !one.closest('.scroll > *, figure > *')"
    sizes += " && one.getBoundingClientRect().right > 380).map(one => one.outerHTML.slice(0, 100))"
    assert page.evaluate(sizes) == []
    assert page.locator("#theme").is_visible()


@pytest.mark.parametrize("make", [compare_check, stress_check])
def test_text_of_charts_is_readable_on_a_phone(open_report: Open, make: Callable[[], Check]) -> None:
    page = open_report(make(), width=380)
    heights = page.evaluate("[...document.querySelectorAll('svg text')].map(one => one.getBoundingClientRect().height)")
    assert min(height for height in heights if height) >= 9
