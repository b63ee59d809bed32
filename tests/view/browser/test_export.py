"""`mill view --export` and `mill report`: the pages show what the server shows, from disk and from a web server."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.browsing import needs_chromium, sync_api
from tests.launching import run
from tests.view.browser.results import CHOICES, IMAGES, ResultFiles
from tests.view.browser.shown import params

pytestmark = needs_chromium
expect = sync_api.expect


def searched(sample: dict[str, Any]) -> str:
    return f"{sample['prompt']} {sample['chosen']}"


def test_filters_and_keys_work_in_the_copy(disk: Any, results: ResultFiles, uids: dict[str, str]) -> None:
    base = results.runs["base"]
    page = disk.open("samples", run=uids["base"], task=base.task(CHOICES), status="right")
    wanted = [one["id"] for one in base.samples(CHOICES) if one["acc"] == 1]
    expect(page.locator(".samples-table tbody tr")).to_have_count(len(wanted))
    page.get_by_label("Search").fill("number 4")
    found = [one["id"] for one in base.samples(CHOICES) if one["acc"] == 1 and re.search(r"\b4", searched(one))]
    expect(page.locator(".samples-table tbody tr")).to_have_count(len(found))
    page.get_by_label("Search").fill("")
    expect(page.locator(".samples-table tbody tr")).to_have_count(len(wanted))
    page.get_by_role("link", name=wanted[0], exact=True).click()
    expect(page.get_by_role("button", name="Previous")).to_be_disabled()
    expect(page.get_by_role("button", name="Next")).to_be_enabled()
    for key, name in (("n", wanted[1]), ("n", wanted[2]), ("p", wanted[1])):
        page.keyboard.press(key)
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
    page.keyboard.press("3")
    expect(page.get_by_role("heading", level=1)).to_have_text("Compare")
    assert params(page)["a"] == uids["base"]


def test_images_are_copied(disk: Any, site: Path, results: ResultFiles, uids: dict[str, str]) -> None:
    samples = results.runs["sight"].samples(IMAGES)
    copied = {file.read_bytes() for file in (site / "media").iterdir()}
    assert copied == {Path(one["media"][0]["name"]).read_bytes() for one in samples}
    page = disk.open("sample", run=uids["sight"], t=samples[2]["task"], id=samples[2]["id"])
    page.wait_for_function("() => document.querySelector('.media img')?.complete")
    assert page.locator(".media img").evaluate("one => [one.naturalWidth, one.naturalHeight]") == [40, 30]


def test_a_report_is_one_file_with_its_images(
    make_screens: Callable[[str], Any], results: ResultFiles, uids: dict[str, str], tmp_path: Path
) -> None:
    sight, file = results.runs["sight"], tmp_path / "report.html"
    assert run(["report", str(sight.path), "--output", str(file)])[0] == 0
    page = make_screens(file.as_uri()).page
    page.goto(file.as_uri())
    expect(page.get_by_role("heading", level=1)).to_have_text("Scores")
    expect(page.locator("body")).to_contain_text(sight.manifest["model"]["arguments"]["path"])
    page.keyboard.press("4")
    page.get_by_role("link", name=sight.samples(IMAGES)[0]["id"], exact=True).click()
    page.wait_for_function("() => document.querySelector('.media img')?.complete")
    assert page.locator(".media img").evaluate("one => [one.naturalWidth, one.naturalHeight]") == [40, 30]


def test_a_run_that_was_not_exported_is_one_line(
    make_screens: Callable[[str], Any], results: ResultFiles, uids: dict[str, str], tmp_path: Path
) -> None:
    site = tmp_path / "site"
    assert run(["view", str(results.root), "--export", str(site), "--runs", "failing"], MILL_CACHE=str(tmp_path))[0] == 0
    screens = make_screens((site / "index.html").as_uri())
    page = screens.open("runs")
    expect(page.locator("tbody tr")).to_have_count(1)
    page = screens.open("samples", run=uids["base"])
    expect(page.get_by_role("alert").first).to_contain_text("this page does not hold this run")


def test_a_folder_with_other_files_is_refused(results: ResultFiles, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    code, stderr = run(["view", str(results.root), "--export", str(tmp_path)])
    assert (code, len(stderr.strip().splitlines())) == (2, 1)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
