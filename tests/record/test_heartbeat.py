"""Where the processes are: what each writes, and what the launcher makes of a silent one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from turnaround.record import heartbeat
from turnaround.record.heartbeat import WAITS, Heartbeat, HeartbeatFile, HeartbeatMonitor
from turnaround.record.layout import RunDirectory


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run")


class Time:
    """A clock that a test moves."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def says(directory: RunDirectory, rank: int, **facts: object) -> None:
    said = {"rank": rank, "host": "node7", "pid": 1, "step": 5, "doing": "computes", "beats": 9, "ticks": 1}
    (directory.logs / f"pulse-{rank}.json").write_text(json.dumps({**said, "program_s": 3.0, **facts}))


def test_a_process_says_where_it_is_and_removes_its_file_at_the_end(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.02)
    mine = Heartbeat()
    with HeartbeatFile(directory, rank=3, heartbeat=mine, program_s=lambda: 12.5):
        mine.beat("computes", 37)
        latest_s = time.monotonic() + 60
        while (seen := heartbeat.read(directory)[0]).step != 37:
            assert time.monotonic() < latest_s
        assert (seen.rank, seen.pid, seen.host, seen.beats) == (3, os.getpid(), socket.gethostname(), 1)
        assert seen.name == f"Process 3 (host {socket.gethostname()}, step 37)"
        assert not seen.is_gone
    assert heartbeat.read(directory) == []


def test_a_process_that_failed_leaves_its_file(directory: RunDirectory) -> None:
    def fails() -> None:
        with HeartbeatFile(directory, rank=0, heartbeat=Heartbeat(), program_s=lambda: 12.5):
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fails()
    assert heartbeat.program_s(directory) == 12.5
    heartbeat.clear(directory)
    assert heartbeat.program_s(directory) == 0.0


def test_what_cannot_be_read_is_nobody(directory: RunDirectory) -> None:
    (directory.logs / "pulse-0.json").write_text('{"rank": 0')
    (directory.logs / "pulse-1.json").write_text("[1]")
    assert heartbeat.read(directory) == []


def test_a_process_that_has_ended_is_gone_and_the_first_is_remembered(directory: RunDirectory) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    clock = Time()
    watch = HeartbeatMonitor(directory, patience_s=60, now_s=clock)
    says(directory, 0, host=socket.gethostname(), pid=os.getpid())
    says(directory, 1, host=socket.gethostname(), pid=ended.pid)
    watch.look()
    assert watch.gone is not None
    assert watch.gone.rank == 1
    clock.now_s = 12.0
    says(directory, 0, host=socket.gethostname(), pid=ended.pid)
    watch.look()
    assert (watch.gone.rank, watch.gone_for_s) == (1, 12.0)


@pytest.mark.fault(28, "a process of another host is judged by this host's clock only")
def test_a_process_of_another_host_is_never_taken_for_dead(directory: RunDirectory) -> None:
    says(directory, 0, pid=2**22 + 1)
    assert not heartbeat.read(directory)[0].is_gone


def looked(watch: HeartbeatMonitor, clock: Time, seconds: int, step: object) -> str | None:
    """One look a second; `step` moves what the processes say."""
    verdict = None
    for second in range(seconds):
        clock.now_s += 1
        step(second)  # type: ignore[operator]
        verdict = watch.look()
    return verdict


def test_a_stopped_process_is_named(directory: RunDirectory) -> None:
    clock = Time()
    watch = HeartbeatMonitor(directory, patience_s=10, now_s=clock)

    def go_on(second: int) -> None:
        says(directory, 0, doing=WAITS, ticks=second)
        says(directory, 1, step=4)  # its thread is stopped too

    verdict = looked(watch, clock, 12, go_on)
    assert verdict is not None
    assert verdict.startswith("Process 1 (host node7, step 4) is stopped or does not answer: no process has got on")


def test_a_process_that_is_stopped_before_its_first_step_is_named_too(directory: RunDirectory) -> None:
    clock = Time()
    watch = HeartbeatMonitor(directory, patience_s=10, now_s=clock)
    verdict = looked(watch, clock, 12, lambda second: says(directory, 0, beats=0, step=0))
    assert str(verdict).startswith("Process 0 (host node7) is stopped or does not answer")


def test_a_process_that_hangs_while_the_others_wait_is_named(directory: RunDirectory) -> None:
    clock = Time()
    watch = HeartbeatMonitor(directory, patience_s=10, now_s=clock)

    def go_on(second: int) -> None:
        says(directory, 0, doing=WAITS, ticks=second)
        says(directory, 1, doing="evaluates", ticks=second)

    assert str(looked(watch, clock, 12, go_on)).startswith("Process 1 (host node7, step 5) hangs")


def test_when_all_wait_all_are_named(directory: RunDirectory) -> None:
    clock = Time()
    watch = HeartbeatMonitor(directory, patience_s=10, now_s=clock)

    def go_on(second: int) -> None:
        for rank in (0, 1):
            says(directory, rank, doing=WAITS, ticks=second)

    verdict = str(looked(watch, clock, 12, go_on))
    assert "Process 0 (host node7, step 5) and Process 1 (host node7, step 5) hangs" in verdict


def test_a_training_that_gets_on_or_has_not_begun_is_left_alone(directory: RunDirectory) -> None:
    clock = Time()
    watch = HeartbeatMonitor(directory, patience_s=10, now_s=clock)
    assert looked(watch, clock, 30, lambda second: None) is None  # no process yet
    assert looked(watch, clock, 30, lambda second: says(directory, 0, beats=1, ticks=second)) is None  # compiling
    assert looked(watch, clock, 50, lambda second: says(directory, 0, beats=second // 5 + 1, ticks=second)) is None
    assert looked(watch, clock, 12, lambda second: says(directory, 0, ticks=second)) is not None
