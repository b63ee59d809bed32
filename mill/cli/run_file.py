"""The file of `--config`: a whole run in YAML, with the names of the command line's options."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mill.api.errors import SpecError, UnknownName

_TYPES: dict[str, tuple[type, ...]] = {
    "n_shots": (int,),
    "seed": (int,),
    "repeats": (int,),
    "limit": (int, float, str),
    "batch_size": (int, str),
    "system_prompt": (str,),
    "output_dir": (str,),
    "gen_kwargs": (str, dict),
    "apply_chat_template": (bool,),
    "fresh": (bool,),
    "dry_run": (bool,),
    "quiet": (bool,),
    "wait": (int, float),
    "no_remote_code": (bool,),
    "judge": (str,),
    "engine": (str,),
    "workers": (int,),
    "address": (str,),
    "gpus_per_worker": (int, float),
}


def read_run_file(path: str, known: Iterable[str]) -> dict[str, Any]:
    """The options in a run file; a name that is no option, or a value of the wrong type, is refused."""
    import yaml

    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read the run file {path}: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        raise SpecError(f"the run file {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise SpecError(f"the run file {path} is not a mapping of options")
    names = sorted(set(known) - {"config", "help"})
    options = {str(name).replace("-", "_"): value for name, value in found.items()}
    for name, value in options.items():
        if name not in names:
            raise UnknownName(f"option in {path}", name, names, hint=f"options are {', '.join(names)}")
        expected = _TYPES.get(name)
        if (
            expected
            and value is not None
            and (not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected))
        ):
            raise SpecError(f"{name} in {path} must be {' or '.join(kind.__name__ for kind in expected)}, not {value!r}")
    return options
