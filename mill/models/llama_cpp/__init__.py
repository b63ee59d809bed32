"""The `llama-cpp` backend: a llama-server, through its own /completion endpoint and token ids."""

from mill.api.backend import Backend
from mill.api.model import LOGPROB_KINDS, TEXT_KINDS

BACKEND = Backend(
    name="llama-cpp",
    about="a llama-server of llama.cpp",
    target="mill.models.llama_cpp.model:LlamaCppModel",
    prefixes={"gguf": {}},
    model_argument="model",
    address_argument="base_url",
    kinds=TEXT_KINDS | LOGPROB_KINDS,
    arguments={
        "model": "the file that the server must have loaded",
        "base_url": "address of the server",
        "api_key": "unless given, from the environment",
        "timeout": "seconds",
        "concurrency": "requests in flight, at most; unless given, the server's slots",
        "use_chat_template": "send prompts through the chat template",
    },
)
