"""One of two processes dies, hangs, goes wrong or is asked to stop: it is named, and the others end with it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from forking import ForkingLauncher
from running import request, train, weights
from struck import (
    SETTINGS,
    goes_on_to_the_same_end,
    newest,
    processes_of,
    struck,
    waits_for,
)
from turnaround.errors import DivergedError, InterruptedRunError, ProcessFailedError, TrainingError
from turnaround.launch import lifecycle, local
from turnaround.launch.contract import LaunchPlan
from turnaround.record.reader import Run


@pytest.mark.fault(1, "SIGKILL of one process within an epoch: named; the others go; it goes on to the same weights")
def test_one_of_two_is_killed(
    fruit_folder: Path, tmp_path: Path, whole_on_two: Run, forking: ForkingLauncher, forking_agent: ForkingLauncher
) -> None:
    fault, out = "kind=kill,step=20,rank=1", tmp_path / "run"
    error = struck(fault, fruit_folder, out, ProcessFailedError, processes=2, launcher=forking_agent)
    assert re.match(r"Process 1 \(host [^)]*\) died without a word", str(error))
    goes_on_to_the_same_end(tmp_path / "run", whole_on_two, forking, processes=2)


@pytest.mark.fault(7, "SIGTERM to one process only: all save and stop after the same step")
def test_one_of_two_is_asked_to_stop(
    fruit_folder: Path, tmp_path: Path, whole_on_two: Run, forking: ForkingLauncher
) -> None:
    fault = "kind=sigterm,step=3,rank=1;kind=slow,ms=200"
    error = struck(fault, fruit_folder, tmp_path / "run", InterruptedRunError, processes=2, launcher=forking)
    assert "everything up to there is saved" in str(error)
    goes_on_to_the_same_end(tmp_path / "run", whole_on_two, forking, processes=2)


@pytest.mark.fault(17, "the loss of one process is no number: all stop at the same step, the last good state stays")
def test_nan_on_one_of_two(fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher) -> None:
    fault, out = "kind=nan,step=8,rank=1", tmp_path / "run"
    error = struck(fault, fruit_folder, out, DivergedError, processes=2, launcher=forking)
    assert "no longer a number in epoch 1" in str(error)
    run = Run.load(tmp_path / "run")
    assert run.status.state == "diverged"
    assert newest(tmp_path / "run") == "epoch-00000-step-00005"
    assert all(torch.isfinite(v).all() for v in weights(run).values() if v.is_floating_point())


@pytest.mark.fault(11, "one of two processes ends early with exit status 0: named, not the other's lost connection")
def test_one_of_two_exits_early(fruit_folder: Path, tmp_path: Path, forking_agent: ForkingLauncher) -> None:
    fault, out = "kind=exit0,step=7,rank=1", tmp_path / "run"
    error = struck(fault, fruit_folder, out, ProcessFailedError, processes=2, launcher=forking_agent)
    assert re.match(r"Process 1 \(host [^)]*\) died without a word", str(error))


@pytest.mark.fault(12, "a process is stopped (SIGSTOP), hangs, or holds the interpreter: the watchdog names it")
@pytest.mark.parametrize("kind", ["stop", "hang", "gilhang"])
def test_one_of_two_falls_silent(
    kind: str,
    fruit_folder: Path,
    tmp_path: Path,
    forking: ForkingLauncher,
    forking_agent: ForkingLauncher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TURNAROUND_WATCHDOG_S", "14")
    # A process that is stopped cannot be asked to end: torch.distributed.run, too, must go then.
    launcher = forking_agent if kind == "stop" else forking
    fault, out = f"kind={kind},step=7,rank=1", tmp_path / "run"
    error = struck(fault, fruit_folder, out, ProcessFailedError, processes=2, launcher=launcher)
    words = "hangs" if kind == "hang" else "is stopped or does not answer"
    assert re.match(rf"Process 1 \(host [^)]*\) {words}: no process has got on for 14 s", str(error))
    assert Run.load(tmp_path / "run").status.state == "failed"


@pytest.mark.fault(12, "torch.distributed.run is stopped while it starts the processes: named, and all are ended")
def test_the_launcher_of_two_is_stopped(fruit_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNAROUND_WATCHDOG_S", "2")
    out, real = tmp_path / "run", local._start

    def start(plan: LaunchPlan) -> subprocess.Popen[bytes]:
        process = real(plan)
        process.send_signal(signal.SIGSTOP)  # at once: it has hardly begun to load its code
        return process

    monkeypatch.setattr(local, "_start", start)
    with pytest.raises(ProcessFailedError, match=r"workers\.torch_agent, which starts the training processes \(pid "):
        train(fruit_folder, out, *SETTINGS, processes=2)
    assert processes_of(out) == []
    assert "is stopped" in (Run.load(out).status.cause or "")


@pytest.mark.fault(16, "CUDA out of memory on one process: said plainly, with what was tried and what would fit")
def test_out_of_memory_on_one_of_two(fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher) -> None:
    fault, out = "kind=oom,step=7,rank=1", tmp_path / "run"
    error = struck(fault, fruit_folder, out, TrainingError, processes=2, launcher=forking)
    assert "out of memory at step 7 (batch_per_worker = 8, 1 worker on this process, 16 px)" in str(error)
    assert "--set training.batch_per_worker=4" in str(error)
    assert not isinstance(error, ProcessFailedError)  # it would happen again: never started again by itself


def test_out_of_memory_with_uneven_shares_names_the_way_out(
    fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher
) -> None:
    settings, out = (*SETTINGS, "workers.count=4"), tmp_path / "run"
    how = {"processes": 2, "launcher": forking, "settings": settings, "share": "3,1"}
    error = struck("kind=oom,step=7,rank=0", fruit_folder, out, TrainingError, **how)  # type: ignore[arg-type]
    assert "out of memory at step 7 (batch_per_worker = 8, 3 workers on this process, 16 px)" in str(error)
    way_out = f"equal shares, 2 workers on this process instead of 3: `turnaround resume {out} --share even`."
    assert way_out in str(error)
    run = lifecycle.resume(request(out, processes=None, launcher=forking, share="even"))
    assert run.status.state == "finished"
    assert [rank["workers"] for rank in run.machine["ranks"]] == [[0, 1], [2, 3]]


@pytest.mark.fault(5, "SIGKILL of the launcher while its processes still start: none is left after 10 s")
def test_the_launcher_is_killed_while_its_processes_start(fruit_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    how = ("--device", "cpu", "--set", "data.size_px=32", "--workers", "2", "--processes", "2", "--out", str(out))
    launcher = subprocess.Popen([sys.executable, "-m", "turnaround", "train", str(fruit_folder), *how])
    try:
        waits_for(lambda: len(processes_of(out)) >= 3)  # itself, torch.distributed.run, a first worker
    finally:
        launcher.kill()
        launcher.wait()
    waits_for(lambda: processes_of(out) == [])
