"""Finds the network interface that leads to the other hosts of the job.

    python -m turnaround.launch.clusters.slurm.interface 'n[1-4]'      prints its name

Gloo by itself takes the address that the host's own name resolves to. On many systems that is 127.0.1.1, and processes
on other hosts then knock at their own door. The kernel knows better: it has to send the packets. A cluster with several
networks (Ethernet and InfiniBand) may prefer another one than its host names belong to: `interface` in slurm.toml, or
GLOO_SOCKET_IFNAME in the environment, decide before anybody asks here. NCCL chooses by itself, InfiniBand first.
"""

from __future__ import annotations

import socket
import sys

import psutil

from turnaround.errors import InputError, MissingPartError
from turnaround.launch.clusters.slurm.states import expand
from turnaround.words import harmless

ANY_PORT = 9
"""Nothing is sent to it: to connect a datagram socket only asks the kernel for the way."""


def towards(hosts: tuple[str, ...]) -> str:
    """Return the interface that leads to one of the hosts; 127.0.1.1, which leads nowhere, does not count."""
    unknown = []
    for host in hosts:
        try:
            address = _own_address(host)
        except OSError as error:
            unknown.append(f"{host} ({error.strerror or error})")
            continue
        name = None if address.startswith("127.") or address == "::1" else _interface_with(address)
        if name is not None:
            return name
    why = f"; without an answer: {', '.join(unknown)}" if unknown else ""
    raise MissingPartError(
        f"No network interface leads from {socket.gethostname()} to another of the hosts {', '.join(hosts)}{why}. "
        'Say which one to use: interface = "eth0" in slurm.toml, by the name that `ip address` shows.'
    )


def _own_address(host: str) -> str:
    """Return our address as that host would see it."""
    family, kind, _, _, there = socket.getaddrinfo(host, ANY_PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as asking:
        asking.connect(there)
        return str(asking.getsockname()[0])


def _interface_with(address: str) -> str | None:
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in addresses):
            return name
    return None


def main(arguments: list[str]) -> int:
    try:
        if len(arguments) != 1:
            raise InputError(f"One list of hosts, please: interface 'n[1-4]'. Received: {arguments}.")
        sys.stdout.write(towards(expand(arguments[0])) + "\n")
    except InputError as error:
        sys.stderr.write(f"{harmless(str(error))}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
