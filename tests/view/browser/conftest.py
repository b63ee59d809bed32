"""`mill view` on results of real models, in Chromium: one folder and one server for all tests, one browser for each file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from mill.view.run_info import uid_of
from tests.browsing import Watch, chromium
from tests.launching import run
from tests.view.browser.results import ResultFiles, make_results
from tests.view.serving import Served, serving


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> ResultFiles:
    folder = tmp_path_factory.mktemp("viewed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILL_CACHE", str(folder / "cache"))
        return make_results(folder)


@pytest.fixture(scope="session")
def viewer(results: ResultFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(results.root, tmp_path_factory.mktemp("view-cache")) as served:
        yield served


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def shared_page(browser: Any) -> Iterator[tuple[Any, Watch]]:
    """One page for all tests without special options: a new one takes longer than most of them."""
    watch, context = Watch(), browser.new_context()
    yield watch.new_page(context), watch
    context.close()


@dataclass
class Screens:
    """Opens screens of a server as pages, which must log nothing and load nothing from elsewhere."""

    browser: Any
    page: Any
    watch: Watch
    address: str
    contexts: list[Any]

    def open(
        self, screen: str, width: int = 1400, height: int = 900, options: dict[str, Any] | None = None, **params: Any
    ) -> Any:
        page = self.page
        if options is not None:
            self.contexts.append(self.browser.new_context(**options))
            page = self.watch.new_page(self.contexts[-1])
        page.set_viewport_size({"width": width, "height": height})
        page.goto("about:blank")  # else another fragment alone would keep the old page
        page.goto(f"{self.address}#/{screen}?{urlencode(params)}")
        return page


@pytest.fixture
def make_screens(browser: Any, shared_page: tuple[Any, Watch]) -> Iterator[Callable[[str], Screens]]:
    """For an address; every problem of its pages fails the test."""
    page, watch = shared_page
    contexts: list[Any] = []

    def make(address: str) -> Screens:
        watch.allowed |= {"about:blank", f"{address.partition('?')[0].rpartition('/')[0]}/"}
        return Screens(browser, page, watch, address, contexts)

    yield make
    for context in contexts:
        context.close()
    page.goto("about:blank")
    watch.allowed = set()
    assert watch.take() == []


@pytest.fixture
def screens(make_screens: Callable[[str], Screens], viewer: Served) -> Screens:
    return make_screens(viewer.address)


@pytest.fixture(scope="session")
def site(results: ResultFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    cache = str(tmp_path_factory.mktemp("cache"))
    code, stderr = run(["view", str(results.root), "--export", str(folder / "site")], MILL_CACHE=cache)
    assert code == 0, stderr
    return folder / "site"


@pytest.fixture
def disk(make_screens: Callable[[str], Any], site: Path) -> Any:
    return make_screens((site / "index.html").as_uri())


@pytest.fixture(scope="session")
def uids(results: ResultFiles) -> dict[str, str]:
    """The names of runs in URLs."""
    return {name: uid_of(str(run.path.relative_to(results.root))) for name, run in results.runs.items()}


def check_uid(results: ResultFiles, command: str) -> str:
    file: Path = results.checks[command]
    return uid_of(str(file.relative_to(results.root)))
