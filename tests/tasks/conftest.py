"""Rows on the search path, for tests of tasks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the search path."""
    monkeypatch.setenv("MILL_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def put(root: Path) -> Callable[..., None]:
    """`put("org/name/config/split", *rows)` writes that split."""

    def write(name: str, *rows: dict[str, Any]) -> None:
        file = root / f"{name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    return write
