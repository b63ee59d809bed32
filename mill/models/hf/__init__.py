"""The HF transformers backend: loading, scoring and decoding. torch is imported at first use."""

from mill.api.backend import TEXT_AND_MEDIA, Backend
from mill.api.model import LOGPROB_KINDS, TEXT_KINDS

BACKEND = Backend(
    name="hf",
    aliases=("huggingface", "transformers"),
    about="local models through HF transformers",
    target="mill.models.hf.model:TransformersModel",
    kinds=TEXT_KINDS | LOGPROB_KINDS,
    modalities=TEXT_AND_MEDIA,
    arguments={
        "path": "hub name, folder or `.gguf` file",
        "modalities": "config file only; unless given, those of the model's processor",
        "dtype": "`bfloat16`, `float16` or `float32`; the default, also as `auto`, is `float32` on a CPU without bfloat16",
        "device_map": "`auto` is the accelerator: the first GPU, or all if one is too small; as in transformers",
        "max_context_length": "longer prompts are truncated on the left",
        "batch_size": "unless given, from free memory; halved when memory runs out",
        "attn_implementation": "as in transformers",
        "trust_remote_code": "run Python code that comes with the model",
        "use_chat_template": "send prompts through the chat template",
        "revision": "branch, tag or commit of a hub model",
        "add_bos_token": "unless given, the tokenizer decides",
        "video_frames": "frames of a video, at most: those that the model's processor samples, with their times",
        "exact": "every row by itself, without prefix sharing or padding; with a `batch_size`, in padded batches",
        "fsdp": "shard the weights over the ranks",
    },
)
