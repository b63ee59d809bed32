"""Runs the server until it is interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import webbrowser
from pathlib import Path

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from mill.api.errors import SpecError
from mill.api.printing import echo
from mill.view.index import ResultsIndex
from mill.view.server import make_app


def _is_own_error(record: logging.LogRecord) -> bool:
    """False for requests that are no HTTP, such as those of a port scanner: they are refused, and no traceback is shown."""
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)


def serve(folder: Path, *, host: str, port: int, token: str, browser: bool) -> int:
    index = ResultsIndex(folder)
    logging.getLogger("aiohttp.server").addFilter(_is_own_error)
    try:
        asyncio.run(_serve(index, host, port, token, browser=browser))
    except KeyboardInterrupt:
        pass
    finally:
        index.close()
    return 0


async def _serve(index: ResultsIndex, host: str, port: int, token: str, *, browser: bool) -> None:
    runner = web.AppRunner(make_app(index, token, host), access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, shutdown_timeout=1.0)
        try:
            await site.start()
        except OSError as error:
            raise SpecError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from error
        address = f"http://{_shown(host)}:{runner.addresses[0][1]}/?token={token}"
        echo(f"{index.root}: {address}")
        echo("Ctrl-C ends the server", err=True)
        if browser and _has_display():
            await asyncio.get_running_loop().run_in_executor(None, webbrowser.open, address)
        await _interrupted()
    finally:
        await runner.cleanup()


def _shown(host: str) -> str:
    return "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host


def _has_display() -> bool:
    """Without one a text browser would take over the terminal."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


async def _interrupted() -> None:
    """Until Ctrl-C or SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
