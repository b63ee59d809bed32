"""The saved checks of a folder, read once for each state of their files."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from mill.api.errors import MillError, UnknownName
from mill.checks.result import Check, read_check
from mill.view.index import ResultsIndex
from mill.view.run_info import file_signature


@lru_cache(maxsize=64)
def _read(file: Path, signature: Any) -> Check:
    return read_check(file)


def find_check(index: ResultsIndex, uid: str) -> Check:
    file = index.checks.get(uid)
    if file is None:
        raise UnknownName("check", uid[:60], index.checks, hint="it may have been removed or moved")
    return _read(file, file_signature(file))


def list_checks(index: ResultsIndex) -> list[dict[str, Any]]:
    """All checks, newest first; one that cannot be read has the reason."""
    found = []
    for uid, file in index.checks.items():
        entry: dict[str, Any] = {"uid": uid, "name": file.parent.name}
        try:
            check = find_check(index, uid)
        except MillError as error:
            found.append({**entry, "error": str(error), "created": ""})
            continue
        found.append(
            {
                **entry,
                "command": check.command,
                "tasks": check.tasks,
                "created": check.created,
                "baseline": check.baseline,
                "variants": [{"label": variant.label, "verdict": variant.verdict} for variant in check.variants],
            }
        )
    return sorted(found, key=lambda entry: str(entry["created"]), reverse=True)
