"""What stands before every route: who may ask, and what every answer carries.

    Host      an address of this machine, or a name it was told: else a web page could point its own name here
    Origin    none, or this very page: no other web site may send pictures
    methods   GET and HEAD; POST for /classify alone. Everything else is 405, OPTIONS too: there is no CORS
    token     only where the server listens beyond this machine: /classify and /about want it
    headers   a policy that lets the page load nothing but itself; nothing is stored or framed

It is an ASGI application around another, so that no route, not even one that does not exist, is outside.
"""

from __future__ import annotations

import ipaddress
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = frozenset(["localhost"])
POSTS_TO = frozenset(["/classify"])
NEEDS_TOKEN = frozenset(["/classify", "/about"])
MOST_PATH_CHARACTERS = 200

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    address = _address(host)
    return host.lower() in LOOPBACK_NAMES if address is None else address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def host_of(header: str) -> str | None:
    """The host in a Host header, without its port; None when it is not one."""
    bare = header.strip()
    if bare.startswith("["):  # [::1]:8900
        address, bracket, port = bare.partition("]")
        host, rest = address[1:], port
        is_whole = bool(bracket) and _address(host) is not None and (not rest or rest.startswith(":"))
        rest = rest[1:]
    else:
        host, colon, rest = bare.partition(":")
        is_whole = bool(host) and (bool(rest) or not colon)
    if not is_whole or (rest and not (rest.isascii() and rest.isdecimal())):
        return None
    return host.lower().rstrip(".")


@dataclass(frozen=True, kw_only=True)
class Access:
    """Whom the server answers."""

    names: frozenset[str] = frozenset()
    """Names and addresses besides this machine's own that may stand in a Host header; lower case."""
    token: str | None = None
    """None: whoever reaches it may ask."""

    def allows_host(self, header: str | None) -> bool:
        host = host_of(header) if header is not None else None
        if host is None:
            return False
        # A number is no name that somebody could point here; it counts where the server was opened.
        return is_loopback(host) or host in self.names or (self.token is not None and _address(host) is not None)

    def allows_token(self, authorization: str | None) -> bool:
        if self.token is None:
            return True
        kind, _, given = (authorization or "").partition(" ")
        return kind.lower() == "bearer" and secrets.compare_digest(given.strip().encode(), self.token.encode())


class Guard:
    """The application behind the checks."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None  # no web sockets: the server does not speak them
        refusal = self._refusal(scope)
        app = self.app if refusal is None else refusal
        return await app(scope, receive, _with_headers(send, closes=refusal is not None))

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers, path, method = Headers(scope=scope), scope["path"], scope["method"]
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self.access.allows_host(hosts[0]):
            return error(403, "This Host is not answered. Open the address that `turnaround serve` has printed.")
        if len(path) > MOST_PATH_CHARACTERS:
            return error(414, "The address is too long.")
        allowed = ("POST",) if path in POSTS_TO else ("GET", "HEAD")
        if method not in allowed:
            names = ", ".join(allowed)
            return error(405, f"{method} is not answered here. Allowed: {names}.", allow=names)
        if method == "POST" and not _is_same_origin(headers, hosts[0]):
            return error(403, "Another web site may not send pictures here.")
        if path in NEEDS_TOKEN and not self.access.allows_token(headers.get("authorization")):
            return error(401, "The token is missing or wrong. Open the address that `turnaround serve` has printed.")
        return None


def _is_same_origin(headers: Headers, host: str) -> bool:
    """Programs send no Origin; browsers send that of the page. An empty `null` one is a page that hides its own."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return False
    origins = headers.getlist("origin")
    return not origins or (len(origins) == 1 and origins[0].lower() == f"http://{host.strip().lower()}")


def error(status: int, reason: str, **headers: str) -> JSONResponse:
    """Every refusal is one sentence."""
    return JSONResponse({"error": reason}, status_code=status, headers=headers)


def _with_headers(send: Send, *, closes: bool) -> Any:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            if closes:  # what a refused client still sends is not read
                headers["connection"] = "close"
        await send(message)

    return sending
