"""The HTML report in a real browser: what is drawn, what can be clicked, and that nothing a model writes becomes markup.

Needs `pip install playwright` and a Chromium on PATH (Debian: `apt-get install --no-install-recommends chromium
fonts-dejavu-core`). Every page is opened offline, and must ask for nothing but itself and complain about nothing."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mill.api.response import Token
from mill.checks.answers import Answer
from mill.checks.compare import compared, row_of
from mill.checks.determinism import repeated
from mill.checks.forced import ForcedGaps
from mill.checks.pairing import Pair
from mill.checks.passes import Pass
from mill.checks.result import Check, Variant
from mill.cli.main import run
from mill.metrics.divergence import Gap
from mill.metrics.estimate import Estimate, around
from mill.metrics.paired import rate
from mill.report.html import write_report

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no browser to open reports in")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH to open reports in")

GIB = 2**30
Open = Callable[..., Any]


# --- checks to report -----------------------------------------------------------------------------------------------------


def tokens(text: str) -> tuple[Token, ...]:
    """Words with the space before them, each 2.5 nats ahead of its rival."""
    return tuple(Token(None, piece, -0.1, ((piece, -0.1), ("rival", -2.6))) for piece in re.findall(r"\s*\S+|\s+$", text))


def said(name: str, category: str, text: str, **more: Any) -> Answer:
    prompt = more.pop("prompt", f"Question {name}?")
    return Answer("maths", name, category, prompt, more.pop("gold", None), text, tokens=tokens(text), **more)


def solved(name: str, text: str, gold: str) -> Answer:
    final = text.rpartition(" ")[2]
    return said(name, "arithmetic", text, gold=gold, extracted=final, comparable=True, right=final == gold)


def asked(name: str, text: str) -> Answer:
    return said(name, "logic", text, extracted=text.rpartition(" ")[2], comparable=True)


ESSAY = "A river runs past the mill, and the wheel turns as long as there is water in it."
TICKS = "Explain\n```py\nprint('````')\n```\nand `this`."
BASE = [
    solved("sum", "The sum is 4 and so the answer: 4", "4"),
    solved("difference", "The answer: 9", "8"),
    asked("knights", "After some thought: yes"),
    said("essay", "logic", ESSAY),
    said("broken", "words", "All is well", prompt=TICKS),
    said("same", "words", "Nothing changes here"),
]
Q8 = [*BASE[:3], said("essay", "logic", ESSAY.replace("water", "weight")), *BASE[4:]]
Q4 = [
    solved("sum", "The sum is 5 and so the answer: 5", "4"),
    solved("difference", "The answer: 8", "8"),
    asked("knights", "After some thought: no"),
    said("essay", "logic", "Qqq zzz xxx kkk jjj vvv"),
    said("broken", "words", "", prompt=TICKS, error="HTTP 500: ```out of memory``` <b>"),
    BASE[5],
]


def gaps(typical: float, answers: Sequence[Answer] = BASE) -> ForcedGaps:
    draw = random.Random(typical)
    of_texts = {}
    for one in answers:
        values = [draw.lognormvariate(typical, 1.5) for _ in one.tokens or ()]
        of_texts[f"{one.task}/{one.id}"] = [Gap(value, -0.5, -0.6, value < 0.02, True) for value in values]
    return ForcedGaps(of_texts)


def sized(label: str, answers: Sequence[Answer], typical: float, size: float | None) -> Variant:
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


def failed_check() -> Check:
    failed = [said(one.id, one.category, "", error=f"HTTP 503 at {one.id}") for one in BASE]
    return Check("compare", ["maths"], [compared("down", BASE, failed, None)], "up")


def stress_check() -> Check:
    variants = []
    for level in (1, 8, 64):
        changed = [Pair(a, b) for a, b in zip(BASE, Q4, strict=True) if level == 64 and a != b]
        figures: dict[str, Estimate] = {"failure_rate": rate(level // 64, 6), "match_rate": rate(6 - len(changed), 6)}
        figures["tokens_per_s"] = around(90.0 * level**0.6, None, 6)
        for name, share in (("p50", 1.0), ("p95", 1.8), ("p99", 2.4)):
            figures[f"latency_{name}"] = around(0.8 * share * level**0.4, None, 6)
            figures[f"first_token_{name}"] = around(0.05 * share * level**0.5, None, 6)
        errors = [{"id": "broken", "error": "HTTP 500"}] if changed else []
        counts = {"samples": 6, "failed": len(errors), "concurrency": level}
        rows = [row_of(pair, None) for pair in changed]
        variants.append(
            Variant(f"concurrency {level}", figures=figures, counts=counts, series={"errors": errors}, rows=rows)
        )
    return Check("stress", ["maths"], variants, "concurrency 1")


def determinism_check() -> Check:
    passes = [
        Pass(f"pass {place}", 1 + place % 2, list(answers), "", []) for place, answers in enumerate((BASE, BASE, Q8, Q4))
    ]
    alone = [one for one in passes if one.width == 1]
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
SEEN = "\x00\x07\x1b[31m\r\x0b\u202e" + "\ufffd" * 6 + "\U0001f600"  # CONTROL in JSON: a lone surrogate is three bad bytes
CONTROL = "\x00\x07\x1b[31m\r\x0b\u202e\ud800\udfff\U0001f600"
LONG = "W" * 300


def hostile_check(control: str = CONTROL) -> Check:
    bad = HOSTILE + control

    def answer(place: int, text: str, error: str | None = None) -> Answer:
        about = {"gold": {bad: [bad]}, "extracted": text, "comparable": True, "right": not place, "error": error}
        return Answer(bad, f"{place} {bad}", f"{place} {bad}", f"\n{place} {bad}", text=text, tokens=tokens(text), **about)

    first = [answer(place, f"{bad} {place} {LONG}") for place in range(3)]
    second = [answer(0, f"{bad} other"), answer(1, "", error=bad), answer(2, LONG)]
    variants = []
    for label in (bad, f"{LONG} {bad}"):
        variant = compared(label, first, second, gaps(-4, first))
        variant.notes.append(bad)
        variant.series["errors"] = [{"id": bad, "error": bad}]
        variants.append(variant)
    return Check("compare", [bad], variants, bad, notes=[bad])


CURVES = ["KL mean, nats", "answer flips", "accuracy lost"]
FORCED = ["Distribution of KL over places", "Same top token, by place in the answer"]
CATEGORIES = ["Answer flips by category", "Same text by category"]
HEAT = "Every prompt, by how much its answer changed"
LOAD = ["Latency, seconds", "First token, seconds", "Throughput, tokens a second"]
CHARTS: dict[Callable[[], Check], list[str]] = {
    compare_check: [*CURVES, *FORCED, *CATEGORIES, HEAT],
    sweep_check: [*CURVES, *FORCED, *CATEGORIES, HEAT],
    unchanged_check: [*CURVES, *FORCED, *CATEGORIES, HEAT],
    failed_check: [*CURVES[1:], *CATEGORIES, HEAT],
    stress_check: [*LOAD, "Consistency with the lowest level", "Failed requests"],
    determinism_check: ["Agreement over runs"],
    hostile_check: [*CURVES, *FORCED, *CATEGORIES, HEAT],
}
ALL = [*CHARTS]


# --- the browser ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_report(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens a report of checks, or a file, as a page that must not complain or ask for anything else."""
    problems: list[str] = []
    contexts = []

    def opened(*checks: Check | Path, width: int = 1200, **options: Any) -> Any:
        file = checks[0] if isinstance(checks[0], Path) else write_report(checks, tmp_path / "report.html")  # type: ignore[arg-type]
        context = browser.new_context(viewport={"width": width, "height": 800}, offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: problems.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: request.url == file.as_uri() or problems.append(f"request: {request.url}"))
        page.goto(file.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert problems == []


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
  return boxes.flatMap(([name, box], place) =>
    boxes.slice(place + 1).filter(([, other]) => meet(box, other)).map(([other]) => `${name} / ${other}`));
})"""

CLIPPED = """() => [...document.querySelectorAll("figure")].flatMap((figure) => {
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
    for figure in page.locator("figure").all():
        box = figure.locator("svg").bounding_box()
        assert box["width"] > 300
        assert box["height"] > 30
        assert figure.locator("circle, rect").count() > 0
    assert page.evaluate(OUTSIDE) == []
    assert make is hostile_check or page.evaluate(CLIPPED) == []  # its names are wider than any that people give


COLLIDE = pytest.mark.xfail(strict=True, reason="names of many variants run into each other below a chart")


@pytest.mark.parametrize(
    "make",
    [compare_check, sweep_check, stress_check, determinism_check, failed_check, pytest.param(crowded_check, marks=COLLIDE)],
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
    heat = page.locator("figure", has_text=HEAT)
    kinds = [cell.get_attribute("class").removeprefix("cell s-") for cell in heat.locator("rect").all()]
    assert kinds[:6] == ["identical", "identical", "identical", "minor", "identical", "identical"]
    assert kinds[6:] == [row["severity"] for row in check.variants[1].rows]
    assert (kinds[9], kinds[10], kinds[11]) == ("severe", "failed", "identical")


def test_series_are_named_in_legends_and_told_apart_by_colour(open_report: Open) -> None:
    page = open_report(sweep_check())
    figure = page.locator("figure", has_text="Distribution of KL")
    assert figure.locator(".key").all_text_contents() == ["Q8_0", "Q6_K", "Q4_K_M", "Q2_K"]
    swatches = [key.evaluate("one => getComputedStyle(one).backgroundColor") for key in figure.locator(".swatch").all()]
    lines = [line.evaluate("one => getComputedStyle(one).stroke") for line in figure.locator("polyline").all()]
    assert swatches == lines
    assert len(set(lines)) == 4


def test_the_table_holds_every_figure(open_report: Open) -> None:
    page = open_report(compare_check())
    assert texts(page, ".figures thead th") == ["", "Q8_0", "Q4_K_M"]
    flips = page.locator(".figures tbody tr", has_text="answer flips")
    assert flips.locator("td").first.inner_text().startswith("0.00 %")
    assert flips.locator("td").last.inner_text().startswith("100.0 %")
    assert flips.locator("th").get_attribute("title") == "samples whose extracted answer is another one"
    assert texts(page, ".figures tbody tr:last-child td") == ["5 / 1 / 0 / 0 / 0", "1 / 3 / 0 / 1 / 1"]


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


def test_the_token_where_answers_part_is_marked(open_report: Open) -> None:
    page = open_report(compare_check())
    shown = sample(page, "sum", "Q4_K_M")
    assert shown.locator("mark").all_text_contents() == [" 4", " 5"]
    assert shown.locator(".same").all_text_contents() == ["The sum is"] * 2
    assert shown.locator(".facts").inner_text() == "94 % alike · parts at token 4 · margin 2.500 nats · KL up to " + (
        f"{max(compare_check().variants[1].rows[0]['kl_places']):.3g}"
    )
    assert shown.locator("pre").all_inner_texts()[1:] == [BASE[0].text, Q4[0].text]
    assert shown.locator(".right").inner_text() == "right"
    assert shown.locator(".wrong").inner_text() == "wrong"
    assert shown.locator(".gold").inner_text() == "gold: 4"


SIGN = "one => getComputedStyle(one, '::after').content"


def test_an_answer_that_ends_early_is_marked_at_its_end(open_report: Open) -> None:
    short, long = said("tale", "words", "It ends here"), said("tale", "words", "It ends here not")
    page = open_report(Check("compare", ["maths"], [compared("talks", [short], [long], None)], "stops"))
    shown = sample(page, "tale", "talks")
    assert shown.locator("mark").all_text_contents() == ["", " not"]
    assert shown.locator("mark").first.evaluate(SIGN) == '"end of text"'


def test_an_answer_that_is_cut_before_it_parts_does_not_seem_to_end(open_report: Open) -> None:
    first, second = (said("tale", "words", "on and " * 600 + end) for end in ("on", "off"))
    page = open_report(Check("compare", ["maths"], [compared("B", [first], [second], None)], "A"))
    assert [mark.evaluate(SIGN) for mark in page.locator("mark").all()] == ['"parts further on"'] * 2


def test_a_long_answer_is_opened_where_it_parts(open_report: Open) -> None:
    start = "word " * 600
    first, second = said("long", "words", f"{start}left {start}"), said("long", "words", f"{start}right {start}")
    page = open_report(Check("compare", ["maths"], [compared("B", [first], [second], None)], "A"))
    shown = sample(page, "long", "B")
    page.wait_for_function("document.querySelector('.side pre').scrollTop > 0")
    for side in shown.locator(".side").all():
        outer, mark = side.locator("pre").bounding_box(), side.locator("mark").bounding_box()
        assert outer["y"] <= mark["y"] <= outer["y"] + outer["height"] - mark["height"]


def test_unstable_samples_show_their_two_commonest_answers(open_report: Open) -> None:
    page = open_report(determinism_check())
    shown = sample(page, "essay", "all runs")
    assert shown.locator("h5").all_inner_texts() == ["prompt", "most common", "next"]
    assert shown.locator(".side pre").all_inner_texts()[0] == ESSAY
    assert shown.locator(".facts").inner_text().startswith("3 answers, the first 2 times")


# --- copied Markdown ------------------------------------------------------------------------------------------------------


def blocks(markdown: str) -> tuple[str, list[str]]:
    """What stands outside of fenced blocks, and the blocks, read as CommonMark reads them."""
    outside, inside, fence = [], [], ""
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
    shown.locator(".copy").click()
    page.wait_for_function("document.querySelector('.copy[data-copied]') !== null")
    copied = str(shown.locator(".copy").get_attribute("data-copied"))
    assert page.evaluate("navigator.clipboard.readText()") == copied
    around_them, found = blocks(copied)
    assert found == [TICKS, "All is well", "HTTP 500: ```out of memory``` <b>"]
    assert around_them.startswith("### failed: `maths · broken · Q4_K_M`\n")
    assert "compare on maths" in around_them
    sync_api.expect(shown.locator(".copy")).to_have_text("Copied")
    sync_api.expect(shown.locator(".copy")).to_have_text("Copy as issue")


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
    open_all(page)
    for shown in page.locator(".sample").all():
        shown.locator(".copy").click()
        page.wait_for_function("one => 'copied' in one.dataset", arg=shown.locator(".copy").element_handle())
        around_them, found = blocks(str(shown.locator(".copy").get_attribute("data-copied")))
        assert len(found) == 3
        assert HOSTILE in found[0]
        assert "hacked" not in re.sub(r"`[^`\n]*`", "", around_them)


# --- what models write is text --------------------------------------------------------------------------------------------


def is_harmless(page: Any) -> None:
    assert page.evaluate("window.hacked") is None
    assert page.locator("script").count() == 1
    assert page.locator("style").count() == 1
    assert page.locator("img, iframe, a, object, embed, link, base").count() == 0
    assert page.locator("svg").count() == page.locator("figure").count()
    names = (
        "[...document.querySelectorAll('*')].flatMap(one => one.getAttributeNames()).filter(name => name.startsWith('on'))"
    )
    assert page.evaluate(names) == []


def test_hostile_text_is_shown_and_never_run(open_report: Open) -> None:
    page = open_report(hostile_check())
    open_all(page)
    page.wait_for_timeout(200)
    is_harmless(page)
    for selector in ("h2", ".sub b >> nth=0", ".figures thead th >> nth=1", ".notes li >> nth=0", ".notes li >> nth=-1"):
        assert HOSTILE in page.locator(selector).inner_text()
    assert json.loads(page.locator(".gold code").first.inner_text(), strict=False)[HOSTILE + SEEN][0] == HOSTILE + SEEN
    for selector in ("summary", ".prompt", ".side h5", ".error", "option"):
        assert HOSTILE in " ".join(page.locator(selector).all_inner_texts())
    assert HOSTILE in page.locator(".side pre").first.inner_text()
    assert HOSTILE in page.locator("figure", has_text=HEAT).locator("rect title").first.text_content()
    assert HOSTILE in page.locator("figure", has_text=CATEGORIES[0]).locator("rect title").first.text_content()


def test_hostile_names_can_be_filtered_by(open_report: Open) -> None:
    page = open_report(hostile_check())
    assert visible(page) == 6
    page.locator("select[name=variant]").select_option(index=2)
    assert visible(page) == 3
    page.locator("select[name=category]").select_option(index=1)
    assert visible(page) == 1
    page.locator("input[name=search]").fill(HACKS[0].upper())
    assert visible(page) == 1


REFUSED = pytest.mark.xfail(strict=True, reason="read_json refuses the lone surrogates that save() writes")


@pytest.mark.parametrize("control", [SEEN, pytest.param(CONTROL, marks=REFUSED)], ids=["characters", "surrogates"])
def test_the_command_reports_hostile_checks_from_their_files(open_report: Open, tmp_path: Path, control: str) -> None:
    hostile_check(control).save(tmp_path)
    compare_check().save(tmp_path)
    assert run(["report", str(tmp_path), "--output", str(tmp_path / "all.html")]) == 0
    page = open_report(tmp_path / "all.html")
    assert page.locator(".check").count() == 2
    assert page.locator("figure").count() == 16
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
    page.locator("summary").first.click()
    assert page.locator("mark").first.is_visible()


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
