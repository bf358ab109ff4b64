"""On how many processes a run is started again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from turnaround.errors import ProcessFailedError
from turnaround.launch import restart
from turnaround.launch.contract import LaunchPlan
from turnaround.launch.failure import RankFailedError
from turnaround.launch.handshake import StartMessage
from turnaround.launch.restart import Restarts
from turnaround.record.layout import RunDirectory


def plan(tmp_path: Path, processes: int, device: str = "cpu") -> LaunchPlan:
    directory = RunDirectory(tmp_path)
    return LaunchPlan(
        directory=directory,
        message=StartMessage(device=device, network="small", begun_at_s=0.0),
        processes=processes,
    )


def failed(*ranks: int) -> RankFailedError:
    return RankFailedError("it died", ranks=ranks)


def test_the_same_process_twice_and_nothing_saved(tmp_path: Path) -> None:
    restarts, before = Restarts(plan(tmp_path, 4), workers=4), plan(tmp_path, 4)
    assert restarts.after(failed(2), before) == (before, "")
    now, why = restarts.after(failed(2), before)
    assert (now.processes, dict(now.environment)) == (2, {})  # three would host unequal numbers of workers
    assert why == (
        "It goes on with 2 processes instead of 4: process 2 failed twice in a row before anything new was saved."
    )
    assert restarts.after(failed(1), now) == (now, "")  # ranks have other numbers now: counted anew
    assert restarts.after(failed(1), now)[0].processes == 1


def test_another_process_or_a_new_checkpoint_is_no_second_failure(tmp_path: Path) -> None:
    before = plan(tmp_path, 2)
    restarts = Restarts(before, workers=2)
    restarts.after(failed(0), before)
    assert restarts.after(failed(1), before) == (before, "")
    before.directory.checkpoint.mkdir()
    (before.directory.checkpoint / "epoch-00001").mkdir()
    assert restarts.after(failed(1), before) == (before, "")
    assert restarts.after(ProcessFailedError("nobody knows who"), before) == (before, "")
    assert restarts.after(ProcessFailedError("nobody knows who"), before) == (before, "")


@pytest.mark.parametrize(("share", "after"), [("3,1", "even"), ("auto", "auto"), ("even", "even")])
def test_shares_for_each_process_end_with_those_processes(share: str, after: str, tmp_path: Path) -> None:
    before = plan(tmp_path, 2)
    before = replace(before, message=replace(before.message, share=share))
    restarts = Restarts(before, workers=4)
    assert restarts.after(failed(1), before) == (before, "")  # the same processes, the same shares
    now, _ = restarts.after(failed(1), before)
    assert (now.processes, now.message.share) == (1, after)


def test_one_process_stays_one(tmp_path: Path) -> None:
    before = plan(tmp_path, 1)
    restarts = Restarts(before, workers=4)
    assert [restarts.after(failed(0), before) for _ in range(3)] == [(before, "")] * 3


def test_a_gpu_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [{}] * 4
    monkeypatch.setattr(restart, "describe_gpus", lambda: gpus)
    before = plan(tmp_path, 4, device="cuda")
    restarts = Restarts(before, workers=8)
    gpus = [{}] * 3
    now, why = restarts.after(failed(3), before)
    assert now.processes == 2
    assert why == "It goes on with 2 processes instead of 4: 3 GPUs of 4 are left."


@pytest.mark.parametrize(("variable", "left"), [(None, "0,2,3"), ("4,5,6,7", "4,6,7")])
def test_the_gpu_of_the_process_that_fails_is_left_out(
    variable: str | None, left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    monkeypatch.setattr(restart, "describe_gpus", lambda: [{}] * 4)
    before = plan(tmp_path, 4, device="auto")
    restarts = Restarts(before, workers=4)
    restarts.after(failed(1), before)
    now, _ = restarts.after(failed(1), before)
    assert (now.processes, dict(now.environment)) == (2, {"CUDA_VISIBLE_DEVICES": left})
    restarts.after(failed(0), now)
    now, _ = restarts.after(failed(0), now)
    assert (now.processes, dict(now.environment)) == (1, {"CUDA_VISIBLE_DEVICES": left.partition(",")[2]})


def test_gpus_that_are_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [{}] * 4
    monkeypatch.setattr(restart, "describe_gpus", lambda: gpus)
    before = plan(tmp_path, 4, device="cuda")
    restarts = Restarts(before, workers=8)
    gpus = [{}] * 1
    alone, _ = restarts.after(failed(3), before)
    assert (alone.processes, alone.wanted) == (1, 4)
    assert restart.grown(alone, workers=8) is None
    gpus = [{}] * 3
    two, why = restarts.after(failed(0), alone)
    assert (two.processes, two.wanted) == (2, 4)  # three would host unequal numbers of workers
    assert why == "It goes on with 2 processes instead of 1: GPUs are back."
    gpus = [{}] * 6
    four = restart.grown(two, workers=8)
    assert four is not None
    assert (four.processes, four.wanted) == (4, None)
    assert restart.grown(four, workers=8) is None


def test_without_a_process_that_fails_it_never_grows_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "describe_gpus", lambda: [{}] * 4)
    before = plan(tmp_path, 4, device="cuda")
    restarts = Restarts(before, workers=4)
    restarts.after(failed(1), before)
    now, _ = restarts.after(failed(1), before)
    assert (now.processes, now.wanted, restart.grown(now, workers=4)) == (2, None, None)
