"""Log-probabilities of a prompt over the OpenAI API: which parameters the server supports, and reading its response.

`prompt_logprobs` (vLLM) gives tokens by id with their rank; `echo` is OpenAI's legacy parameter, which many servers have.
The distribution of the next token by id, if the server gives it, is the cheapest way to score a choice of one token: unlike
the other two it uses the server's prefix cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from mill.api.response import Response, Token
from mill.models.http.client import Client
from mill.models.http.failures import Failure, log_probability, shaped, token_count
from mill.models.openai_compat.answers import (
    Choice,
    Completion,
    Logprobs,
    PromptToken,
    PromptTokens,
    read_choice,
    read_finish,
    read_logprobs,
    token_name,
)
from mill.models.tokens.scores import Distribution

BOS = -1  # the offset of a BOS that the server added before the prompt
_MARKS = str.maketrans({"Ġ": " ", "▁": " ", "Ċ": "\n"})  # how tokenizers write spaces in tokens


def prompt_starts(logprobs: Logprobs, prompt: str) -> list[int] | None:
    """The offset of each token of the prompt, from the texts of the tokens, which may have a BOS or a space of the tokenizer
    in front; generated tokens, which follow the prompt, are left out.

    None if the texts do not add up to the prompt: bytes of a split character have no text, and shift all later offsets.
    """
    tokens = [str(token) for token in logprobs.tokens or []]
    if len(tokens) != len(logprobs.token_logprobs or []):
        return None
    for texts in (tokens, [token.translate(_MARKS) for token in tokens]):
        whole, ends = "".join(texts), list(accumulate(map(len, texts)))
        for lead in _leads(texts):
            if whole.startswith(prompt, lead):
                starts = [max(0, end - len(text) - lead) for text, end in zip(texts, ends, strict=True)]
                starts = [BOS, *starts[1:]] if ends[0] == lead else starts
                return [start for start in starts if start < len(prompt)]
    return None


def _leads(texts: list[str]) -> Iterator[int]:
    """How many characters there may be before the prompt."""
    yield 0
    if texts and texts[0]:
        yield len(texts[0])
        if texts[0].startswith(" "):
            yield 1


PROBE = "one two three"
PROBE_TIMEOUT_S = 60.0
NEXT_TOKENS = 20  # the default maximum of servers
TIE = 1e-9


@dataclass(frozen=True)
class Scored:
    """A prompt's tokens: the log-probability of each, None for the first, and whether it is the argmax of its position.

    `starts` are the character offsets of the tokens of a text, if the server gives them; a BOS that the server added has -1.
    `tops` are the top_logprobs of each position, by id or by text.
    """

    logprobs: list[float | None]
    greedy: list[bool]
    tops: list[dict[int | str, float]]
    starts: list[int] | None = None

    def scores(self, first: int) -> list[float]:
        """The log-probabilities from one token on; raises Failure where one is missing."""
        scores = [score for score in self.logprobs[first:] if score is not None]
        if not scores or len(scores) < len(self.logprobs) - first:
            raise Failure("garbage", "the server left out a log-probability")
        return scores

    def response(self, first: int, truncated: int = 0, ids: Sequence[int] = ()) -> Response:
        """The response to a request whose continuation begins at this token. With the ids of the continuation it has tokens
        with top_logprobs, unless the server names those by text, which several ids may share."""
        scores, tops = self.scores(first), [sorted(top.items(), key=lambda pair: -pair[1]) for top in self.tops[first:]]
        by_id = ids and not any(isinstance(name, str) for top in tops for name, _ in top)
        entries = zip(ids, scores, tops, strict=True) if by_id else ()
        return Response(
            score=float(sum(scores)),
            is_greedy=all(self.greedy[first:]),
            tokens=tuple(Token(token, "", score, tuple(top)) for token, score, top in entries) or None,
            prompt_tokens=first,
            output_tokens=len(scores),
            truncated_tokens=truncated,
        )


class PromptLogprobs:
    """`body` makes a request, `read` reads its response and raises Failure if it is not valid."""

    name = "prompt_logprobs"

    def body(self, prompt: str | list[int], top_logprobs: int = 0) -> dict[str, Any]:
        return {"prompt": prompt, "max_tokens": 1, "prompt_logprobs": top_logprobs, "temperature": 0.0}

    def read(self, completion: Completion, choice: Choice, prompt: str | list[int]) -> Scored:
        rows = shaped({"rows": choice.prompt_logprobs or []}, PromptTokens, "prompt_logprobs of the server's answer").rows
        if not rows or (isinstance(prompt, list) and len(rows) != len(prompt)):
            raise _unreadable(f"{len(rows)} entries of prompt_logprobs for {len(prompt)} tokens")
        names = [str(token) for token in prompt] if isinstance(prompt, list) else [next(iter(row or {}), "") for row in rows]
        chosen = [_chosen(row, name) for row, name in zip(rows, names, strict=True)]
        return Scored(
            [log_probability(entry.logprob) if entry else None for entry in chosen],
            [entry is not None and entry.rank == 1 for entry in chosen],
            [{_token_id(name): log_probability(entry.logprob) for name, entry in (row or {}).items()} for row in rows],
        )


def _chosen(row: dict[str, PromptToken] | None, name: str) -> PromptToken | None:
    if row and name not in row:
        raise _unreadable(f"token {name} of the prompt is not among those that the server scored")
    return row[name] if row else None


def _token_id(name: str) -> int:
    if not name.isdecimal():
        raise _unreadable(f"{name[:40]!r} is no token id")
    return int(name)


class Echo:
    """As PromptLogprobs, with the parameter of OpenAI's first completions."""

    name = "echo"

    def body(self, prompt: str | list[int], top_logprobs: int = 0) -> dict[str, Any]:
        by_id = {"return_tokens_as_token_ids": True} if top_logprobs else {}  # only vLLM has it; others ignore it
        return {
            "prompt": prompt,
            "max_tokens": 1,
            "echo": True,
            "logprobs": max(1, top_logprobs),
            "temperature": 0.0,
            **by_id,
        }

    def read(self, completion: Completion, choice: Choice, prompt: str | list[int]) -> Scored:
        logprobs = read_logprobs(choice) or Logprobs()
        scores, tops = logprobs.token_logprobs or [], logprobs.top_logprobs or []
        if not scores or len(scores) != len(tops):
            raise _unreadable(f"{len(scores)} log-probabilities, but top_logprobs of {len(tops)} tokens")
        if isinstance(prompt, list):
            starts, count = None, _count_of_prompt(completion, len(scores), len(prompt))
        else:
            starts = prompt_starts(logprobs, prompt)
            count = len(scores) - 1 if starts is None else len(starts)  # without offsets: all but one generated token
        checked = [None if score is None else log_probability(score) for score in scores[:count]]
        named = [{token_name(token): log_probability(value) for token, value in (top or {}).items()} for top in tops[:count]]
        greedy = [
            score is not None and bool(top) and score >= max(top.values()) - TIE
            for score, top in zip(checked, named, strict=True)
        ]
        return Scored(checked, greedy, named, starts)


def _count_of_prompt(completion: Completion, entries: int, tokens: int) -> int:
    """How many entries belong to a prompt of `tokens` tokens.

    One more belongs to the generated token. A server may leave it out, or generate more tokens, which its usage must
    confirm: otherwise it may have added a BOS before the prompt.
    """
    usage = completion.usage if isinstance(completion.usage, dict) else {}
    prompt, generated = (token_count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens"))
    more = entries - tokens
    added_bos = prompt == tokens + 1 and more == (generated or 0) + 1
    if more < 0 or added_bos or (more > 1 and generated != more):
        raise _unreadable(f"{entries} log-probabilities for {tokens} tokens and one more")
    return tokens


def _unreadable(why: str) -> Failure:
    return Failure("garbage", f"the server's log-probabilities cannot be read: {why}")


def read_scored(body: Any, route: Route, prompt: str | list[int]) -> Scored:
    completion, choice = read_choice(body)
    read_finish(choice)
    return route.read(completion, choice, prompt)


Route = PromptLogprobs | Echo
ROUTES: tuple[Route, ...] = (PromptLogprobs(), Echo())


def find_route(client: Client, model: str, wanted: str | None = None) -> Route | None:
    """The first route for which the server returns scores of a prompt; it may refuse or ignore the others."""
    for route in ROUTES:
        if wanted not in (None, route.name):
            continue
        try:
            scored = read_scored(_probe(client, {"model": model, **route.body(PROBE)}), route, PROBE)
        except Failure as failure:
            if failure.kind not in ("reported", "garbage") and failure.status not in (400, 422, 501):
                raise
            continue
        if len(scored.logprobs) >= 3 and None not in scored.logprobs[1:]:
            return route
    return None


def names_next_tokens(client: Client, model: str) -> bool:
    """Whether the server gives the top_logprobs of the next token by id."""
    try:
        read_next_tokens(_probe(client, next_tokens_body(model, PROBE)))
    except Failure:
        return False
    return True


def next_tokens_body(model: str, prompt: str | list[int]) -> dict[str, Any]:
    logprobs = {"logprobs": NEXT_TOKENS, "return_tokens_as_token_ids": True}
    return {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0.0, **logprobs}


def read_next_tokens(body: Any) -> Distribution:
    """The distribution after a prompt, by token id."""
    choice = read_choice(body)[1]
    read_finish(choice)
    logprobs = read_logprobs(choice) or Logprobs()
    top = (logprobs.top_logprobs or [None])[0] or {}
    named = {token_name(name): log_probability(value) for name, value in top.items()}
    by_id = {name: value for name, value in named.items() if isinstance(name, int)}
    if not by_id or len(by_id) != len(top):
        raise Failure("garbage", "the server's answer has no distribution of the next token by id")
    return Distribution(by_id)


def _probe(client: Client, body: dict[str, Any]) -> Any:
    return client.probe("POST", "/v1/completions", body, timeout=PROBE_TIMEOUT_S).body
