"""Keeping keys out of everything that is stored or shown."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from mill.api.errors import SpecError


class _Pattern:
    """A pattern that is compiled when it is used: all of them would take a tenth of the time of `mill --help`."""

    def __init__(self, text: str, flags: int = 0) -> None:
        self.text, self.flags = text, flags

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self.text, self.flags)


_TOKENS = (
    "api|auth|access|hf|bearer|ad|session|security|refresh|id"  # those of a tokenizer, such as eos_token, are no secrets
)
_NAME = (
    rf"(?:(?:\w+[_-])?(?:access[_-]?key|private[_-]?key|secret\w*|passw(?:or)?d|credentials?|authorization|headers)|\w*api[_-]?key|key"
    rf"|(?:(?:\w+[_-])?(?:{_TOKENS})[_-])?token)"
)
_SHORTEST = 6  # anything shorter would also be taken out of harmless words
_WHOLE = _Pattern(_NAME, re.IGNORECASE)
# Before the host: name:password, or a token alone. A password may have an @ that should have been %40.
_IN_ADDRESS = _Pattern(r"(://(?:[^/@\s:\[\]?#]*:)?)([^/@\s\[\]?#]+(?:@[^/@\s\[\]?#,]+)*)(?=@)")
# The same where the address is malformed: http:/me:..., http//me:..., or a password with a slash. In prose, up to a space.
_SCHEME = r"\bhttps?(?:://|:/(?!/)|//|:(?!/))"
_IN_MALFORMED = _Pattern(rf"({_SCHEME}[^\s:/@\"'<>,\[\]]*:)[^\s\"'<>,\[\]]+(?=@)", re.IGNORECASE)
_MALFORMED = _Pattern(rf"({_SCHEME}(?:[^:/@]*:)?).*(?=@)", re.IGNORECASE | re.DOTALL)
_AFTER_PATH = _Pattern(r"([?&;#](?:[\w.-]+=)?)[^&;#]*")
# After the path: ?api_key=..., &token=..., &sig=...
_QUERY_NAME = rf"(?:{_NAME}|[\w.-]*(?:key|token|secret|sig|signature|passw(?:or)?d|auth|credential))"
_IN_QUERY = _Pattern(rf"([?&;]{_QUERY_NAME}=)([^&;#\s\[\]\"',<>]+)", re.IGNORECASE)
_QUOTED = r"\"(?:[^\"\\]|\\.)*\"|'[^']*'"
_START = rf"(?:{_QUOTED}|\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}})?"  # of a value: quotes and braces may contain commas
# In prose a value ends at whitespace; in the brackets of a spec, at the end of the argument.
_IN_TEXT = _Pattern(rf"((?:^|\s|--){_NAME}\s*=\s*)({_QUOTED}|[^,\]\s]+)", re.IGNORECASE)
_ARGUMENT = rf"([\[,]\s*{_NAME}\s*=\s*)(?=[^,\]\s])"
_IN_BRACKETS = _Pattern(rf"{_ARGUMENT}({_START}[^,\]\n]*)", re.IGNORECASE)
_IN_SPEC = _Pattern(rf"{_ARGUMENT}({_START}[^,\]]*(?:\](?!\s*(?:,|$))[^,\]]*)*)", re.IGNORECASE)
# In a mapping, as Python and JSON write it.
_IN_MAPPING = _Pattern(
    rf"((?:\"{_NAME}\"|'{_NAME}')\s*:\s*)({_QUOTED}|\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}|\[[^\]]*\]|[^,}}\]\s]+)", re.IGNORECASE
)
_OPTION = _Pattern(rf"--{_NAME}=", re.IGNORECASE)
_AFTER_SCHEME = _Pattern(r"\b(?:bearer|basic|token)\s+([^\s\"'{}]+)", re.IGNORECASE)


_known: set[str] = set()


def remember(secret: str | None) -> None:
    """Remember a secret's value, so that it is removed from text that is shown or stored, such as a server's messages."""
    if secret:
        _known.update(part for part in (secret, *_AFTER_SCHEME.compiled.findall(secret)) if len(part) >= _SHORTEST)


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
    if password.startswith(f"${_HIDDEN}"):  # as it stood in the address
        password = unquote(_from_environment(password))
    else:
        password = _from_environment(password) if password.startswith("$") else unquote(password)
    remember(password if colon and password else unquote(name))
    return address, f"{unquote(name)}:{password}"


def _from_environment(text: str) -> str:
    return os.environ.get(text[1:], text) if text.startswith("$") else text


def is_variable(value: str) -> bool:
    """Whether a secret's value is the name of an environment variable: `$MY_KEY`."""
    return re.fullmatch(r"\$\w+", value) is not None


def variables_in(address: str) -> list[str]:
    """The environment variable that stands for the password or the token in an address, if one does."""
    return re.findall(r"://(?:[^/@\s:]*:)?\$(\w+)@", address)


def looks_like_url(text: str) -> bool:
    """Whether a text starts as an address does, also where a colon or a slash is missing: `http:/host`, `http//host`."""
    return re.match(_SCHEME, text, re.IGNORECASE) is not None


def is_secret(name: str) -> bool:
    """Whether an argument's name says that its value is one; `add_bos_token` and `eos_token` do not."""
    return _WHOLE.compiled.fullmatch(name) is not None


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
    return _IN_QUERY.compiled.sub(r"\1***", _IN_ADDRESS.compiled.sub(r"\1***", text))


def redact_address(text: str) -> str:
    """An address that may be malformed, or be none: nothing up to the last @ is shown but a name before a colon, and no
    values of a query or a fragment."""
    text = scrub(text)
    if "@" in text and not _MALFORMED.compiled.search(text):  # it has no scheme
        text = f"***{text[text.rindex('@') :]}"
    return _AFTER_PATH.compiled.sub(r"\1***", redact_malformed(text))


def redact_malformed(text: str) -> str:
    """A spec that cannot be parsed: from the scheme of an address in it, everything up to the last @ may be a password."""
    return _MALFORMED.compiled.sub(r"\1***", redact_spec(text))


def redact_text(text: str) -> str:
    """A message without secrets: known ones, and values of names that look like one.

    `key=value` and `key=...` are examples and stay.
    """
    for pattern in (_IN_BRACKETS, _IN_TEXT, _IN_MAPPING):
        text = pattern.compiled.sub(_stars, scrub(text))
    return redact_addresses(_IN_MALFORMED.compiled.sub(r"\1***", text))


def redact_spec(text: str) -> str:
    """A spec, or several with commas between them, without secrets."""
    return redact_addresses(_IN_SPEC.compiled.sub(_stars, scrub(text)))


def _stars(match: re.Match[str]) -> str:
    return match.group(0) if match.group(2).startswith(("value", "...", "***")) else f"{match.group(1)}***"


def redact_command(argv: Sequence[str]) -> str:
    """A command line, quoted for a shell, without the values of arguments and options that look like secrets."""
    shown = []
    for position, word in enumerate(argv):
        before = argv[position - 1] if position else ""
        after_option = before.startswith("--") and is_secret(before.lstrip("-"))
        option = _OPTION.compiled.match(word)
        shown.append("***" if after_option else f"{option.group(0)}***" if option else redact_text(redact_spec(word)))
    return shlex.join(shown)


def hide(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Specs and addresses whose secrets are names of environment variables, and those variables.

    Every user of a machine can read the command lines of others, but not their environment.
    """
    hidden: dict[str, str] = {}

    def move(match: re.Match[str]) -> str:
        value = match.group(2).strip()
        if re.fullmatch(_QUOTED, value, re.DOTALL):
            value = re.sub(r"\\(.)", r"\1", value[1:-1], flags=re.DOTALL)
        if is_variable(value):
            return match.group(0)
        name = f"{_HIDDEN}{len(hidden)}"
        hidden[name] = value
        return f"{match.group(1)}${name}"

    words = []
    for word in argv:
        word = _IN_SPEC.compiled.sub(move, word) if "=" in word else word
        if "://" in word:
            word = _IN_QUERY.compiled.sub(move, _IN_ADDRESS.compiled.sub(move, word))
        words.append(word)
    return words, hidden


def reveal(text: str) -> str:
    """A value with the secrets that `hide` replaced."""

    def value_of(match: re.Match[str]) -> str:
        remember(value := os.environ.get(match.group(1), match.group(0)))
        return value

    return re.sub(rf"\$({_HIDDEN}\d+)", value_of, text)


def names_hidden(value: object) -> bool:
    """Whether a value of a spec names a secret that `hide` replaced."""
    return isinstance(value, str) and f"${_HIDDEN}" in value


_HIDDEN = "MILL_SECRET_"
