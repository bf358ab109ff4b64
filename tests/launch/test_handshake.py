"""The start message, and `turnaround train` under a launcher of others: once in each process, and they are one run."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from forking import ForkingLauncher
from http_client import free_port
from running import largest_difference, request, train, weights
from turnaround import recipes
from turnaround.children import LAUNCHER_VARIABLE
from turnaround.errors import InputError, ProcessFailedError, RunDirectoryError
from turnaround.launch import lifecycle, local
from turnaround.launch.contract import LaunchPlan
from turnaround.launch.handshake import START_VARIABLE, Handshake, StartMessage, clear, wait_for_directory, write
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run
from turnaround.record.schema import Status, to_json
from turnaround.record.writer import write_json
from turnaround.workers.environment import RankInfo

FIRST = RankInfo(rank=0, size=2, local_rank=0, local_size=2, engines=("torch",), start="node1 29500")
SECOND = replace(FIRST, rank=1, local_rank=1)

NOBODY = 2**22 + 1  # Linux gives no process a larger number than 2**22


MESSAGE = StartMessage(device="cpu", network="small", begun_at_s=1.0, start="one token")
COMPLETE = replace(MESSAGE, pixels_dir="/cache/x", decode_time_s=0.5, decoded_at_s=7.0)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run")


def waiting(directory: RunDirectory, place: RankInfo = SECOND, *, is_stopped: bool = False) -> Handshake:
    return Handshake(directory, place, stop_asked=lambda: is_stopped)


@contextmanager
def listening(handshake: Handshake, *, for_images: bool = True) -> Iterator[list[StartMessage | None]]:
    """Inside, somebody waits; what was heard is there when it ends."""
    heard: list[StartMessage | None] = []
    listener = threading.Thread(
        target=lambda: heard.append(handshake.wait(for_images=for_images, patience_s=20)), daemon=True
    )
    listener.start()
    time.sleep(0.3)
    assert heard == []
    yield heard
    listener.join(20)


# --- processes of our own launcher


def test_those_that_wait_hear_their_launcher(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(START_VARIABLE, MESSAGE.start)
    write(directory, replace(COMPLETE, start="a token of another start", pixels_dir="/old"))
    handshake = waiting(directory)
    with listening(handshake, for_images=False) as first:
        write(directory, MESSAGE)
    with listening(handshake) as second:
        write(directory, COMPLETE)
    assert (first, second) == ([MESSAGE], [COMPLETE])
    assert waiting(directory).wait(for_images=True) == COMPLETE  # of somebody who comes late: at once
    clear(directory)
    assert list(directory.logs.iterdir()) == []


def test_a_damaged_message_is_none(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(START_VARIABLE, MESSAGE.start)
    directory.start_message.write_text('{"start": "one token", "begun_at_s": "soon"}')
    with listening(waiting(directory)) as heard:
        write(directory, COMPLETE)
    assert heard == [COMPLETE]


def test_those_that_wait_leave_when_nobody_will_speak(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(START_VARIABLE, MESSAGE.start)
    monkeypatch.setenv(LAUNCHER_VARIABLE, str(NOBODY))
    assert waiting(directory).wait(for_images=True) is None
    monkeypatch.setenv(LAUNCHER_VARIABLE, str(os.getpid()))
    assert waiting(directory, is_stopped=True).wait(for_images=True) is None
    assert list(directory.logs.iterdir()) == []
    directory.logs.rmdir()  # the run was given up
    assert waiting(directory).wait(for_images=True) is None


@pytest.mark.parametrize(
    ("began_at_s", "ready_at_s", "waited_s"),
    [
        (92.0, 95.0, 7.0),  # decoded from 90 to 100: 2 s before it began, 5 s after it was ready
        (92.0, 100.0, 2.0),
        (92.0, 130.0, 2.0),  # ready long after the images were
        (85.0, 88.0, 10.0),  # ready before decoding began: nothing was hidden
        (85.0, 96.0, 4.0),
        (85.0, 130.0, 0.0),
    ],
)
def test_time_that_two_things_took_is_counted_once(began_at_s: float, ready_at_s: float, waited_s: float) -> None:
    message = replace(COMPLETE, decode_time_s=10.0, decoded_at_s=100.0)
    assert message.waited_s(began_at_s=began_at_s, ready_at_s=ready_at_s) == waited_s
    elsewhere = replace(message, host="elsewhere")  # its clock says nothing here
    assert elsewhere.waited_s(began_at_s=began_at_s, ready_at_s=ready_at_s) == 10.0


# --- processes of a launcher of others


def test_the_others_hear_the_first(directory: RunDirectory) -> None:
    complete = replace(COMPLETE, start=FIRST.start)
    with listening(waiting(directory)) as heard:
        write(directory, replace(complete, start="node1 29501"))  # another start in the same directory
        time.sleep(0.2)
        write(directory, complete)
    assert heard == [complete]


def test_a_message_that_was_left_behind_is_never_believed(directory: RunDirectory) -> None:
    """Whatever it says: of the same meeting point, this host, a process whose number is in use again, a minute ago."""
    left = replace(COMPLETE, start=FIRST.start, pixels_dir="/old")
    write(directory, left)
    with pytest.raises(RunDirectoryError, match=r"Process 1 has waited 0 s for process 0 to prepare .*every host sees"):
        waiting(directory).wait(for_images=True, patience_s=0.3)
    with listening(waiting(directory)) as heard:
        write(directory, replace(left, beat=1))  # but this one is alive
    assert heard == [replace(left, beat=1)]


def test_the_launcher_of_the_first_repeats_itself(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until somebody trains: whoever began after the message was written hears the next."""
    heard = directory.path / "heard"
    child = f"import os, time\nwhile not os.path.exists({str(heard)!r}): time.sleep(0.05)"
    monkeypatch.setattr(local, "command", lambda plan: [sys.executable, "-c", child])
    asked = plan(directory, FIRST)
    write_json(directory.recipe, {})
    write_json(directory.status, to_json(Status(state="queued")))
    beats: set[int] = set()

    def look() -> None:
        while len(beats) < 3:
            with contextlib.suppress(OSError):
                beats.add(json.loads(directory.start_message.read_text())["beat"])
            time.sleep(0.05)
        heard.touch()

    looker = threading.Thread(target=look, daemon=True)
    looker.start()
    with pytest.raises(ProcessFailedError), local.LocalLauncher().started(asked) as process:
        process.run(replace(asked.message, pixels_dir="/cache/x"))
    looker.join(5)
    assert len(beats) == 3  # one of them may be missed: each is to be seen for a second
    assert not directory.start_message.exists()


@pytest.mark.parametrize("place", [SECOND])
def test_only_the_first_of_several_speaks(
    place: RankInfo, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "command", lambda plan: [sys.executable, "-c", "pass"])
    with local.LocalLauncher().started(plan(directory, place)):
        assert [path.name for path in directory.logs.iterdir()] == ["processes.log"]


def test_a_directory_that_nobody_makes(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"Process 1 has waited 0 s for process 0 to prepare .*every host sees"):
        wait_for_directory(RunDirectory(tmp_path / "elsewhere"), SECOND, patience_s=0.2)


# --- the plan under a launcher


def plan(directory: RunDirectory, place: RankInfo) -> LaunchPlan:
    message = replace(MESSAGE, start=place.start, launch="torch.distributed.run")
    return LaunchPlan(directory=directory, message=message, processes=place.size, place=place)


def test_each_starts_its_own_process_only(directory: RunDirectory) -> None:
    joined = plan(directory, SECOND)
    assert local.command(joined)[:3] == [sys.executable, "-m", "turnaround.worker"]
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


def under_torch(*arguments: str, python: str) -> subprocess.CompletedProcess[str]:
    meet = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    spread = ["-m", "torch.distributed.run", "--nproc-per-node", "2", *meet, "-m", "turnaround"]
    environment = {**os.environ, **local.loopback(), "OMP_NUM_THREADS": "1"}
    command = [python, *spread, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_two_processes_of_torch_are_one_run(fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher) -> None:
    out = tmp_path / "run"
    settings = [word for setting in QUICK for word in ("--set", setting)]
    words, python = ("train", str(fruit_folder), "--device", "cpu", "--out", str(out)), forking.parent.python_with_agent
    done = under_torch(*words, "--json", *settings, python=python)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["workers"] == 2  # one each, and only process 0 prints
    run = Run.load(out)
    assert run.status.state == "finished"
    machine = run.machine
    assert (machine["launch"], machine["processes"], machine["engine"]) == ("torch.distributed.run", 2, "torch gloo")
    assert sorted(p.name for p in run.directory.logs.iterdir()) == ["processes.log"]
    alone = train(fruit_folder, tmp_path / "alone", *QUICK, "workers.count=2", launcher=forking)
    assert largest_difference(weights(run), weights(alone)) < 1e-12
    again = under_torch(*words, *settings, python=python)
    assert again.returncode != 0
    assert f"{out} already holds a run" in again.stderr  # and process 1 does not wait for ever
    assert sorted(p.name for p in run.directory.logs.iterdir()) == ["processes.log"]


def test_without_a_directory_they_could_not_meet(fruit_folder: Path) -> None:
    environment = {**os.environ, "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "turnaround", "train", str(fruit_folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 2
    assert "A launcher has started this command 2 times: give it --out DIR" in done.stderr
