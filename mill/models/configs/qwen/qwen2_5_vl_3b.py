"""Qwen2.5-VL 3B Instruct."""

needs = "8 GB of GPU memory"
model = {
    "type": "hf",
    "path": "Qwen/Qwen2.5-VL-3B-Instruct",
    "modalities": ["text", "image", "video"],
    "dtype": "bfloat16",
    "device_map": "auto",
    "max_context_length": 8192,
    "use_chat_template": True,
}
