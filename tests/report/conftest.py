"""A browser for reports. Needs `pip install playwright` and a Chromium on PATH (Debian: `apt-get install
--no-install-recommends chromium fonts-dejavu-core`). Every page is opened offline, and must load nothing but itself and log
nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mill.report.html import write_report

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: no browser to open reports in"
    )
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no Chromium on PATH to open reports in")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@dataclass
class Watch:
    """What pages log, and requests that are not allowed."""

    problems: list[str] = field(default_factory=list)
    allowed: set[str] = field(default_factory=set)

    def new_page(self, context: Any) -> Any:
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: self.problems.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("dialog", self.dismiss)
        page.on("request", self.check_request)
        return page

    def dismiss(self, dialog: Any) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def check_request(self, request: Any) -> None:
        if request.url not in self.allowed:
            self.problems.append(f"request: {request.url}")


@pytest.fixture(scope="module")
def plain_page(browser: Any) -> Iterator[tuple[Any, Watch]]:
    """One page for all tests without special options: a new one takes longer than most of them."""
    watch, context = Watch(), browser.new_context(offline=True)
    yield watch.new_page(context), watch
    context.close()


@pytest.fixture
def open_report(browser: Any, plain_page: tuple[Any, Watch], tmp_path: Path) -> Iterator[Open]:
    """Opens a report of checks, or a file, as a page that must log nothing and load nothing else."""
    shared, watch = plain_page
    contexts = []

    def opened(*checks: Any, width: int = 1200, **options: Any) -> Any:
        file = checks[0] if isinstance(checks[0], Path) else write_report(checks, tmp_path / "report.html")
        page = shared
        if options:
            contexts.append(browser.new_context(offline=True, **options))
            page = watch.new_page(contexts[-1])
        page.set_viewport_size({"width": width, "height": 800})
        watch.allowed.add(file.as_uri())
        page.goto(file.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    watch.allowed = {"about:blank"}
    shared.goto("about:blank")
    problems, watch.problems, watch.allowed = watch.problems, [], set()
    assert problems == []
