"""Where a server listens: ports that are taken, and sockets that only their owner may open."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from turnaround.errors import InputError
from turnaround.web.sockets import listen, listen_at


def test_a_port_that_is_taken_names_one_that_is_free() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError) as refused:
            listen("127.0.0.1", port)
        said = str(refused.value)
        assert said.startswith(f"Port {port} is taken by another program. Choose another: --port 0 takes any.")
        free = int(said.rpartition("--port ")[2].split()[0])
        assert free > port
        listen("127.0.0.1", free).close()


def test_a_socket_is_its_owners_alone_and_goes_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with listen_at(path) as listening:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            listening.accept()[0].close()
        with pytest.raises(InputError, match="another program already answers there"), listen_at(path):
            pass
    assert not path.exists()


def test_a_dead_socket_is_replaced_and_a_file_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with listen_at(path):
        assert path.is_socket()
    path.write_text("mine")
    with pytest.raises(InputError, match="a file of that name already exists"), listen_at(path):
        pass
    assert path.read_text() == "mine"
    before = os.umask(0)
    os.umask(before)
    with pytest.raises(InputError, match="cannot listen there"), listen_at(tmp_path / "no" / "s"):
        pass
    now = os.umask(before)
    assert now == before  # it is put back, whatever happens
