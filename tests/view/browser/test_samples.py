"""Lists of samples and single ones: filters, search, order, prompts, choices, dialogs, images, commands."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from tests.browsing import needs_chromium, sync_api
from tests.launching import run
from tests.view.browser.results import CHOICES, LONG, ResultFiles
from tests.view.browser.shown import headers, number, params, rows

pytestmark = needs_chromium
expect = sync_api.expect


def count_is(page: Any, count: int) -> None:
    expect(page.get_by_text(f"{count} sample{'s' * (count != 1)}", exact=True)).to_be_visible()


def shown_ids(page: Any) -> list[str]:
    return [row[0] for row in rows(page, ".samples-table")]


def test_the_list_has_the_values_of_the_file(screens: Any, results: ResultFiles, uids: dict[str, str]) -> None:
    base = results.runs["base"]
    page = screens.open("samples", run=uids["base"], task=base.task(CHOICES))
    samples = base.samples(CHOICES)
    count_is(page, len(samples))
    column = {name: number for number, name in enumerate(headers(page, ".samples-table"))}
    for row, sample in zip(rows(page, ".samples-table"), samples, strict=True):
        assert row[column["Sample"]] == sample["id"]
        assert row[column["Task"]].endswith(f"{CHOICES}\n{sample['category']}")
        assert row[column["Result"]].split()[-1] == ("right" if sample["acc"] else "wrong")
        assert row[column["acc"]] == number(sample["acc"])
        assert row[column["Prompt tokens"]] == number(sample["prompt_tokens"])
        best, second = sorted(sample["choice_logprobs"], reverse=True)[:2]
        assert row[column["Margin"]] == number(best - second)
        assert row[column["Response"]] == sample["chosen"]
        assert row[column["Target"]] == sample["target"]


def test_filters_are_in_the_address(screens: Any, results: ResultFiles, uids: dict[str, str]) -> None:
    page = screens.open("samples", run=uids["base"])
    page.get_by_label("Task").select_option(results.runs["base"].task(CHOICES))
    page.get_by_label("Result").select_option("right")
    wanted = [one for one in results.runs["base"].samples(CHOICES) if one["acc"] == 1]
    count_is(page, len(wanted))
    assert shown_ids(page) == [one["id"] for one in wanted]
    page.get_by_role("button", name="Prompt tokens").click()
    expect(page.locator('th[aria-sort="ascending"]')).to_be_visible()
    tokens = [one["prompt_tokens"] for one in wanted]
    sorted_ids = [one["id"] for one in sorted(wanted, key=lambda one: one["prompt_tokens"])]
    expect(page.locator(".samples-table tbody th").first).to_have_text(sorted_ids[0])
    assert len(set(tokens)) > 1
    address = page.url
    assert {"task", "status", "sort"} <= set(params(page))
    page.reload()
    count_is(page, len(wanted))
    assert page.url == address
    assert shown_ids(page) == sorted_ids


def test_search_finds_words_in_prompts_and_in_answers(screens: Any, results: ResultFiles, uids: dict[str, str]) -> None:
    page = screens.open("samples", run=uids["base"])
    count_is(page, len(results.runs["base"].samples("")))
    page.keyboard.press("/")
    page.keyboard.type("story 11")
    count_is(page, 1)
    assert shown_ids(page) == ["story-11"]
    assert params(page)["q"] == "story 11"
    expect(page.get_by_label("Search")).to_be_focused()
    page.goto(f"{screens.address}#/samples?run={uids['failing']}&task=toy_gen")
    page.get_by_label("Search").fill("it's toy_gen-11")  # words end where those of the index do
    expect(page.get_by_text("No sample fits these filters.")).to_be_visible()
    page.get_by_label("Search").fill("toy_gen-11")
    count_is(page, 1)
    assert shown_ids(page) == ["11"]


def test_a_long_prompt_is_folded_and_choices_are_marked(screens: Any, results: ResultFiles, uids: dict[str, str]) -> None:
    base = results.runs["base"]
    sample = next(one for one in base.samples(CHOICES) if one["id"] == LONG)
    page = screens.open("sample", run=uids["base"], t=sample["task"], id=LONG)
    fold = page.locator("details.fold", has_text="examples and instructions")
    expect(fold).to_be_visible()
    assert fold.get_attribute("open") is None
    start, end = (page.get_by_label(f"{part} of the prompt") for part in ("start", "end"))
    assert not start.is_visible()
    fold.locator("summary").click()
    expect(start).to_be_visible()
    assert start.text_content() + end.text_content() == sample["prompt"]
    shown = rows(page, "table.choices")
    assert [row[1] for row in shown] == [number(score) for score in sample["choice_logprobs"]]
    expect(page.locator("tr.chosen th")).to_contain_text(sample["chosen"])
    assert [row[0].split()[0] for row in shown if "target" in row[0]] == [sample["target"].split()[0]]


def test_the_copied_command_computes_the_sample_again(
    screens: Any, results: ResultFiles, uids: dict[str, str], tmp_path: Path
) -> None:
    sample = results.runs["failing"].samples("toy_gen")[4]
    options = {"permissions": ["clipboard-read", "clipboard-write"]}
    page = screens.open("sample", options=options, run=uids["failing"], t="toy_gen", id=sample["id"])
    page.get_by_role("button", name="Copy the command").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    words = shlex.split(page.evaluate("navigator.clipboard.readText()"))
    assert words[0] == "mill"
    words[words.index("--output_dir") + 1] = str(tmp_path / "again")
    code, stderr = run([*words[1:], "--task_paths", str(Path(__file__).parents[2] / "toy.py"), "--quiet"], TOY_N="12")
    assert code == 0, stderr
    (file,) = (tmp_path / "again").rglob("samples/*.jsonl")
    (line,) = file.read_text().splitlines()
    again = json.loads(line)
    assert (again["id"], again["response"]) == (sample["id"], sample["response"])


def test_the_raw_line_is_the_line_of_the_file(screens: Any, results: ResultFiles, uids: dict[str, str]) -> None:
    sample = results.runs["base"].samples(CHOICES)[2]
    page = screens.open("sample", run=uids["base"], t=sample["task"], id=sample["id"])
    with page.expect_download() as download:
        page.get_by_role("link", name="Raw line").click()
    assert json.loads(Path(download.value.path()).read_text()) == sample


def test_a_dialog_shows_its_messages_tools_and_results(screens: Any, results: ResultFiles, uids: dict[str, str]) -> None:
    sample = results.runs["agent"].samples("toy_agent")[0]
    page = screens.open("sample", run=uids["agent"], t="toy_agent", id=sample["id"])
    expect(page.get_by_role("heading", name="Dialog")).to_be_visible()
    messages = sample["messages"][0]
    expect(page.locator(".message")).to_have_count(len(messages))
    calls = [call["function"]["name"] for message in messages for call in message.get("tool_calls") or ()]
    assert len(calls) >= 2
    assert [text.removeprefix("call of ") for text in page.locator(".message .tool h5").all_inner_texts()] == calls
    assert page.locator(".m-tool").count() == sum(message["role"] == "tool" for message in messages)
