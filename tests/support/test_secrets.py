"""Secrets are never stored or printed; settings with similar names are."""

from __future__ import annotations

import shlex

import pytest

from mill.api.errors import SpecError
from mill.support.secrets import (
    fill_variables,
    is_secret,
    redact,
    redact_command,
    redact_spec,
    redact_text,
    refuse_inline,
    split_password,
)


@pytest.mark.parametrize(
    "name", ["api_key", "apikey", "openai_api_key", "key", "token", "hf_token", "auth_token", "client_secret", "private_key"]
)
def test_secret_names_are_redacted(name: str) -> None:
    assert is_secret(name)
    assert redact({name: "sk-1", "path": "a"}) == {name: "***", "path": "a"}


@pytest.mark.parametrize("name", ["add_bos_token", "eos_token", "max_tokens", "monkey", "keyword", "path", "tokenizer"])
def test_similar_names_are_not_secrets(name: str) -> None:
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
def test_a_command_line_is_printed_without_its_keys(argv: list[str]) -> None:
    redacted = redact_command(argv)
    assert "sk-1" not in redacted and "***" in redacted
    assert redacted.startswith("mill eval")
    assert shlex.split(redacted)[:2] == ["mill", "eval"] and len(shlex.split(redacted)) == len(argv)


ADDRESSES = [
    "http://sk-12345@host:8000/v1",
    "https://me:sk-12345@host/v1",
    "http://sk-12345:@host",
    "http://host/v1?api_key=sk-12345",
    "http://host/v1?model=m&token=sk-12345&x=1",
    "http://host/v1?x=1&key=sk-12345",
    "http://host/v1?sig=sk-12345#part",
    "http://host/v1?subscription-key=sk-12345",
    "http://a:8000,http://sk-12345@b:8000",
    "HTTP://me:sk-12345@sk-12345@host",
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_is_printed_and_stored_without_its_secret(address: str) -> None:
    for redacted in (
        redact_text(f"cannot reach {address}: refused"),
        redact_text(f"openai-compat[base_url={address}] failed"),
        redact_command(["mill", "eval", f"{address}[model=m]", "gsm8k", "--base_url", address]),
        str(redact({"base_url": address, "more": [address], "nested": {"url": address}})),
    ):
        assert "sk-12345" not in redacted and "***" in redacted


@pytest.mark.parametrize(
    ("address", "login"),
    [
        ("http://me:pass%40word@host/v1", "me:pass@word"),
        ("HTTP://me:pass@word@host/v1", "me:pass@word"),
        ("http://sk-12345@host/v1", "sk-12345:"),
        ("http://$SOME_TOKEN@host/v1", "sk-12345:"),
        ("http://me:$SOME_TOKEN@host/v1", "me:sk-12345"),
    ],
)
def test_the_userinfo_of_an_address_is_the_login(monkeypatch: pytest.MonkeyPatch, address: str, login: str) -> None:
    monkeypatch.setenv("SOME_TOKEN", "sk-12345")
    assert split_password(address) == ("http://host/v1", login)


def test_a_query_in_an_address_is_refused_without_printing_its_key() -> None:
    """A request's path is appended to the address, so the query would end up in the middle."""
    with pytest.raises(SpecError, match=r"\?\*\*\*: an address ends with its path") as raised:
        split_password("http://host/v1?api_key=sk-12345")
    assert "sk-12345" not in str(raised.value)


def test_values_in_mappings_are_redacted_by_name() -> None:
    text = """{'api_key': 'a b', "headers": {"X": "a"}, 'token': ['a'], 'secret': 5, 'max_tokens': 7, 'x': 'y'}"""
    shown = """{'api_key': ***, "headers": ***, 'token': ***, 'secret': ***, 'max_tokens': 7, 'x': 'y'}"""
    assert redact_text(text) == shown and redact_text(shown) == shown


def test_variables_in_addresses_are_filled_in_and_passwords_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "SEK%52IT")
    assert split_password("http://me:$MINE@host/v1") == ("http://host/v1", "me:SEK%52IT")
    assert split_password("http://me:SEK%52IT%40@host/v1") == ("http://host/v1", "me:SEKRIT@")
    assert fill_variables("postgresql://me:$MINE@host/x") == "postgresql://me:SEK%2552IT@host/x"
    assert fill_variables("http://$MINE@host") == "http://SEK%2552IT@host" and fill_variables("http://host") == "http://host"


SPACED = [
    "api_key=PART-one PART-two",
    "authorization=Bearer PART-one",
    'extra_headers={"Authorization":"Bearer PART-one","X-Key":"PART-two"}',
    "api_key=PART-one]PART-two",
    'api_key="PART-one"PART-two',
    "api_key=$PART one",
]


@pytest.mark.parametrize("argument", SPACED)
def test_a_secret_extends_to_the_end_of_its_argument(argument: str) -> None:
    spec = f"http://host/v1[model=m,{argument}],org/name"
    with pytest.raises(SpecError) as raised:
        refuse_inline(spec)
    assert f"'http://host/v1[model=m,{argument.partition('=')[0]}=$NAME],org/name'" in str(raised.value)
    for redacted in (redact_command(["mill", "eval", spec]), redact_spec(spec)):
        assert "PART" not in redacted and "***" in redacted


@pytest.mark.parametrize("name", ["$MY_KEY", '"$MY_KEY"', "'$MY_KEY'"])
def test_the_name_of_a_variable_is_no_key(name: str) -> None:
    refuse_inline(f"litellm[model=m,api_key={name}],http://me:$MY_KEY@host")
