"""Processes start before their images are there, load their code and wait: only the time tells."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from PIL import Image

from forking import ForkingLauncher, ForkingParent, command_that_starts
from running import request, weights
from struck import is_alive, processes_of, waits_for
from turnaround import recipes
from turnaround.errors import DataError, InputError, ProcessFailedError
from turnaround.launch import lifecycle, local
from turnaround.launch.contract import LaunchPlan
from turnaround.launch.handshake import StartMessage, write
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run
from turnaround.record.schema import to_json
from turnaround.record.writer import write_json

SETTINGS = ("data.size_px=32", "training.epochs=1", "workers.count=2")


@pytest.fixture(autouse=True)
def cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNAROUND_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def started_by(processes: int) -> int:
    """How many processes a training of so many has: torch.distributed.run is one more."""
    return 1 if processes == 1 else processes + 1


def train(
    folder: Path, out: Path, *, processes: int, waits: bool = True, launcher: ForkingLauncher | None = None
) -> Run:
    """Its images are decoded only when all processes of the training are there."""

    def show(what: str, done: int, total: int) -> None:
        if waits and done == total:
            waits_for(lambda: len(processes_of(out)) >= started_by(processes))

    asked = replace(request(out, processes=processes, launcher=launcher), show=show)
    return lifecycle.start(recipes.find(str(folder), list(SETTINGS)), asked)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_cold_start_ends_as_a_warm_one(
    processes: int, fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher
) -> None:
    out = tmp_path / "cold"
    left = RunDirectory.create(out)  # by a start that was killed
    left.process_log.touch()
    write(left, StartMessage(network="small", begun_at_s=0.0, pixels_dir="/old"))
    cold = train(fruit_folder, out, processes=processes)
    asked = request(tmp_path / "warm", processes=processes, launcher=forking)
    warm = lifecycle.start(recipes.find(str(fruit_folder), list(SETTINGS)), asked)
    ours, theirs = weights(cold), weights(warm)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert [sorted(p.name for p in run.directory.logs.iterdir()) for run in (cold, warm)] == [["processes.log"]] * 2
    assert [path for path in out.iterdir() if path.name.startswith(".")] == []
    times_s = cold.status.time_s
    assert times_s["import"] < times_s["start_up"]
    assert times_s["decode"] >= 0 == warm.status.time_s["decode"]
    parts = cold.turnaround_parts()
    assert sum(parts.values()) == pytest.approx(times_s["program"] + parts["queue"])


@pytest.mark.parametrize("processes", [1, 2])
def test_bad_images_end_those_that_wait(
    processes: int, fruit_folder: Path, tmp_path: Path, forking_agent: ForkingLauncher
) -> None:
    shutil.copytree(fruit_folder, tmp_path / "fruit")
    next(path for path in (tmp_path / "fruit").glob("*/*")).write_bytes(b"no picture")
    out = tmp_path / "new" / "run"
    with pytest.raises(DataError, match=r"1 of 240 images in .* cannot be read"):
        train(tmp_path / "fruit", out, processes=processes, launcher=forking_agent)
    assert not out.parent.exists()
    waits_for(lambda: processes_of(out) == [], seconds=30)


def test_a_process_that_fails_while_it_waits(
    fruit_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "WORKER_MODULE", "no_such_module")
    log = tmp_path / "run" / "logs" / "processes.log"
    with pytest.raises(ProcessFailedError, match=rf"died without a word \(exit status 1\).* printed is in {log}\."):
        train(fruit_folder, tmp_path / "run", processes=1, waits=False)
    assert "No module named no_such_module" in log.read_text()
    assert Run.load(tmp_path / "run").status.state == "failed"


def test_ctrl_c_in_the_midst_of_a_start(fruit_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[subprocess.Popen[bytes]] = []
    start = local._start

    def interrupted(*arguments: object) -> subprocess.Popen[bytes]:
        made.append(start(*arguments))  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGINT)
        return made[0]

    monkeypatch.setattr(local, "_start", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            train(fruit_folder, tmp_path / "run", processes=1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert [process.returncode for process in made] == [-signal.SIGKILL]
    assert not (tmp_path / "run").exists()


# --- whole commands, on images that take long to decode


@pytest.fixture(scope="module")
def slow_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """6000 names of one large picture: two cores decode them for longer than the processes take to start."""
    folder = tmp_path_factory.mktemp("slow")
    noise = np.random.default_rng(0).integers(0, 256, (1000, 1000, 3), np.uint8)
    Image.fromarray(noise).save(folder / "one.png", compress_level=1)
    for name in ("a", "b"):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(3000):
            (folder / "photos" / name / f"{number}.png").hardlink_to(folder / "one.png")
    return folder / "photos"


def on_two_cores() -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell starts background jobs with Ctrl-C ignored


@contextlib.contextmanager
def waiting(
    folder: Path, out: Path, *, processes: int, python: str = sys.executable
) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A command that decodes, and everything that it has started, with `python`: all its processes are there."""
    how = ("--device", "cpu", "--workers", "2", "--processes", str(processes), "--set", "data.size_px=32")
    with subprocess.Popen(
        [*command_that_starts(python), "train", str(folder), *how, "--out", str(out)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=on_two_cores,
    ) as command:
        try:
            waits_for(lambda: len(processes_of(out)) >= 1 + started_by(processes))
            started = {*psutil.Process(command.pid).children(recursive=True), *processes_of(out)}
            yield command, [process for process in started if process.pid != command.pid]
        finally:
            command.kill()


@pytest.mark.parametrize("processes", [1, 2])
def test_ctrl_c_while_decoding_leaves_nothing(
    processes: int, slow_folder: Path, tmp_path: Path, forking_parent: ForkingParent
) -> None:
    python = forking_parent.python_with_agent
    with waiting(slow_folder, tmp_path / "run", processes=processes, python=python) as (command, children):
        os.killpg(command.pid, signal.SIGINT)  # a terminal sends it to all of them
        _, shown = command.communicate(timeout=60)
    assert command.returncode == 130
    assert "Traceback" not in shown
    assert [path for path in tmp_path.rglob("*") if path != tmp_path / "cache"] == []
    waits_for(lambda: not any(map(is_alive, children)), seconds=30)


@pytest.mark.parametrize("processes", [1, 2])
def test_killing_the_launcher_ends_those_that_wait(processes: int, slow_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with waiting(slow_folder, out, processes=processes) as (command, children):
        command.kill()
        command.wait()
    waits_for(lambda: not any(map(is_alive, children)), seconds=30)
    assert len(children) >= started_by(processes)
    RunDirectory.create(out)  # not refused: what is left there is no run


def test_a_run_that_was_killed_while_it_started_goes_on_as_it_was_asked_to(
    fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher
) -> None:
    """One process for two workers, on the CPU: machine.json, which says so too, was not there yet."""
    out = tmp_path / "run"
    words = [str(fruit_folder), "--processes", "1", "--device", "cpu", "--out", str(out), "--json"]
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    program = [forking.parent.python, "-m", "turnaround"]
    with subprocess.Popen(
        [sys.executable, *program[1:], "train", *words, *settings], preexec_fn=on_two_cores
    ) as command:
        waits_for((out / "recipe.json").exists)
        command.kill()
    (out / "machine.json").unlink(missing_ok=True)  # the training may have come that far by then
    asked = {"processes": 1, "device": "cpu"}
    assert json.loads((out / "recipe.json").read_text())["launch"] == asked
    subprocess.run([*program, "resume", str(out), "--json"], stdout=subprocess.DEVNULL, check=True)
    run = Run.load(out)
    assert (run.status.state, run.machine["processes"], run.recipe["launch"]) == ("finished", 1, asked)
    told: list[LaunchPlan] = []

    class Telling(local.LocalLauncher):
        def started(self, plan: LaunchPlan) -> contextlib.AbstractContextManager[local.LocalProcesses]:
            told.append(plan)
            raise InputError("told")

    write_json(run.directory.status, to_json(replace(run.status, state="interrupted")))
    for flags, expected in (({}, (1, "cpu")), ({"processes": 2, "device": "auto"}, (2, "auto"))):
        request_ = lifecycle.Request(out=out, show=lambda *_: None, launcher=Telling(), **flags)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="told"):
            lifecycle.resume(request_)
        assert (told[-1].processes, told[-1].message.device) == expected
