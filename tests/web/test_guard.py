"""Who is answered: hosts, origins, tokens, by every form they can take."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from turnaround.web.guard import Access, Guard, Rules, host_of, is_loopback
from turnaround.web.pages import base_css, content_hash

HERE = Access()
OPENED = Access(names=frozenset(["lab-7"]), token="secret", is_opened=True)


@pytest.mark.parametrize(
    "header",
    ["127.0.0.1", "127.0.0.1:8900", "localhost", "LOCALHOST:80", "[::1]", "[::1]:8900", "127.1.2.3", "localhost."],
)
def test_this_machine_is_answered(header: str) -> None:
    assert HERE.allows_host(header)
    assert OPENED.allows_host(header)


@pytest.mark.parametrize(
    "header",
    [
        *(None, "", "evil.com", "127.0.0.1.evil.com", "localhost.evil.com", "evil.com:80", "127.0.0.1:80:80"),
        *(
            "127.0.0.1:x",
            "127.0.0.1:",
            "[::1",
            "::1",
            "[::1]x",
            "[evil]",
            "2130706433",
            "0x7f.1",
            "127.0.0.1:²",
            "@127.0.0.1",
        ),
        *("127.0.0.1, evil.com", "localhost@evil.com", "localhost/evil.com"),
    ],
)
def test_others_are_not(header: str | None) -> None:
    assert not HERE.allows_host(header)


def test_an_address_in_the_network_counts_only_where_it_was_opened() -> None:
    assert not HERE.allows_host("192.168.1.7:8900")
    assert OPENED.allows_host("192.168.1.7:8900")
    assert OPENED.allows_host("lab-7:8900")
    assert not OPENED.allows_host("lab-8")


def test_tokens() -> None:
    assert HERE.allows_token(None)
    assert OPENED.allows_token("Bearer secret")
    assert OPENED.allows_token("bearer  secret")
    for wrong in (None, "", "secret", "Basic secret", "Bearer secre", "Bearer sécret"):
        assert not OPENED.allows_token(wrong)


async def asked(guard: Guard, accept: str) -> tuple[int, dict[str, str], str]:
    """Return status, headers and text of what a GET of / is answered."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"accept", accept.encode())]
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers}
    await guard(scope, receive, send)
    start, *rest = sent
    text = b"".join(message["body"] for message in rest).decode()
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, text


@pytest.mark.parametrize("accept", ["text/html,*/*;q=0.8", "application/json"])
def test_a_missing_token_is_a_page_for_a_browser_and_json_for_a_program(accept: str) -> None:
    async def nothing(scope: object, receive: object, send: object) -> None:
        raise AssertionError("it must not be asked")

    rules = Rules(verb="watch", policy="default-src 'none'", needs_token=None)
    status, headers, text = asyncio.run(asked(Guard(nothing, OPENED, rules), accept))
    assert status == 401
    command = "`turnaround watch`" if accept == "application/json" else "<code>turnaround watch</code>"
    assert f"The token is missing or wrong. Open the address that {command} has printed." in text
    assert headers["content-security-policy"].startswith("default-src 'none'")
    if accept == "application/json":
        assert headers["content-type"] == accept
    else:
        assert headers["content-type"].startswith("text/html")
        assert f"style-src {content_hash(base_css())}" in headers["content-security-policy"]
        assert "<h1>This page needs its token</h1>" in text


def test_loopback() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.5.5.5", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "lab-7", ""))


def test_the_host_without_its_port() -> None:
    assert (host_of("A.b:80"), host_of("[::1]:80"), host_of("a")) == ("a.b", "::1", "a")
