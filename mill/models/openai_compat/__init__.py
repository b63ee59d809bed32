"""The `openai-compat` backend: any server with the OpenAI API, such as vLLM, SGLang, Ollama or llama-server."""
