"""Invalid arguments of server backends are refused before anything is sent, in a line without the key."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mill.api.errors import SpecError
from mill.models.litellm import LiteLLMModel
from mill.models.llama_cpp import LlamaCppModel
from mill.models.openai_compat.model import OpenAICompatModel, VllmMlxModel
from mill.models.spec.open import check_key, open_model

BACKENDS = [LlamaCppModel, VllmMlxModel, LiteLLMModel]
ODD = {
    "timeout": [0, -1, math.nan, math.inf, True, "soon"],
    "concurrency": [0, 1.5, True, "4", 10**9],
    "model": [7, ["m"]],
    "api_key": [7, "sk-secret\r\nX-Evil: 1", "sk-secret\nmore", "sk-\x00secret", "sk-secret-→", "sk-secret\x7fx"],
}


@pytest.mark.parametrize(
    ("backend", "name", "value"),
    [(OpenAICompatModel, name, value) for name, values in ODD.items() for value in values]
    + [(backend, name, ODD[name][0]) for backend in BACKENDS for name in ODD],
)
def test_invalid_values_are_refused(backend: Any, name: str, value: Any) -> None:
    with pytest.raises(SpecError, match=f"^{name}") as raised:
        backend(**{"model": "m", name: value})
    assert "secret" not in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value"), [("max_context_length", 0), ("bos_token_id", -1), ("stream", "no"), ("chat", "false")]
)
def test_arguments_of_openai_compat(name: str, value: Any) -> None:
    with pytest.raises(SpecError, match=f"^{name}="):
        OpenAICompatModel("m", **{name: value})


@pytest.mark.parametrize(
    "url", ["ftp://h", "h:80", "http://:80", "http://h:0", "http://h:99999", "http://h:x", "http://a b", "http://h\n/x", 7]
)
def test_invalid_addresses_are_refused(url: Any) -> None:
    with pytest.raises(SpecError, match=r"^base_url="):
        OpenAICompatModel("m", url)


def test_an_invalid_key_in_the_environment_is_refused_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILL_API_KEY", "sk-secret\r\nX-Evil: 1")
    with pytest.raises(SpecError, match=r"^MILL_API_KEY: the key contains a line break") as raised:
        OpenAICompatModel("m")
    assert "secret" not in str(raised.value)


def test_a_key_is_stripped() -> None:
    assert check_key("sk-good\n", "api_key") == "sk-good"
    assert check_key("", "api_key") is None and check_key(None, "api_key") is None


@pytest.mark.parametrize("backend", ["openai-compat", "vllm-mlx", "litellm"])
@pytest.mark.parametrize("name", ["apikey", "API_KEY", "Api-Key", "authorization"])
def test_a_key_under_another_name_is_refused(backend: str, name: str) -> None:
    with pytest.raises(SpecError, match=rf"^{backend} has no argument {name.replace('-', '_')}; did you mean api_key\?$"):
        open_model(f"{backend}[model=m,{name}=sk-secret]")


@pytest.mark.parametrize("name", ["extra_headers", "token", "access_token"])
def test_secrets_are_no_parameters_of_requests(name: str) -> None:
    with pytest.raises(SpecError, match="did you mean api_key"):
        open_model(f"openai-compat[model=m,{name}=sk-secret]")
    assert open_model("openai-compat[model=m,eos_token=x]").arguments["eos_token"] == "x"
