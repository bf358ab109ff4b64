"""Where the processes of one machine meet: nobody outside it can ask, and nothing that is read there is a pickle."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousParameters

from running import train
from turnaround.launch.forked import SERVER_VARIABLE, can_fork, fork_server
from turnaround.launch.process_settings import process_settings
from turnaround.workers.engines import TORCH_AGENT
from turnaround.workers.loopback_store import HOST, loopback_store
from turnaround.workers.torch_agent import BACKEND, LoopbackRendezvous

TINY = ("data.size_px=16", "model.name=small", "training.epochs=2", "workers.count=2", "training.batch_per_worker=8")
SHORT = timedelta(seconds=20)
Listeners = dict[int, set[tuple[str, int]]]
"""By process number: the addresses and ports where it listens."""


def own_addresses() -> list[str]:
    """The addresses by which other machines reach this one."""
    found = (each for interface in psutil.net_if_addrs().values() for each in interface)
    return [each.address for each in found if each.family == socket.AF_INET and not each.address.startswith("127.")]


def is_refused(address: str, port: int) -> bool:
    with socket.socket() as asking:
        asking.settimeout(2)  # a firewall may say nothing at all
        return asking.connect_ex((address, port)) != 0


@contextmanager
def listeners_below() -> Iterator[Listeners]:
    """Whoever of the processes below this one listens meanwhile, on TCP of both versions; looked at again and again."""
    found: Listeners = {}
    has_ended = threading.Event()

    def look() -> None:
        while not has_ended.wait(0.05):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    for each in process.net_connections("tcp"):
                        if each.status == psutil.CONN_LISTEN:
                            found.setdefault(process.pid, set()).add(tuple(each.laddr))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield found
    finally:
        has_ended.set()
        looking.join()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Gloo takes what the host's name resolves to")
@pytest.mark.parametrize("by", ["agent", "fork server"])
def test_a_training_listens_on_loopback_only(
    by: str, fruit_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "fork server" and not can_fork():
        pytest.skip("Linux 5.3 has pidfds")
    monkeypatch.delenv(SERVER_VARIABLE, raising=False)
    with ExitStack() as stack:
        if by == "fork server":
            for name, value in stack.enter_context(fork_server(process_settings(2))).items():
                monkeypatch.setenv(name, value)
        found = stack.enter_context(listeners_below())
        run = train(fruit_folder, tmp_path / "run", *TINY, processes=2)
    assert run.machine["launch"] == ("local" if by == "agent" else "fork server")
    assert len(found) == 3  # the store, and each of two processes for the messages of the other
    assert {address for places in found.values() for address, _ in places} == {HOST}


def test_nobody_outside_reaches_the_store() -> None:
    """TCPStore itself listens on every interface, whichever host it is given."""
    store = loopback_store(SHORT)
    found = [each.laddr for each in psutil.Process().net_connections("tcp") if each.laddr[1] == store.port]
    assert tuple(found[0]) == (HOST, store.port)
    assert not is_refused(HOST, store.port)
    assert all(is_refused(address, store.port) for address in own_addresses())
    TCPStore(HOST, store.port, is_master=False, timeout=SHORT).set("here", "yes")
    assert store.get("here") == b"yes"


PICKLING = """
import base64, pathlib, pickle, sys, time
from datetime import timedelta

import psutil
from torch.distributed import TCPStore

class Mark:
    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path(sys.argv[1]),)

pickled = base64.b64encode(pickle.dumps(Mark()))
found = psutil.Process().parent().net_connections("tcp")
ports = {each.laddr[1] for each in found if each.status == psutil.CONN_LISTEN}
assert ports
for port in ports:
    store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=20))
    for key in [key for key in store.list_keys() if "rendezvous" in key] or ["torch.rendezvous.x"]:
        store.set(key, pickled)
time.sleep(7)  # an agent of c10d reads its state every 5 s (keep_alive_interval)
"""


def test_a_pickle_in_the_store_stays_what_it_is(tmp_path: Path) -> None:
    script, mark = tmp_path / "script.py", tmp_path / "mark"
    script.write_text(PICKLING)
    command = [sys.executable, "-m", TORCH_AGENT, "--nproc-per-node", "1", str(script), str(mark)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert not mark.exists()


def test_processes_of_several_hosts_meet_elsewhere() -> None:
    with pytest.raises(ValueError, match="not of 2 hosts"):
        LoopbackRendezvous(RendezvousParameters(BACKEND, "", "run", 2, 2))
