"""Who is answered: hosts, origins, tokens, by every form they can take."""

from __future__ import annotations

import pytest

from turnaround.web.guard import Access, host_of, is_loopback

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


def test_loopback() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.5.5.5", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "lab-7", ""))


def test_the_host_without_its_port() -> None:
    assert (host_of("A.b:80"), host_of("[::1]:80"), host_of("a")) == ("a.b", "::1", "a")
