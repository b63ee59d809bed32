"""Reasoning split from answers, and what a run may say about it."""

from __future__ import annotations

import pytest

from mill.api.errors import SpecError
from mill.api.request import GENERATE, LOGLIKELIHOOD, ReasoningTags, Request, read_tags
from mill.api.response import Response
from mill.api.task import RenderSettings

TAGS = ReasoningTags()


@pytest.mark.parametrize(
    ("text", "opened", "reasoning", "answer"),
    [
        ("<think>2 + 2</think>4", None, "2 + 2", "4"),
        ("\n<think>\n2 + 2\n</think>\n\n4\n", None, "2 + 2", "4\n"),
        ("2 + 2</think>4", None, "2 + 2", "4"),  # a server's template began it
        ("2 + 2</think>4", True, "2 + 2", "4"),
        ("2 + 2</think>4", False, None, "2 + 2</think>4"),  # the prompt is known not to
        ("<think>2 + 2", None, "2 + 2", ""),  # it never ended
        ("2 + 2", True, "2 + 2", ""),
        ("2 + 2", None, None, "2 + 2"),
        ("", True, "", ""),
        ("<think></think>4", None, "", "4"),
        ("<think>a</think>b</think>c", None, "a", "b</think>c"),
        ("Write <think>x</think> around it.", None, None, "Write <think>x</think> around it."),
    ],
)
def test_reasoning_is_what_stands_before_the_answer(
    text: str, opened: bool | None, reasoning: str | None, answer: str
) -> None:
    assert TAGS.split(text, opened=opened) == (reasoning, answer)


def test_tags_are_two_texts_or_none() -> None:
    assert read_tags("<a>, </a>") == read_tags(["<a>", "</a>"]) == ("<a>", "</a>")
    assert read_tags("none") == read_tags([]) == ()
    for wrong in ("<a>", "<a>,<a>", "a,b,c", ["a", ""], 3, ["a", 1]):
        with pytest.raises(SpecError, match="reasoning_tags"):
            read_tags(wrong)


def test_what_a_run_says_about_reasoning_is_part_of_the_key() -> None:
    request = Request(GENERATE, "a prompt", options={"until": ()})
    plain = RenderSettings().served(request)
    assert plain.key == request.key
    others = (
        RenderSettings(reasoning_effort="low"),
        RenderSettings(chat_template_kwargs={"enable_thinking": False}),
        RenderSettings(reasoning_tags=()),
    )
    assert len({settings.served(request).key for settings in others} | {plain.key}) == 4
    scored = Request(LOGLIKELIHOOD, "a", "b")
    assert RenderSettings(reasoning_tags=()).served(scored).key == scored.key


def test_reasoning_without_an_answer_is_neither_empty_nor_an_answer() -> None:
    cut = Response(text="", reasoning="hm")
    assert cut.truncated_reasoning and not cut.empty
    assert Response(text="").empty and not Response(text="").truncated_reasoning
    whole = Response(text="4", reasoning="hm")
    assert not whole.truncated_reasoning and not whole.empty
