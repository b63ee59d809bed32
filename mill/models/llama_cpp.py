"""The `llama-cpp` backend: one model on a llama-server, through its /completion endpoint with token ids."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import msgspec

from mill.api.errors import ModelError, UnknownName
from mill.api.model import LOGPROB_KINDS, TEXT_KINDS, ModelCapabilities
from mill.api.request import ALL, Request
from mill.api.response import Response, Token
from mill.models.http.failures import BODY_CAP, SCORES_CAP, Failure, log_probability, shaped
from mill.models.http.probes import renders_open, same_file
from mill.models.http.server import ServerModel, messages_of
from mill.models.openai_compat.answers import TokenIds, read_counts
from mill.models.spec.open import check_flag
from mill.models.tokens.reasoning import opens_reasoning, read_text
from mill.models.tokens.rows import with_prefix
from mill.models.tokens.scores import Distribution, NextTokens
from mill.models.tokens.tokenizer import check_variables, rolling_windows, takes_tools, template_variables, wanted
from mill.models.tokens.tool_calls import WARNING, describe_tools
from mill.support.terminal import one_line
from mill.support.validate import convert

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
    id: Count
    logprob: float


class Position(TokenProbability):
    token: str
    top_logprobs: list[TokenProbability] | None = None


class LlamaCompletion(msgspec.Struct):
    content: str
    stop: bool | None = None
    stop_type: str | None = None
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


def read_tokens(completion: LlamaCompletion) -> tuple[Token, ...]:
    """The answer's tokens with their top_logprobs."""
    if completion.completion_probabilities is None:
        raise Failure("garbage", "the server's answer has no probabilities of its tokens")
    positions = completion.completion_probabilities
    tops = [tuple(sorted(read_top(position).items(), key=lambda pair: -pair[1])) for position in positions]
    return tuple(
        Token(position.id, position.token, log_probability(position.logprob), top)
        for position, top in zip(positions, tops, strict=True)
    )


def read_top(position: Position) -> dict[int, float]:
    """The top_logprobs of a position by id."""
    return {row.id: log_probability(row.logprob) for row in position.top_logprobs or []}


NEUTRAL_AT_0 = (
    "min_p", "presence_penalty", "frequency_penalty", "dry_multiplier", "xtc_probability", "dynatemp_range", "mirostat",
)  # fmt: skip
DEFAULT_URL = "http://127.0.0.1:8080"
SCORING_PROBS = 64  # enough for most choices; otherwise the whole vocabulary is requested
TOP_LOGPROBS = 128  # more are requested with `logprobs: "all"`, at megabytes a token


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
        initial = 1 if concurrency is None else concurrency  # until the probe reads the server's number of slots
        super().__init__(model, base_url, api_key=api_key, timeout=timeout, concurrency=initial)
        check_flag("use_chat_template", use_chat_template)
        self._max_concurrency = concurrency
        self.use_chat_template = use_chat_template
        self._props = Props(Settings(0))  # until the probe
        self._entry = LlamaModel()
        self._vocabulary = 0
        self._bos_id: int | None = None
        self._next = NextTokens(self._fetch_distribution)

    @property
    def model_name(self) -> str:
        return self.model or self._file or self.base_url

    @property
    def _file(self) -> str:
        return (self._props.model_path or "").rpartition("/")[2]

    def identity(self) -> dict[str, Any]:
        return {
            "backend": "llama-cpp",
            "base_url": self.base_url,
            "model": self.model,
            "served": {name: self._served.get(name) for name in ("model_path", "build_info", "meta")},
            "use_chat_template": self.use_chat_template,
        }

    def _identify(self) -> None:
        """Read the loaded model, which must be the requested one."""
        self.client.probe("GET", "/health")
        props = self.client.probe("GET", "/props").body
        listed = self.client.probe("GET", "/v1/models").body
        self._props = convert(props, Props, f"{self.base_url}/props", ModelError)
        models: LlamaModels = convert(listed, LlamaModels, f"{self.base_url}/v1/models", ModelError)
        self._entry = (models.data or [LlamaModel()])[0]
        self._served = {**props, "meta": (listed.get("data") or [{}])[0].get("meta") or {}}
        names = self._names()
        if self.model and names and not any(same_file(self.model, name) for name in names):
            files = list(dict.fromkeys(one_line(name.rpartition("/")[2] or name) for name in names))
            raise UnknownName(f"model at {self.base_url}", self.model, files, hint=f"it serves {', '.join(files)}")

    def _names(self) -> list[str]:
        """The model's file and its other names on the server."""
        props, entry = self._props, self._entry
        names = [props.model_path, props.model_alias, entry.id, *(entry.aliases or [])]
        return [name for name in names if name]

    def _probe(self) -> None:
        self._identify()
        self._vocabulary = self._entry.meta.n_vocab if self._entry.meta else 0
        if self._props.bos_token:
            body = {"content": self._props.bos_token, "add_special": False, "parse_special": True}
            ids = shaped(self.client.probe("POST", "/tokenize", body).body, TokenIds, "the answer of /tokenize")
            self._bos_id = next(iter(ids.tokens), None)
        self.concurrency = min(self._props.total_slots, self._max_concurrency or self._props.total_slots)
        if not self.client.steady:  # a requested concurrency stays
            self.client.concurrency = self.concurrency

    @property
    def capabilities(self) -> ModelCapabilities:  # type: ignore[override]
        return ModelCapabilities(
            max_context_length=self._window or None,
            supports_logprobs=True,
            supports_chat_template=True,
            supports_tools=True,
            kinds=TEXT_KINDS | LOGPROB_KINDS,
            concurrency=self.client.concurrency,
            top_logprobs=TOP_LOGPROBS,
        )

    def weight_bytes(self) -> int | None:
        return (self._entry.meta.size or None) if self._entry.meta else None

    @property
    def _window(self) -> int:
        return self._props.default_generation_settings.n_ctx

    async def _generate(self, request: Request) -> Response:
        options = request.options
        rendered = await self._render(request)
        ids = await self._tokenize(rendered)
        cut = max(0, len(ids) - (self._window - options["max_gen_toks"]))
        if cut >= len(ids) and ids:
            raise Failure("http", f"max_gen_toks={options['max_gen_toks']} leaves no room in a context of {self._window}")
        body = {
            "prompt": ids[cut:],
            "n_predict": options["max_gen_toks"],
            "temperature": options["temperature"],
            "stop": self._sent_stops(request),
            "cache_prompt": True,
            # These override the server's sampling defaults: only the task's options count.
            "top_k": options.get("top_k", 0),
            "top_p": options.get("top_p", 1.0),
            "repeat_penalty": options.get("repetition_penalty", 1.0),
            **dict.fromkeys(NEUTRAL_AT_0, 0.0),
            "typical_p": 1.0,
            "seed": request.seed % 2**31,
        }
        if "logprobs" in options:
            body["n_probs"] = options["logprobs"]
        reply = await self._post("/completion", body, SCORES_CAP if "logprobs" in options else BODY_CAP)
        completion = read_completion(reply.body)
        counts = {"evaluated": completion.tokens_evaluated, "predicted": completion.tokens_predicted}
        prompt, output = read_counts(counts, ("evaluated", "predicted"), self._warn)
        return read_text(
            request,
            completion.content,
            options["until"],
            opened=opens_reasoning(request, rendered),
            finish="length" if completion.stop_type == "limit" else "stop",
            tokens=read_tokens(completion) if "logprobs" in options else None,
            prompt_tokens=prompt,
            output_tokens=output,
            truncated_tokens=cut,
            seconds=reply.seconds,
        )

    async def _score(self, request: Request) -> Response:
        pair = await self._pair(await self._render(request), request.continuation, self._window, self._bos_id)
        count = request.options.get("logprobs", 0)
        steps = await self._walk(pair.ids, pair.n_context, self._vocabulary if count == ALL else int(count))
        response = Response(
            score=sum(step.logprobs[token] for token, step in zip(pair.continuation, steps, strict=True)),
            is_greedy=all(step.best == token for token, step in zip(pair.continuation, steps, strict=True)),
            prompt_tokens=pair.n_context,
            output_tokens=len(pair.continuation),
            truncated_tokens=pair.truncated,
        )
        return self._with_logprobs(response, pair.continuation, steps, count) if count else response

    def _with_logprobs(self, response: Response, ids: list[int], steps: list[Distribution], count: int | str) -> Response:
        """With the continuation's tokens and their top_logprobs, or the whole distribution before each."""
        top = 1 if count == ALL else int(count)
        tokens = tuple(Token(token, "", step.logprobs[token], step.top(top)) for token, step in zip(ids, steps, strict=True))
        if count != ALL:
            return replace(response, tokens=tokens)
        import numpy as np

        distribution = np.full((len(steps), self._vocabulary), -np.inf, dtype=np.float32)
        for row, step in zip(distribution, steps, strict=True):
            row[list(step.logprobs)] = list(step.logprobs.values())
        return replace(response, tokens=tokens, distribution=distribution)

    async def _score_document(self, request: Request) -> Response:
        ids = with_prefix(await self._tokenize(request.text), self._bos_id)
        total = 0.0
        for pair in rolling_windows(ids, self._window - 1):
            steps = await self._walk(pair.ids, pair.n_context)
            total += sum(step.logprobs[token] for token, step in zip(pair.continuation, steps, strict=True))
        return Response(score=total, prompt_tokens=len(ids) - 1)

    async def _walk(self, ids: list[int], start: int, count: int = 0) -> list[Distribution]:
        """The distribution before each token of ids[start:], with that token and at least `count` in all."""
        steps = []
        for position in range(start, len(ids)):
            prefix, token = tuple(ids[:position]), ids[position]
            step = await self._next.after(prefix, max(count, SCORING_PROBS))
            if token not in step.logprobs:
                step = await self._next.after(prefix, self._vocabulary)
            if token not in step.logprobs:
                raise Failure("garbage", f"the server gave no probability for token {token}")
            steps.append(step)
        return steps

    async def _fetch_distribution(self, prefix: tuple[int, ...], count: int) -> Distribution:
        body = {"prompt": list(prefix), "n_predict": 1, "n_probs": count, "temperature": 0.0, "cache_prompt": True}
        reply = await self._post("/completion", body, SCORES_CAP)
        positions = read_completion(reply.body).completion_probabilities
        if not positions or not positions[0].top_logprobs:
            raise Failure("garbage", "the server's answer has no probabilities of the next token")
        return Distribution(read_top(positions[0]))

    async def _render(self, request: Request) -> str:
        """Dialogs go through the server's own template."""
        if isinstance(request.context, str) and not self.use_chat_template:
            return request.context
        body: dict[str, Any] = {}
        if request.tools and not isinstance(request.context, str):
            if takes_tools(self._template):
                body["tools"] = [tool.to_dict() for tool in request.tools]
            else:
                request = replace(request, context=describe_tools(request.context, request.tools))
        if variables := template_variables(request, self._template):
            body["chat_template_kwargs"] = variables
        body["messages"] = messages_of(request)
        reply = await self.client.post("/apply-template", body)
        return shaped(reply.body, Rendered, "the answer of /apply-template").prompt

    @property
    def _template(self) -> str:
        return self._props.chat_template or ""

    def check(self, request: Request) -> list[str]:
        warnings = super().check(request)
        if wanted(request):
            check_variables(request, self._template, self.model_name)
        if request.tools and not takes_tools(self._template):
            self._warn(WARNING)
        return warnings

    def _continues_answers(self) -> bool:
        return renders_open(self.client)

    async def _tokenize(self, text: str) -> list[int]:
        bos = self._props.bos_token or ""
        body = {"content": text, "add_special": not (bos and text.startswith(bos)), "parse_special": True}
        reply = await self.client.post("/tokenize", body, SCORES_CAP)
        return shaped(reply.body, TokenIds, "the answer of /tokenize").tokens
