"""The run file of `--config`: a whole run in YAML, and its JSON schema."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mill.api.errors import SpecError
from mill.options.definitions import EvalOptions
from mill.options.option import options_of, read_all

_UNWRITABLE = re.compile("[\x00\ud800-\udfff]")
_MAX_BYTES = 16 << 20
_MAX_NODES = 100_000


def read_run_file(path: str) -> dict[str, Any]:
    """The options in a run file, checked, by name."""
    given = _read(path)
    for name, value in given.items():
        if any(_UNWRITABLE.search(text) for text in _texts(value)):
            raise SpecError(f"{name} in {path} has an invalid character: NUL, or half of a surrogate pair")
    return read_all(given, options_of(EvalOptions), f"option in {path}", suffix=f" in {path}")


def run_file_schema() -> dict[str, Any]:
    """A JSON schema (draft 2020-12) of run files. Editors complete the names; other spellings are patterns."""
    options = options_of(EvalOptions)
    patterns = {
        f"^{spelling.replace('_', '[-_]')}$": {"$ref": f"#/properties/{option.name}"}
        for option in options.values()
        for spelling in option.names
        if "_" in spelling or spelling != option.name
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "mill run file",
        "description": "Options of `mill eval --config FILE`. The command line wins over the file.",
        "type": "object",
        "properties": {name: option.json_schema() for name, option in options.items()},
        "patternProperties": patterns,
        "additionalProperties": False,
    }


def _read(path: str) -> dict[Any, Any]:
    import yaml

    try:
        content = _construct(_read_text(path))
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read the run file {path}: {getattr(error, 'strerror', None) or error}") from error
    except RecursionError as error:
        raise SpecError(f"the run file {path} is nested too deep") from error
    except yaml.YAMLError as error:
        raise SpecError(f"the run file {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise SpecError(f"the run file {path} is not a mapping of options")
    return content


def _construct(text: str) -> Any:
    """The content of a YAML document. Nodes are checked first: a small file with aliases may become a huge value."""
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _expanded_size(node, {}) > _MAX_NODES:
            raise ValueError(f"its aliases expand to more than {_MAX_NODES:,} values")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _expanded_size(node: Any, sizes: dict[int, int]) -> int:
    """How many nodes a node has with all aliases expanded. Raises ValueError for a key that is given twice."""
    if id(node) in sizes:
        if not sizes[id(node)]:
            raise ValueError("a value contains itself")
        return sizes[id(node)]
    sizes[id(node)] = 0  # in progress
    children: list[Any] = []
    if node.id == "mapping":
        keys = Counter((key.tag, key.value) for key, _ in node.value if key.id == "scalar")
        for (_, name), count in keys.items():
            if count > 1:
                raise ValueError(f"{name!r} is given twice")
        children = [child for pair in node.value for child in pair]
    elif node.id == "sequence":
        children = node.value
    sizes[id(node)] = size = 1 + sum(_expanded_size(child, sizes) for child in children)
    return size


def _read_text(path: str) -> str:
    """The text of a file, or of a pipe, as a shell gives it for <(command). A device such as /dev/zero never ends."""
    with Path(path).open("rb") as handle:
        mode = os.fstat(handle.fileno()).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
            raise ValueError("it is not a regular file")
        raw = handle.read(_MAX_BYTES + 1)
    if len(raw) > _MAX_BYTES:
        raise ValueError(f"it is larger than {_MAX_BYTES >> 20} MiB")
    return raw.decode("utf-8")


def _texts(value: Any) -> Iterator[str]:
    """The texts of a value: itself, those of a list, or the names, values and lists of a mapping."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from (text for text in value if isinstance(text, str))
    elif isinstance(value, dict):
        for part in (*value, *value.values()):
            yield from (text for text in (part if isinstance(part, list) else [part]) if isinstance(text, str))
