"""Names refused without importing LiteLLM are those that LiteLLM refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from mill.api.errors import ModelError
from mill.models.litellm import model as model_module
from mill.models.litellm.model import _KEYS, check_name

litellm = pytest.importorskip("litellm")


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for keys in _KEYS.values():
        for key in keys:
            monkeypatch.delenv(key, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(model_module, "_has_dotenv", lambda: False)


@pytest.mark.parametrize("provider", _KEYS)
def test_a_missing_key_is_the_one_that_litellm_reports(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, keys = f"{provider}/some-model", _KEYS[provider]
    missing = litellm.validate_environment(model)["missing_keys"]
    assert missing and set(missing) <= set(keys)
    with pytest.raises(ModelError, match=f"needs a key: set .*{missing[0]}"):
        check_name(model, has_key=False, has_address=False)
    check_name(model, has_key=True, has_address=False)
    for key in keys:
        with monkeypatch.context() as patch:
            patch.setenv(key, "k")
            assert litellm.validate_environment(model)["missing_keys"] == []
            check_name(model, has_key=False, has_address=False)


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-4o-mini", "o1"])
def test_names_without_a_provider_are_resolved_as_by_litellm(model: str) -> None:
    assert litellm.get_llm_provider(model)[1] in _KEYS
    check_name(model, has_key=True, has_address=False)
    with pytest.raises(ModelError, match="needs a key"):
        check_name(model, has_key=False, has_address=False)


@pytest.mark.parametrize("model", ["x", "no-such-model", ""])
def test_a_name_that_litellm_does_not_know_is_refused(model: str) -> None:
    with pytest.raises(Exception, match=r"LLM Provider NOT provided|provider"):
        litellm.get_llm_provider(model)
    with pytest.raises(ModelError, match="does not know the provider"):
        check_name(model, has_key=True, has_address=False)


@pytest.mark.parametrize("model", ["nosuch/model", "hosted_vllm/m", "ollama/llama3", "ft:gpt-4o:org"])
def test_uncertain_names_are_left_to_litellm(model: str) -> None:
    check_name(model, has_key=False, has_address=False)
    check_name("x", has_key=False, has_address=True)


def test_a_dotenv_file_may_have_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module, "_has_dotenv", lambda: True)
    check_name("gpt-4o", has_key=False, has_address=False)
