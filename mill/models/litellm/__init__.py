"""The `litellm` backend: hosted models of many providers."""

from mill.api.backend import Backend
from mill.api.message import IMAGE
from mill.api.model import TEXT_KINDS

BACKEND = Backend(
    name="litellm",
    aliases=("openai", "api"),
    about="hosted models through LiteLLM; no log-probabilities",
    target="mill.models.litellm.model:LiteLLMModel",
    model_argument="model",
    address_argument="api_base",
    kinds=TEXT_KINDS,
    modalities=frozenset({"text", IMAGE}),
    package="litellm",
    extra="litellm",
    arguments={
        "model": "as LiteLLM names it: `gpt-4o`, `anthropic/claude-3-5-haiku-latest`",
        "api_key": "unless given, the provider's variable of the environment",
        "timeout": "seconds",
        "concurrency": "requests in flight, at most",
        "...": "other arguments are those of LiteLLM's `completion`, such as `api_base`",
    },
)
