"""The `litellm` backend: hosted models of many providers through LiteLLM. Generation only.

Names of models are `provider/model`; each provider has an environment variable for its key.
"""

from __future__ import annotations

import os
import time
from typing import Any

from mill.api.budget import MILLION, Price
from mill.api.engine import Engine
from mill.api.errors import CannotServe, ModelError
from mill.api.message import IMAGE
from mill.api.model import TEXT_KINDS, ModelCapabilities
from mill.api.request import Request
from mill.api.response import Response
from mill.models.http.client import Reply
from mill.models.http.failures import Failure, raise_reported
from mill.models.http.server import OWN_OPTIONS, ServerModel, messages_of
from mill.models.openai_compat.answers import read_answer
from mill.models.spec.open import check_key
from mill.support.secrets import excerpt, fill_variables, is_secret, redact, remember
from mill.support.terminal import describe

# Messages and statuses of LiteLLM's exceptions, by class name.
_MEANINGS = {
    "AuthenticationError": ("the provider refuses the API key", 401),
    "PermissionDeniedError": ("the API key may not use this model", 403),
    "NotFoundError": ("the provider has no such model", 404),
    "ContextWindowExceededError": ("the prompt is longer than the model's context", 400),
    "ContentPolicyViolationError": ("the provider's content filter refused the prompt", 400),
    "BadRequestError": ("the provider refuses the request", 400),
    "RateLimitError": ("the provider limits the rate", 429),
    "Timeout": ("the provider did not answer in time", 408),
    "ServiceUnavailableError": ("the provider is overloaded", 503),
    "InternalServerError": ("the provider failed", 500),
    "APIConnectionError": ("the provider cannot be reached", 502),
}

# Some providers' content filters arrive as plain bad requests.
_FILTER_PATTERNS = ("content_policy", "content policy", "content_filter", "content filter", "safety system")
ADDRESSES = ("api_base", "base_url")


class LiteLLMModel(ServerModel):
    """All other arguments are passed to `litellm.completion`."""

    def __init__(
        self, model: str, api_key: str | None = None, timeout: float = 120.0, concurrency: int = 16, **parameters: Any
    ) -> None:
        # LiteLLM finds the address itself; only the concurrency limit and the retries of the HTTP core are used.
        super().__init__(model, "https://litellm", api_key=None, timeout=timeout, concurrency=concurrency)
        self.client.name = model
        parameters |= {name: fill_variables(parameters[name]) for name in ADDRESSES if name in parameters}
        api_key = check_key(api_key, "api_key")
        self._key, self._timeout, self.parameters = api_key, timeout, parameters
        environment = [value for name, value in os.environ.items() if is_secret(name)]  # LiteLLM may read any of them
        for key in (api_key, *environment):
            remember(key)
        self.capabilities = ModelCapabilities(
            {"text", IMAGE}, supports_chat_template=True, supports_tools=True, kinds=TEXT_KINDS, concurrency=concurrency
        )
        self.use_chat_template = True

    def identity(self) -> dict[str, Any]:
        return {"backend": "litellm", "model": self.model, "parameters": redact(self.parameters)}

    def price(self) -> Price | None:
        """LiteLLM's own; None where it does not know the model, or another server than the provider's is used."""
        if any(name in self.parameters for name in ADDRESSES):
            return None
        try:
            info = dict(_litellm().get_model_info(self.model))
        except Exception:  # LiteLLM does not know the model
            return None
        names = ("input_cost_per_token", "output_cost_per_token")
        prompt, output, cached, reasoning = (
            _million(info.get(name)) for name in (*names, "cache_read_input_token_cost", "output_cost_per_reasoning_token")
        )
        return None if prompt is None or output is None else Price(prompt, output, cached, reasoning)

    def _probe(self) -> None:
        """Without a call: check that the provider is known and its key is set."""
        has_key = bool(self._key) or "api_key" in self.parameters
        litellm = _litellm()
        try:
            litellm.get_llm_provider(self.model, api_base=self.parameters.get("api_base"))
        except Exception as error:
            raise ModelError(f"litellm does not know the provider of {self.model!r}: write provider/model") from error
        missing = litellm.validate_environment(self.model).get("missing_keys") or []
        if missing and not has_key:
            raise ModelError(f"{self.model} needs a key: set {' or '.join(missing)}, or pass api_key=...")

    def _read_engine(self) -> Engine:
        return Engine()  # what runs behind a provider's address is not known

    def _continues_answers(self) -> bool:
        try:
            return bool(_litellm().get_model_info(self.model).get("supports_assistant_prefill"))
        except Exception:  # LiteLLM does not know the model
            return False

    def check(self, request: Request) -> list[str]:
        """Refuse a reasoning effort, variables of a chat template and tools that LiteLLM would not send."""
        warnings = super().check(request)
        litellm = _litellm()
        names = {"reasoning_effort": request.options.get("reasoning_effort"), "tools": request.tools}
        supported = litellm.get_supported_openai_params(self.model) or ()
        for name in (name for name, given in names.items() if given and name not in supported):
            raise CannotServe(f"{self.model} takes no {name}, as far as LiteLLM knows")
        provider = litellm.get_llm_provider(self.model, api_base=self.parameters.get("api_base"))[1]
        if request.options.get("chat_template_kwargs") and provider not in litellm.openai_compatible_providers:
            raise CannotServe(f"chat_template_kwargs are not sent to {provider}, which applies no chat template of its own")
        return warnings

    async def _generate(self, request: Request) -> Response:
        options = request.options
        arguments: dict[str, Any] = {
            "model": self.model,
            "messages": messages_of(request),
            "max_tokens": options["max_gen_toks"],
            "temperature": options["temperature"],
            "timeout": self._timeout,
            # LiteLLM may drop options of a task that the model lacks; the user's own are always sent.
            "drop_params": True,
            "allowed_openai_params": [n for n in self.parameters if n in _litellm().OPENAI_CHAT_COMPLETION_PARAMS],
            "num_retries": 0,
            **{name: value for name, value in options.items() if name not in OWN_OPTIONS},
            **self.parameters,
        }
        if stops := self._sent_stops(request):
            arguments["stop"] = stops[:4]
        if variables := options.get("chat_template_kwargs"):
            arguments["extra_body"] = {"chat_template_kwargs": variables, **arguments.get("extra_body", {})}
        if effort := options.get("reasoning_effort"):
            arguments["reasoning_effort"] = effort
        if request.tools:
            arguments["tools"] = [tool.to_dict() for tool in request.tools]
        if not request.deterministic:
            arguments["seed"] = request.seed % 2**31
        if self._key:
            arguments["api_key"] = self._key
        if "logprobs" in options:  # dropped by LiteLLM where the provider has none
            arguments |= {"logprobs": True, "top_logprobs": options["logprobs"]}
        reply = self._check_model(await self.client.guarded(lambda: _complete(arguments)))
        return read_answer(reply, request, self._warn)


async def _complete(arguments: dict[str, Any]) -> Reply:
    litellm, started = _litellm(), time.perf_counter()
    try:
        completion = await litellm.acompletion(**arguments)
    except Exception as error:
        raise as_failure(error) from error
    return Reply(_body_of(completion), time.perf_counter() - started)


def _body_of(completion: Any) -> Any:
    """LiteLLM's object in OpenAI's format."""
    try:
        body = completion.model_dump()
    except Exception as error:
        raise Failure("garbage", f"LiteLLM's answer cannot be read: {describe(error)}") from error
    raise_reported(body)
    return body


def as_failure(error: Exception) -> Failure:
    """LiteLLM's exception as a Failure, by the first known name among its classes."""
    names = [cls.__name__ for cls in type(error).__mro__]
    meaning, status = next((_MEANINGS[name] for name in names if name in _MEANINGS), ("LiteLLM failed", 0))
    message = excerpt(str(error), 200)
    if status == 400 and any(pattern in message.lower() for pattern in _FILTER_PATTERNS):
        meaning = _MEANINGS["ContentPolicyViolationError"][0]
    if status == 429 and "quota" in message.lower():  # a retry does not help
        return Failure("http", f"the quota of the API key is used up: {message}", status=402)
    return Failure("http", f"{meaning}: {message}", status=status or 400)


def _million(dollars: Any) -> float | None:
    """The price of a million tokens; None where it is not a number."""
    valid = isinstance(dollars, (int, float)) and not isinstance(dollars, bool) and dollars >= 0
    return round(dollars * MILLION, 9) if valid else None


def _litellm() -> Any:
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no download at import
    import litellm

    litellm.suppress_debug_info = True
    return litellm
