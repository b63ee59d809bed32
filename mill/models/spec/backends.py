"""The backends that mill knows: its own, those of other packages, and those of a user's files."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from mill.api.backend import TEXT_AND_MEDIA, Backend
from mill.api.message import IMAGE
from mill.api.model import LOGPROB_KINDS, TEXT_KINDS
from mill.api.registry import DESCRIPTION, models
from mill.api.request import CLASSIFY, ZERO_SHOT
from mill.api.task import Task, TaskType

OLLAMA_URL = "http://127.0.0.1:11434"
_TASK_TYPES = {
    TaskType.GENERATIVE_QA: TEXT_KINDS,
    TaskType.MULTIPLE_CHOICE: TEXT_KINDS,
    TaskType.PERPLEXITY: LOGPROB_KINDS,
    TaskType.ZERO_SHOT_CLASSIFICATION: {ZERO_SHOT},
    TaskType.SUPERVISED_CLASSIFICATION: {CLASSIFY},
}

ARGUMENTS = {
    "path": "hub name or folder",
    "revision": "branch, tag or commit of a hub model",
    "trust_remote_code": "run Python code that comes with the model",
    "use_chat_template": "send prompts through the chat template",
    "add_bos_token": "unless given, the tokenizer decides",
    "max_context_length": "longer prompts are truncated on the left",
    "api_key": "unless given, from the environment",
    "base_url": "address of the server",
    "timeout": "seconds",
    "concurrency": "requests in flight, at most",
    "device": "`auto` is the accelerator",
}
"""What an argument of this name is for, where a backend does not say it."""
_IMAGES = {"batch_size": "images at once", "dtype": "`float32`, `float16` or `bfloat16`"}

BUILTIN = (
    Backend(
        name="hf",
        aliases=("huggingface", "transformers"),
        about="local models through HF transformers",
        target="mill.models.hf.model:TransformersModel",
        kinds=TEXT_KINDS | LOGPROB_KINDS,
        modalities=TEXT_AND_MEDIA,
        arguments={
            "path": "hub name, folder or `.gguf` file",
            "modalities": "config file only; unless given, those of the model's processor",
            "dtype": "`bfloat16`, `float16` or `float32`; the default, also as `auto`, is `float32` on a CPU without "
            "bfloat16",
            "device_map": "`auto` is the accelerator: the first GPU, or all if one is too small; as in transformers",
            "batch_size": "unless given, from free memory; halved when memory runs out",
            "attn_implementation": "as in transformers",
            "video_frames": "frames of a video, at most: those that the model's processor samples, with their times",
            "exact": "every row by itself, without prefix sharing or padding; with a `batch_size`, in padded batches",
            "fsdp": "shard the weights over the ranks",
        },
    ),
    Backend(
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
            "base_url": "address of the server, with or without `/v1`; several, separated by commas, are replicas of one "
            "model",
            "chat": "use the chat endpoint",
            "max_context_length": "unless given, the server's",
            "bos_token_id": "the token before a document, where the server does not say it",
            "scoring": "`prompt_logprobs` or `echo`; probed unless given",
            "stream": "stream the answers, which measures the time to the first token",
            "modalities": "config file only",
            "...": "other arguments are sent to the server with each request",
        },
    ),
    Backend(
        name="vllm-mlx",
        about="a vllm-mlx server: continuous batching on Apple machines",
        target="mill.models.openai_compat.model:VllmMlxModel",
        model_argument="model",
        address_argument="base_url",
        kinds=TEXT_KINDS,
        modalities=TEXT_AND_MEDIA,
        arguments={
            "model": "the model that the server must have loaded",
            "...": "the other arguments of `openai-compat`",
        },
    ),
    Backend(
        name="vllm",
        about="high-throughput local generation",
        target="mill.models.vllm:VLLMModel",
        kinds=TEXT_KINDS | LOGPROB_KINDS,
        modalities=TEXT_AND_MEDIA,
        package="vllm",
        extra="vllm",
        arguments={
            "dtype": "as in vLLM",
            "gpu_memory_utilization": "the share of GPU memory that the engine takes",
            "tensor_parallel_size": "GPUs that share the weights",
            "max_model_len": "unless given, the model's own context length",
            "batch_size": "requests given to the engine at once, at most",
            "modalities": "config file only; those of the processor unless it is given",
            "video_frames": "frames of a video, at most",
            "...": "other arguments are those of vLLM's `LLM`",
        },
    ),
    Backend(
        name="llama-cpp",
        about="a llama-server of llama.cpp",
        target="mill.models.llama_cpp:LlamaCppModel",
        prefixes={"gguf": {}},
        model_argument="model",
        address_argument="base_url",
        kinds=TEXT_KINDS | LOGPROB_KINDS,
        arguments={
            "model": "the file that the server must have loaded",
            "concurrency": "requests in flight, at most; unless given, the server's slots",
        },
    ),
    Backend(
        name="mlx-lm",
        about="Apple's MLX, in process",
        target="mill.models.mlx_lm:MlxModel",
        prefixes={"mlx": {}},
        kinds=TEXT_KINDS | LOGPROB_KINDS,
        package="mlx_lm",
        extra="mlx",
        arguments={},
    ),
    Backend(
        name="litellm",
        aliases=("openai", "api"),
        about="hosted models through LiteLLM; no log-probabilities",
        target="mill.models.litellm:LiteLLMModel",
        model_argument="model",
        address_argument="api_base",
        kinds=TEXT_KINDS,
        modalities=frozenset({"text", IMAGE}),
        package="litellm",
        extra="litellm",
        arguments={
            "model": "as LiteLLM names it: `gpt-4o`, `anthropic/claude-3-5-haiku-latest`",
            "api_key": "unless given, the provider's variable of the environment",
            "...": "other arguments are those of LiteLLM's `completion`, such as `api_base`",
        },
    ),
    Backend(
        name="clip",
        aliases=("open_clip", "openclip"),
        about="zero-shot image classification with open_clip",
        target="mill.models.clip:ClipModel",
        kinds=frozenset({ZERO_SHOT}),
        modalities=frozenset({"text", IMAGE}),
        package="open_clip",
        extra="clip",
        arguments={
            **_IMAGES,
            "path": "architecture of open_clip, `hf-hub:org/name`, or a folder with its config and weights",
            "pretrained": "tag of the architecture, or a checkpoint file",
            "prompt_template": "text of a class, where the task has no templates",
            "max_context_length": "tokens of a text, at most",
        },
    ),
    Backend(
        name="timm",
        aliases=("pytorch-image-models",),
        about="supervised image classification with a fixed head",
        target="mill.models.timm:TimmModel",
        kinds=frozenset({CLASSIFY}),
        modalities=frozenset({IMAGE}),
        package="timm",
        extra="timm",
        arguments={
            **_IMAGES,
            "path": "model name of timm",
            "pretrained": "load the published weights",
            "num_classes": "classes of the head; the model's own unless given",
            "checkpoint": "a file with weights",
        },
    ),
)


@functools.cache
def builtin_backends() -> dict[str, Backend]:
    """Every backend of mill by each of its names; first those that need no extra."""
    described = sorted(BUILTIN, key=lambda backend: (backend.extra != "", backend.name))
    return {name: backend for backend in described for name in backend.names}


def backends() -> list[Backend]:
    """Every backend that is described, each once."""
    models.names()  # those of packages, too
    described = [backend_info(name) for name in models.entries()]
    return list({backend.name: backend for backend in described if backend is not None}.values())


def backend_info(name: str) -> Backend | None:
    """The description of a backend; of a class without one that replaces a built-in backend, the built-in one's."""
    entry = models.entries().get(name) if name in models else None
    if isinstance(entry, type):
        entry = vars(entry).get(DESCRIPTION)
    return entry if isinstance(entry, Backend) else builtin_backends().get(name)


def model_argument(name: str) -> str:
    """The argument of a backend that names the model, where a spec gives nothing but a name."""
    info = backend_info(name)
    return info.model_argument if info else "path"


def address_argument(name: str) -> str:
    """The argument of a backend that is a server's address; empty where it has none."""
    info = backend_info(name)
    return info.address_argument if info else ""


def of_prefix(prefix: str) -> tuple[str, dict[str, str]] | None:
    """The backend that a word before a colon means, and the arguments that it implies. Mill's own names come first."""
    for backend in backends() if not models.is_builtin(prefix) else ():
        if prefix in backend.prefixes:
            return backend.name, dict(backend.prefixes[prefix])
    return (prefix, {}) if prefix in models else None


def task_types(backend: Backend) -> list[TaskType]:
    return [task_type for task_type, kinds in _TASK_TYPES.items() if kinds <= backend.kinds]


def backends_serving(tasks: Iterable[Task]) -> list[str]:
    """The name of every described backend with models that can serve one of these tasks."""
    needs = [(task.kinds, task.modalities) for task in tasks]
    return [
        backend.name
        for backend in backends()
        if any(kinds <= set(backend.kinds) and modalities <= backend.modalities for kinds, modalities in needs)
    ]
