"""What tests of keys, code and files share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mill.cli.main import run
from mill.models.spec.remote_code import FORBIDDEN

Mill = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True)
def no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """None that an earlier test has made known: it would be taken out whatever its name is."""
    monkeypatch.setattr("mill.api.secrets._known", set())


@pytest.fixture
def mill(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Mill:
    """A command line in this process and in a folder of its own: (exit code, all that it said)."""
    for name in [name for name in sys.modules if name.startswith("mill_file_")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("MILL_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(FORBIDDEN, "")  # whatever a command sets is taken back
    monkeypatch.setenv("MILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("mill.models.http.client.ATTEMPTS", 1)
    monkeypatch.setattr("mill.api.warnings._reported", set())
    monkeypatch.chdir(tmp_path)

    def call(*argv: str) -> tuple[int, str]:
        code = run(list(argv))
        return code, "".join(capfd.readouterr())

    return call
