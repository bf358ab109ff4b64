"""Processes that are stopped or hang where no heartbeat tells."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from turnaround.launch.watchdog import ProcessTreeWatch

PATIENCE_S = 0.3
SLEEPS = "import time; time.sleep(600)"
COUNTS = "while True: pass"
# A launcher with one training process below it, which knows its rank.
LAUNCHES = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEPS!r}], env={{'RANK': '1'}})"


@pytest.fixture
def started(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-IS", "-c", request.param], start_new_session=True)
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def stop(pid: int) -> None:
    """Send SIGSTOP, and return when it has come: on a busy machine a sleeping process takes its time to stop."""
    os.kill(pid, signal.SIGSTOP)
    latest_s = time.monotonic() + 60
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED and time.monotonic() < latest_s:
        time.sleep(0.01)


def watch(
    process: subprocess.Popen[bytes],
    tmp_path: Path,
    launcher: str | None = None,
    ranks: dict[int, int] | None = None,
) -> ProcessTreeWatch:
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "processes.log"
    log.touch()
    return ProcessTreeWatch(process.pid, log, patience_s=PATIENCE_S, launcher=launcher, ranks=ranks, least_start_s=0.0)


def verdict_of(made: ProcessTreeWatch, *, within_s: float, with_heartbeat: tuple[int, ...] = ()) -> str | None:
    latest_s = time.monotonic() + within_s
    while time.monotonic() < latest_s:
        if (verdict := made.look(with_heartbeat=with_heartbeat)) is not None:
            return verdict
        time.sleep(0.05)
    return None


@pytest.mark.fault(12, "a process is stopped before its first heartbeat, or without one (torch.distributed.run): named")
@pytest.mark.parametrize("started", [LAUNCHES], indirect=True)
@pytest.mark.parametrize("victim", ["launcher", "process"])
def test_what_is_stopped_is_named(victim: str, started: subprocess.Popen[bytes], tmp_path: Path) -> None:
    launcher = psutil.Process(started.pid)
    latest_s = time.monotonic() + 60
    while not launcher.children() and time.monotonic() < latest_s:
        time.sleep(0.01)
    (child,) = launcher.children()
    while child.environ().get("RANK") != "1" and time.monotonic() < latest_s:  # until it has become its program
        time.sleep(0.01)
    stopped = started.pid if victim == "launcher" else child.pid
    stop(stopped)
    made = watch(started, tmp_path, "torch.distributed.run")
    # One with a heartbeat is judged by that, and meanwhile nobody is asked whether anything moves.
    beats = (child.pid,)
    if victim == "process":
        assert verdict_of(made, within_s=3 * PATIENCE_S, with_heartbeat=beats) is None
    said = verdict_of(made, within_s=60, with_heartbeat=beats if victim == "launcher" else ())
    if victim == "launcher":
        begins = f"torch.distributed.run, which starts the training processes (pid {started.pid}), is stopped: "
        assert made.silent_ranks == ()
    else:
        begins = f"Process 1 (pid {child.pid}) is stopped: "
        assert made.silent_ranks == (1,)
    assert said is not None
    assert said.startswith(begins)
    assert "TURNAROUND_WATCHDOG_S" in said


@pytest.mark.parametrize("started", [SLEEPS], indirect=True)
def test_a_process_whose_variables_do_not_tell_is_named_by_the_rank_that_is_known(
    started: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    stop(started.pid)
    made = watch(started, tmp_path, ranks={started.pid: 3})
    said = verdict_of(made, within_s=60)
    assert said is not None
    assert said.startswith(f"Process 3 (pid {started.pid}) is stopped: ")
    assert made.silent_ranks == (3,)


@pytest.mark.parametrize("started", [SLEEPS], indirect=True)
def test_a_start_that_only_waits_is_given_up_and_anything_that_is_written_is_progress(
    started: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    made = watch(started, tmp_path)
    latest_s = time.monotonic() + 4 * PATIENCE_S
    while time.monotonic() < latest_s:
        made.log.write_bytes(made.log.read_bytes() + b"a line\n")
        assert made.look(with_heartbeat=()) is None
        time.sleep(0.05)
    said = verdict_of(made, within_s=60)
    assert said is not None
    assert said.startswith(f"Process 0 (pid {started.pid}) does not get on: nothing of it has moved for ")


@pytest.mark.parametrize("started", [COUNTS], indirect=True)
def test_computing_is_progress(started: subprocess.Popen[bytes], tmp_path: Path) -> None:
    made = watch(started, tmp_path)
    made.patience_s = 3.0  # a busy machine may not serve it for a second
    assert verdict_of(made, within_s=4.0) is None


@pytest.mark.parametrize("started", [SLEEPS], indirect=True)
def test_what_goes_on_after_a_stop_is_left_alone(started: subprocess.Popen[bytes], tmp_path: Path) -> None:
    made = watch(started, tmp_path, "torch.distributed.run")
    made.patience_s = 60.0
    stop(started.pid)
    made.look(with_heartbeat=(1,))
    os.kill(started.pid, signal.SIGCONT)
    latest_s = time.monotonic() + 60
    while psutil.Process(started.pid).status() == psutil.STATUS_STOPPED and time.monotonic() < latest_s:
        time.sleep(0.01)
    made.patience_s = 0.0
    assert made.look(with_heartbeat=(1,)) is None
