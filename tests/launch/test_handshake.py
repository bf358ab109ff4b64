"""`turnaround train` under a launcher of others: it runs once in each process, and they are one run."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from running import largest_difference, request, train, weights
from turnaround import recipes
from turnaround.errors import InputError, RunDirectoryError
from turnaround.launch import lifecycle, local
from turnaround.launch.contract import LaunchPlan
from turnaround.launch.handshake import MAX_DELAY_S, StartMessage, start_message, wait_for_launcher, wait_for_start
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run
from turnaround.record.writer import write_json
from turnaround.workers.environment import RankInfo

FIRST = RankInfo(rank=0, size=2, local_rank=0, local_size=2, engines=("torch",), start="node1 29500")
SECOND = replace(FIRST, rank=1, local_rank=1)

NOBODY = 2**22 + 1  # Linux gives no process a larger number than 2**22


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run")


def plan(directory: RunDirectory, place: RankInfo) -> LaunchPlan:
    return LaunchPlan(
        directory=directory,
        pixels_dir=Path("/cache/x"),
        processes=place.size,
        device="cpu",
        begun_at_s=1.0,
        decode_time_s=0.5,
        decoded_at_s=7.0,
        place=place,
    )


# --- the word of process 0


def test_the_others_hear_the_first(directory: RunDirectory) -> None:
    heard: list[tuple[Path, float]] = []
    listener = threading.Thread(
        target=lambda: heard.append(wait_for_start(directory, SECOND, begun_at_s=time.time(), patience_s=20))
    )
    listener.start()
    time.sleep(0.3)
    assert heard == []
    with start_message(plan(directory, FIRST)):
        listener.join(20)
        assert heard == [(Path("/cache/x"), 0.5)]
    assert list(directory.logs.iterdir()) == []  # gone with the first process


@pytest.mark.parametrize("place", [RankInfo(), SECOND])
def test_only_the_first_of_several_speaks(place: RankInfo, directory: RunDirectory) -> None:
    with start_message(plan(directory, place)):
        assert list(directory.logs.iterdir()) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"start": "node1 29501"},  # of another start that goes on in the same directory
        {"pid": NOBODY},  # of a first process that was killed
        {"host": "elsewhere", "at_s": time.time() - MAX_DELAY_S - 60},  # nobody can ask whether it lives
    ],
)
def test_a_word_that_was_left_behind_is_not_heard(changed: dict[str, object], directory: RunDirectory) -> None:
    word = {"start": FIRST.start, "host": socket.gethostname(), "pid": os.getpid(), "at_s": time.time()}
    write_json(directory.logs / "start.json", {**word, "pixels": "/old", "decode_time_s": 0.0, **changed})
    with pytest.raises(RunDirectoryError, match=r"Process 1 has waited 0 s for process 0 to prepare .*every host sees"):
        wait_for_start(directory, SECOND, begun_at_s=time.time(), patience_s=0.3)


# --- the same word to processes that were started ahead


def test_those_that_wait_hear_their_launcher(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNAROUND_LAUNCHER_PID", str(os.getpid()))
    word = {"pid": NOBODY, "pixels": "/old", "decode_time_s": 0.0, "decoded_at_s": 0.0}
    write_json(directory.logs / "start.json", word)  # of another start
    heard: list[StartMessage | None] = []
    listener = threading.Thread(target=lambda: heard.append(wait_for_launcher(directory)))
    listener.start()
    time.sleep(0.3)
    assert heard == []
    with start_message(plan(directory, RankInfo()), is_awaited=True):
        listener.join(20)
    assert heard == [StartMessage(Path("/cache/x"), decode_time_s=0.5, decoded_at_s=7.0)]


def test_those_that_wait_leave_when_nobody_will_speak(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNAROUND_LAUNCHER_PID", str(NOBODY))
    assert wait_for_launcher(directory) is None
    monkeypatch.setenv("TURNAROUND_LAUNCHER_PID", str(os.getpid()))
    directory.logs.rmdir()  # the run was given up
    assert wait_for_launcher(directory) is None


@pytest.mark.parametrize(
    ("begun_at_s", "ready_at_s", "waited_s"),
    [
        (92.0, 95.0, 7.0),  # decoded from 90 to 100: 2 s before it began, 5 s after it was ready
        (92.0, 100.0, 2.0),
        (92.0, 130.0, 2.0),  # ready long after the images were
        (85.0, 88.0, 10.0),  # ready before decoding began: nothing was hidden
        (85.0, 96.0, 4.0),
        (85.0, 130.0, 0.0),
    ],
)
def test_time_that_two_things_took_is_counted_once(begun_at_s: float, ready_at_s: float, waited_s: float) -> None:
    word = StartMessage(Path("/cache/x"), decode_time_s=10.0, decoded_at_s=100.0)
    assert word.waited_s(begun_at_s=begun_at_s, ready_at_s=ready_at_s) == waited_s


# --- the plan under a launcher


def test_each_starts_its_own_process_only(directory: RunDirectory) -> None:
    joined = plan(directory, SECOND)
    assert local.command(joined)[:3] == [sys.executable, "-m", "turnaround.cli.worker"]
    assert joined.worker_arguments()[-2:] == ["--launch", "torch.distributed.run"]
    settings = local.settings_for(joined, {})
    assert "GLOO_SOCKET_IFNAME" not in settings  # the others may be on other hosts
    alone = local.settings_for(plan(directory, replace(SECOND, local_size=1, local_rank=0)), {})
    assert int(alone["OMP_NUM_THREADS"]) >= int(settings["OMP_NUM_THREADS"])


@pytest.mark.parametrize(
    ("place", "settings", "processes", "message"),
    [
        (FIRST, ("workers.count=4",), 3, "--processes 3, but python -m torch.distributed.run has started 2 of them"),
        (FIRST, ("workers.count=1",), None, r"number of workers \(1\).*Received: 2"),
        (
            replace(FIRST, engines=("horovod",)),
            ("workers.count=2",),
            None,
            "horovodrun has started 2 processes, but the engine is torch.*Use --engine horovod",
        ),
    ],
)
def test_what_contradicts_the_launcher(
    place: RankInfo, settings: tuple[str, ...], processes: int | None, message: str, fruit_folder: Path, tmp_path: Path
) -> None:
    asked = replace(request(tmp_path / "out"), place=place, processes=processes)
    with pytest.raises(InputError, match=message):
        lifecycle.start(recipes.find(str(fruit_folder), list(settings)), asked)
    assert not (tmp_path / "out").exists()


# --- whole commands

QUICK = ("data.size_px=32", "training.epochs=1", "training.precision=fp64", "training.scaling=none")


def under_torch(*arguments: str) -> subprocess.CompletedProcess[str]:
    spread = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "turnaround"]
    environment = {**os.environ, **local.loopback(), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *spread, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_two_processes_of_torch_are_one_run(fruit_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = [word for setting in QUICK for word in ("--set", setting)]
    done = under_torch("train", str(fruit_folder), "--device", "cpu", "--out", str(out), "--json", *settings)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["workers"] == 2  # one each, and only process 0 prints
    run = Run.load(out)
    assert run.status.state == "finished"
    machine = run.machine
    assert (machine["launch"], machine["processes"], machine["engine"]) == ("torch.distributed.run", 2, "torch gloo")
    assert sorted(p.name for p in run.directory.logs.iterdir()) == ["processes.log"]
    alone = train(fruit_folder, tmp_path / "alone", *QUICK, "workers.count=2")
    assert largest_difference(weights(run), weights(alone)) < 1e-12
    again = under_torch("train", str(fruit_folder), "--device", "cpu", "--out", str(out), *settings)
    assert again.returncode != 0
    assert f"{out} already holds a run" in again.stderr  # and process 1 does not wait for ever


def test_without_a_directory_they_could_not_meet(fruit_folder: Path) -> None:
    environment = {**os.environ, "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "turnaround", "train", str(fruit_folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 2
    assert "A launcher has started this command 2 times: give it --out DIR" in done.stderr
