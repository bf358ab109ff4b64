"""The store through which processes of this machine meet, where nobody outside it can ask."""

from __future__ import annotations

import socket
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore

HOST = "127.0.0.1"


def loopback_store(timeout: timedelta) -> TCPStore:
    """Host a store on loopback.

    TCPStore listens on every interface, whichever host it is given, and asks nobody who he is. So it gets a socket that
    is bound already, to a port that the system has free: to choose one and open it later would leave it to others
    meanwhile.
    """
    with socket.create_server((HOST, 0)) as listening:
        port = listening.getsockname()[1]
        # The store closes the descriptor when it ends.
        return TCPStore(
            HOST, port, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=listening.detach()
        )
