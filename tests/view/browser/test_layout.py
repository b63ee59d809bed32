"""All screens: reloaded, as a copy, by keyboard alone, in both themes, on a phone, on a wide display, and with axe-core."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.browsing import needs_chromium, sync_api
from tests.view.browser.results import ResultFiles
from tests.view.browser.shown import SCREENS, WIDER, content_of, open_route, settle

pytestmark = needs_chromium
expect = sync_api.expect
TITLES = ["Runs", "Scores", "Compare", "Samples", "Tokens", "Load and cost", "Checks"]
AXE = """async () => {
    const found = await axe.run(document, { resultTypes: ["violations"] });
    const serious = found.violations.filter((one) => ["serious", "critical"].includes(one.impact));
    return serious.flatMap((one) => one.nodes.slice(0, 4).map((node) => `${one.id}: ${node.html} ${node.failureSummary}`));
}"""
TABLES = "() => [...document.querySelectorAll('main table')].map(table => table.innerText)"
DRAWN = "() => [...document.querySelectorAll('main figure.chart')].map(figure => figure.innerHTML)"


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_fits_every_width_and_is_the_same_after_a_reload_and_in_a_copy(
    screens: Any, disk: Any, results: ResultFiles, uids: dict[str, str], name: str
) -> None:
    page = open_route(screens, results, uids, name)
    for width in (360, 1400, 3840):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(WIDER) == [0, []], width
    before, url = content_of(page), page.url
    assert len(before) > 100
    page.reload()
    settle(page)
    assert (content_of(page), page.url) == (before, url)
    tables = [table for table in page.evaluate(TABLES) if "Outcome" not in table]  # rules need the server
    drawn, heading = page.evaluate(DRAWN), page.get_by_role("heading", level=1).inner_text()
    copied = open_route(disk, results, uids, name)
    assert copied.get_by_role("heading", level=1).inner_text() == heading
    assert copied.evaluate(TABLES) == tables and copied.evaluate(DRAWN) == drawn


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed, so that axe-core cannot be fetched")
    folder = tmp_path_factory.mktemp("npm")
    command = [npm, "install", "--prefix", str(folder), "--no-save", "--no-audit", "--no-fund", "axe-core@4"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        pytest.skip("npm did not fetch axe-core within two minutes")
    file: Path = folder / "node_modules/axe-core/axe.min.js"
    if done.returncode or not file.is_file():
        pytest.skip(f"npm cannot fetch axe-core: {done.stderr.strip()[-200:]}")
    return file.read_text()


def test_axe_finds_nothing_serious_in_either_theme(
    screens: Any, results: ResultFiles, uids: dict[str, str], axe: str
) -> None:
    found = {}
    for name in SCREENS:
        page = open_route(screens, results, uids, name)
        page.evaluate(f"() => {{ {axe} }}")
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            if problems := page.evaluate(AXE):
                found[name, theme] = problems
    screens.page.emulate_media(color_scheme=None)
    assert found == {}


def luminance(colour: str) -> float:
    red, green, blue = map(int, re.findall(r"\d+", colour)[:3])
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


def test_the_theme_is_chosen_and_kept(screens: Any) -> None:
    page = screens.open("runs", options={"color_scheme": "light"})

    def background() -> float:
        return luminance(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    assert background() > 0.8
    page.keyboard.press("t")
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert background() < 0.2
    page.reload()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    assert background() < 0.2
    page.get_by_role("button", name="Theme: Dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "")
    assert background() > 0.8


def test_digits_open_the_screens_in_their_order(screens: Any) -> None:
    page = screens.open("runs")
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
    for digit in (2, 3, 4, 5, 6, 7, 1):
        page.keyboard.press(str(digit))
        expect(page.get_by_role("heading", level=1)).to_have_text(TITLES[digit - 1])
        expect(page.locator("nav a[aria-current=page]")).to_have_text(TITLES[digit - 1])
        expect(page.locator("main")).to_be_focused()


def press_until(page: Any, label: str, *, most: int = 60) -> None:
    """Tab until the focused element has this name."""
    name = "() => (document.activeElement.ariaLabel || document.activeElement.innerText || '').trim()"
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate(name).startswith(label):
            return
    raise AssertionError(f"Tab does not reach {label}")


def test_two_runs_are_compared_by_keyboard_alone(screens: Any) -> None:
    page = screens.open("runs")
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    for name in ("base", "other"):
        press_until(page, f"Choose {name} (logprobs=5")
        page.keyboard.press("Space")
    press_until(page, "Compare 2 runs")
    page.keyboard.press("Enter")
    expect(page.locator(".two-by-two")).to_be_visible()
    press_until(page, "1")  # the first cell with a count that begins so
    page.keyboard.press("Enter")
    expect(page.locator('.cell-button[aria-pressed="true"]')).to_have_count(1)
