"""The `llama-cpp` backend: a llama-server, through its own /completion endpoint and token ids."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from mill.api.model import LOGPROB_KINDS, TEXT_KINDS, ModelCapabilities
from mill.api.request import ALL, Request
from mill.api.response import Response, Token
from mill.api.secrets import excerpt
from mill.models.http import Failure
from mill.models.next_tokens import Distribution, NextTokens
from mill.models.pairs import make_pair, move_spaces
from mill.models.server import ServerModel, messages_of
from mill.models.stops import cut_at_stops

DEFAULT_URL = "http://127.0.0.1:8080"
SCORING_PROBS = 64  # enough for most choices; the whole vocabulary is asked for where it is not
RIVALS = 128  # a distribution of which more is wanted is asked for by `logprobs: "all"`, at megabytes a token


class LlamaCppModel(ServerModel):
    """The server gives no log-probabilities of a prompt, so a continuation is scored token by token from the distribution
    after its prefix; the server's prompt cache makes each step cheap, and choices that share a prefix share the step."""

    def __init__(
        self,
        model: str = "",
        base_url: str = DEFAULT_URL,
        api_key: str | None = None,
        timeout: float = 120.0,
        concurrency: int | None = None,
        use_chat_template: bool = False,
    ) -> None:
        super().__init__(model, base_url, api_key=api_key, timeout=timeout, concurrency=concurrency or 1)
        self._most = concurrency
        self.use_chat_template = use_chat_template
        self.capabilities = _capabilities(None, 1)
        self._props: dict[str, Any] = {}
        self._vocabulary = 0
        self._bos_id: int | None = None
        self._next = NextTokens(self._ask_distribution)

    @property
    def model_name(self) -> str:
        return self.model or str(self._props.get("model_path", "")).rpartition("/")[2] or self.base_url

    def identity(self) -> dict[str, Any]:
        return {
            "backend": "llama-cpp",
            "base_url": self.base_url,
            "model": self.model,
            "served": {name: self._props.get(name) for name in ("model_path", "build_info", "meta")},
            "use_chat_template": self.use_chat_template,
        }

    def _recognize(self) -> None:
        self.client.probe("GET", "/health")
        self._props = dict(self.client.probe("GET", "/props").body)
        entries = self.client.probe("GET", "/v1/models").body.get("data") or [{}]
        self._props["meta"] = entries[0].get("meta") or {}

    def _look(self) -> None:
        self._recognize()
        self._vocabulary = int(self._props["meta"].get("n_vocab", 0))
        bos = str(self._props.get("bos_token") or "")
        if bos:
            body = {"content": bos, "add_special": False, "parse_special": True}
            self._bos_id = next(iter(self.client.probe("POST", "/tokenize", body).body["tokens"]), None)
        slots = int(self._props.get("total_slots", 1))
        self.concurrency = min(slots, self._most or slots)
        if not self.client.steady:  # a width that was asked for stays
            self.client.concurrency = self.concurrency
        self.capabilities = _capabilities(self._window, self.client.concurrency)

    def weight_bytes(self) -> int | None:
        size = self._props["meta"].get("size")
        return int(size) if size else None

    @property
    def _window(self) -> int:
        return int(self._props["default_generation_settings"]["n_ctx"])

    async def _generate(self, request: Request) -> Response:
        options = request.options
        ids = await self._tokenize(await self._render(request))
        cut = max(0, len(ids) - (self._window - options["max_gen_toks"]))
        if cut >= len(ids) and ids:
            raise Failure("http", f"max_gen_toks={options['max_gen_toks']} leaves no room in a context of {self._window}")
        body = {
            "prompt": ids[cut:],
            "n_predict": options["max_gen_toks"],
            "temperature": options["temperature"],
            "stop": [*options["until"]],
            "cache_prompt": True,
            # The server's own sampling defaults are put away: what the task asks for is what is decoded.
            "top_k": options.get("top_k", 0),
            "top_p": options.get("top_p", 1.0),
            "min_p": 0.0,
            "repeat_penalty": options.get("repetition_penalty", 1.0),
            "seed": request.seed % 2**31,
        }
        if "logprobs" in options:
            body["n_probs"] = options["logprobs"]
        reply = await self.client.post("/completion", body)
        text = reply.body.get("content") if isinstance(reply.body, dict) else None
        if not isinstance(text, str):
            raise Failure("garbage", f"the server's answer has no content: {excerpt(str(reply.body), 120)}")
        kept, stopped = cut_at_stops(text, options["until"])
        limited = reply.body.get("stop_type") == "limit" or reply.body.get("stopped_limit")
        return Response(
            text=kept,
            finish_reason="length" if limited and not stopped else "stop",
            tokens=await self._tokens(reply.body) if "logprobs" in options else None,
            prompt_tokens=reply.body.get("tokens_evaluated"),
            output_tokens=reply.body.get("tokens_predicted"),
            truncated_tokens=cut,
            seconds=reply.seconds,
        )

    async def _score(self, request: Request) -> Response:
        context, continuation = move_spaces(await self._render(request), request.continuation)
        whole = await self._tokenize(context + continuation)
        n_context = len(await self._tokenize(context)) if context else 0
        pair = make_pair(whole, n_context, window=self._window - 1, prefix=self._bos_id)
        if not pair.fits:
            return Response(error=f"the continuation is longer than the context of {self._window} tokens")
        asked = request.options.get("logprobs", 0)
        steps = await self._walk(pair.ids, pair.n_context, self._vocabulary if asked == ALL else int(asked))
        answer = Response(
            score=sum(found.logprobs[token] for token, found in zip(pair.continuation, steps, strict=True)),
            is_greedy=all(found.best == token for token, found in zip(pair.continuation, steps, strict=True)),
            prompt_tokens=pair.n_context,
            output_tokens=len(pair.continuation),
            truncated_tokens=pair.truncated,
        )
        return self._told(answer, pair.continuation, steps, asked) if asked else answer

    def _told(self, answer: Response, ids: list[int], steps: list[Distribution], asked: int | str) -> Response:
        """With the continuation's tokens and their rivals, or the whole distribution before each."""
        shown = 1 if asked == ALL else int(asked)
        told = zip(ids, steps, strict=True)
        tokens = tuple(Token(token, "", found.logprobs[token], found.top(shown)) for token, found in told)
        if asked != ALL:
            return replace(answer, tokens=tokens)
        import numpy as np

        whole = np.full((len(steps), self._vocabulary), -np.inf, dtype=np.float32)
        for row, found in zip(whole, steps, strict=True):
            row[list(found.logprobs)] = list(found.logprobs.values())
        return replace(answer, tokens=tokens, distribution=whole)

    async def _score_document(self, request: Request) -> Response:
        ids = await self._tokenize(request.text)
        bos = self._bos_id
        if bos is not None and ids[:1] != [bos]:
            ids = [bos, *ids]
        window, total = self._window - 1, 0.0
        for first in range(1, len(ids), window):
            last = min(first + window, len(ids))
            begin = max(0, last - 1 - window)
            steps = await self._walk(ids[begin:last], first - begin)
            total += sum(found.logprobs[token] for token, found in zip(ids[first:last], steps, strict=True))
        return Response(score=total, prompt_tokens=len(ids) - 1)

    async def _walk(self, ids: list[int], start: int, count: int = 0) -> list[Distribution]:
        """The distribution before each token of ids[start:], with that token in it and at least `count` in all."""
        steps = []
        for place in range(start, len(ids)):
            prefix, token = tuple(ids[:place]), ids[place]
            found = await self._next.after(prefix, max(count, SCORING_PROBS))
            if token not in found.logprobs:
                found = await self._next.after(prefix, self._vocabulary)
            if token not in found.logprobs:
                raise Failure("garbage", f"the server gave no probability for token {token}")
            steps.append(found)
        return steps

    async def _ask_distribution(self, prefix: tuple[int, ...], count: int) -> Distribution:
        body = {"prompt": list(prefix), "n_predict": 1, "n_probs": count, "temperature": 0.0, "cache_prompt": True}
        reply = await self.client.post("/completion", body)
        try:
            pairs = [
                (await self._row_id(row), _row_logprob(row)) for row in _rows(reply.body["completion_probabilities"][0])
            ]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise Failure("garbage", "the server's answer has no probabilities of the next token") from error
        return Distribution(dict(pairs), count)

    async def _tokens(self, body: dict[str, Any]) -> tuple[Token, ...]:
        """The answer's tokens with the likeliest at their places; older servers give probabilities and texts."""
        try:
            tokens = []
            for entry in body["completion_probabilities"]:
                top = [(await self._row_id(row), _row_logprob(row)) for row in _rows(entry)]
                text = entry["token"] if "token" in entry else entry["content"]
                found = int(entry["id"]) if "id" in entry else await self._row_id({"tok_str": text})
                logprob = _row_logprob(entry) if "logprob" in entry else dict(top).get(found, math.nan)
                tokens.append(Token(found, text, logprob, tuple(sorted(top, key=lambda pair: -pair[1]))))
        except (KeyError, TypeError, ValueError) as error:
            raise Failure("garbage", "the server's answer has no probabilities of its tokens") from error
        return tuple(tokens)

    async def _row_id(self, row: dict[str, Any]) -> int:
        """A token's id; older servers name a token by its text alone."""
        if "id" in row:
            return int(row["id"])
        ids = await self._tokenize(row["tok_str"], special=False)
        return ids[0] if len(ids) == 1 else -1

    async def _render(self, request: Request) -> str:
        """Dialogs go through the server's own template."""
        if isinstance(request.context, str) and not self.use_chat_template:
            return request.context
        reply = await self.client.post("/apply-template", {"messages": messages_of(request)})
        return str(reply.body["prompt"])

    async def _tokenize(self, text: str, *, special: bool = True) -> list[int]:
        bos = str(self._props.get("bos_token") or "")
        add = special and not (bos and text.startswith(bos))
        reply = await self.client.post("/tokenize", {"content": text, "add_special": add, "parse_special": special})
        try:
            return [int(token) for token in reply.body["tokens"]]
        except (KeyError, TypeError, ValueError) as error:
            raise Failure("garbage", f"/tokenize answered {excerpt(str(reply.body), 80)}") from error


def _rows(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """The likeliest tokens at a place, in the shapes of newer and older servers."""
    return list(entry.get("top_logprobs") or entry.get("top_probs") or entry["probs"])


def _row_logprob(row: dict[str, Any]) -> float:
    """Newer servers give log-probabilities, older ones probabilities."""
    if "logprob" in row:
        return float(row["logprob"])
    prob = float(row["prob"])
    return math.log(prob) if prob > 0 else -math.inf


def _capabilities(window: int | None, concurrency: int) -> ModelCapabilities:
    return ModelCapabilities(
        max_context_length=window,
        supports_logprobs=True,
        supports_chat_template=True,
        kinds=TEXT_KINDS | LOGPROB_KINDS,
        concurrency=concurrency,
        rivals=RIVALS,
    )
