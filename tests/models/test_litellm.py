"""The litellm backend with a llama-server, and with the errors of providers."""

from __future__ import annotations

from typing import Any

import pytest

from mill.api.errors import ModelError
from mill.api.message import Message
from mill.api.request import GENERATE, Request, generation_options
from mill.models.http import policy
from mill.models.spec.open import open_model
from tests.servers import FaultServer, status

OPTIONS = generation_options(max_gen_toks=8, until=["\n"])


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("litellm")  # five seconds, for the process that runs these tests alone
    monkeypatch.setattr(policy, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(policy, "ATTEMPTS", 2)
    monkeypatch.setattr(policy, "THROTTLED_ATTEMPTS", 2)


def generate(model: Any, **options: Any) -> Any:
    request_options = {**OPTIONS, **options}
    (answer,) = model.generate_until(
        [Request(GENERATE, (Message("user", "What is the capital of France?"),), options=request_options)]
    )
    return answer


def test_litellm_with_a_llama_server(llama: str) -> None:
    model = open_model(f"litellm[model=openai/smollm2,api_base={llama}/v1,api_key=sk-local]")
    model.ready()
    answer = generate(model, logprobs=3)
    assert answer.text and answer.error is None and answer.prompt_tokens and answer.seconds
    assert answer.tokens and len(answer.tokens[0].top) == 3


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (401, "Incorrect API key provided", "the provider refuses the API key"),
        (404, "The model `m` does not exist", "the provider has no such model"),
        (429, "You exceeded your current quota, please check your plan", "the quota of the API key is used up"),
        (429, "Rate limit reached for requests", "the provider limits the rate"),
        (400, "This model's maximum context length is 4096 tokens", "the prompt is longer than the model's context"),
        (400, "content_policy_violation: your request was rejected by our safety system", "content filter refused"),
        (500, "The server had an error", "the provider failed"),
    ],
)
def test_errors_of_a_provider_have_clear_messages(code: int, message: str, expected: str) -> None:
    with FaultServer(lambda *_: status(code, message)) as server:
        model = open_model(f"litellm[model=openai/m,api_base={server.url}/v1,api_key=sk-secret]")
        answer = generate(model)
    assert expected in (answer.error or "") and answer.text is None
    assert "sk-secret" not in (answer.error or "")


def test_only_transient_failures_are_retried() -> None:
    for code, message, calls in ((401, "no", 1), (429, "exceeded your current quota", 1), (429, "slow down", 2)):
        with FaultServer(lambda *_, code=code, message=message: status(code, message)) as server:
            generate(open_model(f"litellm[model=openai/m,api_base={server.url}/v1,api_key=k]"))
        assert len(server.calls) == calls, message


def test_all_completion_parameters_reach_the_provider() -> None:
    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Paris"}}
        return {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}

    with FaultServer(answer) as server:
        spec = f"litellm[model=openai/m,api_base={server.url}/v1,api_key=k,presence_penalty=0.5,user=ada]"
        assert generate(open_model(spec)).text == "Paris"
    ((path, body),) = server.calls
    assert path == "/v1/chat/completions" and (body["presence_penalty"], body["user"]) == (0.5, "ada")
    assert (body["max_tokens"], body["temperature"], body["stop"]) == (8, 0.0, ["\n"])


@pytest.mark.parametrize(
    ("message", "reason", "expected"),
    [
        ({"content": "half"}, "content_filter", None),
        ({"content": None}, "content_filter", None),
        ({"content": None}, "stop", "has no text"),
        ({"content": ["Paris"]}, "stop", ""),
    ],
)
def test_invalid_responses_are_errors_or_filtered(message: dict[str, Any], reason: str, expected: str | None) -> None:
    choice = {"index": 0, "finish_reason": reason, "message": {"role": "assistant", **message}}
    body = {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": {"prompt_tokens": -3},
    }
    with FaultServer(lambda *_: body) as server:
        answer = generate(open_model(f"litellm[model=openai/m,api_base={server.url}/v1,api_key=sk-test]"))
    if expected is None:
        assert (answer.text, answer.finish_reason, answer.error) == (message["content"] or "", "content_filter", None)
        assert answer.prompt_tokens is None
    else:
        assert expected in (answer.error or "") and answer.error and answer.text is None


def test_a_missing_key_is_reported_before_any_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ModelError, match="gpt-4o needs a key: set OPENAI_API_KEY, or pass api_key="):
        open_model("litellm[model=gpt-4o]").ready()


@pytest.mark.parametrize("name", ["x", "no-such-model"])
def test_a_name_of_no_provider_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match=f"litellm does not know the provider of '{name}': write provider/model"):
        open_model(f"litellm[model={name},api_key=k]").ready()


def test_prices_are_those_of_litellm_and_unknown_where_it_has_none() -> None:
    import litellm

    from mill.models.litellm import LiteLLMModel

    known = litellm.model_cost["gpt-4o-mini"]
    price = LiteLLMModel("openai/gpt-4o-mini", api_key="k").price()
    assert price is not None
    assert price.prompt == pytest.approx(1e6 * known["input_cost_per_token"])
    assert price.output == pytest.approx(1e6 * known["output_cost_per_token"])
    assert price.cached == pytest.approx(1e6 * known["cache_read_input_token_cost"])
    assert LiteLLMModel("openai/none-of-theirs", api_key="k").price() is None
    other_server = LiteLLMModel("openai/gpt-4o-mini", api_key="k", api_base="http://127.0.0.1:9/v1")
    assert other_server.price() is None, "what another server charges is not known"
