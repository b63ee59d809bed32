"""Escapes text from outside for Markdown."""

from __future__ import annotations

from mill.api.printing import one_line


def escape(text: str) -> str:
    """Names and messages, so that nothing in them is Markdown or HTML."""
    text = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{char}" if char in "\\|*_`[]#!~" else char for char in text)
