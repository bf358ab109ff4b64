"""Host lists in Slurm's short form, and the way to the hosts."""

from __future__ import annotations

import socket

import psutil
import pytest

from turnaround.errors import MissingPartError
from turnaround.launch.clusters.slurm import interface
from turnaround.launch.clusters.slurm.states import expand


@pytest.mark.parametrize(
    ("short", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-3,07],gpu-a", ["n1", "n2", "n3", "n07", "gpu-a"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]n[0,5].x", ["r1n0.x", "r1n5.x", "r2n0.x", "r2n5.x"]),
        ("(null)", []),
        ("", []),
        ("None assigned", []),
        ("n[a-b]", ["na-b"]),
    ],
)
def test_hosts(short: str, hosts: list[str]) -> None:
    assert list(expand(short)) == hosts


def test_a_damaged_list_ends_somewhere() -> None:
    assert len(expand("n[1-999999999999]")) == 100_000


def test_loopback_leads_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MissingPartError, match=r'No network interface leads .* interface = "eth0" in slurm.toml'):
        interface.towards(("127.0.1.1", "localhost"))
    assert interface.main(["127.0.0.1"]) == 2
    assert "No network interface" in capsys.readouterr().err


def test_hosts_without_an_address_are_named() -> None:
    with pytest.raises(MissingPartError, match=r"without an answer: no-such-host.invalid \("):
        interface.towards(("no-such-host.invalid",))


def test_the_way_to_an_address(capsys: pytest.CaptureFixture[str]) -> None:
    own = [
        (name, entry.address)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET and not entry.address.startswith("127.")
    ]
    if not own:
        pytest.skip("this machine has no network")
    name, address = own[0]
    assert interface.towards(("127.0.1.1", address)) == name
    assert interface.main([f"127.0.1.1,{address}"]) == 0
    assert capsys.readouterr().out == f"{name}\n"


def test_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert interface.main([]) == 2
    assert "One list of hosts, please" in capsys.readouterr().err
