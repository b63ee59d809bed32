"""The `openai-compat` backend: any server with OpenAI's API, such as vLLM, SGLang, Ollama or llama-server."""

from __future__ import annotations

from typing import Any

from mill.api.errors import CannotServe, ModelError, UnknownName
from mill.api.model import LOGPROB_KINDS, TEXT_KINDS, ModelCapabilities
from mill.api.request import Request, Response
from mill.models.http import Failure
from mill.models.pairs import make_pair, move_spaces
from mill.models.server import ServerModel, messages_of
from mill.models.spec import OLLAMA_URL
from mill.models.stops import cut_at_stops

MOST_STOPS = 4  # what OpenAI's API takes; the rest is cut here
_OPTIONS = {"until", "max_gen_toks", "temperature", "seed"}
NO_BOS = "the first token of a text without context is not scored, unless the tokenizer puts a BOS: give bos_token_id=..."
NO_ROUTE = "the server returns no log-probabilities of a prompt: it ignores `echo`"


class OpenAICompatModel(ServerModel):
    """Text goes to /v1/completions as it is, dialogs to /v1/chat/completions, where the server's template is applied.

    Whether prompts can be scored is found out when the server is first looked at.
    """

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
        **parameters: Any,
    ) -> None:
        super().__init__(model, base_url, api_key=api_key, timeout=timeout, concurrency=concurrency)
        self.chat, self.parameters, self.max_context_length = chat, parameters, max_context_length
        self.bos_token_id, self.use_chat_template = bos_token_id, bool(chat)
        self.capabilities = ModelCapabilities(supports_logprobs=False, supports_chat_template=True)
        self._served: dict[str, Any] = {}
        self._tokenizes = False

    def identity(self) -> dict[str, Any]:
        """The address, the name, and what the server tells about the model behind it."""
        told = {name: self._served[name] for name in ("root", "parent", "max_model_len", "owned_by") if name in self._served}
        return {
            "backend": "openai-compat",
            "base_url": self.base_url,
            "model": self.model,
            "chat": self.chat,
            "bos_token_id": self.bos_token_id,
            "parameters": self.parameters,
            "served": told,
        }

    def _look(self) -> None:
        self._find_model()
        scores = self.chat is not True and self._scores_prompts()
        self.capabilities = ModelCapabilities(
            max_context_length=self._window,
            supports_logprobs=scores,
            supports_chat_template=True,
            kinds=TEXT_KINDS | LOGPROB_KINDS if scores else TEXT_KINDS,
            concurrency=self.client.concurrency,
        )

    def _find_model(self) -> None:
        """Hold the model's name against the server's list; a server with one model needs no name."""
        listed = self.client.probe("GET", "/v1/models").body
        entries = {entry["id"]: entry for entry in (listed or {}).get("data", []) if "id" in entry}
        if not self.model and len(entries) == 1:
            self.model = next(iter(entries))
        if self.model not in entries:
            if not self.model:
                raise ModelError(f"{self.base_url} serves {', '.join(entries) or 'nothing'}: give one with model=...")
            raise UnknownName(f"model at {self.base_url}", self.model, entries, hint=f"it serves {', '.join(entries)}")
        self._served = entries[self.model]

    @property
    def _window(self) -> int | None:
        told = self._served.get("max_model_len") or (self._served.get("meta") or {}).get("n_ctx_train")
        return self.max_context_length or (int(told) if told else None)

    def _scores_prompts(self) -> bool:
        """Whether the server answers `echo` with log-probabilities of the prompt; a remark says why where it does not."""
        try:
            body = {"model": self.model, "prompt": "one two three", "max_tokens": 1, "echo": True, "logprobs": 1}
            choice = self.client.probe("POST", "/v1/completions", body, timeout=60).body["choices"][0]
        except Failure as failure:
            if failure.status != 404:
                raise
            self._remark(f"{self.base_url} has no /v1/completions: every prompt is sent as a chat message")
            self.chat = self.use_chat_template = True
            return False
        logprobs = choice.get("logprobs") or {}
        scored = logprobs.get("token_logprobs") or []
        if len(scored) < 3 or scored[1] is None or not str(choice.get("text", "")).startswith("one two"):
            self._remark(NO_ROUTE, aloud=False)  # it matters to a task that needs them, which then says so
            return False
        try:
            self.client.probe("POST", "/tokenize", {"model": self.model, "prompt": "a"})
            self._tokenizes = True
        except Failure:
            self._remark(f"{self.base_url} has no /tokenize: contexts are told from continuations by character offsets")
        return True

    async def _generate(self, request: Request) -> Response:
        options = request.options
        stops = [*options["until"]]
        body = {
            "model": self.model,
            "max_tokens": options["max_gen_toks"],
            "temperature": options["temperature"],
            **{name: value for name, value in options.items() if name not in _OPTIONS},
            **self.parameters,
        }
        if stops:
            body["stop"] = stops[:MOST_STOPS]
        if not request.deterministic:
            body["seed"] = request.seed % 2**31
        if isinstance(request.context, str) and not self.chat:
            reply = await self.client.post("/v1/completions", {**body, "prompt": request.context})
        else:
            reply = await self.client.post("/v1/chat/completions", {**body, "messages": messages_of(request)})
        return self._text_response(reply.body, stops, reply.seconds)

    def _text_response(self, body: Any, stops: list[str], seconds: float) -> Response:
        try:
            choice = body["choices"][0]
            text = choice["text"] if "text" in choice else choice["message"]["content"]
        except (KeyError, IndexError, TypeError) as error:
            raise Failure("garbage", f"the server's answer has no choices: {str(body)[:120]}") from error
        if not isinstance(text, str):
            raise Failure("garbage", f"the server's answer has no text (finish_reason {choice.get('finish_reason')!r})")
        usage = body.get("usage") or {}
        kept, stopped = cut_at_stops(text, stops)
        return Response(
            text=kept,
            finish_reason="stop" if stopped else choice.get("finish_reason"),
            prompt_tokens=usage.get("prompt_tokens"),
            output_tokens=usage.get("completion_tokens"),
            seconds=seconds,
        )

    async def _score(self, request: Request) -> Response:
        if not isinstance(request.context, str):
            raise CannotServe("log-probabilities over HTTP need plain text: leave out --apply_chat_template")
        context, continuation = move_spaces(request.context, request.continuation)
        if not self._tokenizes:
            return await self._score_by_offsets(context, continuation)
        whole = await self._tokenize(context + continuation)
        n_context = len(await self._tokenize(context)) if context else 0
        if not context and self.bos_token_id is None:
            self._remark(NO_BOS)
        pair = make_pair(whole, n_context, window=(self._window or 1 << 30) - 1, prefix=self.bos_token_id)
        if not pair.fits:
            return Response(error=f"the continuation is longer than the context of {self._window} tokens")
        logprobs = await self._echo(pair.ids)
        scored = logprobs["token_logprobs"][pair.n_context : len(pair.ids)]
        best = [max(top.values()) for top in logprobs["top_logprobs"][pair.n_context : len(pair.ids)] if top]
        return _scored(scored, best, prompt_tokens=pair.n_context, truncated=pair.truncated)

    async def _score_by_offsets(self, context: str, continuation: str) -> Response:
        logprobs = await self._echo(context + continuation)
        end = len(context) + len(continuation)
        inside = [place for place, offset in enumerate(logprobs["text_offset"]) if len(context) <= offset < end]
        scored = [logprobs["token_logprobs"][place] for place in inside]
        best = [max(logprobs["top_logprobs"][place].values()) for place in inside if logprobs["top_logprobs"][place]]
        return _scored(scored, best, prompt_tokens=inside[0] if inside else 0, truncated=0)

    async def _score_document(self, request: Request) -> Response:
        """In disjoint windows, each of which starts from the last token of the one before."""
        if not self._tokenizes:
            raise Failure("http", "documents are scored by token ids, and the server has no /tokenize")
        ids = await self._tokenize(request.text)
        if self.bos_token_id is None:
            self._remark(NO_BOS)
        elif ids[:1] != [self.bos_token_id]:
            ids = [self.bos_token_id, *ids]
        window = (self._window or len(ids) + 1) - 1
        total = 0.0
        for first in range(1, len(ids), window):
            last = min(first + window, len(ids))
            begin = max(0, last - 1 - window)
            logprobs = await self._echo(ids[begin:last])
            scored = logprobs["token_logprobs"][first - begin : last - begin]
            if None in scored:
                return Response(error="the server left out a log-probability")
            total += sum(scored)
        return Response(score=total, prompt_tokens=len(ids))

    async def _tokenize(self, text: str) -> list[int]:
        reply = await self.client.post("/tokenize", {"model": self.model, "prompt": text})
        try:
            return [int(token) for token in reply.body["tokens"]]
        except (KeyError, TypeError, ValueError) as error:
            raise Failure("garbage", f"/tokenize answered {str(reply.body)[:80]}") from error

    async def _echo(self, prompt: str | list[int]) -> dict[str, Any]:
        """The log-probabilities of a prompt's tokens, and those of the likeliest token at each place."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0.0}
        reply = await self.client.post("/v1/completions", {**body, **self.parameters})
        try:
            logprobs = reply.body["choices"][0]["logprobs"]
            count = len(logprobs["token_logprobs"])
        except (KeyError, IndexError, TypeError) as error:
            raise Failure("garbage", "the server's answer has no log-probabilities") from error
        if isinstance(prompt, list) and count != len(prompt) + 1:
            raise Failure("garbage", f"the server returned {count} log-probabilities for {len(prompt)} tokens and one more")
        return dict(logprobs)


def _scored(scored: list[float | None], best: list[float], *, prompt_tokens: int, truncated: int) -> Response:
    if not scored or len(best) < len(scored) or any(score is None for score in scored):
        return Response(error="the server left out a log-probability")
    values = [score for score in scored if score is not None]
    return Response(
        score=float(sum(values)),
        is_greedy=all(score >= top - 1e-9 for score, top in zip(values, best, strict=True)),
        prompt_tokens=prompt_tokens,
        output_tokens=len(values),
        truncated_tokens=truncated,
    )
