"""The run file of `--config`: a whole run in YAML, and its JSON schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from mill.api.errors import SpecError
from mill.api.yaml_file import read_yaml
from mill.options.eval_options import EvalOptions
from mill.options.option import options_of, read_all

_UNWRITABLE = re.compile("[\x00\ud800-\udfff]")


def read_run_file(path: str) -> dict[str, Any]:
    """The options in a run file, checked, by name."""
    given = read_yaml(path, "run file")
    if given is None:
        raise SpecError(f"the run file {path} is empty")
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


def _texts(value: Any) -> Iterator[str]:
    """The texts of a value: itself, those of a list, or the names, values and lists of a mapping."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from (text for text in value if isinstance(text, str))
    elif isinstance(value, dict):
        for part in (*value, *value.values()):
            yield from (text for text in (part if isinstance(part, list) else [part]) if isinstance(text, str))
