"""The table of built-in backends: names, class, required package, supported requests."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass

from mill.api.message import IMAGE, MEDIA_KINDS
from mill.api.model import LOGPROB_KINDS, TEXT_KINDS
from mill.api.request import CLASSIFY, ZERO_SHOT
from mill.api.task import Task, TaskType


@dataclass(frozen=True)
class Backend:
    """`package` must be importable, `extra` is the install extra that has it; both are empty for core dependencies."""

    names: tuple[str, ...]
    target: str
    about: str
    kinds: frozenset[str]
    task_types: tuple[TaskType, ...]
    modalities: frozenset[str] = frozenset({"text"})
    """The inputs of the models that it can open; one model may take fewer."""
    package: str = ""
    extra: str = ""

    @property
    def shipped(self) -> bool:
        """Whether this version of mill has the backend's code."""
        return importlib.util.find_spec(self.target.partition(":")[0]) is not None


_MEDIA = frozenset({"text", *MEDIA_KINDS})
_TEXT_AND_IMAGES = frozenset({"text", IMAGE})
_ALL_TEXT = (TaskType.GENERATIVE_QA, TaskType.MULTIPLE_CHOICE, TaskType.PERPLEXITY)

BACKENDS = (
    Backend(
        names=("hf", "huggingface", "transformers"),
        target="mill.models.hf:TransformersModel",
        about="local models through HF transformers",
        kinds=TEXT_KINDS | LOGPROB_KINDS,
        task_types=_ALL_TEXT,
        modalities=_MEDIA,
    ),
    Backend(
        names=("vllm",),
        target="mill.models.vllm:VLLMModel",
        about="high-throughput local generation",
        kinds=TEXT_KINDS | LOGPROB_KINDS,
        task_types=_ALL_TEXT,
        modalities=_MEDIA,
        package="vllm",
        extra="vllm",
    ),
    Backend(
        names=("litellm", "openai", "api"),
        target="mill.models.litellm:LiteLLMModel",
        about="hosted models through LiteLLM; no log-probabilities",
        kinds=TEXT_KINDS,
        task_types=(TaskType.GENERATIVE_QA, TaskType.MULTIPLE_CHOICE),
        modalities=_TEXT_AND_IMAGES,
        package="litellm",
        extra="litellm",
    ),
    Backend(
        names=("clip", "open_clip", "openclip"),
        target="mill.models.clip:ClipModel",
        about="zero-shot image classification with open_clip",
        kinds=frozenset({ZERO_SHOT}),
        task_types=(TaskType.ZERO_SHOT_CLASSIFICATION,),
        modalities=_TEXT_AND_IMAGES,
        package="open_clip",
        extra="clip",
    ),
    Backend(
        names=("timm", "pytorch-image-models"),
        target="mill.models.timm:TimmModel",
        about="supervised image classification with a fixed head",
        kinds=frozenset({CLASSIFY}),
        task_types=(TaskType.SUPERVISED_CLASSIFICATION,),
        modalities=frozenset({IMAGE}),
        package="timm",
        extra="timm",
    ),
    Backend(
        names=("openai-compat",),
        target="mill.models.openai_compat:OpenAICompatModel",
        about="any OpenAI-compatible server: vLLM, SGLang, Ollama; log-probabilities where the server gives them",
        kinds=TEXT_KINDS | LOGPROB_KINDS,
        task_types=_ALL_TEXT,
        modalities=_MEDIA,
    ),
    Backend(
        names=("llama-cpp",),
        target="mill.models.llama_cpp:LlamaCppModel",
        about="a llama-server of llama.cpp",
        kinds=TEXT_KINDS | LOGPROB_KINDS,
        task_types=_ALL_TEXT,
    ),
    Backend(
        names=("mlx-lm",),
        target="mill.models.mlx_lm:MlxModel",
        about="Apple's MLX, in process",
        kinds=TEXT_KINDS | LOGPROB_KINDS,
        task_types=_ALL_TEXT,
        package="mlx_lm",
        extra="mlx",
    ),
    Backend(
        names=("vllm-mlx",),
        target="mill.models.vllm_mlx:VllmMlxModel",
        about="a vllm-mlx server: continuous batching on Apple machines",
        kinds=TEXT_KINDS,
        task_types=(TaskType.GENERATIVE_QA, TaskType.MULTIPLE_CHOICE),
        modalities=_MEDIA,
    ),
)


def backend_info(name: str) -> Backend | None:
    """The entry of a built-in backend; None for a third-party one."""
    return next((backend for backend in BACKENDS if name in backend.names), None)


def backends_serving(tasks: Iterable[Task]) -> list[str]:
    """The first name of every built-in backend with models that can serve one of these tasks."""
    needs = [(task.kinds, task.modalities) for task in tasks]
    return [
        backend.names[0]
        for backend in BACKENDS
        if any(kinds <= set(backend.kinds) and modalities <= backend.modalities for kinds, modalities in needs)
    ]
