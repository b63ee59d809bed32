"""The page of a check as a file: charts, filters, copied issues, and that no text of a model becomes markup."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from mill.checks.result import Check
from mill.view.offline import write_check_page
from tests.browsing import Watch, needs_chromium, sync_api
from tests.view.browser.shown import WIDER
from tests.view.saved_checks import (
    BASE,
    HACKS,
    HOSTILE,
    Q4,
    TICKS,
    answered,
    close_check,
    compare_check,
    compared,
    crowded_check,
    determinism_check,
    failed_check,
    hostile_check,
    stress_check,
    sweep_check,
)

pytestmark = needs_chromium
expect = sync_api.expect
OpenCheck = Callable[..., Any]


@pytest.fixture
def open_check(browser: Any, shared_page: tuple[Any, Watch], tmp_path: Path) -> Iterator[OpenCheck]:
    """Opens the page of a check, which must log nothing and load nothing else."""
    shared, watch = shared_page
    contexts = []

    def opened(check: Check, **options: Any) -> Any:
        page, file = shared, write_check_page(check, tmp_path / "report.html")
        watch.allowed |= {"about:blank", file.as_uri()}
        if options:
            contexts.append(browser.new_context(offline=True, **options))
            page = watch.new_page(contexts[-1])
        page.set_viewport_size({"width": 1400, "height": 900})
        page.goto("about:blank")
        page.goto(file.as_uri())
        expect(page.get_by_role("heading", name="What changed")).to_be_visible()
        return page

    yield opened
    for context in contexts:
        context.close()
    shared.goto("about:blank")
    watch.allowed = set()
    assert watch.take() == []


def change(page: Any, name: str, variant: str) -> Any:
    """A changed sample, opened."""
    found = page.locator("details.sample", has=page.locator("summary", has_text=f"{name} · {variant}"))
    found.locator("summary").click()
    return found


OUTSIDE = """() => [...document.querySelectorAll("figure svg")].flatMap((svg) => {
  const box = svg.viewBox.baseVal, wrong = [];
  const inside = (x, y) => x >= -0.1 && y >= -0.1 && x <= box.width + 0.1 && y <= box.height + 0.1;
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

ON_INTERVALS = """() => [...document.querySelectorAll("figure:has(.grid) svg")].flatMap((svg) => {
  const boxes = [...svg.querySelectorAll(".whisker")].map((one) => one.getBoundingClientRect());
  return [...svg.querySelectorAll(".name")].filter((name) => {
    const box = name.getBoundingClientRect();
    const above = (bar) => box.top + 4 < bar.bottom && bar.top < box.bottom - 4;
    return boxes.some((bar) => box.left < bar.left && bar.right < box.right && above(bar));
  }).map((name) => name.textContent);
})"""

BACKGROUND = "getComputedStyle(one).backgroundColor"
MAKERS = [compare_check, sweep_check, stress_check, determinism_check, failed_check, crowded_check, close_check]


@pytest.mark.parametrize("make", [*MAKERS, hostile_check])
def test_charts_are_drawn_inside_their_frames_at_every_width(open_check: OpenCheck, make: Callable[[], Check]) -> None:
    page = open_check(make())
    assert page.locator("figure svg, figure table.matrix").count() == page.locator("figure").count() > 0
    assert page.evaluate(OUTSIDE) == []
    assert make is hostile_check or page.evaluate(OVERLAPS) == []  # its names are longer than real ones
    assert page.evaluate(ON_INTERVALS) == []
    for width in (400, 1400):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(WIDER) == [0, []], width


def test_colours_and_positions_are_those_of_the_values(open_check: OpenCheck) -> None:
    page = open_check(compare_check())
    curve = page.locator("figure", has_text="Answer flips").first
    lower, higher = (float(dot.get_attribute("cy")) for dot in curve.locator("circle").all())
    assert lower < higher  # 100 % is above 0 %
    assert curve.locator(".name").all_text_contents() == ["Q4_K_M", "Q8_0"]
    lines = page.locator("figure", has_text="Distribution of KL")
    assert lines.locator(".key").all_text_contents() == ["Q8_0", "Q4_K_M"]
    swatches = lines.locator(".swatch").evaluate_all(f"all => all.map(one => {BACKGROUND})")
    assert lines.locator("polyline").evaluate_all("all => all.map(one => getComputedStyle(one).stroke)") == swatches
    heat = page.locator("figure", has_text="Every prompt")
    fills = heat.locator("rect").evaluate_all("all => all.map(one => [one.classList[1], getComputedStyle(one).fill])")
    keys = heat.locator(".swatch").evaluate_all(f"all => all.map(one => [one.classList[1], {BACKGROUND}])")
    assert set(map(tuple, fills)) <= set(map(tuple, keys)) and len({colour for _, colour in keys}) == 6
    shades = page.locator(".matrix").last.locator("td[title]").evaluate_all(f"all => all.map(one => {BACKGROUND})")
    assert shades[0] == shades[5] and shades[1] == shades[3]  # 50 % and 0 %


def test_filters_choose_samples_and_count_them(open_check: OpenCheck) -> None:
    page = open_check(compare_check())

    def after(search: str = "", **wanted: str) -> int:
        for name in ("variant", "category", "kind"):
            page.get_by_label(name.capitalize()).select_option(wanted.get(name, ""))
        page.get_by_label("Search").fill(search)
        page.wait_for_timeout(300)  # until the field reports what was typed
        shown = page.locator("details.sample").count()
        expect(page.get_by_text(f"{shown} of 6 changed samples")).to_be_visible()
        return int(shown)

    assert after() == 6
    assert (after(variant="Q8_0"), after(variant="Q4_K_M")) == (1, 5)
    kinds = ["failed", "flip", "improvement", "minor", "regression", "severe"]
    assert page.get_by_label("Kind").locator("option").all_text_contents() == ["all", *kinds]
    assert [after(kind=kind) for kind in kinds[:2]] == [1, 1]
    assert (after("RIVER runs"), after("nowhere")) == (2, 0)
    assert after("qqq", variant="Q4_K_M", category="logic", kind="severe") == 1
    page.get_by_label("Search").press("Enter")
    expect(page.locator("details.sample")).to_have_count(1)


def test_a_long_answer_is_scrolled_to_the_divergence(open_check: OpenCheck) -> None:
    start = "word " * 600
    first, second = answered("long", "words", f"{start}left {start}"), answered("long", "words", f"{start}right {start}")
    page = open_check(Check("compare", ["maths"], [compared("B", [first], [second], None)], "A"))
    shown = change(page, "long", "B")
    page.wait_for_function("document.querySelector('.side pre').scrollTop > 0")
    for side in shown.locator(".side").all():
        outer, mark = side.locator("pre").bounding_box(), side.locator("mark").bounding_box()
        assert outer["y"] <= mark["y"] <= outer["y"] + outer["height"] - mark["height"]


def blocks(markdown: str) -> tuple[str, list[str]]:
    """The text outside of fenced blocks, and the blocks."""
    fences = [token for token in MarkdownIt("commonmark").parse(markdown) if token.type == "fence"]
    inside = {number for token in fences for number in range(*(token.map or (0, 0)))}
    outside = [line for number, line in enumerate(re.split(r"\r\n?|\n", markdown)) if number not in inside]
    return "\n".join(outside), [token.content.removesuffix("\n") for token in fences]


def test_an_issue_is_copied_as_markdown_that_survives_backticks(open_check: OpenCheck) -> None:
    page = open_check(compare_check(), permissions=["clipboard-read", "clipboard-write"])
    change(page, "broken", "Q4_K_M").get_by_role("button", name="Copy as issue").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    outside, found = blocks(page.evaluate("navigator.clipboard.readText()"))
    assert found == [TICKS, "All is well", "HTTP 500: ```out of memory``` <b>"]
    assert outside.startswith("### failed: `maths · broken · Q4_K_M`\n") and "compare on maths" in outside


def test_an_issue_is_copied_where_the_clipboard_is_refused(open_check: OpenCheck) -> None:
    page = open_check(compare_check())
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('refused')); }")
    page.evaluate("() => document.addEventListener('copy', () => { window.copied = document.activeElement.value; })")
    change(page, "sum", "Q4_K_M").get_by_role("button", name="Copy as issue").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    outside, found = blocks(page.evaluate("window.copied"))
    assert found == ["Question sum?", BASE[0].text, Q4[0].text]
    assert "gold: `4`" in outside and "**answer** `F16 → 4 right`" in outside


def test_hostile_text_is_shown_and_never_run(open_check: OpenCheck) -> None:
    page = open_check(hostile_check(), permissions=["clipboard-read", "clipboard-write"])
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    expect(page.locator("pre.prompt")).to_have_count(6)
    assert page.evaluate("window.hacked") is None
    assert page.locator("script").count() == 2 and page.locator("style").count() == 1
    assert page.locator("img, iframe, a:not([href^='#']), object, embed, base").count() == 0
    names = (
        "[...document.querySelectorAll('*')].flatMap(one => one.getAttributeNames()).filter(name => name.startsWith('on'))"
    )
    assert page.evaluate(names) == []
    for selector in ("h2", ".verdict", ".list thead", ".warning", "summary", ".prompt", ".side h4", ".error", "option"):
        assert HOSTILE in " ".join(page.locator(selector).all_text_contents()), selector
    page.get_by_role("button", name="Copy as issue").first.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    outside, found = blocks(page.evaluate("navigator.clipboard.readText()"))
    assert len(found) == 3 and HOSTILE in found[0]
    assert "hacked" not in re.sub(r"`[^`\n]*`", "", outside)


def test_no_script_runs_but_the_page_s_own(browser: Any, tmp_path: Path) -> None:
    file = write_check_page(compare_check(), tmp_path / "report.html")
    planted = "<b id='bad' onclick='window.hacked=1'>x</b><a href='javascript:window.hacked=1'>x</a>" + HACKS[0]
    text = file.read_text()
    (script,) = re.findall("<script>(.*?)</script>", text, re.DOTALL)
    assert f"script-src 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in text
    file.write_text(text.replace("<noscript>", f"{planted}<noscript>"))
    context = browser.new_context(offline=True)
    page, logged = context.new_page(), []
    page.on("console", lambda message: logged.append(message.text))
    page.goto(file.as_uri())
    expect(page.get_by_text("6 of 6 changed samples")).to_be_visible()  # the page's own did run
    page.locator("#bad").click()
    page.locator("#bad + a").click()
    page.wait_for_timeout(100)
    assert page.evaluate("window.hacked") is None
    refused = [one for one in logged if "Content Security Policy" in one]
    assert len(refused) == len(logged) == 3
    context.close()
