"""Markup that cannot be forgotten to be escaped: text is escaped unless it is markup already."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_VOID = {"meta", "input", "circle", "line", "polyline"}


class Html(str):
    """Markup."""


def tag(name: str, /, *content: str | Iterable[str], **attributes: str | float | bool | None) -> Html:
    """An element. `class_` is written class, `data_kind` data-kind; an attribute of None or False is left out."""
    inner = joined(*content)
    given = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None and value is not False)
    if not inner and name in _VOID:
        return Html(f"<{name}{given}/>")
    return Html(f"<{name}{given}>{inner}</{name}>")


def joined(*content: str | Iterable[str]) -> Html:
    found = []
    for part in content:
        pieces = [part] if isinstance(part, str) else part
        found += [piece if isinstance(piece, Html) else escape(piece) for piece in pieces]
    return Html("".join(found))


def _attribute(key: str, value: str | float | bool) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
    return f' {name}="{escape(text)}"'
