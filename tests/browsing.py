"""Chromium through Playwright, and what its pages do that they must not: log, open dialogs, load from elsewhere.

Needs `pip install playwright` and a Chromium on PATH (Debian: `apt-get install --no-install-recommends chromium
fonts-dejavu-core`)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no browser to open pages in")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH to open pages in")
TIMEOUT_MS = 15_000
sync_api.expect.set_options(timeout=TIMEOUT_MS)


@contextmanager
def chromium() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@dataclass
class Watch:
    """What pages log, and requests that are not allowed: those to other addresses than `allowed`, which may be a whole URL
    or, ending in a slash, the start of one."""

    problems: list[str] = field(default_factory=list)
    allowed: set[str] = field(default_factory=set)
    expected: list[str] = field(default_factory=list)

    def new_page(self, context: Any) -> Any:
        page = context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.on("console", lambda message: self.problems.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("dialog", self.dismiss)
        page.on("request", self.check_request)
        return page

    def dismiss(self, dialog: Any) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def check_request(self, request: Any) -> None:
        starts = tuple(url for url in self.allowed if url.endswith("/"))
        if request.url not in self.allowed and not request.url.startswith(("data:", *starts)):
            self.problems.append(f"request: {request.url}")

    def take(self) -> list[str]:
        """The problems so far, which are then forgotten."""
        found = [one for one in self.problems if not any(text in one for text in self.expected)]
        self.problems, self.expected = [], []
        return found

    def forgive(self, text: str, *, required: bool = True) -> None:
        """Problems with this text are expected; where `required`, at least one of them must have been there."""
        assert not required or any(text in one for one in self.problems), f"nothing was logged about {text}"
        self.expected.append(text)  # a page may log more of them later
