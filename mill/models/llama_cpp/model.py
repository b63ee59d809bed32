"""One llama-server: its own /completion endpoint, and token ids."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mill.api.errors import ModelError, UnknownName
from mill.api.model import LOGPROB_KINDS, TEXT_KINDS, ModelCapabilities
from mill.api.printing import one_line
from mill.api.request import ALL, Request
from mill.api.response import Response, Token
from mill.api.validate import convert
from mill.models.http import Failure
from mill.models.http.body import BODY_CAP, SCORES_CAP
from mill.models.http.model_names import same_file
from mill.models.http.server import ServerModel, messages_of
from mill.models.http.values import shaped
from mill.models.llama_cpp.schema import (
    LlamaCompletion,
    LlamaModel,
    LlamaModels,
    Position,
    Props,
    Rendered,
    TokenProbability,
    read_completion,
    read_logprob,
)
from mill.models.openai_compat.answers import read_counts
from mill.models.openai_compat.schema import TokenIds
from mill.models.spec.arguments import check_flag
from mill.models.tokens.next_tokens import Distribution, NextTokens
from mill.models.tokens.pairs import make_pair, move_spaces, with_prefix
from mill.models.tokens.stops import cut_at_stops
from mill.models.tokens.windows import rolling_windows

DEFAULT_URL = "http://127.0.0.1:8080"
SCORING_PROBS = 64  # enough for most choices; the whole vocabulary is asked for where it is not
TOP_LOGPROBS = 128  # a distribution of which more is wanted is asked for by `logprobs: "all"`, at megabytes a token


class LlamaCppModel(ServerModel):
    """The server gives no log-probabilities of a prompt, so a continuation is scored token by token from the distribution
    after its prefix; the server's prompt cache makes each step cheap, and choices that share a prefix share the step."""

    start_command = "llama-server -m FILE"
    alternative = "hf[path=FILE]"

    def __init__(
        self,
        model: str = "",
        base_url: str = DEFAULT_URL,
        api_key: str | None = None,
        timeout: float = 120.0,
        concurrency: int | None = None,
        use_chat_template: bool = False,
    ) -> None:
        width = 1 if concurrency is None else concurrency
        super().__init__(model, base_url, api_key=api_key, timeout=timeout, concurrency=width)
        check_flag("use_chat_template", use_chat_template)
        self._most = concurrency
        self.use_chat_template = use_chat_template
        self.capabilities = _capabilities(None, 1)
        self._told: dict[str, Any] = {}
        self._props: Props | None = None
        self._entry = LlamaModel()
        self._vocabulary = 0
        self._bos_id: int | None = None
        self._next = NextTokens(self._ask_distribution)

    @property
    def model_name(self) -> str:
        return self.model or self._file or self.base_url

    @property
    def _file(self) -> str:
        return (self._props.model_path or "").rpartition("/")[2] if self._props else ""

    def identity(self) -> dict[str, Any]:
        return {
            "backend": "llama-cpp",
            "base_url": self.base_url,
            "model": self.model,
            "served": {name: self._told.get(name) for name in ("model_path", "build_info", "meta")},
            "use_chat_template": self.use_chat_template,
        }

    def _identify(self) -> None:
        """What the server has loaded, which must be the model that was asked for."""
        self.client.probe("GET", "/health")
        told = self.client.probe("GET", "/props").body
        listed = self.client.probe("GET", "/v1/models").body
        self._props = convert(told, Props, f"{self.base_url}/props", ModelError)
        found: LlamaModels = convert(listed, LlamaModels, f"{self.base_url}/v1/models", ModelError)
        self._entry = (found.data or [LlamaModel()])[0]
        self._told = {**told, "meta": (listed.get("data") or [{}])[0].get("meta") or {}}
        served = self._names()
        if self.model and served and not any(same_file(self.model, name) for name in served):
            shown = list(dict.fromkeys(one_line(name.rpartition("/")[2] or name) for name in served))
            raise UnknownName(f"model at {self.base_url}", self.model, shown, hint=f"it serves {', '.join(shown)}")

    def _names(self) -> list[str]:
        """The file, and what else the server calls it."""
        props, entry = self._props, self._entry
        named = [props and props.model_path, props and props.model_alias, entry.id, *(entry.aliases or [])]
        return [name for name in named if name]

    def _probe(self) -> None:
        self._identify()
        assert self._props is not None
        self._vocabulary = self._entry.meta.n_vocab if self._entry.meta else 0
        if self._props.bos_token:
            body = {"content": self._props.bos_token, "add_special": False, "parse_special": True}
            found = shaped(self.client.probe("POST", "/tokenize", body).body, TokenIds, "the answer of /tokenize")
            self._bos_id = next(iter(found.tokens), None)
        self.concurrency = min(self._props.total_slots, self._most or self._props.total_slots)
        if not self.client.steady:  # a width that was asked for stays
            self.client.concurrency = self.concurrency
        self.capabilities = _capabilities(self._window, self.client.concurrency)

    def weight_bytes(self) -> int | None:
        return (self._entry.meta.size or None) if self._entry.meta else None

    @property
    def _window(self) -> int:
        assert self._props is not None, "the server is looked at before it is asked"
        return self._props.default_generation_settings.n_ctx

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
        reply = await self._post("/completion", body, SCORES_CAP if "logprobs" in options else BODY_CAP)
        found = read_completion(reply.body)
        kept, stopped = cut_at_stops(found.content, options["until"])
        limited = found.stop_type == "limit" or found.stopped_limit
        counts = {"evaluated": found.tokens_evaluated, "predicted": found.tokens_predicted}
        prompt, output = read_counts(counts, ("evaluated", "predicted"), self._warn)
        return Response(
            text=kept,
            finish_reason="length" if limited and not stopped else "stop",
            tokens=await self._tokens(found) if "logprobs" in options else None,
            prompt_tokens=prompt,
            output_tokens=output,
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
        return self._with_tokens(answer, pair.continuation, steps, asked) if asked else answer

    def _with_tokens(self, answer: Response, ids: list[int], steps: list[Distribution], asked: int | str) -> Response:
        """With the continuation's tokens and their top_logprobs, or the whole distribution before each."""
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
        ids = with_prefix(await self._tokenize(request.text), self._bos_id)
        total = 0.0
        for pair in rolling_windows(ids, self._window - 1):
            steps = await self._walk(pair.ids, pair.n_context)
            total += sum(found.logprobs[token] for token, found in zip(pair.continuation, steps, strict=True))
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
        reply = await self._post("/completion", body, SCORES_CAP)
        positions = read_completion(reply.body).completion_probabilities
        if not positions or not positions[0].rows:
            raise Failure("garbage", "the server's answer has no probabilities of the next token")
        pairs = [(await self._row_id(row), read_logprob(row)) for row in positions[0].rows]
        return Distribution(dict(pairs), count)

    async def _tokens(self, found: LlamaCompletion) -> tuple[Token, ...]:
        """The answer's tokens with the likeliest at their positions; older servers give probabilities and texts."""
        if found.completion_probabilities is None:
            raise Failure("garbage", "the server's answer has no probabilities of its tokens")
        return tuple([await self._token(position) for position in found.completion_probabilities])

    async def _token(self, position: Position) -> Token:
        top = [(await self._row_id(row), read_logprob(row)) for row in position.rows]
        text = position.content if position.token is None else position.token
        if text is None:
            raise Failure("garbage", "the server's answer has a token without a text")
        name = position.id if position.id is not None else await self._row_id(TokenProbability(tok_str=text))
        named = position.logprob is not None or position.prob is not None
        logprob = read_logprob(position) if named else dict(top).get(name)
        if logprob is None:
            raise Failure("garbage", "the server's answer has a token without a probability")
        return Token(name, text, logprob, tuple(sorted(top, key=lambda pair: -pair[1])))

    async def _row_id(self, row: TokenProbability) -> int:
        """A token's id; older servers name a token by its text alone."""
        if row.id is not None:
            return row.id
        if row.tok_str is None:
            raise Failure("garbage", "the server's answer has a token without id and text")
        ids = await self._tokenize(row.tok_str, special=False)
        return ids[0] if len(ids) == 1 else -1

    async def _render(self, request: Request) -> str:
        """Dialogs go through the server's own template."""
        if isinstance(request.context, str) and not self.use_chat_template:
            return request.context
        reply = await self.client.post("/apply-template", {"messages": messages_of(request)})
        return shaped(reply.body, Rendered, "the answer of /apply-template").prompt

    async def _tokenize(self, text: str, *, special: bool = True) -> list[int]:
        bos = (self._props.bos_token if self._props else None) or ""
        add = special and not (bos and text.startswith(bos))
        body = {"content": text, "add_special": add, "parse_special": special}
        reply = await self.client.post("/tokenize", body, SCORES_CAP)
        return shaped(reply.body, TokenIds, "the answer of /tokenize").tokens


def _capabilities(window: int | None, concurrency: int) -> ModelCapabilities:
    return ModelCapabilities(
        max_context_length=window,
        supports_logprobs=True,
        supports_chat_template=True,
        kinds=TEXT_KINDS | LOGPROB_KINDS,
        concurrency=concurrency,
        top_logprobs=TOP_LOGPROBS,
    )
