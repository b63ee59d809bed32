"""Log-probabilities of a prompt over OpenAI's API: which way the server offers them, and how they are read.

`prompt_logprobs` (vLLM) names tokens by id and tells their rank; `echo` is OpenAI's own, kept by many servers. The next
token's distribution by id, where the server gives it, is the cheapest way to score a choice of one token: unlike the two
others it lets the server use its prefix cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from mill.models.http import Client, Failure
from mill.models.next_tokens import Distribution
from mill.models.openai_compat.answers import TOKEN_ID, token_name

PROBE = "one two three"
PROBE_TIMEOUT_S = 60.0
NEXT_TOKENS = 20  # the most that servers give by default
TIE = 1e-9
UNREADABLE = (KeyError, IndexError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True)
class Scored:
    """A prompt's tokens: the log-probability of each, None for the first, and whether it was the likeliest at its place.

    `offsets` are the tokens' places in the prompt's text, where the server tells them. `tops` are the likeliest tokens at
    each place, by id or by text.
    """

    logprobs: list[float | None]
    likeliest: list[bool]
    offsets: list[int] | None = None
    tops: list[dict[int | str, float]] | None = None


class Route(ABC):
    """One way to score prompts: `ask` makes the body of a call, `read` reads its answer and raises where it is none.

    `rivals` is how many of the likeliest tokens are wanted at each place.
    """

    name = ""

    @abstractmethod
    def ask(self, prompt: str | list[int], rivals: int = 0) -> dict[str, Any]: ...

    @abstractmethod
    def read(self, choice: dict[str, Any], prompt: str | list[int]) -> Scored: ...


class PromptLogprobs(Route):
    name = "prompt_logprobs"

    def ask(self, prompt: str | list[int], rivals: int = 0) -> dict[str, Any]:
        return {"prompt": prompt, "max_tokens": 1, "prompt_logprobs": rivals, "temperature": 0.0}

    def read(self, choice: dict[str, Any], prompt: str | list[int]) -> Scored:
        places = choice["prompt_logprobs"]
        if isinstance(prompt, list):
            chosen = [place[str(token)] if place else None for place, token in zip(places, prompt, strict=True)]
        else:
            chosen = [next(iter(place.values())) if place else None for place in places]
        return Scored(
            [float(entry["logprob"]) if entry else None for entry in chosen],
            [bool(entry and entry["rank"] == 1) for entry in chosen],
            tops=[{int(token): float(one["logprob"]) for token, one in (place or {}).items()} for place in places],
        )


class Echo(Route):
    name = "echo"

    def ask(self, prompt: str | list[int], rivals: int = 0) -> dict[str, Any]:
        by_id = {"return_tokens_as_token_ids": True} if rivals else {}  # vLLM's own; others ignore it
        return {"prompt": prompt, "max_tokens": 1, "echo": True, "logprobs": max(1, rivals), "temperature": 0.0, **by_id}

    def read(self, choice: dict[str, Any], prompt: str | list[int]) -> Scored:
        """The last entry is of the one token that had to be generated, and is left out."""
        found = choice["logprobs"]
        logprobs, tops = found["token_logprobs"], found["top_logprobs"]
        if isinstance(prompt, list) and len(logprobs) != len(prompt) + 1:
            raise ValueError(f"{len(logprobs)} log-probabilities for {len(prompt)} tokens and one more")
        likeliest = [
            bool(score is not None and top and score >= max(top.values()) - TIE)
            for score, top in zip(logprobs, tops, strict=True)
        ]
        offsets = found.get("text_offset")
        named = [{token_name(token): float(value) for token, value in (top or {}).items()} for top in tops[:-1]]
        return Scored(logprobs[:-1], likeliest[:-1], offsets[:-1] if offsets else None, named)


async def score_prompt(
    client: Client, route: Route, prompt: str | list[int], extra: dict[str, Any], rivals: int = 0
) -> Scored:
    """A prompt through a route; an answer that is none is a Failure."""
    reply = await client.post("/v1/completions", {**route.ask(prompt, rivals), **extra})
    try:
        return route.read(reply.body["choices"][0], prompt)
    except UNREADABLE as error:
        raise Failure(
            "garbage", f"the server's log-probabilities cannot be read: {error or type(error).__name__}"
        ) from error


ROUTES: tuple[Route, ...] = (PromptLogprobs(), Echo())


def find_route(client: Client, model: str, wanted: str | None = None) -> Route | None:
    """The first route the server answers with scores of a prompt; it may refuse or ignore the others."""
    for route in ROUTES:
        if wanted not in (None, route.name):
            continue
        try:
            found = _probe(client, {"model": model, **route.ask(PROBE)})
            scored = route.read(found, PROBE)
        except UNREADABLE:
            continue
        except Failure as failure:
            if failure.status not in (400, 422, 501):
                raise
            continue
        if len(scored.logprobs) >= 3 and None not in scored.logprobs[1:]:
            return route
    return None


def names_next_tokens(client: Client, model: str) -> bool:
    """Whether the server gives the likeliest next tokens by id."""
    try:
        _next_distribution(_probe(client, next_tokens_body(model, PROBE)))
    except (Failure, *UNREADABLE):
        return False
    return True


def next_tokens_body(model: str, prompt: str | list[int]) -> dict[str, Any]:
    asked = {"logprobs": NEXT_TOKENS, "return_tokens_as_token_ids": True}
    return {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0.0, **asked}


def read_next_tokens(body: Any) -> Distribution:
    try:
        return _next_distribution(body["choices"][0])
    except UNREADABLE as error:
        raise Failure("garbage", "the server's answer has no distribution of the next token") from error


def _next_distribution(choice: dict[str, Any]) -> Distribution:
    top = choice["logprobs"]["top_logprobs"][0]
    if not all(name.startswith(TOKEN_ID) for name in top):
        raise ValueError("tokens are not named by id")
    return Distribution({int(token_name(name)): float(value) for name, value in top.items()}, NEXT_TOKENS)


def _probe(client: Client, body: dict[str, Any]) -> dict[str, Any]:
    choice = client.probe("POST", "/v1/completions", body, timeout=PROBE_TIMEOUT_S).body["choices"][0]
    return dict(choice)
