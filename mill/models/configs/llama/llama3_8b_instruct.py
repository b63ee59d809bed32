"""Meta Llama 3 8B Instruct."""

needs = "16 GB of GPU memory; a Hugging Face token with access to the gated weights"
model = {
    "type": "hf",
    "path": "meta-llama/Meta-Llama-3-8B-Instruct",
    "dtype": "bfloat16",
    "device_map": "auto",
    "max_context_length": 8192,
}
