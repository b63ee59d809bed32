"""What identifies a model that is made in Python: the source of its class, its arguments, and what it holds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mill.api.identity import Unidentified, held_by_user, identity_of, unidentified_parts
from mill.api.model import MillModel


class Answers(MillModel):
    model_name = "answers"

    def __init__(self, value: Any = None) -> None:
        self.value, self.calls = value, 0

    def _generate_batch(self, batch: Any, gen_kwargs: Any) -> list[str]:
        return [str(self.value) for _ in batch]


def identity(model: MillModel) -> dict[str, Any]:
    """That of one call."""
    with held_by_user([model]):
        return identity_of(model)


def made_around(answer: Any) -> MillModel:
    class Local(MillModel):
        model_name = "local"

        def _generate_batch(self, batch: Any, gen_kwargs: Any) -> list[str]:
            return [str(answer) for _ in batch]

    return Local()


def test_a_class_that_uses_variables_around_it_is_equal_to_nothing() -> None:
    model = made_around("3")
    first = identity(model)
    assert unidentified_parts(model) == ["the source of Local"]
    assert first != identity(model) and first != identity(made_around("3"))  # each call computes afresh


def test_a_class_without_a_source_is_equal_to_nothing() -> None:
    names: dict[str, Any] = {"MillModel": MillModel, "__name__": "no_file_here"}
    body = (
        "class Typed(MillModel):\n    model_name = 'typed'\n    def _generate_batch(self, batch, kwargs):\n        return []"
    )
    exec(body, names)
    model = names["Typed"]()
    first = identity(model)
    assert isinstance(first["source"], Unidentified) and unidentified_parts(model) == ["the source of Typed"]
    assert first["source"] != identity(model)["source"]


def test_the_source_of_a_script_is_that_of_when_it_ran(tmp_path: Path) -> None:
    """An edit makes another model, in another process as well; a class keeps the source that it was made from."""
    script, found = tmp_path / "script.py", []
    for answer in "334":
        script.write_text(
            "from pathlib import Path\nfrom mill.api.identity import identity_of\nfrom mill.api.model import MillModel\n"
            "class Mine(MillModel):\n    model_name = 'mine'\n"
            f"    def _generate_batch(self, batch, gen_kwargs):\n        return ['{answer}' for _ in batch]\n"
            "Path(__file__).write_text('edited meanwhile')\nprint(identity_of(Mine())['source'])\n"
        )
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        command = [sys.executable, script.name]
        ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=True)
        found.append(ran.stdout)
    assert found[0] == found[1] != found[2]


def test_an_attribute_that_changed_between_two_calls_makes_another_model() -> None:
    model = Answers(1)
    first = identity(model)
    model.value = 5
    second = identity(model)
    model.value = 1
    assert first == identity(model) == identity(Answers(1)) != second


def test_what_a_call_itself_changes_does_not() -> None:
    model = Answers(1)
    with held_by_user([model]):
        first = identity_of(model)
        model.calls = 7
        assert identity_of(model) == first
    assert identity(model) == first
    model.calls = 8
    assert identity(model) != first


def test_arguments_are_those_of_now() -> None:
    weights = {"a": 1}
    model = Answers(weights)
    first = identity(model)
    weights["a"] = 2  # whether the constructor made a copy is not known
    assert unidentified_parts(model) == []
    assert identity(model)["arguments"]["value"] != first["arguments"]["value"]
    assert unidentified_parts(model) == ["the argument value of Answers"]
    assert identity(Answers(weights))["arguments"] == {"value": {"a": 2}}


@pytest.mark.parametrize(
    "value", [lambda: 1, object(), np.array([object()])], ids=["function", "object", "array of objects"]
)
def test_other_arguments_are_equal_to_nothing(value: Any) -> None:
    model = Answers(value)
    assert identity(model) != identity(model)
    assert unidentified_parts(model)[0] == "the argument value of Answers"


class Declared(Answers):
    def identity(self) -> dict[str, Any]:
        return {"size": 3}


def test_a_class_may_say_which_attributes_count() -> None:
    """Weights count always."""
    model = Declared("one")
    first = identity(model)
    model.value = "other"
    assert identity(model) == first == identity(Declared("third")) and first["size"] == 3
    model.value = np.array([1.0])
    second = identity(model)
    model.value[0] = 2.0
    assert len({first["source"], second["source"]}) == 1 and first != second != identity(model) != first
