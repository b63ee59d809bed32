"""Run settings that change a task's requests: decoding options, seeds, and refused values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mill.api.errors import MillError
from mill.api.request import GENERATE, Request
from mill.api.task import RenderSettings
from mill.support.validate import convert


def test_a_seed_in_gen_kwargs_overrides_the_runs_seed() -> None:
    sampled = {"temperature": 1.0, "seed": 7}
    assert RenderSettings(seed=3, gen_kwargs=sampled).options()["seed"] == 7
    assert RenderSettings(seed=3, gen_kwargs={"temperature": 1.0}).options()["seed"] == 3
    assert RenderSettings(seed=3, gen_kwargs={"temperature": 1.0, "seed": None}).options()["seed"] == 3


def test_gen_kwargs_override_the_task_under_any_alias() -> None:
    options = RenderSettings(gen_kwargs={"max_tokens": 5, "stop": ["b"]}).options(max_gen_toks=100, until=["a"])
    assert (options["max_gen_toks"], options["until"]) == (5, ("b",))


def test_repeats_are_those_of_the_run_where_a_task_gives_none() -> None:
    request = Request(GENERATE, "q")
    assert [RenderSettings(repeats=3).served(one).repeats for one in (request, replace(request, repeats=5))] == [3, 5]
    assert RenderSettings().served(request) is request


REFUSED: dict[str, dict[str, Any]] = {
    "names that are no texts": {"gen_kwargs": {1: 2}},
    "decoding options that are a list": {"gen_kwargs": [1]},
    "one option by two names": {"gen_kwargs": {"max_tokens": 3, "max_gen_toks": 4}},
    "a truth value for a count": {"repeats": True},
    "no repeats": {"repeats": 0},
    "examples below none": {"n_shots": -1},
    "a seed that is a text": {"seed": "3"},
    "a seed of hundred digits": {"seed": 10**100},
    "a number for a truth value": {"cot": 1},
    "too many orders": {"permutations": 1001},
    "a system prompt that is a number": {"system_prompt": 5},
    "an unknown effort": {"reasoning_effort": "much"},
    "variables that are a number": {"chat_template_kwargs": 3},
    "one tag": {"reasoning_tags": ["a"]},
}


@pytest.mark.parametrize("given", REFUSED.values(), ids=REFUSED)
def test_invalid_settings_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(MillError, match=next(iter(given))):
        convert(given, RenderSettings, "settings")
