"""A backend with three hooks, as in the documentation, and what the base class adds to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mill.api.errors import CannotServe, ModelError
from mill.api.message import Message
from mill.api.model import MillModel, ModelCapabilities, run_requests
from mill.api.registry import register_model
from mill.api.request import (
    GENERATE,
    KINDS,
    MULTI_ROUND,
    Request,
    generation_options,
)
from mill.api.response import Response


@pytest.fixture
def my_model() -> Any:
    """The class of the documentation with simple hooks: it upper-cases, and scores one nat a character."""

    @register_model("my-backend")
    class MyModel(MillModel):
        def __init__(self, path: str, **kwargs: Any) -> None:
            self._path = path
            self.capabilities = ModelCapabilities(
                modalities={"text"},
                max_context_length=4096,
                supports_logprobs=True,
                supports_chat_template=False,
            )
            self.batches: list[Any] = []

        @property
        def model_name(self) -> str:
            return self._path

        def _generate_batch(self, batch: Any, gen_kwargs: Any) -> list[str]:
            self.batches.append(([request.text for request in batch], gen_kwargs))
            return [request.text.upper()[: gen_kwargs.get("max_gen_toks")] for request in batch]

        def _loglikelihood_batch(self, batch: Any) -> list[tuple[float, bool]]:
            self.batches.append([request.continuation for request in batch])
            return [(-float(len(request.continuation)), request.continuation == "yes") for request in batch]

        def _loglikelihood_rolling_single(self, request: Request) -> float:
            self.batches.append(request.text)
            return -float(len(request.text))

    return MyModel("my/model")


def requests_for(*contexts: str, **options: Any) -> list[Request]:
    return [Request(GENERATE, context, options=options) for context in contexts]


def test_generate_until_returns_request_order_though_the_longest_ran_first(my_model: Any) -> None:
    responses = my_model.generate_until(requests_for("bb", "a", "ccc"))
    assert [response.text for response in responses] == ["BB", "A", "CCC"]
    assert [batch for batch, _ in my_model.batches] == [["ccc", "bb", "a"]]


def test_multi_round_generates_from_the_previous_rounds(my_model: Any) -> None:
    second = (Message("user", "hi"), Message("assistant", "yo"), Message("user", "bye"))
    requests = [Request(MULTI_ROUND, (Message("user", "hi"),)), Request(MULTI_ROUND, second)]
    responses = my_model.generate_until_multi_round(requests)
    assert [response.text for response in responses] == ["<USER> HI", "<USER> HI\n<ASSISTANT> YO\n<USER> BYE"]


def test_requests_with_different_options_never_share_a_batch(my_model: Any) -> None:
    my_model.batch_size = 8
    short, long = {"max_gen_toks": 1}, {"max_gen_toks": 2}
    requests = [Request(GENERATE, text, options=o) for text, o in (("aa", short), ("bb", long), ("cc", short), ("dd", long))]
    responses = my_model.generate_until(requests)
    assert [response.text for response in responses] == ["A", "BB", "C", "DD"]
    assert my_model.batches == [(["aa", "cc"], short), (["bb", "dd"], long)]


def test_a_hook_that_modifies_its_options_does_not_affect_the_next_batch(
    my_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    my_model.batch_size = 1
    monkeypatch.setattr(my_model, "_generate_batch", lambda batch, gen_kwargs: ["x" * gen_kwargs.pop("max_gen_toks")])
    requests = requests_for("a", "b", max_gen_toks=2)
    assert [response.text for response in my_model.generate_until(requests)] == ["xx", "xx"]
    assert requests[0].options == {"max_gen_toks": 2}


def test_equal_requests_are_computed_once_and_returned_for_each(my_model: Any) -> None:
    assert [response.text for response in my_model.generate_until(requests_for("a", "b", "a"))] == ["A", "B", "A"]
    assert [texts for texts, _ in my_model.batches] == [["a", "b"]]


def test_each_response_is_attached_to_its_own_request(my_model: Any) -> None:
    requests = [Request(GENERATE, f"prompt {number % 2}") for number in range(3)]
    responses = my_model.generate_until(requests)
    assert [request.resps for request in requests] == [[response] for response in responses]
    assert requests[0] == requests[2] and requests[0].resps is not requests[2].resps


def test_a_backend_that_overrides_a_public_method_is_streamed_through_it(my_model: Any) -> None:
    class Overriding(type(my_model)):  # type: ignore[misc]
        def generate_until(self, requests: list[Request]) -> list[Response]:
            return [Response(text=f"<{response.text}>") for response in super().generate_until(requests)]

    model = Overriding("own")
    pairs = [(request.text, response.text) for request, response in run_requests(model, GENERATE, requests_for("a", "b"))]
    assert pairs == [("a", "<A>"), ("b", "<B>")]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([], "Overriding.generate_until returned 0 of 1 responses"),
        (["a", "b"], "Overriding.generate_until returned 2 of 1 responses"),
        ("a", "Overriding.generate_until returned str, not a list of responses"),
        (None, "Overriding.generate_until returned NoneType, not a list of responses"),
        (ValueError("boom"), "Overriding.generate_until raised ValueError: boom"),
        (SystemExit(0), "Overriding.generate_until raised SystemExit: 0"),
    ],
    ids=["too few", "too many", "a text", "None", "an error", "exit"],
)
def test_what_an_overriding_method_returns_is_checked(my_model: Any, returned: Any, message: str) -> None:
    class Overriding(type(my_model)):  # type: ignore[misc]
        def generate_until(self, requests: list[Request]) -> Any:
            if isinstance(returned, BaseException):
                raise returned
            return returned

    with pytest.raises(ModelError) as raised:
        list(run_requests(Overriding("own"), GENERATE, requests_for("a")))
    assert str(raised.value) == message


def test_a_model_called_directly_shows_progress(my_model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    my_model.generate_until(requests_for("a", "b", "c"))
    assert capsys.readouterr().err.startswith("generate_until: 3/3, ")


class Bare(MillModel):
    """A backend without hooks."""

    @property
    def model_name(self) -> str:
        return "bare/model"


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_hook_raises_and_names_the_kind(kind: str) -> None:
    with pytest.raises(CannotServe) as raised:
        next(run_requests(Bare(), kind, [Request(kind, "q")]))
    hook = GENERATE if kind == MULTI_ROUND else kind
    assert str(raised.value) == f"bare/model (Bare) does not answer {hook} requests"


def test_the_default_identity_is_class_name_and_arguments() -> None:
    model = Bare()
    model.arguments = {"path": "a", "layers": 3, "batch_size": 8, "api_key": "sk-1"}
    identity = model.identity()
    assert (identity["model"], identity["arguments"]) == ("bare/model", {"path": "a", "layers": 3})
    assert identity["class"].endswith("Bare")


def test_reasoning_in_the_text_of_a_backend_is_taken_apart() -> None:
    class Thinking(MillModel):
        model_name = "thinking"

        def _generate_batch(self, batch: list[Request], gen_kwargs: dict[str, Any]) -> list[str | Response]:
            return [
                "<think>why</think>because",
                Response(text="<think>no end"),
                Response(text="</think> is a tag", reasoning="own"),
                "plain",
            ]

    options = generation_options()
    requests = [Request(GENERATE, str(number), options=options) for number in range(4)]
    found = [(one.reasoning, one.text) for one in Thinking().generate_until(requests)]
    assert found == [("why", "because"), ("no end", ""), ("own", "</think> is a tag"), (None, "plain")]
    other = [replace(one, options={**options, "reasoning_tags": ()}) for one in requests]
    assert Thinking().generate_until(other)[0].text == "<think>why</think>because"
