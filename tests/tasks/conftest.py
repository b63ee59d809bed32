"""Rows on the search path, for tests of tasks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`put("org/name/config/split", *rows)` writes that split under the only root there is."""
    monkeypatch.setenv("MILL_DATA", str(tmp_path / "data"))

    def write(name: str, *rows: dict[str, Any]) -> None:
        file = tmp_path / "data" / f"{name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    return write
