"""What ran: the model, its engine, its dtype and the settings, for the head of a section."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mill.api.errors import RunError
from mill.api.task import RenderSettings
from mill.checks.result import FOLDER, Check
from mill.checks.subjects import CHECK_RUNS
from mill.store.folder import RunFolder
from mill.support.files import json_text
from mill.support.terminal import one_line

MOST_CHARS = 300  # of one value
_ADDRESS = ("path", "model", "base_url")  # arguments that name a model, the first one is shown by itself
_LIBRARIES = ("mill", "torch", "transformers", "vllm", "mlx-lm")

About = list[tuple[str, str]]
"""Names and values, such as ("dtype", "float32")."""


def manifest_about(manifest: Mapping[str, Any]) -> About:
    """From a run's manifest, which has no keys."""
    model, settings = manifest["model"], manifest["settings"]
    arguments, identity = (_mapping(model.get(name)) for name in ("arguments", "identity"))
    address = next((name for name in _ADDRESS if arguments.get(name)), None)
    dtype = identity.get("dtype") or arguments.get("dtype")
    others = {name: value for name, value in arguments.items() if name not in (address, "dtype")}
    defaults = asdict(RenderSettings())
    changed = {name: value for name, value in settings.items() if value != defaults.get(name)}
    versions = _mapping(manifest.get("versions"))
    found = {
        "model": model["name"],
        "path" if address in (None, "path") else str(address): arguments.get(address) if address else None,
        "backend": model.get("backend"),
        "dtype": dtype,
        "arguments": listed(others),
        "settings": listed(changed),
        "versions": listed({name: versions[name] for name in _LIBRARIES if name in versions}, " "),
    }
    return [(name, _short(value)) for name, value in found.items() if value]


def check_about(check: Check, file: Path | None = None) -> list[tuple[str, About]]:
    """For each model of a check its label and what is known of it: from the manifest of its run where that still exists,
    else from the check. One entry without a label where all are the same. `file` is the check's file."""
    sides = [(check.baseline, check.baseline_run, check.baseline_model, check.baseline_backend)] if check.against else []
    sides += [(variant.label, variant.run, variant.model, variant.backend) for variant in check.variants]
    found = []
    for label, run, model, backend in sides:
        about = _of_run(run, file) or [("model", _short(model)), ("backend", _short(backend))]
        found.append((label, [(name, value) for name, value in about if value]))
    if len({dict(about).get("settings") for _, about in found}) < 2:  # those of the check
        found = [(label, [fact for fact in about if fact[0] != "settings"]) for label, about in found]
    if found and all(about == found[0][1] for _, about in found):
        found = [("", found[0][1])]
    return [(label, about) for label, about in found if about]


def _of_run(run: str, file: Path | None) -> About:
    """Empty where the run is gone or is none. A path that does not exist here is tried below the folder of the check."""
    if not run:
        return []
    candidates = [Path(run)]
    if file is not None and len(Path(run).parts) > 1:
        checks, name = file.absolute().parent.parent, Path(*Path(run).parts[-2:])
        candidates += [checks.parent / name, checks / CHECK_RUNS / name] if checks.name == FOLDER else []
    for path in candidates:
        try:
            return manifest_about(RunFolder(path).manifest())
        except (RunError, OSError, ValueError):  # it was moved or deleted, or the path is none
            continue
    return []


def listed(values: Mapping[str, Any], sign: str = "=") -> str:
    return ", ".join(f"{name}{sign}{_plain(value)}" for name, value in values.items() if value not in (None, {}, []))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)


def _short(value: Any) -> str:
    text = one_line(_plain(value)) if value else ""
    return text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]} […]"
