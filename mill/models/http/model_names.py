"""Whether two names mean the same model: servers report paths, aliases, dated versions and files."""

from __future__ import annotations

import re

_PARTS = re.compile(r"-\d{5}-of-\d{5}$")
_VERSION = re.compile(r"([-@:_.](\d{4}-?\d{2}-?\d{2}|\d{2}-\d{2}|\d{3,8}|latest|preview|exp|v\d+(:\d+)?))+")
_QUANTIZATION = re.compile(r"[-._:](ud-)?(i?q\d\w*|t?q\d_\d|f16|f32|bf16|fp16|mxfp4\w*)$")


def same_model(first: str, second: str) -> bool:
    """Equal but for folders, letter case, `.gguf`, and a date or version at the end: gpt-4o, gpt-4o-2024-08-06."""
    short, long = sorted((_base(first), _base(second)), key=len)
    return long.startswith(short) and (long == short or _VERSION.fullmatch(long[len(short) :]) is not None)


def same_file(requested: str, served: str) -> bool:
    """The same for weight files; the requested name may omit the quantization."""
    return same_model(requested, served) or _base(requested) == _QUANTIZATION.sub("", _base(served))


def _base(name: str) -> str:
    last = re.split(r"[/\\]", name.strip().rstrip("/\\"))[-1].lower()
    return _PARTS.sub("", last.removesuffix(".gguf")).removesuffix(":latest")
