"""`turnaround doctor` started on several hosts: what it says of the network between them."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from turnaround.cli import doctor as verb
from turnaround.cli.doctor import network_text
from turnaround.errors import MissingPartError

FACTS: dict[str, Any] = {"backend": "gloo", "processes": 4, "hosts": 2, "message_mb": 64, "elapsed_s": 0.128}


def test_the_network_between_hosts_in_words() -> None:
    assert network_text({**FACTS, "gb_per_s": 0.5}) == (
        "4 processes on 2 hosts agree through gloo: 64 MB in 128.0 ms, 0.5 GB/s between hosts. For forecasts: "
        "turnaround predict DIR --network 0.5"
    )
    alone = network_text({**FACTS, "hosts": 1, "gb_per_s": None})
    assert alone.endswith("One host has no network between hosts: start this on two or more to measure it.")


def test_processes_that_do_not_meet_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real probe, with a backend that cannot start: nobody listens under this address."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "no such host", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    module = sys.modules[network_text.__module__]
    monkeypatch.setattr(module, "PROBE_TIMEOUT_S", 0.2)
    with pytest.raises(MissingPartError, match=r"cannot speak to each other \(no answer within 0.2 s\).*GLOO_SOCKET"):
        verb(json_=False)
