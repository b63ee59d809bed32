"""The page of the viewer: one HTML file with its style and its script, and, offline, with all data that it shows."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from mill.support.files import json_text
from mill.support.terminal import utf8

STATIC = Path(__file__).with_name("static")
ENTRY = "app.js"
# What only the live page may do is ask its server; an offline page reads images and sounds from itself and from beside it.
LIVE = "connect-src 'self'; img-src 'self' data:; media-src 'self'"
OFFLINE = "img-src data: 'self' file:; media-src data: 'self' file:"
_IMPORT = re.compile(r'^import (?:\{[^}]*\} from )?"([^"]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=const |function |class )", re.MULTILINE)


@cache
def script() -> str:
    """The modules as one script, each after those that it imports. They share one scope: no two names are the same."""
    seen: set[Path] = set()
    parts: list[str] = []

    def add(file: Path) -> None:
        seen.add(file)
        text = file.read_text(encoding="utf-8")
        for imported in ((file.parent / target).resolve() for target in _IMPORT.findall(text)):
            if imported not in seen:
                add(imported)
        parts.append(_EXPORT.sub("", _IMPORT.sub("", text)))

    add((STATIC / ENTRY).resolve())
    return f'"use strict";\n(() => {{\n{"".join(parts)}}})();\n'


@cache
def style() -> str:
    return (STATIC / "style.css").read_text(encoding="utf-8")


@cache
def policy(more: str = LIVE) -> str:
    """Only the page's own script and style, by their digests."""
    own = f"script-src {_digest(script())}; style-src {_digest(style())}"
    return f"default-src 'none'; {own}; {more}; base-uri 'none'; form-action 'none'"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def live_page() -> bytes:
    return _page(LIVE, b"")


def offline_page(data: Any) -> bytes:
    """No text in the data can end its element: a `<` is written as an escape of JSON."""
    text = utf8(json_text(data).replace("<", "\\u003c"))
    return _page(OFFLINE, b'<script type="application/json" id="data">' + text + b"</script>\n")


def _page(more: str, data: bytes) -> bytes:
    template = Template((STATIC / "index.html").read_text(encoding="utf-8"))
    mark = "<!-- data -->"
    text = template.substitute(policy=policy(more), style=style(), script=script(), data=mark)
    first, _, last = text.partition(mark)
    return first.encode() + data + last.encode()
