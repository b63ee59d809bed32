"""Names of the same model, and of different models."""

from __future__ import annotations

import pytest

from mill.models.http.probes import same_file, same_model

SAME = [
    ("gpt-4o", "gpt-4o-2024-08-06"),
    ("openai/gpt-4o", "gpt-4o-2024-08-06"),
    ("gemini-1.5-pro", "gemini-1.5-pro-001"),
    ("claude-3-sonnet", "claude-3-sonnet-20240229-v1:0"),
    ("llama3.1", "llama3.1:latest"),
    ("meta-llama/Llama-3", "/models/meta-llama/Llama-3"),
    ("x", "/models/x.gguf"),
    ("x.gguf", "C:\\models\\X.gguf"),
    ("big", "big-00001-of-00003.gguf"),
]
OTHER = [
    ("gpt-4o", "gpt-4o-mini"),
    ("gpt-4", "gpt-4-32k"),
    ("qwen2.5:7b", "qwen2.5:72b"),
    ("Llama-3-8B", "Llama-3-8B-Instruct"),
]


@pytest.mark.parametrize(("first", "second"), SAME)
def test_names_of_the_same_model(first: str, second: str) -> None:
    assert same_model(first, second) and same_model(second, first) and same_file(first, second)


@pytest.mark.parametrize(("first", "second"), OTHER)
def test_names_of_different_models(first: str, second: str) -> None:
    assert not same_model(first, second) and not same_model(second, first) and not same_file(first, second)


def test_a_requested_file_may_omit_its_quantization() -> None:
    assert same_file("SmolLM2-135M-Instruct", "/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    assert same_file("gemma-3-1b-it", "gemma-3-1b-it-Q4_K_M.gguf") and same_file("m", "m-IQ2_XXS.gguf")
    assert not same_file("m.Q8_0.gguf", "m.Q4_0.gguf") and not same_file("m.Q8_0.gguf", "m.gguf")
