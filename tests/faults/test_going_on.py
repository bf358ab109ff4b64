"""After a fault a run starts again by itself, or goes on with another number of processes: the same training."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from forking import ForkingLauncher
from running import request
from struck import SETTINGS, assert_same_curve, identical, lines, struck
from turnaround import recipes
from turnaround.errors import DivergedError, ProcessFailedError
from turnaround.launch import lifecycle, local, restart
from turnaround.launch.contract import LaunchPlan
from turnaround.record.reader import Run


def restarted(
    folder: Path, out: Path, fault: str, *, restarts: int, launcher: ForkingLauncher, processes: int = 1
) -> Run:
    """Started again by itself after each fault."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNAROUND_FAULT", fault)
        asked = dataclasses.replace(request(out, processes=processes, launcher=launcher), restarts=restarts)
        return lifecycle.start(recipes.find(str(folder), list(SETTINGS)), asked)


@pytest.mark.fault(1, "--restarts: started again by itself from the last checkpoint, to the same weights")
def test_a_run_starts_again_by_itself(
    fruit_folder: Path, tmp_path: Path, whole_on_two: Run, forking: ForkingLauncher
) -> None:
    fault = "kind=kill,step=8,rank=1;kind=raise,step=17,rank=0,segment=2"
    run = restarted(fruit_folder, tmp_path / "run", fault, restarts=2, launcher=forking, processes=2)
    assert (run.status.state, run.status.segments) == ("finished", 3)
    first, second = run.status.restarts
    assert first.startswith("Process 1 (host ")
    assert "a fault on purpose" in second
    assert identical(run, whole_on_two)
    assert lines(run) == lines(whole_on_two)
    assert run.status.time_s["lost"] > 0


def test_it_gives_up_after_as_many_restarts_as_were_asked_for(
    fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher
) -> None:
    fault = "kind=raise,step=8;kind=raise,step=8,segment=2"
    with pytest.raises(ProcessFailedError, match="a fault on purpose"):
        restarted(fruit_folder, tmp_path / "run", fault, restarts=1, launcher=forking)
    status = Run.load(tmp_path / "run").status
    assert (status.state, status.segments, len(status.restarts)) == ("failed", 2, 1)


def test_what_would_happen_again_is_not_tried_again(
    fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher
) -> None:
    with pytest.raises(DivergedError):
        restarted(fruit_folder, tmp_path / "run", "kind=nan,step=8", restarts=3, launcher=forking)
    assert Run.load(tmp_path / "run").status.segments == 1


@pytest.mark.fault(1, "--restarts: the same process fails twice with nothing saved in between: it goes on without it")
def test_a_run_goes_on_with_the_processes_that_are_left(
    fruit_folder: Path, tmp_path: Path, whole_on_two: Run, forking: ForkingLauncher
) -> None:
    fault = "kind=kill,step=8,rank=1;kind=kill,step=7,rank=1,segment=2"
    run = restarted(fruit_folder, tmp_path / "run", fault, restarts=2, launcher=forking, processes=2)
    assert (run.status.state, run.status.segments, run.machine["processes"]) == ("finished", 3, 1)
    first, second = run.status.restarts
    assert "instead of" not in first
    fewer = "It goes on with 1 process instead of 2: process 1 failed twice in a row before anything new was saved."
    assert second.startswith("Process 1 (host ")
    assert second.endswith(fewer)
    assert "start 3: processes 2 -> 1" in run.machine["changed"]
    assert_same_curve(run, whole_on_two)


@pytest.mark.fault(
    1, "--restarts: GPUs that were gone are back: it saves, and goes on with as many processes as before"
)
def test_a_run_goes_on_with_more_processes_again(
    fruit_folder: Path, tmp_path: Path, whole_on_two: Run, forking: ForkingLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"

    def num_gpus(plan: LaunchPlan) -> int:
        """Two; one after the first failure; two again as soon as the second start has saved something."""
        segments = Run.load(out).status.segments if plan.directory.is_run() else 1
        saved = [files.path.name for files in plan.directory.checkpoints()]
        return 2 if (plan.processes == 2 and not saved) or (segments > 1 and saved > ["epoch-00000-step-00005"]) else 1

    monkeypatch.setattr(restart, "_num_gpus", num_gpus)
    monkeypatch.setattr(local, "GROW_EVERY_S", 0.2)
    fault = "kind=kill,step=8,rank=1;kind=slow,ms=500,segment=2"
    run = restarted(fruit_folder, out, fault, restarts=1, launcher=forking, processes=2)
    assert (run.status.state, run.status.segments, run.machine["processes"]) == ("finished", 3, 2)
    fewer, more = run.status.restarts
    assert fewer.endswith("It goes on with 1 process instead of 2: 1 GPU of 2 is left.")
    assert "everything up to there is saved" in more
    assert more.endswith("It goes on with 2 processes instead of 1: GPUs are back.")
    assert "start 2: processes 2 -> 1" in run.machine["changed"]
    assert "start 3: processes 1 -> 2" in run.machine["changed"]
    assert "wanted" not in run.recipe["launch"]
    assert_same_curve(run, whole_on_two)


@pytest.mark.fault(2, "SIGKILL of process 0: the same; the record is valid up to its last line")
@pytest.mark.fault(31, "resumed with another number of processes within an epoch: the same curve")
def test_the_first_of_two_is_killed_and_one_goes_on(
    fruit_folder: Path, tmp_path: Path, whole_on_two: Run, forking: ForkingLauncher
) -> None:
    out = tmp_path / "run"
    fault = "kind=kill,step=20,rank=0"
    error = struck(fault, fruit_folder, out, ProcessFailedError, processes=2, launcher=forking)
    assert re.match(r"Process 0 \(host [^)]*\) died without a word", str(error))
    run = Run.load(out)
    assert (len(run.epochs), run.bad_lines) == (1, 0)
    resumed = lifecycle.resume(request(out, processes=1, launcher=forking))
    assert resumed.machine["processes"] == 1
    assert_same_curve(resumed, whole_on_two)


@pytest.mark.fault(25, "a file system shows the checkpoint late: process 0 says which one, the others wait for it")
@pytest.mark.fault(31, "killed on one process, resumed on two: the same curve")
def test_one_is_killed_and_two_go_on(
    fruit_folder: Path, tmp_path: Path, whole: Run, forking: ForkingLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    struck("kind=kill,step=20", fruit_folder, out, ProcessFailedError, launcher=forking)
    monkeypatch.setenv("TURNAROUND_FAULT", "kind=slowfs,rank=1,segment=2,ms=1500")
    resumed = lifecycle.resume(request(out, processes=2, launcher=forking))
    assert resumed.machine["processes"] == 2
    assert "start 2: processes 1 -> 2" in resumed.machine["changed"]
    assert_same_curve(resumed, whole)
