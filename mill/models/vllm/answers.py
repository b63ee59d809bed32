"""Conversion between mill and vLLM: requests to sampling parameters, outputs to responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mill.api.message import VIDEO
from mill.api.reasoning import tags_of
from mill.api.request import Request
from mill.api.response import Response, Token
from mill.models.media.inputs import MediaRow, video_metadata
from mill.models.tokens.reasoning import decoded_text, marks_of, read_text, reasoning_tokens, special_marks
from mill.models.tokens.rows import Row
from mill.models.tokens.scores import requested_top_logprobs
from mill.models.vllm.parsers import Parsers

SAMPLED_LOGPROBS = 20  # vLLM's default maximum for a token


def sampling(request: Request, *, stops: bool = True, skip_special_tokens: bool = True) -> Any:
    """Without `stops` the engine generates to the end of the answer, which mill cuts: they may be in the reasoning too."""
    from vllm import SamplingParams

    options = request.options
    sampled = {name: options[name] for name in ("top_p", "top_k", "repetition_penalty") if options.get(name)}
    if not request.deterministic:
        sampled["seed"] = request.seed % 2**31
    return SamplingParams(
        max_tokens=options["max_gen_toks"],
        temperature=options["temperature"],
        stop=[*options["until"]] or None if stops else None,
        logprobs=options.get("logprobs"),
        skip_special_tokens=skip_special_tokens,
        **sampled,
    )


def as_text(
    request: Request, output: Any, tokenizer: Any, parsers: Parsers, truncated: int = 0, *, opened: bool = False
) -> Response:
    completion, stops = output.outputs[0], request.options["until"]
    if parsers:
        answer = parsers.read(request, completion.text, stops, tokenizer, opened=opened)
    else:
        answer = read_text(request, _text(completion, tokenizer, request), stops, opened=opened)
    return Response(
        text=answer.text,
        reasoning=answer.reasoning,
        tool_calls=answer.tool_calls,
        reasoning_tokens=_reasoning_tokens(request, completion.token_ids, tokenizer, parsers) if answer.reasoning else None,
        finish_reason="stop" if answer.stopped else completion.finish_reason,
        tokens=with_top_logprobs(completion.token_ids, completion.logprobs) if completion.logprobs else None,
        prompt_tokens=len(output.prompt_token_ids),
        output_tokens=len(completion.token_ids),
        truncated_tokens=truncated,
    )


def _reasoning_tokens(request: Request, ids: Sequence[int], tokenizer: Any, parsers: Parsers) -> int | None:
    if parsers.reasoning:
        return parsers.reasoning_tokens(request, ids, tokenizer)
    tags = tags_of(request)
    return reasoning_tokens(tokenizer, ids, tags) if tags is not None else None


def _text(completion: Any, tokenizer: Any, request: Request) -> str:
    """The engine's text. It leaves out special tokens: where marks are among them, the ids are decoded here."""
    marks = marks_of(request)
    if not special_marks(tokenizer, marks):
        return str(completion.text)
    return decoded_text(tokenizer, completion.token_ids, marks)


def media_by_kind(row: MediaRow, decoded: Sequence[Any]) -> dict[str, list[Any]]:
    """A row's media in vLLM's format: a video is an array of frames with their times."""
    import numpy as np

    by_kind: dict[str, list[Any]] = {}
    for media, content in zip(row.request.media, decoded, strict=True):
        if media.kind == VIDEO:
            times = {name: value for name, value in video_metadata(content).items() if value is not None}
            content = np.stack(content.frames), {**times, "do_sample_frames": False}
        by_kind.setdefault(media.kind, []).append(content)
    return by_kind


def one_token(row: Row) -> bool:
    """Whether the distribution after the row scores all of its requests."""
    if any(map(top_logprobs_of, row.requests)):
        return False
    return all(len(span.tokens) == 1 and span.start == len(row.ids) - 1 for span in row.spans)


def top_logprobs_of(request: Request) -> int:
    return requested_top_logprobs(request, SAMPLED_LOGPROBS, "vLLM")


def with_top_logprobs(ids: Sequence[int], positions: Sequence[Any]) -> tuple[Token, ...]:
    """Tokens with their top_logprobs, to which vLLM adds the token itself where it is not among them."""
    tokens = []
    for token, entries in zip(ids, positions, strict=True):
        best = sorted(((other, entry.logprob) for other, entry in entries.items()), key=lambda pair: -pair[1])
        tokens.append(Token(token, entries[token].decoded_token or "", entries[token].logprob, tuple(best)))
    return tuple(tokens)


def as_score(row: Row, span: Any, score: tuple[float, bool] | None, tokens: tuple[Token, ...] | None = None) -> Response:
    if score is None:
        return Response(error="the engine gave no log-probability")
    return Response(
        score=score[0],
        is_greedy=score[1],
        tokens=tokens,
        prompt_tokens=len(row.ids) + 1 - len(span.tokens),
        output_tokens=len(span.tokens),
        truncated_tokens=span.truncated,
    )
