"""The middleware before every route: who may ask, and what every answer carries.

    Host      an address of this machine, or a name it was told: else a web page could point its own name here
    Origin    none, or this very page: no other web site may send anything, or read where the rules say so
    methods   GET and HEAD; POST for the addresses that the application names. Everything else is 405, OPTIONS too:
              there is no CORS
    token     for the addresses that the application names, or for all of them: in a header, or in a cookie that the
              first visit with ?token= has set
    headers   a policy that lets the page load nothing but itself; nothing is stored or framed

It is an ASGI application around another, so that no route, not even one that does not exist, is outside.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response

from turnaround.web.pages import POLICY, refusal

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = frozenset(["localhost"])
MAX_HEAD_BYTES = 16 * 1024
"""Largest head of a request. The server counts only a head that comes in several pieces, so it is counted here too."""
MAX_PATH_CHARACTERS = 200  # every path that is answered is far shorter

HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every answer, besides the policy that the application gives."""


def is_loopback(host: str) -> bool:
    """Return true for an address that only this machine reaches."""
    address = _address(host)
    return host.lower() in LOOPBACK_NAMES if address is None else address.is_loopback


def base_url(host: str, port: int) -> str:
    """Return the address for a browser; where it listens on all addresses, by this machine's name."""
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host  # noqa: S104
    return f"http://{f'[{name}]' if ':' in name else name}:{port}/"


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def host_of(header: str) -> str | None:
    """Return the host in a Host header, without its port; None when it is not one."""
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
    return host.lower().rstrip(".")  # "localhost." is the same name, fully qualified


@dataclass(frozen=True, kw_only=True)
class Access:
    """The hosts and the token that the server answers to."""

    names: frozenset[str] = frozenset()
    """Names and addresses besides this machine's own that may stand in a Host header; lower case."""
    token: str | None = field(default=None, repr=False)
    """None: whoever reaches it may ask."""
    is_opened: bool = False
    """The server listens beyond this machine: then any address in numbers may stand in a Host header."""

    @classmethod
    def of(cls, host: str, *, token: str | None, is_opened: bool) -> Access:
        """Return the access of a server that listens on `host`; an opened one answers to this machine's names."""
        names = {host.lower(), *((socket.gethostname().lower(), socket.getfqdn().lower()) if is_opened else ())}
        return cls(names=frozenset(names), token=token, is_opened=is_opened)

    def allows_host(self, header: str | None) -> bool:
        host = host_of(header) if header is not None else None
        if host is None:
            return False
        # A number is no name that somebody could point here; it counts where the server was opened.
        return is_loopback(host) or host in self.names or (self.is_opened and _address(host) is not None)

    def allows_token(self, authorization: str | None) -> bool:
        """Check the header `Authorization: Bearer TOKEN`."""
        kind, _, given = (authorization or "").partition(" ")
        return self.is_token(given.strip() if kind.lower() == "bearer" else None)

    def is_token(self, given: str | None) -> bool:
        if self.token is None:
            return True
        # In constant time: how long a comparison takes must not tell how much of a guess was right.
        return given is not None and secrets.compare_digest(given.encode("utf-8", "replace"), self.token.encode())


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules that an application sets for its guard."""

    verb: str
    """The verb of the command line, for the messages."""
    policy: str
    """The content security policy of every answer that does not bring its own."""
    posts_to: frozenset[str] = frozenset()
    needs_token: frozenset[str] | None = frozenset()
    """Paths; None: all, those that do not exist too."""
    cookie: str | None = None
    """The name of the cookie that a visit with the right ?token= sets; None: the token comes in a header alone."""
    only_own_pages_read: bool = False
    """The Origin counts for GET and HEAD as it does for POST."""


class Guard:
    """The application behind the checks."""

    def __init__(self, app: ASGIApp, access: Access, rules: Rules) -> None:
        self.app, self.access, self.rules = app, access, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None  # no web sockets: the server does not speak them
        refusal = self._refusal(scope)
        app = self.app if refusal is None else refusal
        return await app(scope, receive, self._with_headers(send, closes=refusal is not None))

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer that is given instead, if any; also to the visit that brings the token."""
        # The Host comes first: against DNS rebinding, nothing else about a request is trusted or answered before it.
        headers, path, method = Headers(scope=scope), scope["path"], scope["method"]
        hosts, printed = headers.getlist("host"), f"Open the address that `turnaround {self.rules.verb}` has printed."
        if len(hosts) != 1 or not self.access.allows_host(hosts[0]):
            return refusal(headers, 403, f"This Host is not answered. {printed}")
        if _head_bytes(scope) > MAX_HEAD_BYTES:
            return refusal(headers, 431, f"The head of the request is larger than {MAX_HEAD_BYTES // 1024} KiB.")
        if len(path) > MAX_PATH_CHARACTERS:
            return refusal(headers, 414, "The address is too long.")
        allowed = ("POST",) if path in self.rules.posts_to else ("GET", "HEAD")
        if method not in allowed:
            names = ", ".join(allowed)
            return refusal(headers, 405, f"{method[:40]} is not answered here. Allowed: {names}.", allow=names)
        if method == "POST" and not _is_same_origin(headers, hosts[0]):
            return refusal(headers, 403, "Another web site may not send pictures here.")
        if self.rules.only_own_pages_read and not (
            _is_opened_by_a_person(headers) or _is_same_origin(headers, hosts[0])
        ):
            return refusal(headers, 403, "Another web site may not read this.")
        if self.rules.cookie is not None and path == "/" and (visit := self._visit(scope)) is not None:
            return visit
        if self._is_behind_token(path) and not self._has_token(headers):
            return refusal(headers, 401, f"The token is missing or wrong. {printed}")
        return None

    def _is_behind_token(self, path: str) -> bool:
        return self.rules.needs_token is None or path in self.rules.needs_token

    def _has_token(self, headers: Headers) -> bool:
        if self.access.allows_token(headers.get("authorization")):
            return True
        name = self.rules.cookie
        return name is not None and self.access.is_token(cookie_parser(headers.get("cookie", "")).get(name))

    def _visit(self, scope: Scope) -> Response | None:
        """Answer the first visit: move the token from the address, kept by histories, to an HttpOnly cookie."""
        given = QueryParams(scope["query_string"]).getlist("token")
        if len(given) != 1 or not self.access.is_token(given[0]):
            return None
        answer = RedirectResponse("/", status_code=303)
        # samesite=strict: a request that another web site causes does not carry the cookie.
        answer.set_cookie(self.rules.cookie or "", given[0], httponly=True, samesite="strict", path="/")
        return answer

    def _with_headers(self, send: Send, *, closes: bool) -> Any:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault(POLICY, self.rules.policy)
                if closes:  # what a refused client still sends is not read
                    headers["connection"] = "close"
            await send(message)

        return sending


def _head_bytes(scope: Scope) -> int:
    """Return the size of the request line and the headers."""
    line = len(scope["method"]) + len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"])
    return line + sum(len(name) + len(value) + 4 for name, value in scope["headers"])  # 4: ": " and the line's end


def _is_opened_by_a_person(headers: Headers) -> bool:
    """Return true for a link that was followed or typed: it shows the page to its reader alone, not to its origin."""
    return (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")


def _is_same_origin(headers: Headers, host: str) -> bool:
    """Return true for the page's own requests. Programs send no Origin; `null` is that of a page that hides its own."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return False
    origins = headers.getlist("origin")
    return not origins or (len(origins) == 1 and origins[0].lower() == f"http://{host.strip().lower()}")
