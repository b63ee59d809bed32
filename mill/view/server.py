"""The web server of `mill view`: its page, the API, a stream of updates, and who may read them. It only reads."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import logging
import os
import re
import signal
import sqlite3
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Middleware

from mill.api.errors import MillError, SpecError
from mill.support.files import json_text
from mill.support.terminal import echo, utf8, warn
from mill.view.index import ResultsIndex, build_search, raw_line, sync_forever
from mill.view.overview import Viewer, overview, update
from mill.view.page import OFFLINE, live_page, policy


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
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{runner.addresses[0][1]}/?token={token}"
        echo(f"{index.root}: {address}")
        echo("Ctrl-C ends the server", err=True)
        # Without a display a text browser would take over the terminal.
        if browser and (
            sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        ):
            await asyncio.get_running_loop().run_in_executor(None, webbrowser.open, address)
        await _interrupted()
    finally:
        await runner.cleanup()


async def _interrupted() -> None:
    """Until Ctrl-C or SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()


EVENT_S = 0.5  # between updates of open pages
THREADS = 4
_FIRST_PAGE_S = 1.0
VIEWER: web.AppKey[Viewer] = web.AppKey("viewer", Viewer)
POOL: web.AppKey[ThreadPoolExecutor] = web.AppKey("pool", ThreadPoolExecutor)
STOPPED: web.AppKey[threading.Event] = web.AppKey("stopped", threading.Event)
CLOSING: web.AppKey[asyncio.Event] = web.AppKey("closing", asyncio.Event)


def make_app(index: ResultsIndex, token: str, host: str = "127.0.0.1") -> web.Application:
    app = web.Application(middlewares=[guard(token, host)])
    app[VIEWER], app[STOPPED], app[CLOSING] = Viewer(index), threading.Event(), asyncio.Event()
    app[POOL] = ThreadPoolExecutor(THREADS, thread_name_prefix="mill-view")
    app.router.add_get("/api/raw", _raw)
    app.router.add_get("/api/media", _media)
    app.router.add_get("/api/{name}", _api)
    app.router.add_get("/events", _events)
    app.router.add_get("/report/{kind:check|run}/{uid}", _report)
    app.router.add_get("/", _page)
    app.cleanup_ctx.append(_background)
    app.on_shutdown.append(_close_streams)
    return app


async def _close_streams(app: web.Application) -> None:
    """Streams of updates end by themselves, before the server would cancel them."""
    app[CLOSING].set()


async def _background(app: web.Application) -> AsyncIterator[None]:
    """Two threads: one follows the folder, the other makes its texts searchable."""
    index, stopped, changed = app[VIEWER].index, app[STOPPED], threading.Event()
    changed.set()

    def searching() -> None:
        stopped.wait(_FIRST_PAGE_S)
        from mill.view import api  # noqa: F401  the first page needs little; what the others need is imported after it

        while not stopped.is_set():
            if changed.wait(0.5):
                changed.clear()
                with contextlib.suppress(MillError, OSError):
                    build_search(index, stopped)

    threads = [
        threading.Thread(target=sync_forever, args=(index, stopped, changed.set), daemon=True),
        threading.Thread(target=searching, daemon=True),
    ]
    for thread in threads:
        thread.start()
    yield
    stopped.set()
    for thread in threads:
        thread.join(timeout=5)
    app[POOL].shutdown(wait=False, cancel_futures=True)
    index.close()


async def _in_thread(request: web.Request, function: Any, *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(request.app[POOL], function, *arguments)


async def _api(request: web.Request) -> web.Response:
    given = {name: value for name, value in request.query.items() if name != "token"}
    return await _attempt(request, _answered, request.app[VIEWER], request.match_info["name"], given)


async def _attempt(request: web.Request, function: Callable[..., web.Response], *arguments: Any) -> web.Response:
    """The response of a function that runs in a thread, or one line about what went wrong."""
    try:
        response: web.Response = await _in_thread(request, function, *arguments)
    except MillError as error:
        return _error(400, str(error))
    except OSError as error:
        return _error(400, f"the files cannot be read: {error.strerror or error}")
    except sqlite3.Error as error:
        return _error(503, f"the index cannot be read: {error}; delete {request.app[VIEWER].index.database.folder}")
    except Exception as error:  # files of someone else may have any content: the page gets a line, and so does the terminal
        warn(f"{request.path}: unexpected {type(error).__name__}: {error}")
        return _error(500, f"unexpected {type(error).__name__}: {str(error)[:200]}")
    return response


def _answered(viewer: Viewer, name: str, given: dict[str, str]) -> web.Response:
    if name == "state":
        return _json(overview(viewer))
    from mill.view.api import ENDPOINTS

    return _json(ENDPOINTS[name](viewer, given)) if name in ENDPOINTS else _error(404, "there is no such page")


def _json(data: Any) -> web.Response:
    """Lone surrogates and NaN, which JSON in UTF-8 does not have, are written out as text."""
    try:
        body = msgspec.json.encode(data)
    except (UnicodeEncodeError, TypeError, ValueError):
        body = utf8(json_text(data))
    return web.Response(body=body, content_type="application/json", charset="utf-8")


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)


async def _raw(request: web.Request) -> web.Response:
    """The line of a sample as the file has it, for download: it is never shown as a page."""
    index, given = request.app[VIEWER].index, request.query

    def read() -> web.Response:
        from mill.view.queries import sample_row

        row = sample_row(index, given.get("run", ""), given.get("t", ""), given.get("id", ""))
        headers = {"Content-Disposition": 'attachment; filename="sample.json"'}
        return web.Response(body=raw_line(index, row)[1], content_type="application/json", headers=headers)

    return await _attempt(request, read)


async def _media(request: web.Request) -> web.Response:
    """An image, audio or video of a sample."""
    index, given = request.app[VIEWER].index, {"number": "0", **request.query}

    def read() -> web.Response:
        from mill.view.media import read_media

        number = int(given["number"]) if given["number"].isdecimal() and len(given["number"]) < 6 else -1
        body, kind = read_media(index, given.get("run", ""), given.get("t", ""), given.get("id", ""), number)
        return web.Response(body=body, content_type=kind)

    return await _attempt(request, read)


async def _events(request: web.Request) -> web.StreamResponse:
    """Server-sent events: the version of the index, and the progress of running runs, whenever one of them changes."""
    viewer, closing = request.app[VIEWER], request.app[CLOSING]
    headers = {**HEADERS, "Content-Type": "text/event-stream"}
    response = web.StreamResponse(headers=headers)
    last = ""
    with contextlib.suppress(ConnectionError):  # the page was closed, perhaps before its first event
        await response.prepare(request)
        while not closing.is_set():
            text = json.dumps(await _in_thread(request, update, viewer))
            if text != last:
                await response.write(f"data: {text}\n\n".encode())
                last = text
            else:
                await response.write(b": \n\n")  # a closed page is noticed
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(closing.wait(), EVENT_S)
    return response


async def _report(request: web.Request) -> web.Response:
    """A check or a run as one file, to save."""
    index, names = request.app[VIEWER].index, request.match_info

    def read() -> web.Response:
        from mill.view.offline import index_page

        response = web.Response(body=index_page(index, **{names["kind"]: names["uid"]}), content_type="text/html")
        response.headers["Content-Security-Policy"] = f"{policy(OFFLINE)}; frame-ancestors 'none'"
        return response

    return await _attempt(request, read)


async def _page(request: web.Request) -> web.Response:
    response = web.Response(body=live_page(), content_type="text/html", charset="utf-8")
    response.headers["Content-Security-Policy"] = f"{policy()}; frame-ancestors 'none'"
    return response


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def guard(token: str, host: str) -> Middleware:
    """A middleware. The Host header must be an address or a name of this server: a page elsewhere whose name was pointed at
    this address (DNS rebinding) sends its own. The page has no data and needs no token; everything else does."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = _refusal(request, token, host)
        if refusal is not None:
            response: web.StreamResponse = web.json_response({"error": refusal[1]}, status=refusal[0])
        else:
            try:
                response = await handler(request)
            except web.HTTPException as error:
                error.headers.update(HEADERS)
                raise
        for name, value in HEADERS.items():
            if not response.prepared:
                response.headers.setdefault(name, value)
        return response

    return check


def _refusal(request: web.Request, token: str, host: str) -> tuple[int, str] | None:
    if request.method not in ("GET", "HEAD"):
        return 405, "the viewer only reads: GET is the one method"
    named = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9.-]+))(?::\d{1,5})?", request.headers.get("Host", ""))
    if named is None or not _allowed_host(named[1] or named[2], host):
        return 403, "this server has another name"
    origin = request.headers.get("Origin")
    if origin is not None and origin != f"{request.scheme}://{request.headers.get('Host', '')}":
        return 403, "requests of other sites are refused"
    if request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
        return 403, "requests of other sites are refused"
    if request.path.startswith(("/api/", "/events", "/report/")):
        given = request.query.get("token", "")
        if not hmac.compare_digest(given.encode("utf-8", "replace"), token.encode()):
            return 401, "the token is missing or wrong: open the address that `mill view` printed"
    return None


def _allowed_host(name: str, host: str) -> bool:
    """A server on all addresses is called by any of them, but never by a name that someone else may choose."""
    if name == host or (is_loopback(host) and is_loopback(name)):
        return True
    if host not in ("0.0.0.0", "::"):
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost"
    return True
