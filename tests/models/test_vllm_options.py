"""What is refused of a model on vLLM before its engine starts; vLLM itself is not needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from mill.api.errors import CannotServe, SpecError
from mill.api.message import Message
from mill.api.request import GENERATE, Request, generation_options
from mill.api.task import RenderSettings
from mill.models.vllm.model import VLLMModel
from tests.models.hf.test_reasoning import SWITCH, with_template


def request(**settings: object) -> Request:
    made = Request(GENERATE, (Message("user", "Hello"),), options=generation_options())
    return RenderSettings(**settings).served(made)  # type: ignore[arg-type]


def test_a_check_starts_no_engine(tiny_model: Path, tmp_path: Path) -> None:
    with_template(tiny_model, tmp_path / "switch", SWITCH)
    model = VLLMModel(str(tmp_path / "switch/model"))
    model.check(request())
    model.check(request(reasoning_effort="none"))
    with pytest.raises(CannotServe, match="only switches reasoning on and off"):
        model.check(request(reasoning_effort="low"))
    assert model.has_chat_template() and model._llm is None


def test_a_reasoning_parser_takes_no_tags(tiny_model: Path) -> None:
    model = VLLMModel(str(tiny_model), reasoning_parser="deepseek_r1")
    with pytest.raises(SpecError, match="--reasoning_tags has no effect with reasoning_parser=deepseek_r1"):
        model.check(request(reasoning_tags=("<a>", "</a>")))


def test_parsers_are_part_of_the_identity(tiny_model: Path) -> None:
    plain, parsing = VLLMModel(str(tiny_model)), VLLMModel(str(tiny_model), tool_call_parser="hermes")
    assert plain.identity() != parsing.identity() and "reasoning_parser" not in plain.identity()
