"""Responses: text, a score or a label, with tokens and timings, or an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from mill.api.tools import ToolCall, ToolResult
from mill.support.files import encode_float

ROUNDING = 1e-3
"""16-bit engines may give a certain token a probability slightly above 1; a larger log-probability is an error."""


@dataclass(frozen=True, slots=True)
class Token:
    """A generated token. `top` has the `top_logprobs` at its position, best first, as natural logarithms.

    Tokens in `top` are named by id where the engine gives it, else by their text.
    """

    id: int | None
    text: str
    logprob: float
    top: tuple[tuple[int | str, float], ...] = ()

    @property
    def name(self) -> int | str:
        """The name of this token in `top`."""
        return self.text if self.id is None else self.id

    def to_list(self) -> list[Any]:
        return [self.id, self.text, encode_float(self.logprob), [[name, encode_float(value)] for name, value in self.top]]

    @classmethod
    def from_list(cls, data: list[Any]) -> Token:
        found, text, logprob, top = data
        return cls(found, text, float(logprob), tuple((name, float(value)) for name, value in top))


@dataclass
class Response:
    """An answer or an error, never both. It does not change once a backend has returned it; it is not frozen because
    building a frozen dataclass takes three times as long, and every answer is one.

    `text` is the answer; the `reasoning` before it is beside it, with its number of tokens where that is known (they
    are among the `output_tokens` too). `cached_tokens` are those of the prompt that a server had in its cache, where it says
    so. `tool_calls` are the calls in an answer, `tool_results` what came of them.
    `score` is a sum of natural-log probabilities; `truncated_tokens` counts prompt tokens that were cut on the left.
    `ranking` holds the best labels of a classification with their scores, best first; `label` is the first of them.
    `tokens` are those of a generated answer or of a scored continuation, where they were requested and the engine gives
    them. `distribution` holds, for a continuation scored with `logprobs: "all"`, the log-probabilities of the whole
    vocabulary before each of its tokens: an array as the backend gives it, the name of its file once it is recorded.
    `engine` is the id of what gave the answer (see `mill.api.engine`); `system_fingerprint` and `provider` came with it.
    `first_token_s` is of streamed answers. `retries` counts the calls to a server that had to be made again, the last for
    `retry_reason`; their time and pauses are in `seconds`.
    """

    text: str | None = None
    score: float | None = None
    is_greedy: bool | None = None
    label: str | None = None
    ranking: tuple[tuple[str, float], ...] | None = None
    tokens: tuple[Token, ...] | None = None
    error: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    truncated_tokens: int = 0
    seconds: float | None = None
    first_token_s: float | None = None
    retries: int = 0
    retry_reason: str | None = None
    reasoning: str | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_results: tuple[ToolResult, ...] = ()
    distribution: Any = field(default=None, compare=False, repr=False)
    engine: str | None = field(default=None, compare=False)
    system_fingerprint: str | None = field(default=None, compare=False)
    provider: str | None = field(default=None, compare=False)

    @property
    def failed(self) -> bool:
        return self.error is not None

    @property
    def plain_score(self) -> bool:
        """Whether it is a score of a whole prompt, of which there is nothing else to say."""
        return self.score is not None and not self.truncated_tokens and self.finish_reason is None

    @property
    def empty(self) -> bool:
        return self._without_text and self.reasoning is None

    @property
    def truncated_reasoning(self) -> bool:
        """Whether it ended inside of its reasoning, so that there is no answer."""
        return self._without_text and self.reasoning is not None

    @property
    def _without_text(self) -> bool:
        answered = self.error is not None or self.score is not None or self.label is not None or bool(self.tool_calls)
        return not answered and not (self.text or "").strip()

    def timed(self, seconds: float) -> Response:
        """The same answer with the time it took, where it has none."""
        return self if self.seconds is not None else Response(**{**self.__dict__, "seconds": seconds})

    def to_dict(self) -> dict[str, Any]:
        """Only what is set; non-finite numbers as strings, so that the line stays JSON."""
        out = {name: value for name, value in self.__dict__.items() if value is not None}
        for name in ("truncated_tokens", "retries", "tool_calls", "tool_results"):
            if not out[name]:
                del out[name]
        if "score" in out:
            out["score"] = encode_float(out["score"])
        if "ranking" in out:
            out["ranking"] = [[label, encode_float(score)] for label, score in out["ranking"]]
        if "tokens" in out:
            out["tokens"] = [token.to_list() for token in out["tokens"]]
        for name in ("tool_calls", "tool_results"):
            if name in out:
                out[name] = [entry.to_dict() for entry in out[name]]
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Response:
        known = {name: value for name, value in data.items() if name in _FIELDS and value is not None}
        if "score" in known:
            known["score"] = float(known["score"])
        if "ranking" in known:
            known["ranking"] = tuple((label, float(score)) for label, score in known["ranking"])
        if "tokens" in known:
            known["tokens"] = tuple(map(Token.from_list, known["tokens"]))
        if "tool_calls" in known:
            known["tool_calls"] = tuple(map(ToolCall.from_dict, known["tool_calls"]))
        if "tool_results" in known:
            known["tool_results"] = tuple(map(ToolResult.from_dict, known["tool_results"]))
        return cls(**known)


_FIELDS = {f.name for f in fields(Response)}
