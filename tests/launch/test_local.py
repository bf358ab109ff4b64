"""The local launcher: its command as text, the environment it gives, and what becomes of a process that fails."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analysis.build import Plan, build, rising
from forking import ForkingLauncher
from running import traced, train
from struck import waits_for
from turnaround.errors import InputError, InterruptedRunError, ProcessFailedError
from turnaround.launch import local, process_settings
from turnaround.launch.contract import LaunchPlan
from turnaround.launch.handshake import StartMessage
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run
from turnaround.record.schema import Status, to_json
from turnaround.record.writer import write_json
from turnaround.workers.engines import TORCH_AGENT


def plan(processes: int, directory: Path = Path("runs/my run")) -> LaunchPlan:
    return LaunchPlan(
        directory=RunDirectory(directory),
        message=StartMessage(device="cpu", network="small", begun_at_s=1.0),
        processes=processes,
    )


def test_one_process_is_started_directly() -> None:
    command = local.command(plan(1))
    assert command[:3] == [sys.executable, "-m", "turnaround.worker"]
    assert command[3:] == plan(1).worker_arguments()


def test_several_processes_are_started_by_torch() -> None:
    command = local.command(plan(3))
    assert command[:5] == [sys.executable, "-m", TORCH_AGENT, "--nproc-per-node", "3"]
    at = command.index("turnaround.worker")
    assert command[at - 1] == "-m"
    assert command[at + 1 :] == plan(3).worker_arguments()


def test_the_text_can_be_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    text = local.LocalLauncher().text(plan(2))
    words = shlex.split(text)
    settings = dict(word.split("=", 1) for word in words[: words.index(sys.executable)])
    assert settings == local.settings_for(plan(2))
    assert words[words.index(sys.executable) :] == local.command(plan(2))
    assert "'runs/my run'" in text


@pytest.mark.parametrize(("cores", "processes", "threads"), [(8, 2, "4"), (8, 3, "2"), (2, 4, "1"), (1, 1, "1")])
def test_the_cores_are_shared(cores: int, processes: int, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_settings, "usable_cores", lambda: cores)
    assert local.settings_for(plan(processes), {})["OMP_NUM_THREADS"] == threads


def test_what_the_user_has_set_stays() -> None:
    base = {"OMP_NUM_THREADS": "7", "GLOO_SOCKET_IFNAME": "eth1", "MALLOC_TRIM_THRESHOLD_": "1"}
    settings = local.settings_for(plan(2), base)
    assert not set(settings) & set(base)
    assert "MALLOC_MMAP_MAX_" in settings


def test_where_neighbours_cannot_be_seen_threads_sleep_while_they_wait_unless_the_user_has_said_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_settings, "RUN_QUEUES", tmp_path / "none")
    assert local.settings_for(plan(1), {})["GOMP_SPINCOUNT"] == "3000"
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        assert "GOMP_SPINCOUNT" not in local.settings_for(plan(1), {name: "1"})
    monkeypatch.setattr(process_settings, "RUN_QUEUES", Path(__file__))
    assert "GOMP_SPINCOUNT" not in local.settings_for(plan(1), {}), "a training looks for neighbours itself"


@pytest.mark.skipif(sys.platform != "linux", reason="the loopback's name is known on Linux only")
def test_several_processes_speak_over_loopback() -> None:
    assert local.settings_for(plan(2), {})["GLOO_SOCKET_IFNAME"] == "lo"
    assert local.settings_for(plan(2), {})["NCCL_SOCKET_IFNAME"] == "lo"
    assert "GLOO_SOCKET_IFNAME" not in local.settings_for(plan(1), {})


QUICK = ("data.size_px=32", "training.epochs=2", "training.checkpoint_every_s=0")


@pytest.mark.fault(14, "a process fails in its first steps: one message, with the first cause")
def test_a_process_that_raises_is_named(
    fruit_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forking_agent: ForkingLauncher
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    traced(monkeypatch, fail_rank="1")
    with pytest.raises(ProcessFailedError) as caught:
        train(fruit_folder, tmp_path / "out", "workers.count=2", *QUICK, processes=2, launcher=forking_agent)
    message = str(caught.value)
    log = tmp_path / "out" / "logs" / "processes.log"
    who = f"Process 1 (host {socket.gethostname()}, step 1)"
    assert message == f"{who} failed: RuntimeError: told to fail. Details are in {log}."
    assert "told to fail" in log.read_text()
    status = Run.load(tmp_path / "out").status
    assert (status.state, status.cause) == ("failed", message)
    assert status.ended_at is not None
    assert not (tmp_path / "out" / "run.lock").exists()


def test_a_process_that_is_killed(
    fruit_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forking: ForkingLauncher
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    traced(monkeypatch, kill_after_epoch="1")
    with pytest.raises(ProcessFailedError) as caught:
        train(fruit_folder, tmp_path / "out", *QUICK, launcher=forking)
    message = str(caught.value)
    for words in (
        f"signal {int(signal.SIGKILL)}",
        "out of memory",
        str(tmp_path / "out" / "logs" / "processes.log"),
        f"turnaround resume {tmp_path / 'out'}",
    ):
        assert words in message
    run = Run.load(tmp_path / "out")
    assert (run.status.state, run.status.cause) == ("failed", message)
    assert [e.epoch for e in run.epochs] == [1]
    assert json.loads(run.directory.recipe.read_text())["name"] == "fruit"


DEAF = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""


def test_processes_that_wait_for_each_other_before_they_train_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As when a Ctrl-C has reached one of two before it listened: the other waits for it."""
    monkeypatch.setattr(local, "command", lambda plan: [sys.executable, "-c", DEAF, str(tmp_path / "deaf")])
    monkeypatch.setattr(local, "GRACE_S", 0.5)
    directory = RunDirectory.create(tmp_path / "run")
    write_json(directory.recipe, {})
    write_json(directory.status, to_json(Status(state="queued")))
    wait = local.LocalProcesses._wait

    def stop_and_wait(*arguments: Any) -> int:
        """From here on a signal to us is passed on; before, it would end the test process."""
        waits_for((tmp_path / "deaf").exists)
        os.kill(os.getpid(), signal.SIGTERM)
        return wait(*arguments)

    monkeypatch.setattr(local.LocalProcesses, "_wait", stop_and_wait)
    asked = plan(1, directory.path)
    with (
        pytest.raises(InterruptedRunError, match=r"Stopped before the first step\. Go on with `turnaround resume"),
        local.LocalLauncher().started(asked) as processes,
    ):
        processes.run(asked.message)
    assert "Stopping after this step" in capfd.readouterr().err


def test_how_long_a_training_may_not_get_on() -> None:
    assert local.patience_s({}) == local.PATIENCE_S
    assert local.patience_s({"TURNAROUND_WATCHDOG_S": "7.5"}) == 7.5


@pytest.mark.parametrize("text", ["soon", "0", "-3", "nan", ""])
def test_a_patience_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"TURNAROUND_WATCHDOG_S must be a number of seconds above 0\. Received: "):
        local.patience_s({"TURNAROUND_WATCHDOG_S": text})


def test_two_different_requests_are_one_wish() -> None:
    """A batch system sends SIGUSR2 first and SIGTERM later; a person presses Ctrl-C twice."""
    requests = local._StopSignals()
    requests.received += [signal.SIGUSR2, signal.SIGTERM]
    assert not requests.is_urgent
    requests.received.append(signal.SIGUSR2)
    assert not requests.is_urgent  # a job's script repeats its warning, in case nobody listened yet
    requests.received.append(signal.SIGTERM)
    assert requests.is_urgent


def test_what_a_launcher_passes_on_twice_is_one_wish() -> None:
    """scancel sends SIGTERM to every process, and torch.distributed.run to its own once more."""
    requests = local._StopSignals(is_alone=False)
    requests.received += [signal.SIGTERM, signal.SIGTERM]
    assert not requests.is_urgent


def test_a_finished_run_keeps_nothing_of_a_process_that_was_killed_at_its_very_end(tmp_path: Path) -> None:
    """Its last word was "finished"; its heartbeat, which it could not remove, says that it still trains."""
    done = plan(1, build(tmp_path / "run", Plan(accuracy=rising(epochs=3))))
    done.directory.logs.mkdir(exist_ok=True)
    write_json(done.directory.heartbeat(0), {"rank": 0}, done.directory.path)
    processes = local.LocalProcesses(done)
    processes._process = subprocess.Popen(["false"], start_new_session=True)
    processes.run(done.message)
    assert list(done.directory.logs.glob("pulse-*")) == []
