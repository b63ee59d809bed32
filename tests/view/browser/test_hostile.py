"""Samples of a hostile model: nothing that it wrote runs, is loaded or hides other text, whatever its size."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mill.view.run_info import uid_of
from tests.browsing import needs_chromium, sync_api
from tests.launching import run, toy
from tests.view.serving import serving

pytestmark = needs_chromium
expect = sync_api.expect
HACKS = (
    "<script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "</pre></td></table></script><svg onload=window.hacked=1>",
    "<a href='javascript:window.hacked=1'>x</a><iframe src=//evil.example></iframe>",
    '"><link rel=stylesheet href=//evil.example/x.css><style>*{display:none}</style>',
    "${window.hacked=1}`{{constructor.constructor('window.hacked=1')()}}",
    "![x](http://evil.example/x.png) http://evil.example/",
)
HOSTILE = "".join(HACKS)
CONTROL = "\x1b[31mred\x1b[0m \x00\x07 \u202eright to left\u202c \ufeff\u200b \ud800 end"
SHOWN = r"\x1b[31mred\x1b[0m \x00\x07 \u202eright to left\u202c \ufeff\u200b \ud800 end"
HUGE = 100_000_000
MOST_TEXT = 100_000  # characters of one text that a page shows
ODD: dict[str, Any] = {
    "prompt": 5, "response": {"type": "img", "props": {"src": "x"}}, "choices": "abc", "messages": 7, "media": "x",
    "responses": [[{"text": 5, "tokens": "no", "tool_calls": 3}]], "details": 3, "judgements": 4, "tools": 9, "doc": None,
    "extracted": {"__html": HOSTILE}, "reasoning": 6, "choice_logprobs": [], "target": [1],
}  # fmt: skip


@pytest.fixture(scope="module")
def hostile_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    assert run(toy(folder / "results", "toy_gen"), TOY_N="2")[0] == 0
    (file,) = folder.rglob("samples/*.jsonl")
    base = json.loads(file.read_text().splitlines()[0])

    def line(name: str, text: str, **more: Any) -> str:
        response = {**base["responses"][0][0], "text": text}
        return json.dumps({**base, "id": name, "response": text, "responses": [[response]], "doc": {"x": name}, **more})

    texts = ("prompt", "target", "category", "extracted", "chosen", "finish_reason", "reasoning")
    everywhere: dict[str, Any] = dict.fromkeys(texts, HOSTILE)
    everywhere |= {"choices": [HOSTILE, "b"], "choice_logprobs": [-1.0, -2.0], "values": {HOSTILE: [1.0]}}
    messages = [
        [{"role": HOSTILE, "content": HOSTILE, "name": HOSTILE, "tool_calls": [{"name": HOSTILE, "arguments": HOSTILE}]}]
    ]
    with file.open("a") as handle:
        handle.write(line("markup", HOSTILE, doc={HOSTILE: [HOSTILE]}, **everywhere) + "\n")
        handle.write(line(HOSTILE, HOSTILE) + "\n")
        handle.write(
            line("dialog", HOSTILE, messages=messages, tools=[{HOSTILE: HOSTILE}], details=[{HOSTILE: HOSTILE}]) + "\n"
        )
        # As runs write a lone surrogate, which UTF-8 does not have.
        written = CONTROL.replace("\ud800", "\\ud800")
        handle.write(line("control", written, prompt=written, target=written, category=written, escaped=True) + "\n")
        handle.write(line("error", "", error=HOSTILE + written) + "\n")
        media = [
            {"type": "image", "name": "/etc/passwd", "digest": "0" * 32},
            {"type": HOSTILE, "name": HOSTILE, "digest": "x"},
        ]
        handle.write(line("media", "text", media=media) + "\n")
        handle.write(line("odd", "text", **ODD) + "\n")
        handle.write(line("huge", "word " * (HUGE // 5)) + "\n")
    return folder / "results"


@pytest.fixture(scope="module")
def address(hostile_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(hostile_folder, tmp_path_factory.mktemp("cache")) as served:
        yield served.address


@dataclass
class HostilePages:
    screens: Any
    uid: str

    def open(self, screen: str, **params: str) -> Any:
        page = self.screens.open(screen, **params)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.locator(".loading")).to_have_count(0)
        return page

    def sample(self, name: str) -> Any:
        return self.open("sample", run=self.uid, t="toy_gen", id=name)


@pytest.fixture
def pages(make_screens: Callable[[str], Any], address: str, hostile_folder: Path) -> HostilePages:
    (manifest,) = hostile_folder.rglob("manifest.json")
    found = HostilePages(make_screens(address), uid_of(str(manifest.parent.relative_to(hostile_folder))))
    page = found.open("samples")
    expect(page.get_by_text("10 samples", exact=True)).to_be_visible()
    return found


def is_harmless(page: Any) -> None:
    """Only the page's own elements are there, and no script but its own has run."""
    assert page.evaluate("window.hacked") is None
    assert page.locator("script, style, iframe, object, embed, base").count() == 2
    assert page.locator("link").count() == 1
    links = page.locator("main [href], main [src]").evaluate_all(
        "all => all.map(one => one.getAttribute('href') ?? one.getAttribute('src'))"
    )
    assert [link for link in links if not link.startswith(("#/", "api/", "report/"))] == []
    script = (
        "[...document.querySelectorAll('*')].flatMap(one => one.getAttributeNames()).filter(name => name.startsWith('on'))"
    )
    assert page.evaluate(script) == []


@pytest.mark.parametrize("name", ["markup", HOSTILE, "dialog", "error"])
def test_markup_is_shown_as_text(pages: HostilePages, name: str) -> None:
    page = pages.sample(name)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert HOSTILE in page.locator("main").inner_text()
    is_harmless(page)


def test_hostile_names_in_lists_and_filters(pages: HostilePages) -> None:
    page = pages.open("samples", q="hacked")
    expect(page.locator(".samples-table tbody tr").first).to_be_visible()
    is_harmless(page)
    page.get_by_role("link", name=HACKS[0]).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
    for screen in ("runs", "scores", "tokens", "load"):
        is_harmless(pages.open(screen))


def test_characters_that_hide_or_turn_text_are_escaped(pages: HostilePages) -> None:
    page = pages.sample("control")
    assert page.get_by_label("response").text_content() == SHOWN
    assert page.get_by_label("prompt").text_content() == SHOWN
    assert page.get_by_label("target").text_content() == SHOWN


def test_media_of_other_files_are_not_sent(pages: HostilePages) -> None:
    page = pages.sample("media")
    page.wait_for_function("document.querySelector('.media img').complete")
    assert page.locator(".media img").first.evaluate("one => one.naturalWidth") == 0
    is_harmless(page)
    pages.screens.watch.forgive("status of 400")


def test_values_of_other_types_do_not_break_the_page(pages: HostilePages) -> None:
    # No heading to wait for: it is replaced by the alert as soon as the sample is read.
    page = pages.screens.open("sample", run=pages.uid, t="toy_gen", id="odd")
    expect(page.get_by_role("alert")).to_contain_text("cannot be shown")
    is_harmless(page)
    page.goto(page.url.replace("id=odd", "id=control"))
    expect(page.get_by_label("response")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    page.go_back()
    expect(page.get_by_role("alert")).to_be_visible()
    page.keyboard.press("1")
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")


def test_a_long_text_is_cut_and_the_page_says_by_how_much(pages: HostilePages) -> None:
    page = pages.sample("huge")
    shown = page.get_by_label("response").text_content()
    assert len(shown) == MOST_TEXT
    cut = 2 * (HUGE - MOST_TEXT)  # the text is in the sample and in its response
    expect(page.get_by_text("Not shown here:")).to_contain_text(f"{cut:,} characters")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
