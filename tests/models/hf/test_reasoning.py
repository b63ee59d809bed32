"""Reasoning of models in this process: chat templates that open it, variables of the template, stop strings after it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from mill.api.errors import CannotServe
from mill.api.message import Message
from mill.api.request import GENERATE, ReasoningTags, Request, generation_options
from mill.api.response import Response
from mill.api.task import RenderSettings
from mill.models.spec.open import open_model
from mill.models.tokens.reasoning import StopDetector, decoded_text, reasoning_tokens

TURNS = "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}</s>{% endfor %}<|assistant|>"
OPENS = TURNS + "<think>\n"
SWITCH = TURNS + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
EFFORT = "{% if reasoning_effort %}Effort: {{ reasoning_effort }}.{% endif %}" + TURNS
DIALOG = (Message("user", "what is the answer ?"),)


def with_template(tiny_model: Path, folder: Path, template: str) -> Any:
    shutil.copytree(tiny_model, folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder / "model")
    return open_model(f"hf[path={folder / 'model'},dtype=float32]")


def request(until: str | tuple[str, ...] = (), settings: RenderSettings | None = None, **options: Any) -> Request:
    made = Request(GENERATE, DIALOG, options=generation_options(max_gen_toks=24, until=until, **options))
    return (settings or RenderSettings()).served(made)


def answer(model: Any, asked: Request) -> Response:
    (response,) = model.generate_until([asked])
    assert response.error is None, response.error
    return response


def test_a_template_that_opens_the_reasoning_makes_all_of_an_unfinished_text_reasoning(
    tiny_model: Path, tmp_path: Path
) -> None:
    response = answer(with_template(tiny_model, tmp_path, OPENS), request())
    assert response.truncated_reasoning and response.reasoning and response.text == ""
    assert response.reasoning_tokens == response.output_tokens


def test_a_real_text_is_split_at_the_tags_and_stop_strings_apply_to_the_answer_alone(
    tiny_model: Path, tmp_path: Path
) -> None:
    """The tags are words that the model writes: the start of its text, and one in the middle."""
    model = with_template(tiny_model, tmp_path, TURNS)
    whole = answer(model, request()).text or ""
    start, end, stop = whole[:4], whole[12:16], whole[14:18]
    assert whole.index(end) == 12 and whole.count(start) == 1, whole
    tags = RenderSettings(reasoning_tags=(start, end))
    split = answer(model, request(settings=tags))
    assert (split.reasoning, split.text) == (whole[4:12].strip(), whole[16:].lstrip())
    assert 0 < (split.reasoning_tokens or 0) < (split.output_tokens or 0)
    # Without the tags the same stop string ends the text early.
    before = whole[5:7]
    assert answer(model, request(until=before)).text == whole[:5]
    kept = answer(model, request(until=before, settings=tags))
    assert kept.reasoning == split.reasoning
    after = whole[20:23]
    assert whole.index(after, 16) == 20
    stopped = answer(model, request(until=after, settings=tags))
    assert stopped.text == whole[16:20].lstrip() and stopped.finish_reason == "stop"
    assert stop in whole


@pytest.mark.parametrize("exact", [False, True])
def test_both_ways_of_decoding_split_alike(tiny_model: Path, tmp_path: Path, exact: bool) -> None:
    model = with_template(tiny_model, tmp_path, TURNS)
    plain = open_model(f"hf[path={tmp_path / 'model'},dtype=float32,exact={str(exact).lower()}]")
    whole = answer(model, request()).text or ""
    settings = RenderSettings(reasoning_tags=(whole[:4], whole[12:16]))
    found = answer(plain, request(until=whole[5:7], settings=settings))
    assert found.reasoning == whole[4:12].strip()


def test_variables_reach_the_template_and_are_refused_where_it_does_not_use_them(tiny_model: Path, tmp_path: Path) -> None:
    switch = with_template(tiny_model, tmp_path / "switch", SWITCH)
    off = request(settings=RenderSettings(chat_template_kwargs={"enable_thinking": False}))
    switch.check(off)
    assert switch.rendered_prompt(off).endswith("</think>\n\n") and "think" not in switch.rendered_prompt(request())
    none = request(settings=RenderSettings(reasoning_effort="none"))
    switch.check(none)
    assert switch.rendered_prompt(none) == switch.rendered_prompt(off)
    with pytest.raises(CannotServe, match="only switches reasoning on and off"):
        switch.check(request(settings=RenderSettings(reasoning_effort="low")))
    with pytest.raises(CannotServe, match="does not use volume"):
        switch.check(request(settings=RenderSettings(chat_template_kwargs={"volume": 3})))
    effort = with_template(tiny_model, tmp_path / "effort", EFFORT)
    low = request(settings=RenderSettings(reasoning_effort="low"))
    effort.check(low)
    assert effort.rendered_prompt(low).startswith("Effort: low.")
    plain = with_template(tiny_model, tmp_path / "plain", TURNS)
    with pytest.raises(CannotServe, match="has no effect"):
        plain.check(low)
    with pytest.raises(CannotServe, match="reasoning_effort needs a chat template"):
        effort.check(RenderSettings(reasoning_effort="low").served(Request(GENERATE, "text", options=generation_options())))


def test_tokens_of_the_reasoning_end_with_its_tag(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    ids = tokenizer("the fox</think>42", add_special_tokens=False)["input_ids"]
    count = reasoning_tokens(tokenizer, ids, ReasoningTags())
    assert decoded_text(tokenizer, ids[:count], ()).endswith("</think>")
    assert reasoning_tokens(tokenizer, ids[: count - 1], ReasoningTags()) == count - 1


def test_a_stop_string_is_found_after_the_reasoning_token_by_token(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)

    def stopped_after(text: str, *, opened: bool = False) -> str | None:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        detector = StopDetector(tokenizer, ["\n\n"], ReasoningTags(), opened=opened)
        ends = (count for count in range(1, len(ids) + 1) if detector.found(ids[:count]))
        return next((tokenizer.decode(ids[:count]) for count in ends), None)

    assert stopped_after("a\n\nb") == "a\n\n"
    assert stopped_after("<think>a\n\nb") is None
    assert stopped_after("<think>a\n\nb</think>c\n\nd") == "<think>a\n\nb</think>c\n\n"
    assert stopped_after("a\n\nb</think>c\n\nd", opened=True) == "a\n\nb</think>c\n\n"
    assert stopped_after("<thing>\n\nb") == "<thing>\n\n"


def test_tags_that_are_special_tokens_are_found_and_no_other_special_token_is_shown(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tags = ReasoningTags("<s>", "</s>")
    ids = tokenizer("<s>hm</s>42", add_special_tokens=False)["input_ids"]
    assert tags.split(decoded_text(tokenizer, ids, ("<s>", "</s>")), opened=False) == ("hm", "42")
    assert decoded_text(tokenizer, ids, ("<think>", "</think>")) == "hm42"
