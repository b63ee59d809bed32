"""A pytest plugin: a test that fails shows the last lines of what the processes wrote that it started or used."""

from __future__ import annotations

import shlex
import subprocess
import textwrap
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import forking

LINES, PROCESSES = 30, 4
communicate = subprocess.Popen.communicate


class Logs:
    def __init__(self) -> None:
        self.start = 0.0
        self.written: list[tuple[str, Any]] = []
        """The commands and output of the processes of this test that were read from pipes."""

    def communicate(self, process: Any, *given: Any, **options: Any) -> Any:
        try:
            streams = communicate(process, *given, **options)
        except subprocess.TimeoutExpired as error:
            self.written.append((f"{command_of(process)} (too slow)", (error.output, error.stderr)))
            raise
        self.written.append((f"{command_of(process)} (exit code {process.returncode})", streams))
        return streams

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self.start, self.written = time.time(), []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, Any]:
        report = yield
        if report.failed:
            report.sections += self.sections(getattr(item, "funcargs", {}).get("tmp_path"))
        return report

    def sections(self, folder: Path | None) -> Iterator[tuple[str, str]]:
        for command, streams in self.written[-PROCESSES:]:
            for name, stream in zip(("output", "errors"), streams, strict=True):
                if stream:
                    yield f"{name} of {command}", last_lines(stream)
        servers = forking.folder.glob("*/log") if forking.folder else ()
        for file in (*servers, *(folder.rglob("*.err") if folder else ())):
            if file.stat().st_mtime >= self.start and file.stat().st_size:
                yield f"end of {file}", last_lines(file.read_bytes())


def command_of(process: Any) -> str:
    command = process.args if isinstance(process.args, str) else shlex.join(map(str, process.args))
    return textwrap.shorten(command, 150)


def last_lines(text: str | bytes) -> str:
    shown = text.decode(errors="replace") if isinstance(text, bytes) else text
    return "\n".join(shown.splitlines()[-LINES:])


def pytest_configure(config: pytest.Config) -> None:
    logs = Logs()
    config.pluginmanager.register(logs, "mill-logs")
    subprocess.Popen.communicate = lambda *given, **options: logs.communicate(*given, **options)  # type: ignore[method-assign]


def pytest_unconfigure() -> None:
    subprocess.Popen.communicate = communicate  # type: ignore[method-assign]
