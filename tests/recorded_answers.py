"""Recorded responses of healthy servers, used as seeds by the fuzz tests. Scored are "ab" and "cd"."""

from __future__ import annotations

from typing import Any

USAGE = {"prompt_tokens": 5, "total_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": None}
HEAD = {"id": "cmpl-1", "object": "text_completion", "created": 1730000000, "model": "m"}


def completion(usage: dict[str, Any], **choice: Any) -> dict[str, Any]:
    """An answer that ended at the token limit."""
    return {**HEAD, "choices": [{"index": 0, "finish_reason": "length", **choice}], "usage": usage}


def counts(prompt: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": 1}


def token(number: int, text: str, logprob: float) -> dict[str, Any]:
    return {"id": number, "token": text, "bytes": [*text.encode()], "logprob": logprob}


COMPLETION = completion(USAGE, text=" Paris.\nIt", logprobs=None, finish_reason="stop", stop_reason=None)
COMPLETION_TOKENS = completion(
    USAGE,
    text=" Paris.",
    logprobs={
        "text_offset": [0, 6],
        "token_logprobs": [-0.25, -1.5],
        "tokens": [" Paris", "."],
        "top_logprobs": [{" Paris": -0.25, " the": -2.0}, {".": -1.5, ",": -1.75}],
    },
)
_MESSAGE: dict[str, Any] = {"role": "assistant", "content": "Paris", "refusal": None, "tool_calls": []}
CHAT = {**completion(USAGE, message=_MESSAGE, logprobs=None, finish_reason="stop"), "object": "chat.completion"}
_ENTRY = {**token(7042, "Paris", -0.25), "top_logprobs": [token(7042, "Paris", -0.25), token(1, "The", -2.5)]}
CHAT_TOKENS: dict[str, Any] = {**CHAT, "choices": [{**CHAT["choices"][0], "logprobs": {"content": [_ENTRY]}}]}
LITELLM: dict[str, Any] = {
    **CHAT,
    "system_fingerprint": None,
    "service_tier": None,
    "choices": [{**CHAT["choices"][0], "provider_specific_fields": {}}],
}
PROMPT_LOGPROBS = completion(
    counts(4),
    text="x",
    logprobs=None,
    prompt_logprobs=[
        None,
        {"98": {"logprob": -1.5, "rank": 2, "decoded_token": "b"}, "120": {"logprob": -0.5, "rank": 1}},
        {"99": {"logprob": -0.75, "rank": 1, "decoded_token": "c"}},
        {"100": {"logprob": -2.25, "rank": 3, "decoded_token": "d"}},
    ],
)
ECHO = completion(
    counts(4),
    text="abcdx",
    logprobs={
        "tokens": [*"abcdx"],
        "token_logprobs": [None, -1.5, -0.75, -2.25, -0.125],
        "top_logprobs": [None, {"b": -1.5}, {"c": -0.75}, {"e": -0.5}, {"x": -0.125}],
        "text_offset": [0, 1, 2, 3, 4],
    },
)
NEXT_TOKEN = completion(
    counts(2),
    text="c",
    logprobs={
        "tokens": ["token_id:99"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{"token_id:99": -0.5, "token_id:97": -1.5, "token_id:98": -2.5}],
        "text_offset": [0],
    },
)
_LIKELIEST = [token(99, "c", -0.5), token(97, "a", -1.5)]
LLAMA: dict[str, Any] = {
    **{"index": 0, "content": "c", "tokens": [], "id_slot": 0, "model": "m"},
    **{"tokens_predicted": 1, "tokens_evaluated": 2, "truncated": False, "timings": {"prompt_n": 2, "prompt_ms": 10.5}},
    **{"stop": True, "stop_type": "limit", "stopping_word": ""},
    "completion_probabilities": [{**token(99, "c", -0.5), "top_logprobs": _LIKELIEST}],
}
STREAM: list[dict[str, Any]] = [
    {**HEAD, "choices": [{"index": 0, "delta": {"role": "assistant", "content": None}, "finish_reason": None}]},
    {**HEAD, "choices": [{"index": 0, "delta": {"content": " Par"}, "logprobs": None, "finish_reason": None}]},
    {**HEAD, "choices": [{"index": 0, "delta": {"content": "is"}, "finish_reason": None}]},
    {**HEAD, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {**HEAD, "choices": [], "usage": USAGE},
]
MODELS: dict[str, Any] = {
    "object": "list",
    "data": [
        {"id": "m", "object": "model", "created": 1, "owned_by": "vllm", "root": "/models/m", "max_model_len": 4096},
        {"id": "n", "object": "model", "owned_by": "llamacpp", "meta": {"n_ctx_train": 2048, "n_vocab": 49152}},
    ],
}
LLAMA_MODELS: dict[str, Any] = {"models": [{"name": "m"}], "object": "list", "data": [MODELS["data"][1]]}
PROPS: dict[str, Any] = {
    "default_generation_settings": {"n_ctx": 2048, "id": 0, "params": {"seed": 1}},
    "total_slots": 2,
    "model_alias": "m",
    "model_path": "/models/m.gguf",
    "chat_template": "{{ x }}",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "build_info": "b1-abc",
}
