"""YAML files that a user writes: run files and cluster files. Repeated keys and alias bombs are refused."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from pathlib import Path
from typing import Any

from mill.api.errors import SpecError

_MAX_BYTES = 16 << 20
_MAX_NODES = 100_000


def read_yaml(path: str, what: str) -> dict[Any, Any] | None:
    """The mapping in a file; None where the file is empty. `what` names it in messages, such as "run file"."""
    import yaml

    try:
        content = _construct(_read_text(path))
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read the {what} {path}: {getattr(error, 'strerror', None) or error}") from error
    except RecursionError as error:
        raise SpecError(f"the {what} {path} is nested too deep") from error
    except yaml.YAMLError as error:
        raise SpecError(f"the {what} {path} is not YAML: {_problem(error)}") from None  # a traceback would quote the line
    if content is not None and not isinstance(content, dict):
        raise SpecError(f"the {what} {path} is not a mapping of names to values")
    return content


def _problem(error: Any) -> str:
    """What is wrong, and where. The parser's own message quotes the line, which may have a key."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    problem = re.sub(r" '(?!<)[^']{3,}'", "", f"{error.problem or error.context}")  # a name, such as that of an alias
    where = f"{problem} (line {mark.line + 1}, column {mark.column + 1})"
    if not error.problem or not error.context or error.context_mark is None:
        return where
    return f"{where} {error.context} (line {error.context_mark.line + 1}, column {error.context_mark.column + 1})"


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
        try:
            return loader.construct_document(node)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise ValueError("a value does not fit its tag, such as !!int, or is no date that exists") from None  # no quote
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
