"""HTML elements. Text is escaped unless it is markup already."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_ESCAPES = {code: f"\\x{code:x}" for code in range(0x7F, 0xA0)}
_VOID = {"meta", "input", "circle", "line", "polyline", "polygon"}


class Html(str):
    """Markup."""


def tag(name: str, /, *content: str | Iterable[str], **attributes: str | float | bool | None) -> Html:
    """An element. `class_` becomes class, `data_kind` data-kind; attributes of None or False are left out."""
    inner = joined(*content)
    given = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None and value is not False)
    if not inner and name in _VOID:
        return Html(f"<{name}{given}/>")
    # Browsers drop a newline right after <pre>, so one of the text needs another before it.
    first = "\n" if name == "pre" and inner.startswith("\n") else ""
    return Html(f"<{name}{given}>{first}{inner}</{name}>")


def joined(*content: str | Iterable[str]) -> Html:
    escaped: list[str] = []
    for part in content:
        pieces = [part] if isinstance(part, str) else part
        escaped += [piece if isinstance(piece, Html) else escape(_visible(piece)) for piece in pieces]
    return Html("".join(escaped))


def _visible(text: str) -> str:
    """Control characters as symbols (␀, ␘), and as escapes (\\x9b) where there is none: browsers drop them, some end the
    text, and a terminal that shows the page would obey them."""
    return text if text.isprintable() else "".join(map(_symbol, text))


def _symbol(char: str) -> str:
    if char in "\u202d\u202e":  # they reverse the rest of a line
        return "\u2426"
    return chr(0x2400 + ord(char)) if ord(char) < 32 and char not in "\n\t" else _ESCAPES.get(ord(char), char)


def _attribute(key: str, value: str | float | bool) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
    return f' {name}="{escape(_visible(text))}"'
