"""Trainings that a fork server starts: the same as alone, each on its own, none left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from running import largest_difference, train, weights
from turnaround.errors import ProcessFailedError
from turnaround.launch import forked
from turnaround.launch.forked import SERVER_VARIABLE, fork_server
from turnaround.launch.local import process_settings
from turnaround.record.reader import Run

pytestmark = pytest.mark.skipif(not forked.can_fork(), reason="Linux alone has pidfds")

TINY = ("data.size_px=16", "model.name=small", "training.epochs=1", "workers.count=2", "training.batch_per_worker=8")
PYTEST_VARIABLE = "PYTEST_CURRENT_TEST"
"""Changes with every test, and would make every environment another one."""


@pytest.fixture(scope="module")
def listening() -> Iterator[dict[str, str]]:
    """The variable of one server for all tests here; threads and allocator are those of a training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PYTEST_VARIABLE, "forked")
        patch.delenv(SERVER_VARIABLE, raising=False)
        with fork_server(process_settings(1)) as variable:
            yield variable


@pytest.fixture
def server(listening: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> psutil.Process:
    """The server, which every training of the test finds."""
    monkeypatch.setenv(SERVER_VARIABLE, listening[SERVER_VARIABLE])
    children = (each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE)
    return next(each for each in children if forked.SERVER_MODULE in each.cmdline())


@pytest.fixture
def trained(fruit_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Run]:
    """A training by the name of its run."""

    def trained(name: str) -> Run:
        monkeypatch.setenv(PYTEST_VARIABLE, "forked")
        return train(fruit_folder, tmp_path / name, *TINY)

    return trained


def eventually(condition: Callable[[], bool], *, within_s: float = 60.0) -> bool:
    latest_s = time.monotonic() + within_s
    while not condition() and time.monotonic() < latest_s:
        time.sleep(0.02)
    return condition()


def test_forked_trainings_equal_one_alone_to_the_bit(
    server: psutil.Process, trained: Callable[[str], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = trained("first"), trained("second")
    monkeypatch.delenv(SERVER_VARIABLE)
    alone = trained("alone")
    assert largest_difference(weights(first), weights(alone)) == 0
    assert largest_difference(weights(second), weights(alone)) == 0
    assert [run.epochs[-1].val_accuracy for run in (first, second)] == [alone.epochs[-1].val_accuracy] * 2
    assert [run.machine["launch"] for run in (first, second, alone)] == ["fork server", "fork server", "local"]
    assert not server.children()


def test_one_that_dies_ends_alone(
    server: psutil.Process, trained: Callable[[str], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as struck:
        struck.setenv("TURNAROUND_FAULT", "kind=kill,step=2")
        with pytest.raises(ProcessFailedError, match="signal 9"):
            trained("struck")
    following = trained("next")
    assert (following.status.state, following.machine["launch"]) == ("finished", "fork server")


def test_a_launcher_that_is_killed_takes_its_training_along(
    server: psutil.Process, fruit_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNAROUND_FAULT", "kind=slow,ms=2000")
    monkeypatch.setenv(PYTEST_VARIABLE, "forked")
    settings = [word for setting in TINY for word in ("--set", setting)]
    command = [sys.executable, "-m", "turnaround", "train", str(fruit_folder), "--out", str(tmp_path / "run")]
    launcher = subprocess.Popen([*command, *settings, "--device", "cpu", "--processes", "1"])
    try:
        assert eventually(lambda: bool(server.children()))
    finally:
        launcher.kill()
        launcher.wait()
    assert eventually(lambda: not server.children())


def test_another_environment_starts_its_own_process(
    server: psutil.Process, trained: Callable[[str], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_LIBRARY", "1")
    run = trained("run")
    assert (run.status.state, run.machine["launch"]) == ("finished", "local")


@pytest.mark.parametrize("text", [b"", b"\0" * 8, (2**40).to_bytes(8, "big"), (2).to_bytes(8, "big") + b"[]"])
def test_requests_that_make_no_sense_are_refused_and_the_server_lives(server: psutil.Process, text: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(os.environ[SERVER_VARIABLE])
        with Path(os.devnull).open("wb") as null:
            if text:
                socket.send_fds(stranger, [text], [null.fileno(), null.fileno()])
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(1) == b""
    assert server.is_running()


def test_a_server_that_has_gone_is_no_error(tmp_path: Path) -> None:
    with fork_server({}) as variable:
        gone = Path(variable[SERVER_VARIABLE])
        assert oct(gone.parent.stat().st_mode)[-3:] == "700"
    assert not gone.exists()
    with Path(os.devnull).open("wb") as null:
        assert forked.forked(tmp_path, network=None, environment=variable, log=null) is None


def test_the_servers_end_is_the_end_of_its_trainings_and_looks_like_a_kill() -> None:
    ours, theirs = socket.socketpair()
    process = forked.ForkedProcess(2**22 + 1, ours)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.01)
    theirs.close()
    assert process.wait() == -signal.SIGKILL
    process.terminate()  # it has ended: nobody is sent a signal
