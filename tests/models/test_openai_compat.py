"""The openai-compat backend with a test server, and with a llama-server."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from mill.api.errors import ModelError, UnknownName
from mill.api.message import Message
from mill.api.request import GENERATE, LOGLIKELIHOOD, MULTI_ROUND, ROLLING, Request, generation_options
from mill.api.response import Token
from mill.models.http import policy
from mill.models.openai_compat.model import NEUTRAL
from mill.models.spec.open import open_model
from tests.servers import FaultServer, free_port, status

TOY = Path(__file__).parents[1] / "toy.py"
OPTIONS = generation_options(max_gen_toks=8, until=["\n"])


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "FIRST_PAUSE_S", 0.01)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def text(content: str, **more: Any) -> dict[str, Any]:
    return {
        "choices": [{"text": content, "finish_reason": "stop", **more}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }


def echoing(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
    """A server that scores prompts: characters are tokens, and a character's log-probability is -code / 100."""
    if path == "/tokenize":
        return {"tokens": [ord(char) for char in body["prompt"]]}
    if path == "/v1/completions" and body.get("echo"):
        prompt = body["prompt"] if isinstance(body["prompt"], str) else "".join(map(chr, body["prompt"]))
        scores = [None, *(-ord(char) / 100 for char in prompt[1:]), -1.0]
        top = [None, *({char: -ord(char) / 100 if char != "z" else -0.1} for char in prompt[1:]), {"x": -1.0}]
        return text(prompt + "x", logprobs={"tokens": [*prompt, "x"], "token_logprobs": scores, "top_logprobs": top})
    return (
        text("fine\nmore")
        if path == "/v1/completions"
        else {"choices": [{"message": {"content": "chat"}, "finish_reason": "stop"}]}
    )


def open_ready(server: FaultServer, **arguments: Any) -> Any:
    inner = ",".join(f"{name}={value}" for name, value in {"model": "m", **arguments}.items())
    model = open_model(f"{server.url}/v1[{inner}]")
    model.ready()
    return model


def requests_for(*contexts: Any) -> list[Request]:
    return [Request(GENERATE, context, options=OPTIONS) for context in contexts]


def test_text_is_sent_to_completions_and_dialogs_to_chat() -> None:
    with FaultServer(echoing) as server:
        model = open_ready(server)
        server.calls.clear()
        plain, dialog = model.generate_until(
            requests_for("the quick", (Message("system", "be brief"), Message("user", "hi")))
        )
        (round_,) = model.generate_until_multi_round([Request(MULTI_ROUND, (Message("user", "hi"),), options=OPTIONS)])
    assert (plain.text, dialog.text, round_.text) == ("fine", "chat", "chat")
    assert (plain.prompt_tokens, plain.output_tokens, plain.finish_reason) == (3, 2, "stop")
    sent = dict(server.calls[:2])
    assert sent["/v1/completions"] == {
        "model": "m",
        "prompt": "the quick",
        "max_tokens": 8,
        "temperature": 0.0,
        "stop": ["\n"],
    }
    assert sent["/v1/chat/completions"]["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
    ]


def test_stop_strings_are_applied_where_the_server_ignores_them() -> None:
    with FaultServer(echoing) as server:
        many = generation_options(max_gen_toks=8, until=["1", "2", "3", "4", "\n"])
        (answer,) = open_ready(server).generate_until([Request(GENERATE, "a", options=many)])
        assert answer.text == "fine"
        assert server.calls[-1][1]["stop"] == ["1", "2", "3", "4"]


def test_prompts_are_scored_by_echo_where_the_server_supports_it() -> None:
    with FaultServer(echoing) as server:
        model = open_ready(server)
        assert model.capabilities.supports_logprobs
        greedy, other, spaced = model.loglikelihood(
            [Request(LOGLIKELIHOOD, "ab", "cd"), Request(LOGLIKELIHOOD, "ab", "cz"), Request(LOGLIKELIHOOD, "ab ", "c")]
        )
    assert greedy.score == pytest.approx(-(99 + 100) / 100) and greedy.is_greedy
    assert other.score == pytest.approx(-(99 + 122) / 100) and not other.is_greedy
    assert spaced.score == pytest.approx(-(32 + 99) / 100)
    assert (greedy.prompt_tokens, greedy.output_tokens) == (2, 2)


def vllm_like(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
    """As `echoing`, in vLLM's format: prompt_logprobs with ranks, and the next token's distribution by id (a, b and c)."""
    if path == "/v1/completions" and "prompt_logprobs" in body:
        prompt = body["prompt"] if isinstance(body["prompt"], list) else [ord(char) for char in body["prompt"]]
        rows = [{str(token): {"logprob": -token / 100, "rank": 1 + (token == ord("z"))}} for token in prompt[1:]]
        return text("x", prompt_logprobs=[None, *rows])
    if path == "/v1/completions" and body.get("return_tokens_as_token_ids"):
        top = {f"token_id:{ord(char)}": value for char, value in (("b", -0.5), ("a", -1.5), ("c", -2.5))}
        return text("b", logprobs={"top_logprobs": [top]})
    return status(400, "no echo here") if body.get("echo") else echoing(server, path, body)


def test_prompts_are_scored_by_prompt_logprobs_where_the_server_supports_it() -> None:
    with FaultServer(vllm_like) as server:
        model = open_ready(server)
        greedy, other = model.loglikelihood([Request(LOGLIKELIHOOD, "ab", "cd"), Request(LOGLIKELIHOOD, "ab", "cz")])
    assert greedy.score == pytest.approx(-(99 + 100) / 100) and greedy.is_greedy
    assert other.score == pytest.approx(-(99 + 122) / 100) and not other.is_greedy


def test_choices_of_one_token_share_one_call_for_the_next_token() -> None:
    with FaultServer(vllm_like) as server:
        model = open_ready(server)
        server.calls.clear()
        choices = [Request(LOGLIKELIHOOD, "the question", letter) for letter in "abcd"]
        a, b, c, d = model.loglikelihood(choices)
        bodies = [body for path, body in server.calls if path == "/v1/completions"]
    assert [answer.score for answer in (a, b, c)] == [-1.5, -0.5, -2.5]
    assert [answer.is_greedy for answer in (a, b, c, d)] == [False, True, False, True]
    assert d.score == -1.0  # not in top_logprobs: from prompt_logprobs
    assert ["prompt_logprobs" in body for body in bodies].count(False) == 1 and len(bodies) == 2


def test_an_unknown_scoring_route_is_refused_and_a_known_one_is_used() -> None:
    with pytest.raises(UnknownName, match="unknown scoring route 'eco'; did you mean echo"):
        open_model("http://127.0.0.1:1[model=m,scoring=eco]")
    with FaultServer(vllm_like) as server:
        assert not open_ready(server, scoring="echo").capabilities.supports_logprobs  # this one refuses echo
        assert open_ready(server, scoring="prompt_logprobs").capabilities.supports_logprobs


WITH_LOGPROBS = generation_options(max_gen_toks=2, logprobs=2)


def test_log_probabilities_are_read_in_both_formats() -> None:
    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if path == "/v1/chat/completions":
            assert (body["logprobs"], body["top_logprobs"]) == (True, 2)
            top = [{"token": "no", "logprob": -1.0}, {"token": "yes", "logprob": -0.5}]
            content = [{"token": "yes", "logprob": -0.5, "top_logprobs": top}]
            return {"choices": [{"message": {"content": "yes"}, "logprobs": {"content": content}}]}
        if body.get("logprobs") != 2:
            return text("x")
        return text("ab", logprobs={"tokens": ["a", "b"], "token_logprobs": [-0.1, -0.2], "top_logprobs": [{"a": -0.1}, {}]})

    with FaultServer(answer) as server:
        model = open_ready(server)
        plain, chat = model.generate_until(
            [
                Request(GENERATE, "a", options=WITH_LOGPROBS),
                Request(GENERATE, (Message("user", "a"),), options=WITH_LOGPROBS),
            ]
        )
    assert plain.tokens == (Token(None, "a", -0.1, (("a", -0.1),)), Token(None, "b", -0.2))
    assert chat.tokens == (Token(None, "yes", -0.5, (("yes", -0.5), ("no", -1.0))),)


@pytest.mark.parametrize("refusal", [status(400, "logprobs are not supported"), None])
def test_without_log_probabilities_responses_have_none_with_a_warning(refusal: Any) -> None:
    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        return refusal if refusal and body.get("logprobs") == 2 else text("fine")

    with FaultServer(answer) as server:
        model = open_ready(server)
        (response,) = model.generate_until([Request(GENERATE, "a", options=WITH_LOGPROBS)])
    assert (response.text, response.tokens) == ("fine", None)
    assert "the server gives no log-probabilities of its answers" in model.warnings()


def test_a_server_that_still_loads_is_reported_and_waited_for() -> None:
    loading_calls = math.inf

    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        return status(503, "Loading model") if len(server.calls) <= loading_calls else text("x")

    with FaultServer(answer) as server:
        with pytest.raises(ModelError, match=r"is still loading \(HTTP 503: Loading model\); wait for it with --wait"):
            open_ready(server)
        loading_calls = len(server.calls) + 2
        open_model(f"{server.url}[model=m]").ready(wait=60)
        assert len(server.calls) > loading_calls


def test_a_server_without_prompt_scoring_is_detected() -> None:
    with FaultServer(lambda *_: text("x")) as server:
        model = open_ready(server)
    assert not model.capabilities.serves(LOGLIKELIHOOD) and model.capabilities.serves(GENERATE)
    assert (
        model.no_logprobs == "the server returns no log-probabilities of a prompt: it ignores `prompt_logprobs` and `echo`"
    )
    assert model.warnings() == []  # a run that generates text does not need them


def test_a_text_without_context_starts_from_bos_where_its_id_is_given() -> None:
    with FaultServer(echoing) as server:
        without_bos_id, with_bos_id = open_ready(server), open_ready(server, bos_token_id=65)
        (without,) = without_bos_id.loglikelihood([Request(LOGLIKELIHOOD, "", "bc")])
        (with_bos,) = with_bos_id.loglikelihood([Request(LOGLIKELIHOOD, "", "bc")])
        (document,) = with_bos_id.loglikelihood_rolling([Request(ROLLING, "bc")])
    assert without.score == pytest.approx(-0.99) and "bos_token_id" in without_bos_id.warnings()[0]
    assert with_bos.score == document.score == pytest.approx(-0.98 - 0.99) and document.prompt_tokens == 2
    assert with_bos_id.warnings() == []


def test_without_a_completions_route_prompts_are_sent_as_chat() -> None:
    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        return status(404) if path == "/v1/completions" else echoing(server, path, body)

    with FaultServer(answer) as server:
        model = open_ready(server)
        (response,) = model.generate_until(requests_for("the quick"))
        assert (response.text, model.use_chat_template) == ("chat", True)
        assert server.calls[-1][1]["messages"] == [{"role": "user", "content": "the quick"}]


def test_an_absent_server_a_wrong_model_and_a_missing_key_are_reported_at_once() -> None:
    with pytest.raises(
        ModelError, match=r"cannot reach .*: Connection refused; start it, or wait for it with --wait SECONDS"
    ):
        open_model(f"http://127.0.0.1:{free_port()}[model=m]").ready()
    with FaultServer(echoing, models=("llama", "qwen")) as server:
        with pytest.raises(UnknownName, match=r"unknown model at .* 'lama'; did you mean llama\? it serves llama, qwen"):
            open_model(f"{server.url}[model=lama]").ready()
        with pytest.raises(ModelError, match="serves llama, qwen: pass one with model="):
            open_model(server.url).ready()


def base_url_of(spec: str) -> str:
    model: Any = open_model(spec)
    return model.base_url


@pytest.mark.parametrize("url", ["http://h:8000", "http://h:8000/", "http://h:8000/v1", "http://h:8000/v1/"])
def test_a_base_url_works_with_and_without_v1(url: str) -> None:
    assert base_url_of(f"openai-compat[base_url={url},model=m]") == "http://h:8000"


def test_a_streamed_response_equals_the_whole_one_and_has_a_first_token_time(llama: str) -> None:
    whole, streamed = open_model(llama), open_model(f"{llama}[stream=true]")
    question = (Message("user", "What is the capital of France? One word."),)
    answers = []
    for model in (whole, streamed):
        model.ready()
        answers.append(model.generate_until(requests_for("The capital of France is", question)))
    for one, other in zip(*answers, strict=True):
        assert (one.text, one.finish_reason, one.output_tokens) == (other.text, other.finish_reason, other.output_tokens)
        assert one.first_token_s is None and other.first_token_s is not None and other.seconds is not None
        assert 0 < other.first_token_s < other.seconds


def test_responses_include_retries_and_their_pauses() -> None:
    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        attempts = [sent.get("prompt") for _, sent in server.calls].count("slow")
        busy = body.get("prompt") == "slow" and attempts <= 2
        return status(429, Retry_After="0.4") if busy else text("fine")

    with FaultServer(answer) as server:
        model = open_ready(server, concurrency=1)
        quick, slow = model.generate_until(requests_for("quick", "slow"))
    assert (quick.retries, slow.retries) == (0, 2)
    assert slow.seconds >= 0.8
    assert (quick.retry_reason, slow.retry_reason) == (None, "HTTP 429: no")


def test_evaluate_runs_inside_a_running_event_loop(tmp_path: Path) -> None:
    import mill
    from mill.api.registry import import_file

    import_file(TOY, "task file")

    async def cell() -> Any:
        with FaultServer(echoing) as server:
            return mill.evaluate(f"{server.url}[model=m]", "toy_gen", output_dir=tmp_path, limit=4).scores

    (row,) = asyncio.run(cell()).to_dict("records")
    assert (row["task"], row["n"]) == ("toy_gen", 4)


def test_vllm_mlx_with_another_model_is_refused() -> None:
    with FaultServer(echoing) as server:
        server.gets["/health"] = {"model_loaded": True, "model_name": "org/other"}
        with pytest.raises(ModelError, match="has loaded org/other, not m"):
            open_model(f"vllm-mlx[base_url={server.url},model=m]").ready()
        server.gets["/health"] = {"model_loaded": True, "model_name": "/models/m"}
        open_model(f"vllm-mlx[base_url={server.url},model=m]").ready()
        server.gets["/health"] = {"model_name": 7}
        with pytest.raises(ModelError, match="/health is not valid: model_name: expected str"):
            open_model(f"vllm-mlx[base_url={server.url},model=m]").ready()


def test_an_impossible_token_count_is_dropped() -> None:
    """A trillion tokens for a limit of 16 would give an absurd throughput."""
    for count, believed in ((10**12, None), (40, 40), (16, 16)):
        counted = {**text("x"), "usage": {"completion_tokens": count}}
        with FaultServer(lambda *_, counted=counted: counted) as server:
            model = open_ready(server)
            (answer,) = model.generate_until([Request(GENERATE, "q", options=generation_options(max_gen_toks=16))])
            assert answer.output_tokens == believed
            assert any("more output tokens than the requested limit" in warning for warning in model.warnings()) == (
                count > 16
            )


def test_a_server_that_is_busy_at_first_is_probed_again() -> None:
    answers = iter([status(429, Retry_After="0.05"), status(429)])

    def busy(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        return next(answers, text("x"))

    with FaultServer(busy) as server:
        assert open_ready(server).generate_until(requests_for("q"))[0].text == "x"


def test_sampling_defaults_of_the_server_are_overridden_as_far_as_it_takes_them() -> None:
    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        refused = [name for name in ("top_k", "min_p") if name in body]
        return status(400, f"Unrecognized request argument supplied: {refused[0]}") if refused else text("fine")

    with FaultServer(answer) as server:
        model = open_ready(server)
        server.calls.clear()
        options = generation_options(repetition_penalty=1.2)
        for number in range(2):
            assert model.generate_until([Request(GENERATE, f"q {number}", options=options)])[0].text == "fine"
    assert len(server.calls) == 4, "each refusal is met once"
    sent = server.calls[-1][1]
    assert {name: sent.get(name) for name in NEUTRAL} == {
        **{"top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "top_k": None, "min_p": None},
        **{"repetition_penalty": 1.2, "repeat_penalty": 1.2},
    }
    assert model.execution_paths() == {"sampling": "the server refuses top_k, min_p: its own values apply"}


def test_a_refusal_that_repeats_the_request_is_the_error_of_that_request() -> None:
    """A server may quote all names of a request that it refuses for another reason."""
    with FaultServer(lambda server, path, body: status(400, f"too long: {sorted(body)}")) as server:
        model = open_ready(server)
        (response,) = model.generate_until([Request(GENERATE, "q", options=generation_options())])
    assert "too long" in (response.error or "") and model.execution_paths() == {}
