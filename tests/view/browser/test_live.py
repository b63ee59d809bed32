"""Pages that stay open while runs start, are killed, go on and end, and while files are damaged or disappear."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browsing import needs_chromium, sync_api
from tests.launching import ended, run, start_mill, toy
from tests.view.browser.shown import number
from tests.view.serving import serving

pytestmark = needs_chromium
expect = sync_api.expect
WAIT_MS = 30_000  # a busy machine starts Python in several seconds
PROGRESS = r"(\d+) of (\d+) responses"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


@pytest.fixture
def live(make_screens: Callable[[str], Any], folder: Path, tmp_path: Path) -> Iterator[Any]:
    with serving(folder, tmp_path) as served:
        yield make_screens(served.address)


def finished(folder: Path, count: int = 4) -> Path:
    """The folder of a run that has ended."""
    assert run(toy(folder, "toy_gen"), TOY_N=str(count))[0] == 0
    (manifest,) = folder.rglob("manifest.json")
    return manifest.parent


def test_a_run_appears_grows_is_killed_goes_on_and_ends(live: Any, folder: Path) -> None:
    page = live.open("runs")
    expect(page.get_by_text("No run is here yet.")).to_be_visible()
    process = start_mill(toy(folder, "toy_gen"), TOY_DELAY="0.2", TOY_N="60")
    try:
        progress = page.locator(".live span").last
        expect(progress).to_have_text(re.compile(PROGRESS), timeout=WAIT_MS)
        expect(page.get_by_text("1 run at work")).to_be_visible()
        first = int(re.findall(PROGRESS, progress.inner_text())[0][0])
        page.wait_for_function(
            "(count) => Number(document.querySelector('.live span:last-child').innerText.split(' ')[0]) > count", arg=first
        )
        done, total = map(int, re.findall(PROGRESS, progress.inner_text())[0])
        assert first < done < 60
        assert total == 60
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        ended(process)
    expect(page.locator(".live")).to_have_count(0, timeout=WAIT_MS)
    expect(page.get_by_text("at work")).to_have_count(0)
    expect(page.locator("tbody .score")).to_have_count(0)
    assert run(toy(folder, "toy_gen"), TOY_N="60")[0] == 0
    (file,) = folder.rglob("results.json")
    value = json.loads(file.read_text())["tasks"]["toy_gen"]["metrics"]["exact_match"]["value"]
    expect(page.locator("tbody .score")).to_have_text(f"toy_gen exact match {number(value)}", timeout=WAIT_MS)
    expect(page.locator("tbody")).to_contain_text("60 samples")


def test_a_manifest_of_garbage_is_reported_with_its_run(live: Any, folder: Path) -> None:
    path = finished(folder)
    page = live.open("runs")
    expect(page.locator("tbody")).to_contain_text("4 samples", timeout=WAIT_MS)
    (path / "manifest.json").write_bytes(b'\x00{"model": \xff\xfe')
    expect(page.locator("tbody .bad")).to_contain_text("manifest.json", timeout=WAIT_MS)
    expect(page.locator(".note.warning")).to_have_count(1)
    for screen in ("scores", "compare", "samples", "tokens", "load", "checks"):
        page = live.open(screen)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.locator(".loading")).to_have_count(0)
    live.watch.forgive("status of 400", required=False)


def test_a_server_that_ends_is_noticed(make_screens: Callable[[str], Any], folder: Path, tmp_path: Path) -> None:
    finished(folder)
    with serving(folder, tmp_path) as served:
        screens = make_screens(served.address)
        page = screens.open("runs")
        expect(page.locator("tbody")).to_contain_text("4 samples")
    expect(page.get_by_text("the server does not answer")).to_be_visible()
    screens.watch.forgive("net::ERR_", required=False)
