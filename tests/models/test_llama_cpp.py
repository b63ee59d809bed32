"""The llama-cpp backend with a real server, and with the response formats of older servers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mill.api.errors import UnknownName
from mill.api.request import GENERATE, LOGLIKELIHOOD, ROLLING, Request, generation_options
from mill.models.llama_cpp import LlamaCppModel, Props, Settings
from mill.models.spec.open import open_model
from tests.servers import FaultServer

PARIS = "The capital of France is"


def test_llama_cpp_scores_continuations_close_to_the_float32_model(llama: str) -> None:
    model = open_model(f"llama-cpp[base_url={llama}]")
    model.ready()
    requests = [Request(LOGLIKELIHOOD, PARIS, end) for end in (" Paris", " London", " the city of light", " xylophone")]
    paris, london, city, unlikely = model.loglikelihood(requests)
    # float32 gives -0.258, -4.384 and -19.236; llama.cpp computes in 4 bits, and builds differ by 0.03.
    assert paris.score == pytest.approx(-0.258, abs=0.06) and paris.is_greedy
    assert london.score == pytest.approx(-4.384, abs=0.3) and not london.is_greedy
    assert city.score == pytest.approx(-19.236, abs=0.6)
    assert (unlikely.score or 0) < -10
    assert [answer.output_tokens for answer in (paris, london, city)] == [1, 1, 4]


def test_llama_cpp_generates_stops_and_counts_tokens(llama: str) -> None:
    model = open_model(f"llama-cpp[base_url={llama}]")
    model.ready()
    free, stopped = model.generate_until(
        [
            Request(GENERATE, PARIS, options=generation_options(max_gen_toks=6)),
            Request(GENERATE, PARIS, options=generation_options(max_gen_toks=6, until=["."])),
        ]
    )
    assert (free.output_tokens, free.finish_reason) == (6, "length")
    assert (stopped.text, stopped.finish_reason) == (" Paris", "stop")


def test_the_score_of_a_document_is_the_sum_of_its_steps(llama: str) -> None:
    model = open_model(f"llama-cpp[base_url={llama}]")
    model.ready()
    text = "The cat sat on the mat."
    (document,) = model.loglikelihood_rolling([Request(ROLLING, text)])
    (whole,) = model.loglikelihood([Request(LOGLIKELIHOOD, "", text)])
    assert document.score == pytest.approx(whole.score, abs=1e-3)
    assert document.prompt_tokens == whole.output_tokens == 7


def test_tokens_have_ids_and_top_logprobs(llama: str) -> None:
    model = open_model(f"llama-cpp[base_url={llama}]")
    model.ready()
    options = generation_options(max_gen_toks=3, logprobs=10)
    (answer,) = model.generate_until([Request(GENERATE, PARIS, options=options)])
    assert answer.tokens is not None and len(answer.tokens) == 3
    paris = answer.tokens[0]
    assert (paris.id, paris.text) == (7042, " Paris") and paris.logprob == pytest.approx(-0.258, abs=0.06)
    assert len(paris.top) == 10 and paris.top[0] == (7042, paris.logprob)
    assert [value for _, value in paris.top] == sorted((value for _, value in paris.top), reverse=True)


def test_a_model_that_the_server_does_not_have_is_refused(llama: str) -> None:
    with pytest.raises(UnknownName, match=r"unknown model at .* 'wrong'; it serves SmolLM2-135M-Instruct\.Q4_1\.gguf"):
        open_model(f"llama-cpp[base_url={llama},model=wrong]").ready()


@pytest.mark.parametrize(
    "name",
    [
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "SmolLM2-135M-Instruct.Q4_1",
        "smollm2-135m-instruct",
        "/elsewhere/SmolLM2-135M-Instruct.Q4_1.gguf",
    ],
)
def test_the_servers_model_may_be_named_in_several_ways(llama: str, name: str) -> None:
    model = open_model(f"llama-cpp[base_url={llama},model={name}]")
    model.ready()
    (answer,) = model.generate_until([Request(GENERATE, PARIS, options=generation_options(max_gen_toks=1))])
    assert (model.model_name, answer.text, model.warnings()) == (name, " Paris", [])


def test_the_time_of_a_response_includes_all_its_calls(llama: str) -> None:
    model = open_model(f"llama-cpp[base_url={llama}]")
    model.ready()
    (answer,) = model.generate_until([Request(GENERATE, PARIS, options=generation_options(max_gen_toks=4))])
    assert answer.seconds is not None and answer.seconds > 0 and answer.retries == 0
    assert "retries" not in answer.to_dict()


def older_server(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
    """Responses of servers before token ids: texts and probabilities."""
    if path == "/tokenize":
        return {"tokens": [ord(char) for char in body["content"]]}
    rows = [{"tok_str": "b", "prob": 0.75}, {"tok_str": "a", "prob": 0.25}, {"tok_str": "zz", "prob": 0.0}]
    return {"content": "b", "completion_probabilities": [{"content": "b", "probs": rows}]}


def test_responses_of_older_servers_are_read() -> None:
    with FaultServer(older_server) as server:
        model = LlamaCppModel(base_url=server.url)
        model._props = Props(Settings(64))
        model.client.concurrency = 1
        likely, other = model.loglikelihood([Request(LOGLIKELIHOOD, "x", "b"), Request(LOGLIKELIHOOD, "x", "a")])
        options = generation_options(max_gen_toks=1, logprobs=3)
        (answer,) = model.generate_until([Request(GENERATE, "x", options=options)])
    assert likely.score == pytest.approx(math.log(0.75)) and likely.is_greedy
    assert other.score == pytest.approx(math.log(0.25)) and not other.is_greedy
    assert answer.tokens is not None
    assert answer.tokens[0].id == ord("b") and answer.tokens[0].logprob == pytest.approx(math.log(0.75))
    assert answer.tokens[0].top[-1] == (-1, -math.inf)  # a text of two tokens has no id
