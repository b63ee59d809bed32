"""Run settings that change a task's requests: decoding options, seeds, and refused values."""

from __future__ import annotations

from typing import Any

import pytest

from mill.api.errors import MillError
from mill.api.task import RenderSettings


def test_a_seed_in_gen_kwargs_overrides_the_runs_seed() -> None:
    sampled = {"temperature": 1.0, "seed": 7}
    assert RenderSettings(seed=3, gen_kwargs=sampled).options()["seed"] == 7
    assert RenderSettings(seed=3, gen_kwargs={"temperature": 1.0}).options()["seed"] == 3
    assert RenderSettings(seed=3, gen_kwargs={"temperature": 1.0, "seed": None}).options()["seed"] == 3


def test_gen_kwargs_override_the_task_under_any_alias() -> None:
    options = RenderSettings(gen_kwargs={"max_tokens": 5, "stop": ["b"]}).options(max_gen_toks=100, until=["a"])
    assert (options["max_gen_toks"], options["until"]) == (5, ("b",))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "names that are no texts": ({"gen_kwargs": {1: 2}}, "unknown decoding option '1'"),
    "decoding options that are a list": ({"gen_kwargs": [1]}, "must be a mapping of decoding options"),
    "one option by two names": ({"gen_kwargs": {"max_tokens": 3, "max_gen_toks": 4}}, "gives max_gen_toks twice"),
    "a truth value for a count": ({"repeats": True}, "a whole number is needed"),
    "no repeats": ({"repeats": 0}, "at least 1"),
    "examples below none": ({"n_shots": -1}, "at least 0"),
    "a seed that is a text": ({"seed": "3"}, "a whole number is needed"),
    "a seed of hundred digits": ({"seed": 10**100}, "at most 9223372036854775807"),
    "a text for a truth value": ({"same_shots": "false"}, "true or false is needed"),
    "a number for a truth value": ({"cot": 1}, "true or false is needed"),
    "no order of the choices": ({"permutations": 0}, "at least 1"),
    "too many orders": ({"permutations": 1001}, "at most 1000"),
    "a system prompt that is a number": ({"system_prompt": 5}, "a text is needed"),
}


@pytest.mark.parametrize(("given", "message"), REFUSED.values(), ids=REFUSED)
def test_invalid_settings_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(MillError, match=message):
        RenderSettings(**given)
