"""What passes between mill's requests and vLLM: sampling parameters, and answers with their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mill.api.message import VIDEO
from mill.api.request import Request
from mill.api.response import Response, Token
from mill.models.hf.multimodal import MediaRow
from mill.models.tokens.next_tokens import requested_top_logprobs
from mill.models.tokens.rows import Row
from mill.models.tokens.stops import cut_at_stops

SAMPLED_LOGPROBS = 20  # what vLLM gives by default for a token


def sampling(request: Request) -> Any:
    from vllm import SamplingParams

    options = request.options
    sampled = {name: options[name] for name in ("top_p", "top_k", "repetition_penalty") if options.get(name)}
    if not request.deterministic:
        sampled["seed"] = request.seed % 2**31
    return SamplingParams(
        max_tokens=options["max_gen_toks"],
        temperature=options["temperature"],
        stop=[*options["until"]] or None,
        logprobs=options.get("logprobs"),
        **sampled,
    )


def as_text(request: Request, output: Any, truncated: int = 0) -> Response:
    answer = output.outputs[0]
    text, _ = cut_at_stops(answer.text, request.options["until"])
    return Response(
        text=text,
        finish_reason=answer.finish_reason,
        tokens=named_tokens(answer.token_ids, answer.logprobs) if answer.logprobs else None,
        prompt_tokens=len(output.prompt_token_ids),
        output_tokens=len(answer.token_ids),
        truncated_tokens=truncated,
    )


def by_kind(row: MediaRow, decoded: Sequence[Any]) -> dict[str, list[Any]]:
    """A row's media as vLLM takes them: a video is an array of frames."""
    import numpy as np

    found: dict[str, list[Any]] = {}
    for media, one in zip(row.request.media, decoded, strict=True):
        found.setdefault(media.kind, []).append(np.stack(one) if media.kind == VIDEO else one)
    return found


def one_token(row: Row) -> bool:
    """Whether the distribution after a row answers all that is asked of it."""
    asked = not any(map(top_logprobs_of, row.requests))
    return asked and all(len(span.tokens) == 1 and span.start == len(row.ids) - 1 for span in row.spans)


def top_logprobs_of(request: Request) -> int:
    return requested_top_logprobs(request, SAMPLED_LOGPROBS, "vLLM")


def named_tokens(tokens: Sequence[int], places: Sequence[Any]) -> tuple[Token, ...]:
    """Tokens with their top_logprobs; vLLM adds the token itself to the likeliest where it is not among them."""
    found = []
    for token, place in zip(tokens, places, strict=True):
        best = sorted(((other, entry.logprob) for other, entry in place.items()), key=lambda pair: -pair[1])
        found.append(Token(token, place[token].decoded_token or "", place[token].logprob, tuple(best)))
    return tuple(found)


def as_score(row: Row, span: Any, answer: tuple[float, bool] | None, tokens: tuple[Token, ...] | None = None) -> Response:
    if answer is None:
        return Response(error="the engine gave no log-probability")
    return Response(
        score=answer[0],
        is_greedy=answer[1],
        tokens=tokens,
        prompt_tokens=len(row.ids) + 1 - len(span.tokens),
        output_tokens=len(span.tokens),
        truncated_tokens=span.truncated,
    )
