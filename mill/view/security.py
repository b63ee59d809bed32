"""Who may read the pages: requests with the token, for this host's own name, from the pages themselves."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

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
LOCAL_NAMES = ("127.0.0.1", "localhost", "::1")


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
    name = _host_name(request.headers.get("Host", ""))
    if not _allowed_host(name, host):
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
    if name == host or (is_loopback(host) and name in LOCAL_NAMES):
        return True
    if host not in ("0.0.0.0", "::"):
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost"
    return True


def _host_name(header: str) -> str:
    """Without the port; empty for a header that is no name and port."""
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9.-]+))(?::\d{1,5})?", header)
    return (found[1] or found[2]) if found else ""
