"""The modules of the front end as one classic script: browsers load no modules from disk."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

_IMPORT = re.compile(r'^import\s*(?:(?:(\w+)|\{([^}]*)\})\s*from\s*)?"([^"]+)";?', re.MULTILINE)
_REEXPORT = re.compile(r"^export \{([^}]*)\};?\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (const|function|class) (\w+)", re.MULTILINE)
_EXPORT_LIST = re.compile(r"export\s*\{([^}]*)\};?\s*$")
_EXPORT_DEFAULT = re.compile(r"export\s+default\s+")


def bundle(folder: Path, entry: str) -> str:
    """Each module becomes a function that is called once, those that it imports first."""
    order: list[str] = []
    _visit(folder, entry, order)
    parts = [f'modules["{name}"] = (() => {{\n{_converted(folder, name)}\n}})();' for name in order]
    return "(() => {\nconst modules = {};\n" + "\n".join(parts) + "\n})();\n"


def _visit(folder: Path, name: str, order: list[str]) -> None:
    if name in order:
        return
    for _, _, target in _IMPORT.findall(_read(folder, name)):
        _visit(folder, _resolved(name, target), order)
    order.append(name)


def _read(folder: Path, name: str) -> str:
    return (folder / name).read_text(encoding="utf-8")


def _resolved(name: str, target: str) -> str:
    parts: list[str] = list(PurePosixPath(name).parent.parts)
    for part in target.split("/"):
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def _converted(folder: Path, name: str) -> str:
    exported: dict[str, str] = {}
    text = _IMPORT.sub(lambda found: _as_constants(name, found), _read(folder, name))
    for pattern in (_REEXPORT, _EXPORT_LIST):
        for listed in pattern.findall(text):
            exported |= _names(listed, " as ", swap=True)
        text = pattern.sub("", text)
    exported |= {found[1]: found[1] for found in _EXPORT.findall(text)}
    text = _EXPORT.sub(r"\1 \2", text)
    if _EXPORT_DEFAULT.search(text):
        text = _EXPORT_DEFAULT.sub("const standard = ", text, count=1)
        exported["default"] = "standard"
    returned = ", ".join(f'"{shown}": {own}' for shown, own in exported.items())
    return f"{text.rstrip()}\nreturn {{ {returned} }};"


def _as_constants(name: str, found: re.Match[str]) -> str:
    module = f'modules["{_resolved(name, found[3])}"]'
    if found[1]:
        return f"const {found[1]} = {module}.default;"
    if found[2] is None:  # for its effect alone
        return ""
    names = ", ".join(f"{own}: {shown}" for own, shown in _names(found[2], " as ").items())
    return f"const {{ {names} }} = {module};"


def _names(listed: str, separator: str, *, swap: bool = False) -> dict[str, str]:
    """`a as b, c` as {a: b, c: c}, or the other way round."""
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in listed.split(","))):
        first, _, second = part.partition(separator)
        key, value = first.strip(), (second or first).strip()
        found |= {value: key} if swap else {key: value}
    return found
