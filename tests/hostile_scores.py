"""Faulty scores, model lists and llama.cpp responses of servers, and what must be recorded for each."""

from __future__ import annotations

from typing import Any

from tests.hostile import INF, INVALID_COUNTS, NAN, Mode, whole
from tests.servers import status

# The prompt is the token ids of "abcd", of which "cd" is scored.
SCORES = [None, -0.98, -0.99, -1.0, -1.5]
TOPS = [None, {"b": -0.98}, {"c": -0.99}, {"d": -1.0}, {"x": -1.5}]
TWO = {"token_logprobs": [*SCORES, -9.0], "top_logprobs": [*TOPS, {"y": -9.0}]}


def echoed(**changes: Any) -> dict[str, Any]:
    usage = changes.pop("usage", {"prompt_tokens": 4, "completion_tokens": 1})
    more = {name: changes.pop(name) for name in ("finish_reason", "error", "index") if name in changes}
    logprobs = {"tokens": [*"abcdx"], "token_logprobs": SCORES, "top_logprobs": TOPS, **changes}
    return whole("abcdx", logprobs=logprobs, usage=usage, **{"finish_reason": "length", **more})


def changed(position: int, value: Any) -> dict[str, Any]:
    scores = [*SCORES]
    scores[position] = value
    return echoed(token_logprobs=scores)


ECHOES = {
    "healthy": Mode(echoed(), score=-1.99),
    "no generated token": Mode(echoed(token_logprobs=SCORES[:4], top_logprobs=TOPS[:4]), score=-1.99),
    "two generated tokens, counted": Mode(echoed(**TWO, usage={"prompt_tokens": 4, "completion_tokens": 2}), score=-1.99),
    "two generated tokens, or a BOS": Mode(echoed(**TWO, usage=None), "6 log-probabilities for 4 tokens"),
    "a BOS before the ids": Mode(
        echoed(
            token_logprobs=[None, -3.0, *SCORES[1:]],
            top_logprobs=[None, *TOPS],
            usage={"prompt_tokens": 5, "completion_tokens": 1},
        ),
        "6 log-probabilities for 4 tokens",
    ),
    "a BOS and nothing generated": Mode(echoed(usage={"prompt_tokens": 5, "completion_tokens": 0}), "for 4 tokens"),
    "too few": Mode(echoed(token_logprobs=SCORES[:3], top_logprobs=TOPS[:3]), "3 log-probabilities for 4 tokens"),
    "none": Mode(echoed(token_logprobs=[], top_logprobs=[]), "cannot be read"),
    "positive": Mode(changed(2, 0.7), "above 0"),
    "rounded above 0": Mode(changed(2, 5e-4), score=-1.0),
    "NaN": Mode(changed(2, NAN), "NaN"),
    "minus infinity": Mode(changed(3, -INF), score=-INF),
    "left out": Mode(changed(3, None), "left out a log-probability"),
    "a likeliest above 0": Mode(echoed(top_logprobs=[None, {"b": 2.0}, *TOPS[2:]]), "above 0"),
    "an error beside": Mode(echoed(error={"message": "half"}), "reported an error: half"),
}


def ranked(**changes: Any) -> dict[str, Any]:
    """vLLM's response; `at_c` and `at_d` replace the rows of the two scored tokens."""
    rows: list[Any] = [None, *({str(ord(char)): {"logprob": -ord(char) / 100, "rank": 1}} for char in "bcd")]
    rows[2], rows[3] = changes.pop("at_c", rows[2]), changes.pop("at_d", rows[3])
    body = whole("x")
    body["choices"][0] |= {"prompt_logprobs": changes.pop("rows", rows), **changes}
    return body


PROMPTS = {
    "healthy": Mode(ranked(), score=-1.99),
    "a positive log-probability": Mode(ranked(at_c={"99": {"logprob": 1.0, "rank": 1}}), "above 0"),
    "NaN": Mode(ranked(at_c={"99": {"logprob": NAN, "rank": 1}}), "NaN"),
    "minus infinity": Mode(ranked(at_c={"99": {"logprob": -INF, "rank": 9}}), score=-INF),
    "a rank that is a text": Mode(ranked(at_c={"99": {"logprob": -1.0, "rank": "1"}}), "rank: expected int"),
    "another token": Mode(ranked(at_c={"5": {"logprob": -1.0, "rank": 1}}), "token 99 of the prompt is not among"),
    "a token that is no id": Mode(
        ranked(at_c={"99": {"logprob": -1.0, "rank": 2}, "c": {"logprob": -0.1, "rank": 1}}), "is no token id"
    ),
    "a row left out": Mode(ranked(at_c=None), "left out a log-probability"),
    "an entry that is a number": Mode(ranked(at_c={"99": -1.0}), "rows[2][...]: expected object"),
    "too few rows": Mode(ranked(rows=[None]), "1 entries of prompt_logprobs for 4 tokens"),
    "a likeliest above 0": Mode(
        ranked(at_c={"99": {"logprob": -1.0, "rank": 2}, "5": {"logprob": 4.0, "rank": 1}}), "above 0"
    ),
    "finish_reason error": Mode(ranked(finish_reason="error"), "finish_reason 'error'"),
}

# llama.cpp: the prompt is "x", the answer "b"; "b" is scored after "x".
LIKELY = [{"id": 98, "token": "b", "logprob": -0.25}, {"id": 97, "token": "a", "logprob": -1.5}]


def native(rows: Any = LIKELY, **changes: Any) -> dict[str, Any]:
    entry = {"id": 98, "token": "b", "logprob": -0.25, "top_logprobs": rows}
    entry |= {name: changes.pop(name) for name in [*changes] if name in entry}
    counts = {"tokens_evaluated": 3, "tokens_predicted": 1}
    return {"content": "b", "stop": True, "stop_type": "eos", "completion_probabilities": [entry], **counts, **changes}


def rows_with(**changes: Any) -> list[dict[str, Any]]:
    return [{**LIKELY[0], **changes}, LIKELY[1]]


LLAMA_TEXTS = {
    "healthy": Mode(native(), text="b", counts=(3, 1)),
    "cut at the limit": Mode(native(stop_type="limit"), text="b", finish="length"),
    "no content": Mode({"stop": True}, "content"),
    "not stopped": Mode(native(stop=False), "did not stop"),
    "invalid counts": Mode(native(tokens_evaluated="3"), text="b", counts=(None, 1), warning=INVALID_COUNTS),
    "an error beside": Mode(native(error={"message": "slot lost", "code": 500}), "reported an error: slot lost"),
    "no probabilities": Mode(native(completion_probabilities=None), "no probabilities of its tokens"),
    "a token above 0": Mode(native(logprob=0.5), "above 0"),
    "a likeliest above 0": Mode(native(rows_with(logprob=2.0)), "above 0"),
    "another model": Mode(native(model="other.gguf"), text="b", warning="answers as other.gguf"),
}
LLAMA_SCORES = {
    "healthy": Mode(native(), score=-0.25),
    "minus infinity": Mode(native(rows_with(logprob=-INF)), score=-INF),
    "rounded above 0": Mode(native(rows_with(logprob=1e-4)), score=0.0),
    "positive": Mode(native(rows_with(logprob=0.25)), "above 0"),
    "NaN": Mode(native(rows_with(logprob=NAN)), "NaN"),
    "no rows": Mode(native([]), "no probabilities of the next token"),
    "a token that is never named": Mode(native(rows_with(id=5)), "no probability for token 98"),
}

# Responses of GET /v1/models that are not a list with the model m, and the error message for each.
LISTINGS: dict[str, tuple[Any, str]] = {
    "models instead of data": ({"models": [{"name": "m"}]}, "returned no list of models"),
    "an id that is a number": ({"data": [{"id": 7}]}, "data[0].id: expected str"),
    "an id null": ({"data": [{"id": None}]}, "it serves nothing"),
    "another model": ({"data": [{"id": "llama"}]}, "it serves llama"),
    "a name with escapes": ({"data": [{"id": "\x1b]0;x"}]}, "it serves \\x1b]0;x"),
    "one invalid entry among others": ({"data": [{"id": "m"}, 7]}, "data[1]: expected object"),
    "an error with status 200": ({"error": {"message": "not here"}}, "reported an error: not here"),
    "a redirect": (status(302, Location="http://127.0.0.1:9"), "redirects to http://127.0.0.1:9"),
    "status 429": (status(429, "busy", Retry_After="9999"), "HTTP 429: busy"),
    **{
        f"a context of {invalid!r}": ({"data": [{"id": "m", "max_model_len": invalid}]}, "give max_context_length=")
        for invalid in ("4096", -1, 4096.0, True, NAN)
    },
    "an invalid context in meta": ({"data": [{"id": "m", "meta": {"n_ctx_train": "2048"}}]}, "give max_context_length="),
}
LISTED: dict[str, Any] = {
    "a bare entry": {"data": [{"id": "m"}]},
    "a context of 0": {"data": [{"id": "m", "max_model_len": 0}]},
    "meta that is a list": {"data": [{"id": "m", "meta": [1]}]},
    "another entry without a name": {"object": "list", "data": [{}, {"id": "m", "owned_by": 7}]},
}
PROPS: dict[str, Any] = {
    "model_path": "/models/tiny.Q4_1.gguf",
    "default_generation_settings": {"n_ctx": 64},
    "total_slots": 2,
}
