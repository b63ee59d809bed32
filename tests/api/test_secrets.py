"""Keys never reach what is stored or shown; settings that only sound like keys do."""

from __future__ import annotations

import pytest

from mill.api.secrets import is_secret, redact, redact_command


@pytest.mark.parametrize(
    "name", ["api_key", "apikey", "openai_api_key", "key", "token", "hf_token", "auth_token", "client_secret", "password"]
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)
    assert redact({name: "sk-1", "path": "a"}) == {name: "***", "path": "a"}


@pytest.mark.parametrize("name", ["add_bos_token", "eos_token", "max_tokens", "monkey", "keyword", "path", "tokenizer"])
def test_names_that_only_sound_like_it(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    "argv",
    [
        ["mill", "eval", "litellm[model=m,api_key=sk-1]", "gsm8k"],
        ["mill", "eval", 'litellm[api_key="sk-1 b,sk-1",model=m]', "gsm8k"],
        ["mill", "eval", "m", "t", "--api_key", "sk-1"],
        ["mill", "eval", "m", "t", "--api-key=sk-1"],
    ],
)
def test_a_command_line_is_shown_without_its_keys(argv: list[str]) -> None:
    shown = redact_command(argv)
    assert "sk-1" not in shown and "***" in shown
    assert shown.startswith("mill eval")
