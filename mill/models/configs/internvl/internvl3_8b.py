"""InternVL3 8B, in the layout that transformers reads by itself."""

needs = "16 GB of GPU memory"
model = {
    "type": "hf",
    "path": "OpenGVLab/InternVL3-8B-hf",
    "modalities": ["text", "image", "video"],
    "dtype": "bfloat16",
    "device_map": "auto",
    "max_context_length": 8192,
    "use_chat_template": True,
}
