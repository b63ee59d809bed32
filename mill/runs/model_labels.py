"""What distinguishes runs of models that have the same name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def distinguishing_arguments(models: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """For each run, the backend and arguments in which it differs from runs of another model with the same name.

    Models that differ in none of them, such as other weights in the same folder, have the name of their folder.
    """
    by_name: dict[str, dict[str, list[str]]] = {}  # model name -> model folder -> runs
    for run, model in models.items():
        by_name.setdefault(model["name"], {}).setdefault(Path(run).parent.name, []).append(run)
    texts = dict.fromkeys(models, "")
    for folders in by_name.values():
        if len(folders) < 2:
            continue
        described = [_described(models[runs[0]]) for runs in folders.values()]
        differing = _differing(described)
        labels = [", ".join(f"{name}={entry[name]}" for name in differing if name in entry) for entry in described]
        for (folder, runs), label in zip(folders.items(), labels, strict=True):
            clash = labels.count(label) > 1
            texts |= dict.fromkeys(runs, ", ".join(filter(None, (label, folder if clash else ""))))
    return texts


def _described(model: Mapping[str, Any]) -> dict[str, Any]:
    arguments = model.get("arguments")
    return {"backend": model.get("backend", ""), **(arguments if isinstance(arguments, dict) else {})}


def _differing(described: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for arguments in described for name in arguments)
    return [name for name in names if any(arguments.get(name) != described[0].get(name) for arguments in described)]
