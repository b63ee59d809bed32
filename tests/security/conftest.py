"""Fixtures of the security tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mill.cli.main import run

Mill = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True)
def no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the secrets of earlier tests: they would be redacted under any name."""
    monkeypatch.setattr("mill.support.secrets._known", set())


@pytest.fixture
def mill(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Mill:
    """Runs a command line in this process and in a separate folder: (exit code, output)."""
    for name in ("MILL_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SOME_NAME", "sk-4f9c02d7a1b3e85866c07e1d2f3a4b5c")
    monkeypatch.setenv("MILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("mill.models.http.policy.ATTEMPTS", 1)
    monkeypatch.chdir(tmp_path)

    def call(*argv: str) -> tuple[int, str]:
        code = run(list(argv))
        return code, "".join(capfd.readouterr())

    return call
