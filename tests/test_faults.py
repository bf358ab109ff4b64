"""Faults on purpose in real trainings: nothing is lost that was saved, and the first cause is named.

The marker `fault(row, what)` is what docs/reliability.md is made of (tests/test_reliability_doc.py).
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from typer.testing import CliRunner

from running import largest_difference, request, train, weights
from turnaround import cli, recipes
from turnaround.errors import (
    DivergedError,
    InterruptedRunError,
    ProcessFailedError,
    StorageError,
    TrainingError,
    TurnaroundError,
)
from turnaround.launch import conduct
from turnaround.record.reader import Run
from turnaround.training import checkpoint

EPOCHS, STEPS = 2, 12
SETTINGS = (
    "data.size_px=32",
    "workers.count=2",
    "training.batch_per_worker=8",
    f"training.epochs={EPOCHS}",
    "training.learning_rate=0.001",
    "training.checkpoint_every_s=1000",
    "training.checkpoint_every_steps=5",
    "augment.rotation_degrees=10",
    "augment.flip=true",
)
NOT_COMPARED = ("epoch_time_s", "images_per_s", "evaluation_time_s", "segment")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def whole(fruit_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two workers in one process, undisturbed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        return train(fruit_folder, tmp_path_factory.mktemp("whole") / "run", *SETTINGS)


@pytest.fixture(scope="module")
def whole_on_two(fruit_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same on two processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        return train(fruit_folder, tmp_path_factory.mktemp("two") / "run", *SETTINGS, processes=2)


def struck(fault: str, folder: Path, out: Path, kind: type[TurnaroundError], *, processes: int = 1) -> TurnaroundError:
    """The error of a training that a fault strikes; all its processes are gone within half a minute of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNAROUND_FAULT", fault)
        begun_s = time.monotonic()
        with pytest.raises(kind) as caught:
            train(folder, out, *SETTINGS, processes=processes)
    assert time.monotonic() - begun_s < 90  # a start takes some seconds, the end of all processes 30 at most
    assert processes_of(out) == []
    return caught.value


def processes_of(out: Path) -> list[psutil.Process]:
    """Whatever still works for this run."""
    found = [p for p in psutil.process_iter(["pid", "cmdline"]) if str(out) in (p.info["cmdline"] or [])]
    return [p for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def lines(run: Run) -> list[dict[str, object]]:
    """The epochs without what differs from start to start."""
    return [{k: v for k, v in dataclasses.asdict(e).items() if k not in NOT_COMPARED} for e in run.epochs]


def identical(one: Run, other: Run) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def goes_on_to_the_same_end(out: Path, undisturbed: Run, *, processes: int = 1) -> Run:
    """Resumed, it ends with the same weights and the same record, to the bit."""
    resumed = conduct.resume(request(out, processes=processes))
    assert resumed.status.state == "finished"
    assert identical(resumed, undisturbed)
    assert lines(resumed) == lines(undisturbed)
    assert resumed.evaluation == undisturbed.evaluation
    return resumed


def newest(out: Path) -> str:
    path, _ = checkpoint.newest_valid(out / "checkpoint")
    assert path is not None
    return path.name


# --- one process


@pytest.mark.fault(37, "killed within an epoch: goes on at the exact sample")
def test_killed_within_an_epoch(fruit_folder: Path, tmp_path: Path, whole: Run) -> None:
    error = struck("kind=kill,step=20", fruit_folder, tmp_path / "run", ProcessFailedError)
    assert "signal 9" in str(error)
    assert newest(tmp_path / "run") == "epoch-00001-step-00003"  # update 15 of 12 + 12
    resumed = goes_on_to_the_same_end(tmp_path / "run", whole)
    assert [e.segment for e in resumed.epochs] == [1, 2]
    epoch = resumed.epochs[1]
    assert epoch.images == 192  # of the whole epoch, not of what was left of it
    assert epoch.images_per_s == pytest.approx(192 / epoch.epoch_time_s)


@pytest.mark.fault(3, "killed while a checkpoint is written: it stays invisible, the one before is used")
def test_killed_while_saving(fruit_folder: Path, tmp_path: Path, whole: Run) -> None:
    out = tmp_path / "run"
    struck("kind=torn,step=15", fruit_folder, out, ProcessFailedError)
    assert newest(out) == "epoch-00000-step-00010"
    assert [p.name for p in (out / "checkpoint").glob(".*")] != []  # half a checkpoint, under its temporary name
    goes_on_to_the_same_end(out, whole)
    assert [p.name for p in (out / "checkpoint").glob(".*")] == []


@pytest.mark.fault(4, "killed right after a checkpoint has its name: the newest is found by looking")
def test_killed_after_the_rename(fruit_folder: Path, tmp_path: Path, whole: Run) -> None:
    struck("kind=kill,phase=saved,step=15", fruit_folder, tmp_path / "run", ProcessFailedError)
    assert newest(tmp_path / "run") == "epoch-00001-step-00003"
    goes_on_to_the_same_end(tmp_path / "run", whole)


@pytest.mark.fault(23, "a checkpoint decays: named, passed over, the one before is used")
def test_a_flipped_bit(fruit_folder: Path, tmp_path: Path, whole: Run) -> None:
    struck("kind=bitflip,step=20", fruit_folder, tmp_path / "run", ProcessFailedError)
    resumed = goes_on_to_the_same_end(tmp_path / "run", whole)
    (passed_over,) = resumed.machine["passed_over_checkpoints"]
    assert passed_over.startswith("epoch-00001-step-00008 is damaged (weights.safetensors has another SHA-256")


@pytest.mark.fault(19, "the disk is full when a checkpoint is saved: said plainly, the one before is kept")
def test_a_full_disk(fruit_folder: Path, tmp_path: Path, whole: Run) -> None:
    error = struck("kind=disk_full,step=15", fruit_folder, tmp_path / "run", StorageError)
    assert "Cannot save a checkpoint" in str(error)
    assert "is full" in str(error)
    assert Run.load(tmp_path / "run").status.state == "failed"
    assert newest(tmp_path / "run") == "epoch-00000-step-00010"
    goes_on_to_the_same_end(tmp_path / "run", whole)


@pytest.mark.fault(11, "a process ends early with exit status 0: a failure all the same")
def test_an_early_clean_exit(fruit_folder: Path, tmp_path: Path) -> None:
    error = struck("kind=exit0,step=7", fruit_folder, tmp_path / "run", ProcessFailedError)
    assert "(exit status 0)" in str(error)
    assert Run.load(tmp_path / "run").status.state == "failed"


@pytest.mark.fault(8, "asked to stop (SIGTERM, SIGUSR2) within an epoch: saved after the step")
@pytest.mark.parametrize("kind", ["sigterm", "sigusr2"])
def test_a_signal_stops_after_the_step(kind: str, fruit_folder: Path, tmp_path: Path, whole: Run) -> None:
    fault = f"kind={kind},step=3;kind=slow,ms=200"  # a decision about every five steps
    error = struck(fault, fruit_folder, tmp_path / "run", InterruptedRunError)
    assert re.search(r"Stopped after step \d+ of 12 in epoch 1 of 2; everything up to there is saved", str(error))
    assert "turnaround resume" in str(error)
    assert Run.load(tmp_path / "run").status.state == "interrupted"
    step = int(newest(tmp_path / "run").rpartition("-")[2])
    assert f"after step {step} of" in str(error)
    goes_on_to_the_same_end(tmp_path / "run", whole)


# --- two processes


@pytest.mark.fault(1, "SIGKILL of one process within an epoch: named; the others go; it goes on to the same weights")
def test_one_of_two_is_killed(fruit_folder: Path, tmp_path: Path, whole_on_two: Run) -> None:
    error = struck("kind=kill,step=20,rank=1", fruit_folder, tmp_path / "run", ProcessFailedError, processes=2)
    assert re.match(r"Process 1 \(host [^)]*\) died without a word", str(error))
    goes_on_to_the_same_end(tmp_path / "run", whole_on_two, processes=2)


@pytest.mark.fault(2, "SIGKILL of process 0: the same; the record is valid up to its last line")
@pytest.mark.fault(31, "resumed with another number of processes within an epoch: the same curve")
def test_the_first_of_two_is_killed_and_one_goes_on(fruit_folder: Path, tmp_path: Path, whole_on_two: Run) -> None:
    out = tmp_path / "run"
    error = struck("kind=kill,step=20,rank=0", fruit_folder, out, ProcessFailedError, processes=2)
    assert re.match(r"Process 0 \(host [^)]*\) died without a word", str(error))
    run = Run.load(out)
    assert (len(run.epochs), run.bad_lines) == (1, 0)
    resumed = conduct.resume(request(out, processes=1))
    assert resumed.machine["processes"] == 1
    assert_same_curve(resumed, whole_on_two)


@pytest.mark.fault(7, "SIGTERM to one process only: all save and stop after the same step")
def test_one_of_two_is_asked_to_stop(fruit_folder: Path, tmp_path: Path, whole_on_two: Run) -> None:
    fault = "kind=sigterm,step=3,rank=1;kind=slow,ms=200"
    error = struck(fault, fruit_folder, tmp_path / "run", InterruptedRunError, processes=2)
    assert "everything up to there is saved" in str(error)
    goes_on_to_the_same_end(tmp_path / "run", whole_on_two, processes=2)


@pytest.mark.fault(17, "the loss of one process is no number: all stop at the same step, the last good state stays")
def test_nan_on_one_of_two(fruit_folder: Path, tmp_path: Path) -> None:
    error = struck("kind=nan,step=8,rank=1", fruit_folder, tmp_path / "run", DivergedError, processes=2)
    assert "no longer a number in epoch 1" in str(error)
    run = Run.load(tmp_path / "run")
    assert run.status.state == "diverged"
    assert newest(tmp_path / "run") == "epoch-00000-step-00005"
    assert all(torch.isfinite(v).all() for v in weights(run).values() if v.is_floating_point())


@pytest.mark.fault(11, "one of two processes ends early with exit status 0: named, not the other's lost connection")
def test_one_of_two_exits_early(fruit_folder: Path, tmp_path: Path) -> None:
    error = struck("kind=exit0,step=7,rank=1", fruit_folder, tmp_path / "run", ProcessFailedError, processes=2)
    assert re.match(r"Process 1 \(host [^)]*\) died without a word", str(error))


@pytest.mark.fault(12, "a process is stopped (SIGSTOP), hangs, or holds the interpreter: the watchdog names it")
@pytest.mark.parametrize("kind", ["stop", "hang", "gilhang"])
def test_one_of_two_falls_silent(
    kind: str, fruit_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNAROUND_WATCHDOG_S", "6")
    error = struck(f"kind={kind},step=7,rank=1", fruit_folder, tmp_path / "run", ProcessFailedError, processes=2)
    words = "hangs" if kind == "hang" else "is stopped or does not answer"
    assert re.match(rf"Process 1 \(host [^)]*\) {words}: no process has got on for 6 s", str(error))
    assert Run.load(tmp_path / "run").status.state == "failed"


@pytest.mark.fault(16, "CUDA out of memory on one process: said plainly, with what was tried and what would fit")
def test_out_of_memory_on_one_of_two(fruit_folder: Path, tmp_path: Path) -> None:
    error = struck("kind=oom,step=7,rank=1", fruit_folder, tmp_path / "run", TrainingError, processes=2)
    assert "out of memory at step 7 (batch_per_worker = 8, 1 worker on this process, 32 px)" in str(error)
    assert "--set training.batch_per_worker=4" in str(error)
    assert not isinstance(error, ProcessFailedError)  # it would happen again: never started again by itself


@pytest.mark.fault(5, "SIGKILL of the launcher while its processes still start: none is left after 10 s")
def test_the_launcher_is_killed_while_its_processes_start(fruit_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    how = ("--device", "cpu", "--set", "data.size_px=32", "--workers", "2", "--processes", "2", "--out", str(out))
    launcher = subprocess.Popen([sys.executable, "-m", "turnaround", "train", str(fruit_folder), *how])
    try:
        waits_for(lambda: len(processes_of(out)) >= 3, seconds=60)  # itself, torch.distributed.run, a first worker
    finally:
        launcher.kill()
        launcher.wait()
    waits_for(lambda: processes_of(out) == [], seconds=10)


def waits_for(condition: Callable[[], bool], *, seconds: float) -> None:
    latest_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < latest_s, "waited too long"
        time.sleep(0.01)


# --- starting again by itself


def restarted(folder: Path, out: Path, fault: str, *, restarts: int, processes: int = 2) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNAROUND_FAULT", fault)
        asked = dataclasses.replace(request(out, processes=processes), restarts=restarts)
        return conduct.start(recipes.find(str(folder), list(SETTINGS)), asked)


@pytest.mark.fault(1, "--restarts: started again by itself from the last checkpoint, to the same weights")
def test_a_run_starts_again_by_itself(fruit_folder: Path, tmp_path: Path, whole_on_two: Run) -> None:
    fault = "kind=kill,step=8,rank=1;kind=raise,step=17,rank=0,segment=2"
    run = restarted(fruit_folder, tmp_path / "run", fault, restarts=2)
    assert (run.status.state, run.status.segments) == ("finished", 3)
    first, second = run.status.restarts
    assert first.startswith("Process 1 (host ")
    assert "a fault on purpose" in second
    assert identical(run, whole_on_two)
    assert lines(run) == lines(whole_on_two)
    assert run.status.time_s["lost"] > 0


def test_it_gives_up_after_as_many_restarts_as_were_asked_for(fruit_folder: Path, tmp_path: Path) -> None:
    fault = "kind=raise,step=8;kind=raise,step=8,segment=2"
    with pytest.raises(ProcessFailedError, match="a fault on purpose"):
        restarted(fruit_folder, tmp_path / "run", fault, restarts=1, processes=1)
    status = Run.load(tmp_path / "run").status
    assert (status.state, status.segments, len(status.restarts)) == ("failed", 2, 1)


def test_what_would_happen_again_is_not_tried_again(fruit_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DivergedError):
        restarted(fruit_folder, tmp_path / "run", "kind=nan,step=8", restarts=3, processes=1)
    assert Run.load(tmp_path / "run").status.segments == 1


@pytest.mark.fault(1, "--restarts: the same process fails twice with nothing saved in between: it goes on without it")
def test_a_run_goes_on_with_the_processes_that_are_left(fruit_folder: Path, tmp_path: Path, whole_on_two: Run) -> None:
    fault = "kind=kill,step=8,rank=1;kind=kill,step=7,rank=1,segment=2"
    run = restarted(fruit_folder, tmp_path / "run", fault, restarts=2)
    assert (run.status.state, run.status.segments, run.machine["processes"]) == ("finished", 3, 1)
    first, second = run.status.restarts
    assert "instead of" not in first
    fewer = "It goes on with 1 process instead of 2: process 1 failed twice in a row before anything new was saved."
    assert second.startswith("Process 1 (host ")
    assert second.endswith(fewer)
    assert "start 3: processes 2 -> 1" in run.machine["changed"]
    assert_same_curve(run, whole_on_two)


# --- on another number of processes


def assert_same_curve(run: Run, undisturbed: Run) -> None:
    """To float tolerance: sums over processes round otherwise."""
    assert run.status.state == "finished"
    assert largest_difference(weights(run), weights(undisturbed)) < 1e-5
    for one, other in zip(run.epochs, undisturbed.epochs, strict=True):
        assert (one.images, one.val_accuracy) == (other.images, other.val_accuracy)
        assert one.train_loss == pytest.approx(other.train_loss, rel=1e-5)


@pytest.mark.fault(25, "a file system shows the checkpoint late: process 0 says which one, the others wait for it")
@pytest.mark.fault(31, "killed on one process, resumed on two: the same curve")
def test_one_is_killed_and_two_go_on(
    fruit_folder: Path, tmp_path: Path, whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    struck("kind=kill,step=20", fruit_folder, out, ProcessFailedError)
    monkeypatch.setenv("TURNAROUND_FAULT", "kind=slowfs,rank=1,segment=2,ms=1500")
    resumed = conduct.resume(request(out, processes=2))
    assert resumed.machine["processes"] == 2
    assert "start 2: processes 1 -> 2" in resumed.machine["changed"]
    assert_same_curve(resumed, whole)


@pytest.mark.fault(32, "another number of workers would be another training: a resume cannot be asked for one")
def test_the_workers_of_a_run_never_change(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli.app, ["resume", str(tmp_path), "--workers", "4"])
    assert done.exit_code == 2
    assert "No such option: --workers" in done.output


# --- storage and clocks


@pytest.mark.fault(26, "the run directory becomes read-only: said plainly, what was saved is kept")
def test_a_folder_that_becomes_read_only(fruit_folder: Path, tmp_path: Path) -> None:
    error = struck("kind=readonly,step=15", fruit_folder, tmp_path / "run", StorageError)
    assert "Cannot save a checkpoint" in str(error)
    assert "the file system is read-only" in str(error)
    assert newest(tmp_path / "run") == "epoch-00000-step-00010"


@pytest.mark.fault(26, "the run directory vanishes: said plainly; put back, the run goes on from what was saved")
def test_a_folder_that_vanishes(fruit_folder: Path, tmp_path: Path, whole: Run) -> None:
    error = struck("kind=vanish,step=15", fruit_folder, tmp_path / "run", StorageError)
    assert f"{tmp_path / 'run'} is not there any more" in str(error)
    assert "turnaround resume" in str(error)
    (tmp_path / "run.gone").rename(tmp_path / "run")
    goes_on_to_the_same_end(tmp_path / "run", whole)


@pytest.mark.fault(27, "the clock jumps by an hour, forth and back: no duration notices, nothing else changes")
def test_the_clock_jumps(fruit_folder: Path, tmp_path: Path, whole: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    jumps = "kind=clock,ms=3600000;kind=clock,phase=step,step=14,ms=-7200000"
    monkeypatch.setenv("TURNAROUND_FAULT", jumps)
    run = train(fruit_folder, tmp_path / "run", *SETTINGS)
    assert identical(run, whole)
    assert lines(run) == lines(whole)
    assert {part for part, seconds in run.status.time_s.items() if not 0 <= seconds < 600} == set()
    assert all(0 < e.epoch_time_s < 600 for e in run.epochs)


@pytest.mark.fault(24, "three commands start at once in one directory: exactly one trains, the others say who has it")
@pytest.mark.fault(29, "a run directory with spaces, quotes, a newline, a leading dash and NFD letters: it trains")
def test_of_commands_that_start_at_once_exactly_one_trains(fruit_folder: Path, tmp_path: Path) -> None:
    name = '-a "run\'s"\n<b>' + unicodedata.normalize("NFD", "Äpfel")
    out = tmp_path / f"{name}{'x' * (255 - len(name.encode()))}"
    settings = [word for setting in (*SETTINGS, "training.epochs=1") for word in ("--set", setting)]
    command = [sys.executable, "-m", "turnaround", "train", str(fruit_folder), f"--out={out.name}", "--device", "cpu"]
    started = [
        subprocess.Popen([*command, *settings], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = [process.communicate(timeout=300)[1] for process in started]
    assert sorted(process.returncode for process in started) == [0, 2, 2], said
    losers = [text for process, text in zip(started, said, strict=True) if process.returncode]
    assert all("in use by another run" in text or "already holds a run" in text for text in losers), losers
    assert Run.load(out).status.state == "finished"
    assert [e.epoch for e in Run.load(out).epochs] == [1]
