"""The `openai-compat` backend: any server with the OpenAI API, such as vLLM, SGLang, Ollama or llama-server."""

from mill.api.backend import TEXT_AND_MEDIA, Backend
from mill.api.model import LOGPROB_KINDS, TEXT_KINDS

OLLAMA_URL = "http://127.0.0.1:11434"

BACKEND = Backend(
    name="openai-compat",
    about="any OpenAI-compatible server: vLLM, SGLang, Ollama; log-probabilities where the server gives them",
    target="mill.models.openai_compat.model:OpenAICompatModel",
    prefixes={"ollama": {"base_url": OLLAMA_URL}},
    model_argument="model",
    address_argument="base_url",
    kinds=TEXT_KINDS | LOGPROB_KINDS,
    modalities=TEXT_AND_MEDIA,
    arguments={
        "model": "the name on the server; the only one that it has may be left out",
        "base_url": "address of the server, with or without `/v1`; several, separated by commas, are replicas of one model",
        "api_key": "unless given, from the environment",
        "chat": "use the chat endpoint",
        "timeout": "seconds",
        "concurrency": "requests in flight, at most",
        "max_context_length": "unless given, the server's",
        "bos_token_id": "the token before a document, where the server does not say it",
        "scoring": "`prompt_logprobs` or `echo`; probed unless given",
        "stream": "stream the answers, which measures the time to the first token",
        "modalities": "config file only",
        "...": "other arguments are sent to the server with each request",
    },
)

VLLM_MLX = Backend(
    name="vllm-mlx",
    about="a vllm-mlx server: continuous batching on Apple machines",
    target="mill.models.openai_compat.vllm_mlx:VllmMlxModel",
    model_argument="model",
    address_argument="base_url",
    kinds=TEXT_KINDS,
    modalities=TEXT_AND_MEDIA,
    arguments={
        "model": "the model that the server must have loaded",
        "base_url": "address of the server",
        "...": "the other arguments of `openai-compat`",
    },
)
