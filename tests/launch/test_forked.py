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
from typing import Protocol

import psutil
import pytest

from forking import ForkingLauncher
from running import largest_difference, train, weights
from turnaround import safe_path, worker, worker_server
from turnaround.children import LAUNCHER_VARIABLE
from turnaround.errors import ProcessFailedError
from turnaround.launch import forked
from turnaround.launch.forked import SERVER_VARIABLE, fork_server
from turnaround.launch.process_settings import process_settings
from turnaround.record.layout import RunDirectory
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


class Trained(Protocol):
    def __call__(self, name: str, *, processes: int = 1, launcher: ForkingLauncher | None = None) -> Run: ...


@pytest.fixture
def trained(fruit_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trained:
    """A training by the name of its run."""

    def trained(name: str, *, processes: int = 1, launcher: ForkingLauncher | None = None) -> Run:
        monkeypatch.setenv(PYTEST_VARIABLE, "forked")
        return train(fruit_folder, tmp_path / name, *TINY, processes=processes, launcher=launcher)

    return trained


def eventually(condition: Callable[[], bool], *, within_s: float = 60.0) -> bool:
    latest_s = time.monotonic() + within_s
    while not condition() and time.monotonic() < latest_s:
        time.sleep(0.02)
    return condition()


def test_forked_trainings_equal_one_alone_to_the_bit(
    server: psutil.Process, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = trained("first"), trained("second")
    monkeypatch.delenv(SERVER_VARIABLE)
    alone = trained("alone")
    assert largest_difference(weights(first), weights(alone)) == 0
    assert largest_difference(weights(second), weights(alone)) == 0
    assert [run.epochs[-1].val_accuracy for run in (first, second)] == [alone.epochs[-1].val_accuracy] * 2
    assert [run.machine["launch"] for run in (first, second, alone)] == ["fork server", "fork server", "local"]
    # What the server had loaded before is told apart; one that starts alone has loaded all of it itself.
    assert [part > 0 for part in (preloaded_s(second), preloaded_s(alone))] == [True, False]
    assert second.turnaround_parts()["preloaded"] == preloaded_s(second)
    assert eventually(lambda: not server.children())


def preloaded_s(run: Run) -> float:
    return run.status.time_s.get("preloaded", 0.0)


def test_several_processes_equal_those_of_torch_distributed_run_to_the_bit(
    server: psutil.Process, trained: Trained, monkeypatch: pytest.MonkeyPatch, forking_agent: ForkingLauncher
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as many threads in both: sums are split among them
    run = trained("forked", processes=2)
    monkeypatch.delenv(SERVER_VARIABLE)
    alone = trained("alone", processes=2, launcher=forking_agent)
    assert largest_difference(weights(run), weights(alone)) == 0
    assert [run.machine["launch"], alone.machine["launch"]] == ["fork server", "local"]
    assert (run.machine["engine"], run.machine["processes"]) == (alone.machine["engine"], 2)
    assert [place["workers"] for place in run.machine["ranks"]] == [[0], [1]]
    assert eventually(lambda: not server.children())


@pytest.mark.parametrize(("processes", "named"), [(1, "signal 9"), (2, "Process 1 .*died without a word")])
def test_one_that_dies_ends_alone(
    server: psutil.Process, trained: Trained, monkeypatch: pytest.MonkeyPatch, processes: int, named: str
) -> None:
    with monkeypatch.context() as struck:
        struck.setenv("TURNAROUND_FAULT", f"kind=kill,step=2,rank={processes - 1}")
        with pytest.raises(ProcessFailedError, match=named):
            trained("struck", processes=processes)
    following = trained("next")
    assert (following.status.state, following.machine["launch"]) == ("finished", "fork server")


def has_ended(pid: int) -> bool:
    """Also where it stays a zombie: in a container nobody may take the exit status of an orphan."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def waiting(server: psutil.Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> forked.ForkedProcess:
    """Two training processes, which wait for a start message that never comes."""
    monkeypatch.setenv(PYTEST_VARIABLE, "forked")
    environment = {**os.environ, **safe_path.settings(), **process_settings(2), LAUNCHER_VARIABLE: str(os.getpid())}
    directory = RunDirectory.create(tmp_path / "run")
    with (tmp_path / "log").open("wb") as log:
        pending = forked.ask_for_fork(directory.path, network=None, environment=environment, log=log, processes=2)
    found = None if pending is None else pending.result()
    assert found is not None
    return found


def test_the_leader_of_several_passes_a_request_to_stop_on(
    server: psutil.Process, waiting: forked.ForkedProcess
) -> None:
    """Also to those that do not listen yet: it is held back for them."""
    assert sorted(waiting.ranks.values()) == [0, 1]
    assert {each.pid for each in psutil.Process(waiting.pid).children()} == set(waiting.ranks)
    waiting.terminate()
    assert waiting.wait(timeout=120) == 1
    assert all(map(has_ended, waiting.ranks))


def test_one_of_several_that_is_killed_ends_the_others(server: psutil.Process, waiting: forked.ForkedProcess) -> None:
    os.kill(min(waiting.ranks), signal.SIGKILL)
    assert waiting.wait(timeout=120) == 1
    assert all(map(has_ended, waiting.ranks))


def test_those_whose_launcher_has_gone_are_ended_and_the_next_are_served(
    server: psutil.Process, waiting: forked.ForkedProcess, trained: Trained
) -> None:
    """Stopped ones too, which would not act on a request."""
    os.kill(max(waiting.ranks), signal.SIGSTOP)
    assert waiting._connection is not None
    waiting._connection.close()
    assert eventually(lambda: all(map(has_ended, (waiting.pid, *waiting.ranks))))
    assert trained("next").machine["launch"] == "fork server"


def test_a_server_that_ends_without_an_answer_is_no_error() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    assert forked.PendingFork(ours, processes=1).result() is None


def test_a_start_that_is_given_up_before_the_server_has_loaded_anything_leaves_nothing(tmp_path: Path) -> None:
    with fork_server({}) as variable, Path(os.devnull).open("wb") as null:
        environment = {**os.environ, **variable}
        pending = forked.ask_for_fork(tmp_path, network=None, environment=environment, log=null)
        assert pending is not None  # at once: no code was loaded yet
        pending.close()


def test_a_request_to_stop_does_not_wait_for_a_server_that_loads() -> None:
    ours, silent = socket.socketpair()
    with silent:
        looks = iter([False, False, True])
        assert forked.PendingFork(ours, processes=2).result(is_given_up=lambda: next(looks)) is None
        assert silent.recv(1) == b""  # closed: the server takes it back


def test_a_process_that_has_cuda_open_is_known_by_its_files(tmp_path: Path) -> None:
    (tmp_path / "3").symlink_to("/dev/nvidiactl")  # NVML's, which survives a fork
    assert not worker_server._has_open(worker_server.CUDA_FILE, tmp_path)
    (tmp_path / "4").symlink_to(worker_server.CUDA_FILE)
    assert worker_server._has_open(worker_server.CUDA_FILE, tmp_path)
    assert not worker_server._has_open(worker_server.CUDA_FILE, tmp_path / "none")


@pytest.mark.parametrize(("begun_at_s", "expected_s"), [(5.0, 0.0), (11.0, 1.0), (13.0, 3.0), (14.5, 3.5), (20.0, 4.0)])
def test_code_counts_as_preloaded_as_far_as_the_run_did_not_wait_for_it(begun_at_s: float, expected_s: float) -> None:
    assert worker.preloaded_s("[[10.0, 13.0], [14.0, 15.0]]", begun_at_s=begun_at_s) == expected_s


def test_a_launcher_that_is_killed_takes_its_training_along(
    server: psutil.Process, fruit_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNAROUND_FAULT", "kind=slow,ms=2000")
    monkeypatch.setenv(PYTEST_VARIABLE, "forked")
    settings = [word for setting in TINY for word in ("--set", setting)]
    command = [sys.executable, "-m", "turnaround", "train", str(fruit_folder), "--out", str(tmp_path / "run")]
    launcher = subprocess.Popen([*command, *settings, "--device", "cpu", "--processes", "1"])
    try:
        # The process that trains has written it: while the server loads code, it may have children of other kinds.
        assert eventually((tmp_path / "run" / "machine.json").exists)
        assert server.children()
    finally:
        launcher.kill()
        launcher.wait()
    assert eventually(lambda: not server.children())


def test_another_environment_starts_its_own_process(
    server: psutil.Process, trained: Trained, monkeypatch: pytest.MonkeyPatch
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
        assert forked.ask_for_fork(tmp_path, network=None, environment=variable, log=null) is None


def test_the_servers_end_is_the_end_of_its_trainings_and_looks_like_a_kill() -> None:
    ours, theirs = socket.socketpair()
    process = forked.ForkedProcess(2**22 + 1, ours)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.01)
    theirs.close()
    assert process.wait() == -signal.SIGKILL
    process.terminate()  # it has ended: nobody is sent a signal
