"""The `vllm` backend: vLLM in process."""

from mill.api.backend import TEXT_AND_MEDIA, Backend
from mill.api.model import LOGPROB_KINDS, TEXT_KINDS

BACKEND = Backend(
    name="vllm",
    about="high-throughput local generation",
    target="mill.models.vllm.model:VLLMModel",
    kinds=TEXT_KINDS | LOGPROB_KINDS,
    modalities=TEXT_AND_MEDIA,
    package="vllm",
    extra="vllm",
    arguments={
        "path": "hub name or folder",
        "dtype": "as in vLLM",
        "gpu_memory_utilization": "the share of GPU memory that the engine takes",
        "tensor_parallel_size": "GPUs that share the weights",
        "max_model_len": "unless given, the model's own context length",
        "batch_size": "requests given to the engine at once, at most",
        "revision": "branch, tag or commit of a hub model",
        "trust_remote_code": "run Python code that comes with the model",
        "use_chat_template": "send prompts through the chat template",
        "add_bos_token": "unless given, the tokenizer decides",
        "modalities": "config file only; those of the processor unless it is given",
        "video_frames": "frames of a video, at most",
        "reasoning_parser": "vLLM's parser of reasoning, by its name there",
        "tool_call_parser": "vLLM's parser of tool calls, by its name there",
        "...": "other arguments are those of vLLM's `LLM`",
    },
)
