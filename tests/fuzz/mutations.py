"""Ways in which a file of JSON or of its lines, or the answer of a server, may be other than it should be."""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DEEP: Any = []
for _ in range(400):
    DEEP = [DEEP]

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 3, 1.5, 1e-5, 10**40, -(10**400), float("nan"), float("inf"),
    {"message": "no", "code": 500}, "", "text", "7", "NaN", "stop", "error", "\x00\x1b[2J", "\ud800",
    "../up", "a\0b", [], [None], {}, {"a": None}, [[]], [{}], DEEP,
)  # fmt: skip
Step = str | int


def paths(data: Any, here: tuple[Step, ...] = ()) -> Iterator[tuple[Step, ...]]:
    """Every place in a JSON value."""
    yield here
    if isinstance(data, dict):
        for key, value in data.items():
            yield from paths(value, (*here, key))
    if isinstance(data, list):
        for number, value in enumerate(data):
            yield from paths(value, (*here, number))


def change(data: Any, dice: random.Random) -> Any:
    """One thing in a JSON value is replaced, removed, added, doubled or turned into another type."""
    data = json.loads(json.dumps(data))
    path = dice.choice(list(paths(data)))
    holder: Any = {"": data}
    inner = holder
    step: str | int = ""
    for following in path:
        inner, step = inner[step], following
    value = inner[step]
    how = dice.randrange(8)
    if how == 0 and path:
        del inner[step]
    elif how == 1 and isinstance(value, dict):
        value[dice.choice(["newer", "value", "", "\ud800"])] = dice.choice(VALUES)
    elif how == 2 and isinstance(value, list):
        value.append(dice.choice([*value, *VALUES]))
    elif how == 3:
        inner[step] = turned(value)
    elif how == 4 and isinstance(value, dict) and value:
        key = dice.choice(list(value))
        value[f"{key}_"] = value.pop(key)
    else:
        inner[step] = dice.choice(VALUES)
    return holder[""]


def turned(value: Any) -> Any:
    """The same in another type."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list):
        return {str(number): one for number, one in enumerate(value)}
    return [value] if isinstance(value, str) or value is None else str(value)


def mutate_json(content: bytes, dice: random.Random) -> bytes:
    return json.dumps(change(json.loads(content), dice)).encode() + b"\n"


def mutate_lines(content: bytes, dice: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    place = dice.randrange(len(lines))
    how = dice.randrange(8)
    if how == 0:
        del lines[place]
    elif how == 1:
        lines.insert(dice.randrange(len(lines) + 1), lines[place])
    elif how == 2:
        dice.shuffle(lines)
    elif how == 3:
        lines[place] = lines[place][: dice.randrange(len(lines[place]))] + dice.choice([b"", b"\n"])
    elif how == 4:
        lines.insert(place, dice.choice([b"\n", b"{}\n", b"null\n", b"[]\n", b" \n", b"\0\0\n"]))
    else:
        lines[place] = mutate_json(lines[place], dice)
    return b"".join(lines)


def _flip(content: bytes, dice: random.Random) -> bytes:
    place = dice.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << dice.randrange(8)]) + content[place + 1 :]


RAW: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _flip,
    _flip,
    lambda content, dice: content[: dice.randrange(len(content))],
    lambda content, dice: b"\xef\xbb\xbf" + content,
    lambda content, dice: content.replace(b"\n", b"\r\n"),
    lambda content, dice: b"",
    lambda content, dice: dice.randbytes(200),
    lambda content, dice: content + dice.randbytes(20),
    lambda content, dice: b"[" * 100_000 + b"\n",
    lambda content, dice: b'{"a":' * 100_000 + b"\n",
    lambda content, dice: content.decode("utf-8", "replace").encode("utf-16"),
    lambda content, dice: b"\0" * 4096 + content,
    lambda content, dice: content * 2,
)


def variant(document: Any, dice: random.Random) -> bytes:
    """A broken copy of a document as bytes, with one to three changes; mostly still JSON."""
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        document = change(document, dice)
    content = json.dumps(document).encode()
    return content if dice.random() < 0.75 else dice.choice(RAW)(content, dice)


def mutate(name: str, content: bytes, dice: random.Random) -> bytes:
    if dice.random() < 0.25 or name.endswith(".ledger"):  # which has a checksum before its JSON
        return dice.choice(RAW)(content, dice)
    return mutate_lines(content, dice) if name.endswith(".jsonl") else mutate_json(content, dice)


def _socket(file: Path) -> None:
    here = Path.cwd()
    os.chdir(file.parent)  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(file.name)
    finally:
        os.chdir(here)


def _huge(file: Path) -> None:
    with file.open("wb") as handle:
        handle.truncate(1 << 40)


ODD_FILES: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a socket": _socket,
    "a device": lambda file: file.symlink_to("/dev/zero"),
    "a link to nothing": lambda file: file.symlink_to("nothing"),
    "a link to itself": lambda file: file.symlink_to(file.name),
    "a terabyte": _huge,
}
