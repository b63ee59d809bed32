"""A browser for reports. Every page is opened offline, and must load nothing but itself and log nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mill.report.html import write_report

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from tests.browsing import CHROMIUM, chromium  # skips where playwright is not installed

    if CHROMIUM is None:
        pytest.skip("no Chromium on PATH to open pages in")
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def plain_page(browser: Any) -> Iterator[tuple[Any, Any]]:
    """One page for all tests without special options: a new one takes longer than most of them."""
    from tests.browsing import Watch

    watch, context = Watch(), browser.new_context(offline=True)
    yield watch.new_page(context), watch
    context.close()


@pytest.fixture
def open_report(browser: Any, plain_page: tuple[Any, Any], tmp_path: Path) -> Iterator[Open]:
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
    watch.allowed = set()
    assert watch.take() == []
