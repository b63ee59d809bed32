"""The responses of llama-server, new and old versions. Fields that are not named here are not read."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from mill.models.http.body import log_of, log_probability, shaped
from mill.models.http.failures import Failure

Positive = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class Settings(msgspec.Struct):
    n_ctx: Annotated[int, msgspec.Meta(ge=2)]


class Props(msgspec.Struct):
    """The response of /props: the server and its loaded file."""

    default_generation_settings: Settings
    total_slots: Positive = 1
    bos_token: str | None = None
    model_path: str | None = None
    model_alias: str | None = None
    chat_template: str | None = None


class Meta(msgspec.Struct):
    n_vocab: Count = 0
    size: Count | None = None


class LlamaModel(msgspec.Struct):
    id: str | None = None
    meta: Meta | None = None
    aliases: list[str] | None = None


class LlamaModels(msgspec.Struct):
    data: list[LlamaModel] | None = None


class TokenProbability(msgspec.Struct):
    """One of the top_logprobs at a position: by id with a log-probability, or by text with a probability."""

    id: Count | None = None
    tok_str: str | None = None
    logprob: float | None = None
    prob: float | None = None


class Position(msgspec.Struct):
    id: Count | None = None
    token: str | None = None
    content: str | None = None
    logprob: float | None = None
    prob: float | None = None
    top_logprobs: list[TokenProbability] | None = None
    top_probs: list[TokenProbability] | None = None
    probs: list[TokenProbability] | None = None

    @property
    def rows(self) -> list[TokenProbability]:
        return self.top_logprobs or self.top_probs or self.probs or []


class LlamaCompletion(msgspec.Struct):
    content: str
    stop: bool | None = None
    stop_type: str | None = None
    stopped_limit: bool | None = None
    tokens_evaluated: Any = None
    tokens_predicted: Any = None
    completion_probabilities: list[Position] | None = None


class Rendered(msgspec.Struct):
    """The response of /apply-template."""

    prompt: str


def read_completion(body: Any) -> LlamaCompletion:
    """A whole response; one that did not stop is refused."""
    completion = shaped(body, LlamaCompletion, "the server's answer")
    if completion.stop is False:
        raise Failure("cut", "the server's answer is not complete: it did not stop")
    return completion


def read_logprob(row: TokenProbability | Position) -> float:
    """Newer servers give log-probabilities, older ones probabilities."""
    if row.logprob is not None:
        return log_probability(row.logprob)
    if row.prob is not None:
        return log_of(row.prob)
    raise Failure("garbage", "the server's answer has a token without a probability")
