"""What a run may change about a task's questions: decoding options, seeds, and which values are refused."""

from __future__ import annotations

from typing import Any

import pytest

from mill.api.errors import MillError
from mill.api.task import RenderSettings


def test_a_seed_among_the_decoding_options_seeds_sampling_and_wins_over_the_runs_seed() -> None:
    sampled = {"temperature": 1.0, "seed": 7}
    assert RenderSettings(seed=3, gen_kwargs=sampled).options()["seed"] == 7
    assert RenderSettings(seed=3, gen_kwargs={"temperature": 1.0}).options()["seed"] == 3
    assert RenderSettings(seed=3, gen_kwargs={"temperature": 1.0, "seed": None}).options()["seed"] == 3


def test_what_the_run_sets_wins_over_the_task_under_any_of_its_names() -> None:
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
    "a system prompt that is a number": ({"system_prompt": 5}, "a text is needed"),
}


@pytest.mark.parametrize(("given", "words"), REFUSED.values(), ids=REFUSED)
def test_settings_that_cannot_be_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(MillError, match=words):
        RenderSettings(**given)
