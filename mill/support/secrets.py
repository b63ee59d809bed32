"""Keeping keys out of everything that is stored or shown."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

from mill.api.errors import SpecError

# Patterns without regard to case. `re` compiles and keeps each when it is used: all of them take a tenth of the time of
# `mill --help`.
_TOKENS = (
    "api|auth|access|hf|bearer|ad|session|security|refresh|id"  # those of a tokenizer, such as eos_token, are no secrets
)
_NAME = (
    rf"(?:(?:\w+[_-])?(?:access[_-]?key|private[_-]?key|secret\w*|passw(?:or)?d|credentials?|authorization|headers)|\w*api[_-]?key|key"
    rf"|(?:(?:\w+[_-])?(?:{_TOKENS})[_-])?token)"
)
_SCHEME = r"https?(?:://|:/(?!/)|//|:(?!/))"  # also where a colon or a slash is missing
_SHORTEST = 6  # anything shorter would also be taken out of harmless words
# Before the host: name:password, or a token alone. A password may have an @ that should have been %40.
_IN_ADDRESS = r"(://(?:[^/@\s:\[\]?#]*:)?)([^/@\s\[\]?#]+(?:@[^/@\s\[\]?#,]+)*)(?=@)"
# After the path: ?api_key=..., &token=..., &sig=...
_QUERY_NAME = rf"(?:{_NAME}|[\w.-]*(?:key|token|secret|sig|signature|passw(?:or)?d|auth|credential))"
_IN_QUERY = rf"([?&;]{_QUERY_NAME}=)([^&;#\s\[\]\"',<>]+)"
_QUOTED = r"\"(?:[^\"\\]|\\.)*\"|'[^']*'"
_START = rf"(?:{_QUOTED}|\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}})?"  # of a value: quotes and braces may contain commas
# In prose a value ends at whitespace; in the brackets of a spec, at the end of the argument.
_IN_TEXT = rf"((?:^|\s|--){_NAME}\s*=\s*)({_QUOTED}|[^,\]\s]+)"
_ARGUMENT = rf"([\[,]\s*{_NAME}\s*=\s*)(?=[^,\]\s])"
_IN_BRACKETS = rf"{_ARGUMENT}({_START}[^,\]\n]*)"
_IN_SPEC = rf"{_ARGUMENT}({_START}[^,\]]*(?:\](?!\s*(?:,|$))[^,\]]*)*)"
# In a mapping, as Python and JSON write it.
_IN_MAPPING = rf"((?:\"{_NAME}\"|'{_NAME}')\s*:\s*)({_QUOTED}|\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}|\[[^\]]*\]|[^,}}\]\s]+)"
_OPTION = rf"--{_NAME}="
_AFTER_SCHEME = r"\b(?:bearer|basic|token)\s+([^\s\"'{}]+)"
_EXAMPLE = "$NAME"


_known: set[str] = set()


def remember(secret: str | None) -> None:
    """Remember a secret's value, so that it is removed from text that is shown or stored, such as a server's messages."""
    if secret:
        _known.update(part for part in (secret, *re.findall(_AFTER_SCHEME, secret, re.IGNORECASE)) if len(part) >= _SHORTEST)


def any_known() -> bool:
    """Whether any secret is known."""
    return bool(_known)


def scrub(text: str) -> str:
    """A text without the secrets that are known."""
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def excerpt(text: str, length: int) -> str:
    """The start of a text in one line. Secrets are removed first: half of one could not be recognized."""
    return " ".join(scrub(text).split())[:length]


def split_password(address: str) -> tuple[str, str | None]:
    """An address without the name and password in it, and both as `name:password`. A token alone is a name.

    Either may be the name of an environment variable: `http://me:$PASSWORD@host`, `http://$TOKEN@host`.
    """
    if "?" in address or "#" in address:
        raise SpecError(f"{redact_address(address)}: an address ends with its path; a key is given as api_key=...")
    found = re.match(r"(\w+://)(?:([^/\s]*)@)?(.*)", address, re.DOTALL)  # up to the last @, as in URLs of browsers
    if found is None:
        return address, None
    address = found.group(1).lower() + found.group(3)
    if found.group(2) is None:
        return address, None
    login = _from_environment(found.group(2))
    name, colon, password = login.partition(":")
    password = _from_environment(password) if password.startswith("$") else unquote(password)
    remember(password if colon and password else unquote(name))
    return address, f"{unquote(name)}:{password}"


def _from_environment(text: str) -> str:
    return os.environ.get(text[1:], text) if text.startswith("$") else text


def is_variable(value: str) -> bool:
    """Whether a secret's value is the name of an environment variable: `$MY_KEY`."""
    return re.fullmatch(r"\$\w+", value) is not None


def fill_variables(address: str) -> str:
    """An address for a library that takes the password itself, not the name of a variable."""

    def value_of(match: re.Match[str]) -> str:
        remember(value := os.environ.get(match.group(2), match.group(2)))
        return f"{match.group(1)}{quote(value, safe='')}"

    return re.sub(r"(://(?:[^/@\s:]*:)?)\$(\w+)(?=@)", value_of, address)


def looks_like_url(text: str) -> bool:
    """Whether a text starts as an address does, or as a misspelled one: `http:/host`, `http//host`."""
    return re.match(_SCHEME, text, re.IGNORECASE) is not None


def is_secret(name: str) -> bool:
    """Whether an argument's name says that its value is one; `add_bos_token` and `eos_token` do not."""
    return re.fullmatch(_NAME, name, re.IGNORECASE) is not None


def redact(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as they may be stored and shown."""
    return {name: "***" if is_secret(name) else _redacted(value) for name, value in arguments.items()}


def _redacted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return redact(value)
    if isinstance(value, (list, tuple)):
        return [_redacted(item) for item in value]
    return redact_addresses(scrub(value)) if isinstance(value, str) else value


def redact_addresses(text: str) -> str:
    """A text in which no address shows a password, a token or a key."""
    for pattern in (_IN_ADDRESS, _IN_QUERY):
        text = _sub(pattern, lambda match: match[0] if match[2] == _EXAMPLE else f"{match[1]}***", text)
    return text


def redact_address(text: str) -> str:
    """An address that is refused: neither what stands before an @ nor a query, since either may have a secret."""
    shown = f"***{text[text.rindex('@') :]}" if "@" in text else text
    return re.sub(r"[?#].*", "?***", shown, flags=re.DOTALL)


def redact_text(text: str) -> str:
    """A message without secrets: known ones, and values of names that look like one.

    `key=value`, `key=...` and `key=$NAME` are examples and stay.
    """
    for pattern in (_IN_BRACKETS, _IN_TEXT, _IN_MAPPING):
        text = _sub(pattern, _stars, scrub(text))
    return redact_addresses(text)


def redact_spec(text: str) -> str:
    """A spec, or several with commas between them, without secrets."""
    return redact_addresses(_sub(_IN_SPEC, _stars, scrub(text)))


def _sub(pattern: str, replacement: Callable[[re.Match[str]], str], text: str) -> str:
    return re.sub(pattern, replacement, text, flags=re.IGNORECASE)


def _stars(match: re.Match[str]) -> str:
    return match.group(0) if match.group(2).startswith(("value", "...", "***", _EXAMPLE)) else f"{match.group(1)}***"


def redact_command(argv: Sequence[str]) -> str:
    """A command line, quoted for a shell, without the values of arguments and options that look like secrets."""
    shown = []
    for position, word in enumerate(argv):
        before = argv[position - 1] if position else ""
        after_option = before.startswith("--") and is_secret(before.lstrip("-"))
        option = re.match(_OPTION, word, re.IGNORECASE)
        shown.append("***" if after_option else f"{option.group(0)}***" if option else redact_text(redact_spec(word)))
    return shlex.join(shown)


def refuse_inline(word: str) -> None:
    """Refuse a word of a command line that has a secret: every user of a machine can read the command lines of others."""

    def name_variable(match: re.Match[str]) -> str:
        given = match.group(2).strip().strip("\"'")
        return match.group(0) if is_variable(given) else f"{match.group(1)}{_EXAMPLE}"

    shown = word
    for pattern in (_IN_SPEC, _IN_ADDRESS, _IN_QUERY):
        shown = _sub(pattern, name_variable, shown)
    if shown != word:
        why = "a key on a command line is visible to other users: set an environment variable"
        raise SpecError(f"{why} and write '{shown}', in single quotes since mill reads {_EXAMPLE}, not the shell")
