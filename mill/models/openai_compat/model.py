"""One model on a server with OpenAI's API; the first probe detects what the server supports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import msgspec

from mill.api.errors import CannotServe, ModelError, UnknownName
from mill.api.message import IMAGE
from mill.api.model import LOGPROB_KINDS, TEXT_KINDS, ModelCapabilities
from mill.api.request import Request
from mill.api.response import Response
from mill.models.http.client import Reply
from mill.models.http.failures import BODY_CAP, SCORES_CAP, Failure, shaped
from mill.models.http.probes import (
    BEGUN_ANSWER,
    BEGUN_DIALOG,
    VLLM_FIELDS,
    effective_fields,
    leaves_out_tools,
    renders_open,
    same_model,
    takes_vllm_fields,
)
from mill.models.http.server import OWN_OPTIONS, ServerModel, messages_of
from mill.models.openai_compat import scoring as routes
from mill.models.openai_compat.answers import (
    ServedModel,
    StreamedAnswer,
    TokenIds,
    read_answer,
    read_choice,
    read_models,
    read_window,
)
from mill.models.spec.backends import OLLAMA_URL
from mill.models.spec.open import check_flag, check_whole
from mill.models.tokens.rows import move_spaces, with_prefix
from mill.models.tokens.scores import Distribution, NextTokens, requested_top_logprobs
from mill.models.tokens.tokenizer import rolling_windows, wanted
from mill.models.tokens.tool_calls import WARNING, describe_tools
from mill.support.secrets import redact
from mill.support.terminal import one_line
from mill.support.validate import convert

NEUTRAL = {
    **{"top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    **{"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "repeat_penalty": 1.0},
}
"""What a server would fill in from its model's `generation_config.json` or its own options: greedy would not be greedy."""
NO_CHAT = (400, 404, 405, 422, 500, 501)  # statuses of servers without chat
MAX_EXCESS = 32  # times the token limit that a server which ignores it may generate
MAX_STOPS = 4  # of OpenAI's API; the others are applied here
NO_BOS = "the first token of a text without context is not scored, unless the tokenizer adds a BOS: pass bos_token_id=..."
NO_ROUTE = "the server returns no log-probabilities of a prompt: it ignores `prompt_logprobs` and `echo`"
NO_TOKENS = "the server gives no log-probabilities of its answers"
STRADDLES = (
    "a token of the server's tokenizer spans the end of the context and the start of the continuation, which therefore "
    "cannot be scored by offsets: use a server with /tokenize"
)


# The default ports of servers, and what starts each.
_START_COMMANDS = {11434: "ollama serve", 8000: "vllm serve MODEL", 8080: "llama-server -m FILE"}


class OpenAICompatModel(ServerModel):
    """Text is sent to /v1/completions, dialogs to /v1/chat/completions, where the server applies its template."""

    def __init__(
        self,
        model: str = "",
        base_url: str = OLLAMA_URL,
        api_key: str | None = None,
        chat: bool | None = None,
        timeout: float = 120.0,
        concurrency: int = 32,
        max_context_length: int | None = None,
        bos_token_id: int | None = None,
        scoring: str | None = None,
        stream: bool = False,
        modalities: list[str] | tuple[str, ...] = ("text", IMAGE),
        **parameters: Any,
    ) -> None:
        super().__init__(model, base_url, api_key=api_key, timeout=timeout, concurrency=concurrency)
        self.start_command = self.start_command or _START_COMMANDS.get(urlsplit(self.base_url).port or 0, "")
        check_flag("stream", stream)
        if chat is not None:
            check_flag("chat", chat)
        if max_context_length is not None:
            check_whole("max_context_length", max_context_length, least=2)
        if bos_token_id is not None:
            check_whole("bos_token_id", bos_token_id, least=0)
        names = [route.name for route in routes.ROUTES]
        if scoring is not None and scoring not in names:
            raise UnknownName("scoring route", scoring, names, hint=f"it takes {', '.join(names)}")
        self.chat, self.parameters, self.max_context_length = chat, parameters, max_context_length
        self.bos_token_id, self.use_chat_template, self.scoring = bos_token_id, bool(chat), scoring
        self.modalities = set(modalities)
        self.stream = self.client.streams = stream
        self.capabilities = ModelCapabilities(
            self.modalities, supports_logprobs=False, supports_chat_template=True, supports_tools=True
        )
        self._entry = ServedModel()
        self._server_window: int | None = None
        self._route: routes.Route | None = None
        self._tokenizes = self._has_next_tokens = False
        self._accepts_chat: bool | None = True if chat else None
        self._next = NextTokens(self._fetch_next)
        self._prefill_fields: dict[str, Any] | None = None
        """What a request that begins the answer needs; None where the server is not known to continue one."""
        self._repeats_prefill = False
        self._accepts_tools = self._describes_tools = False
        self._neutral = dict(NEUTRAL)
        """Those that the server has not refused."""
        self._template_fields: dict[str, Any] = {}
        """What a request needs for its reasoning effort and the variables of its chat template."""

    def identity(self) -> dict[str, Any]:
        """The address, the name, and the server's metadata of the model."""
        fields = ("root", "parent", "max_model_len", "owned_by")
        return {
            "backend": "openai-compat",
            "base_url": self.base_url,
            "model": self.model,
            "chat": self.chat,
            "bos_token_id": self.bos_token_id,
            **({"max_context_length": self.max_context_length} if self.max_context_length else {}),
            "parameters": redact(self.parameters),
            "served": {name: self._served[name] for name in fields if name in self._served},
        }

    # Probing the server.

    def _probe(self) -> None:
        self._identify()
        scores = self.chat is not True and self._scores_prompts()
        self.capabilities = ModelCapabilities(
            self.modalities,
            max_context_length=self._window,
            supports_logprobs=scores,
            supports_chat_template=True,
            supports_tools=True,
            kinds=TEXT_KINDS | LOGPROB_KINDS if scores else TEXT_KINDS,
            concurrency=self.client.concurrency,
            top_logprobs=routes.NEXT_TOKENS if scores and self._tokenizes else 0,
            scores_dialogs=False,
        )

    def _identify(self) -> None:
        """Check the model's name against the server's list; a server with one model needs no name."""
        listed = self.client.probe("GET", "/v1/models").body
        entries = read_models(listed, f"{self.base_url}/v1/models")
        if not self.model and len(entries) == 1:
            self.model = next(iter(entries))
        listed_names = [one_line(name) for name in entries]
        names = ", ".join(listed_names) or "nothing"
        if not self.model:
            raise ModelError(f"{self.base_url} serves {names}: pass one with model=...")
        if self.model not in entries:
            raise UnknownName(f"model at {self.base_url}", self.model, listed_names, hint=f"it serves {names}")
        self._entry = entries[self.model]
        self._served = next(dict(entry) for entry in listed["data"] if entry.get("id") == self.model)
        self._server_window = None if self.max_context_length else read_window(self._entry, f"{self.base_url}/v1/models")

    def _names(self) -> list[str]:
        entry = self._entry
        aliases = entry.aliases if isinstance(entry.aliases, list) else []
        names = [self.model, entry.id, entry.root, entry.parent, *aliases]
        return [name for name in names if isinstance(name, str)]

    @property
    def _window(self) -> int | None:
        return self.max_context_length or self._server_window

    def _scores_prompts(self) -> bool:
        """Whether the server gives log-probabilities of a prompt; if not, a warning gives the reason."""
        try:
            self._route = routes.find_route(self.client, self.model, self.scoring)
        except Failure as failure:
            if failure.status != 404:
                raise
            self._warn(f"{self.base_url} has no /v1/completions: every prompt is sent as a chat message")
            self.chat = self.use_chat_template = self._accepts_chat = True
            return False
        if self._route is None:
            self.no_logprobs = NO_ROUTE
            return False
        try:
            self.client.probe("POST", "/tokenize", {"model": self.model, "prompt": "a"})
            self._tokenizes = True
        except Failure:
            if not isinstance(self._route, routes.Echo):
                self.no_logprobs = NO_ROUTE
                return False
            self._warn(f"{self.base_url} has no /tokenize: continuations are found by character offsets")
        self._has_next_tokens = self._tokenizes and routes.names_next_tokens(self.client, self.model)
        return True

    def has_chat_template(self) -> bool:
        """Whether the server accepts chat messages, probed once: it refuses them where its model has no template."""
        if self._accepts_chat is None:
            try:
                read_choice(self._chat([{"role": "user", "content": "Hi"}]))
                self._accepts_chat = True
            except Failure as failure:
                self._accepts_chat = failure.kind == "http" and failure.status not in NO_CHAT
        return self._accepts_chat

    def _chat(self, messages: Any, **more: Any) -> Any:
        """The body of the answer to a short chat, for probes."""
        body = {"model": self.model, "messages": messages, "max_tokens": 1, **more}
        return self.client.probe("POST", "/v1/chat/completions", body, timeout=self.client.timeout).body

    def _continues_answers(self) -> bool:
        if self._prefill_fields is None and takes_vllm_fields(self.client, self.model):
            self._prefill_fields = VLLM_FIELDS
        elif self._prefill_fields is None and renders_open(self.client):
            self._prefill_fields = {}
            self._repeats_prefill = self._starts_again()
        return self._prefill_fields is not None

    def _starts_again(self) -> bool:
        """Whether an answer has the text that the prompt began it with, as a llama-server's does."""
        message = read_choice(self._chat(BEGUN_DIALOG, max_tokens=4, temperature=0))[1].message
        return message is not None and (message.content or "").startswith(BEGUN_ANSWER)

    def check(self, request: Request) -> list[str]:
        warnings = super().check(request)
        if wanted(request):
            self._template_fields, shown = effective_fields(self.client, self.model, request, self.base_url)
            if not shown:
                names = " and ".join(wanted(request))
                self._warn(f"{self.base_url} does not show its prompts: whether {names} has an effect is not known")
        if request.tools and not self._accepts_tools:
            self._probe_tools(request)
            self._accepts_tools = True
            self._describes_tools = leaves_out_tools(self.client, self.model, request)
            if self._describes_tools:
                self._warn(WARNING)
        return warnings

    def _probe_tools(self, request: Request) -> None:
        """Refuse tools that the server refuses, as vLLM does when it was started without a parser for calls."""
        try:
            self._chat(messages_of(request), tools=[tool.to_dict() for tool in request.tools])
        except Failure as failure:
            if failure.status not in (400, 422, 500, 501):
                return  # no refusal of tools: the run counts such failures
            raise CannotServe(f"{self.base_url} refuses tools: {failure}") from failure

    # Generation.

    async def _generate(self, request: Request) -> Response:
        options = request.options
        body = {
            "model": self.model,
            "max_tokens": options["max_gen_toks"],
            "temperature": options["temperature"],
            **self._neutral,
            **({"repeat_penalty": options["repetition_penalty"]} if "repetition_penalty" in options else {}),
            **{name: value for name, value in options.items() if name not in OWN_OPTIONS},
            **self.parameters,
        }
        if stops := self._sent_stops(request):
            body["stop"] = stops[:MAX_STOPS]
        if not request.deterministic:
            body["seed"] = request.seed % 2**31
        count = options.get("logprobs")
        if isinstance(request.context, str) and not self.chat:
            path, body["prompt"], logprobs = "/v1/completions", request.context, {"logprobs": count}
        else:
            path, logprobs = "/v1/chat/completions", {"logprobs": True, "top_logprobs": count}
            shown = request
            if request.tools and self._describes_tools and not isinstance(request.context, str):
                shown = replace(request, context=describe_tools(request.context, request.tools))
            body["messages"] = messages_of(shown)
            body |= (self._prefill_fields or {}) if request.continues_answer else {}
            body |= self._template_fields if wanted(request) else {}
            if request.tools and not self._describes_tools:
                body["tools"] = [tool.to_dict() for tool in request.tools]
        reply = self._check_model(await self._call(path, body, logprobs if count else {}))
        context, begun = request.context, ""
        if self._repeats_prefill and request.continues_answer and not isinstance(context, str):
            begun = context[-1].text
        answer = self._plausible(read_answer(reply, request, self._warn, begun=begun), options["max_gen_toks"])
        if count and answer.tokens is None:
            self._warn(NO_TOKENS)
        return answer

    def _plausible(self, answer: Response, limit: int) -> Response:
        """Drop a token count that is impossible for this limit; warn where it is above the limit."""
        if (answer.output_tokens or 0) <= limit:
            return answer
        self._warn(f"{self.base_url} reports more output tokens than the requested limit")
        believable = (answer.output_tokens or 0) <= MAX_EXCESS * limit + MAX_EXCESS**2
        return answer if believable else replace(answer, output_tokens=None)

    async def _call(self, path: str, body: dict[str, Any], logprobs: dict[str, Any]) -> Reply:
        """Streamed or not; streams have the time of the first token. A call that is refused because of log-probabilities, or
        of a neutral value, is repeated without them."""
        try:
            if self.stream and not logprobs:  # log-probabilities are not streamed
                return await self.client.stream(path, {**body, "stream_options": {"include_usage": True}}, StreamedAnswer)
            return await self.client.post(path, {**body, **logprobs}, SCORES_CAP if logprobs else BODY_CAP)
        except Failure as failure:
            why = str(failure) if failure.status in (400, 422) else ""
            refused = {name for name in NEUTRAL if name in why and body.get(name) == NEUTRAL[name]}
            if not refused and not (logprobs and "logprob" in why):
                raise
            left = {name: value for name, value in body.items() if name not in refused}
            reply = await self._call(path, left, logprobs if refused else {})
            for name in refused & self._neutral.keys():
                del self._neutral[name]
            return reply

    def planned_paths(self) -> dict[str, str]:
        return {}

    def execution_paths(self) -> dict[str, str]:
        refused = [name for name in NEUTRAL if name not in self._neutral]
        return {"sampling": f"the server refuses {', '.join(refused)}: its own values apply"} if refused else {}

    def compute_device(self) -> None:
        return None

    # Scoring.

    async def _score(self, request: Request) -> Response:
        if not isinstance(request.context, str):
            raise CannotServe("log-probabilities over HTTP need plain text: leave out --apply_chat_template")
        if not self._tokenizes:
            return await self._score_by_offsets(*move_spaces(request.context, request.continuation))
        if not request.context.strip() and self.bos_token_id is None:
            self._warn(NO_BOS)
        pair = await self._pair(request.context, request.continuation, self._window or 1 << 30, self.bos_token_id)
        top_logprobs = requested_top_logprobs(request, routes.NEXT_TOKENS, "OpenAI's API")
        if self._has_next_tokens and len(pair.continuation) == 1 and not top_logprobs:
            distribution = await self._next.after(tuple(pair.ids[:-1]), routes.NEXT_TOKENS)
            (token,) = pair.continuation
            if token in distribution.logprobs:
                return Response(
                    score=distribution.logprobs[token],
                    is_greedy=token == distribution.best,
                    prompt_tokens=pair.n_context,
                    output_tokens=1,
                    truncated_tokens=pair.truncated,
                )
        scored = await self._score_prompt(pair.ids, top_logprobs)
        return scored.response(pair.n_context, pair.truncated, pair.continuation if top_logprobs else ())

    async def _score_by_offsets(self, context: str, continuation: str) -> Response:
        """Without token ids: the continuation starts at the token whose offset is the end of the context."""
        scored = await self._score_prompt(context + continuation)
        if scored.starts is None:
            raise Failure("garbage", "the server has no /tokenize, and its tokens do not add up to the prompt")
        if context and len(context) not in scored.starts:
            raise Failure("http", STRADDLES)
        if not context and routes.BOS not in scored.starts:
            self._warn(NO_BOS)
        return scored.response(max(1, scored.starts.index(len(context))) if context else 1)

    async def _score_document(self, request: Request) -> Response:
        """The sum over rolling windows."""
        if not self._tokenizes:
            raise Failure("http", "documents are scored by token ids, and the server has no /tokenize")
        if self.bos_token_id is None:
            self._warn(NO_BOS)
        ids = with_prefix(await self._tokenize(request.text), self.bos_token_id)
        windows = rolling_windows(ids, (self._window or len(ids) + 1) - 1)
        sums = [sum((await self._score_prompt(pair.ids)).scores(pair.n_context)) for pair in windows]
        return Response(score=float(sum(sums)), prompt_tokens=len(ids) - 1)

    async def _score_prompt(self, prompt: str | list[int], top_logprobs: int = 0) -> routes.Scored:
        assert self._route is not None, "a server without a route is refused earlier"
        body = {**self._route.body(prompt, top_logprobs), "model": self.model, **self.parameters}
        reply = await self._post("/v1/completions", body, SCORES_CAP)
        return routes.read_scored(reply.body, self._route, prompt)

    async def _fetch_next(self, prefix: tuple[int, ...], count: int) -> Distribution:
        reply = await self._post("/v1/completions", routes.next_tokens_body(self.model, list(prefix)))
        return routes.read_next_tokens(reply.body)

    async def _tokenize(self, text: str) -> list[int]:
        reply = await self.client.post("/tokenize", {"model": self.model, "prompt": text}, SCORES_CAP)
        return shaped(reply.body, TokenIds, "the answer of /tokenize").tokens


VLLM_MLX_URL = "http://127.0.0.1:8000"


class Health(msgspec.Struct):
    """The response of /health."""

    model_loaded: bool | None = None
    model_name: str | None = None


class VllmMlxModel(OpenAICompatModel):
    start_command = "vllm-mlx serve MODEL"

    def __init__(self, model: str = "", base_url: str = VLLM_MLX_URL, **arguments: Any) -> None:
        super().__init__(model, base_url, **arguments)

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "backend": "vllm-mlx"}

    def _identify(self) -> None:
        body = self.client.probe("GET", "/health").body or {}
        health: Health = convert(body, Health, f"{self.base_url}/health", ModelError)
        if health.model_loaded is False:
            raise Failure("http", "the server has loaded no model yet", status=503)
        if self.model and health.model_name and not same_model(health.model_name, self.model):
            raise ModelError(f"{self.base_url} has loaded {one_line(health.model_name)}, not {self.model}")
        super()._identify()
