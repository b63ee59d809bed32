"""Meta Llama 3 8B Instruct."""

model = {
    "type": "hf",
    "path": "meta-llama/Meta-Llama-3-8B-Instruct",
    "dtype": "bfloat16",
    "device_map": "auto",
    "max_context_length": 8192,
}
