"""The inference engine inside `hf`: prefix sharing, packed attention and continuous batching."""
