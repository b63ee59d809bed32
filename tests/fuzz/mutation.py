"""Changes to JSON documents as broken servers and editors make them: values, types, structure and bytes."""

from __future__ import annotations

import copy
import json
import math
import random
from typing import Any

ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    7,
    2**63,
    10**40,
    0.5,
    -0.0,
    1e-5,
    -1e308,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "0",
    "3",
    "NaN",
    "stop",
    "error",
    "abort",
    "\x00\x1b[2J",
    "\ud800",
    "x" * 5000,
    [],
    [None],
    [[]],
    {},
    {"message": "no", "code": 500},
    {"id": "m"},
)
SPLICES = (
    b"",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b'"',
    b"\\",
    b"\x00",
    b"\xff",
    b"NaN",
    b"1e999",
    b"-",
    b"null",
    b"\\ud800",
    b"\n\n",
)


def places(document: Any) -> list[tuple[Any, Any]]:
    """Every container with each of its keys."""
    found: list[tuple[Any, Any]] = []
    if isinstance(document, dict):
        found += [(document, key) for key in document]
        inner = list(document.values())
    else:
        found += [(document, at) for at in range(len(document))]
        inner = document
    for value in inner:
        if isinstance(value, (dict, list)):
            found += places(value)
    return found


def mutated(document: Any, chance: random.Random) -> Any:
    """The document with one to three changes."""
    whole = [copy.deepcopy(document)]  # in a list, so that the document itself can change too
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        if found := places(whole):
            _change(*chance.choice(found), chance)
    return whole[0] if whole else None


def _change(container: Any, key: Any, chance: random.Random) -> None:
    value, kind = container[key], chance.randrange(8)
    if kind <= 2:
        container[key] = copy.deepcopy(chance.choice(ODD))
    elif kind == 3:
        del container[key]
    elif kind == 4 and isinstance(container, list):
        container.insert(key, copy.deepcopy(chance.choice([value, *ODD])))
    elif kind == 4:
        container[chance.choice(("error", "index", "finish_reason", "logprobs", "x", "text"))] = chance.choice(ODD)
    elif kind == 5 and isinstance(value, (int, float)) and not isinstance(value, bool):
        container[key] = chance.choice((-value, value * 1000, str(value), value + 1e-4, [value]))
    elif kind == 6:
        container[key] = chance.choice(([value], {"value": value}, json.dumps(value)))
    elif isinstance(container, list):
        container.reverse()
    else:
        other = chance.choice(list(container))
        container[key], container[other] = container[other], value


def scrambled(raw: bytes, chance: random.Random) -> bytes:
    """Bytes lost, repeated, flipped or put in."""
    at, until = sorted(chance.randrange(len(raw) + 1) for _ in range(2))
    kind = chance.randrange(5)
    if kind == 0:
        return raw[:at]
    if kind == 1:
        return raw[:at] + raw[min(until, at + 20) :]
    if kind == 2:
        return raw[:until] + raw[at:until][:200] + raw[until:]
    if kind == 3 and at < len(raw):
        return raw[:at] + bytes([raw[at] ^ (1 << chance.randrange(8))]) + raw[at + 1 :]
    return raw[:at] + chance.choice(SPLICES) + raw[at:]


def variant(document: Any, chance: random.Random) -> bytes:
    """A broken copy of a document, as bytes; mostly still JSON."""
    if chance.random() < 0.75:
        return json.dumps(mutated(document, chance)).encode()
    return scrambled(json.dumps(document).encode(), chance)
