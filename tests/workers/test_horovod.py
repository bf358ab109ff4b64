"""The engine horovod: how it is found missing, how it starts and stops. What it computes: test_conformance.py."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from running import largest_difference, train, weights
from struck import is_alive
from turnaround.errors import MissingPartError
from turnaround.launch import horovod as launcher
from turnaround.launch import local
from turnaround.launch.contract import LaunchPlan
from turnaround.launch.handshake import StartMessage
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run
from turnaround.workers import engines
from turnaround.workers.environment import place

QUICK = ("data.size_px=32", "training.precision=fp64", "training.scaling=none", "training.checkpoint_every_s=0")
ON_CPU = ("--device", "cpu", *(word for setting in QUICK for word in ("--set", setting)))


def turnaround(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "turnaround", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)


# --- missing, or not built


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with pytest.raises(MissingPartError, match=r"not installed\. Install it: HOROVOD_WITH_PYTORCH=1 .*pip install"):
        engines.require("horovod")
    engines.require("torch")


def test_installed_but_not_built(fruit_folder: Path, tmp_path: Path) -> None:
    """Its Python part imports without the extension; found before anything is decoded or written."""
    package = tmp_path / "path" / "horovod" / "torch"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    out = tmp_path / "out"
    done = turnaround(
        "train", str(fruit_folder), "--engine", "horovod", "--out", str(out), *ON_CPU, path=tmp_path / "path"
    )
    assert done.returncode == 2
    assert "Horovod is installed, but was not built for PyTorch" in done.stderr
    assert "HOROVOD_WITH_PYTORCH=1" in done.stderr
    assert not out.exists()


def test_an_unknown_engine(fruit_folder: Path) -> None:
    done = turnaround("train", str(fruit_folder), "--engine", "horovot", "--dry-run")
    assert done.returncode == 2
    assert "Did you mean 'horovod'? Valid: torch, horovod." in done.stderr


# --- how its processes are started


def test_the_command_and_the_environment() -> None:
    plan = LaunchPlan(
        directory=RunDirectory(Path("runs/x")),
        message=StartMessage(device="cpu", network="small", begun_at_s=1.0),
        processes=3,
        engine="horovod",
    )
    expected = ["-m", "turnaround.launch.horovod", "--processes", "3", "turnaround.worker"]
    assert local.command(plan)[1:] == [*expected, *plan.worker_arguments()]
    base = {"RANK": "0", "WORLD_SIZE": "1", "HOROVOD_SIZE": "9", "PATH": "/bin"}
    environment = launcher.environment_of(2, 3, port=4321, base=base)
    here = place(environment)
    assert (here.rank, here.size, here.local_rank, here.local_size) == (2, 3, 2, 3)
    assert here.engines == ("horovod",)
    assert environment["PATH"] == "/bin"
    assert environment["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "127.0.0.1"


@pytest.mark.horovod
def test_the_meeting_point_is_on_loopback_only() -> None:
    with launcher._meeting_point(2) as port:
        listening = [c.laddr for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        assert [address.ip for address in listening if address.port == port] == ["127.0.0.1"]


@pytest.mark.horovod
def test_under_horovodrun(fruit_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    start = [shutil.which("horovodrun") or "horovodrun", "-np", "2", "--gloo", sys.executable, "-m", "turnaround"]
    arguments = ["train", str(fruit_folder), "--engine", "horovod", "--out", str(out), *ON_CPU]
    epochs = ["--set", "training.epochs=1"]
    done = subprocess.run([*start, *arguments, *epochs], capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    run = Run.load(out)
    assert run.status.state == "finished"
    assert (run.machine["launch"], run.machine["engine"]) == ("horovodrun", "horovod gloo")
    assert (run.machine["workers"], run.machine["processes"]) == (2, 2)
    assert len(re.findall("final accuracy", done.stdout)) == 1  # only process 0 prints
    alone = train(fruit_folder, tmp_path / "alone", *QUICK, "training.epochs=1", "workers.count=2")
    assert largest_difference(weights(run), weights(alone)) < 1e-12


@pytest.mark.horovod
def test_mixed_images_are_those_of_one_process(few_fruit_folder: Path, tmp_path: Path) -> None:
    """A partner is in the worker's own slice, so no image has to come from the other process."""
    mixed = ("augment.mixup=0.4", "augment.cutmix=1", "training.label_smoothing=0.1")
    settings = (*QUICK, *mixed, "workers.count=2", "training.epochs=1")
    alone = train(few_fruit_folder, tmp_path / "alone", *settings)
    several = train(few_fruit_folder, tmp_path / "several", *settings, "workers.engine=horovod", processes=2)
    assert (several.machine["engine"], several.machine["processes"]) == ("horovod gloo", 2)
    assert largest_difference(weights(alone), weights(several)) < 1e-12
    assert several.epochs[0].train_loss == pytest.approx(alone.epochs[0].train_loss, abs=1e-12)


@pytest.mark.horovod
def test_what_contradicts_horovodrun(fruit_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "SIZE": "2", "LOCAL_RANK": "0", "LOCAL_SIZE": "2"}.items():
        monkeypatch.setenv(f"HOROVOD_{name}", value)
    arguments = ("train", str(fruit_folder), "--out", str(tmp_path / "out"), *ON_CPU)
    for more, message in (
        (("--engine", "torch"), "but the engine is torch, which horovodrun does not serve. Use --engine horovod"),
        (("--engine", "horovod", "--workers", "1"), "from 1 to the number of workers (1)"),
        (("--engine", "horovod", "--processes", "1"), "--processes 1, but horovodrun has started 2 of them"),
    ):
        done = turnaround(*arguments, *more)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
        assert not (tmp_path / "out").exists()


# --- how it stops


@contextlib.contextmanager
def running(out: Path, source: Path, *, epochs: int) -> Iterator[subprocess.Popen[str]]:
    """`turnaround train` with two Horovod processes, once its first epoch is done."""
    settings = ["--workers", "2", "--processes", "2", "--set", f"training.epochs={epochs}"]
    command = [sys.executable, "-m", "turnaround", "train", str(source), "--engine", "horovod", "--out", str(out)]
    with subprocess.Popen([*command, *ON_CPU, *settings], stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for(lambda: process.poll() is not None or (out / "epochs.jsonl").exists())
            assert process.poll() is None, process.communicate()
            yield process
        finally:
            process.kill()


def wait_for(condition: Callable[[], object], timeout_s: float = 300) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def alive(processes: list[psutil.Process]) -> list[int]:
    return [p.pid for p in processes if is_alive(p)]


@pytest.mark.horovod
def test_a_polite_stop_and_another_engine_afterwards(
    fruit_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    monkeypatch.setenv("TURNAROUND_FAULT", "kind=slow,ms=500")  # of the first start only, which is stopped
    with running(out, fruit_folder, epochs=30) as process:
        below = psutil.Process(process.pid).children(recursive=True)
        # multiprocessing's own helper stays where the command has decoded images itself
        family = [child for child in below if "resource_tracker" not in " ".join(child.cmdline())]
        assert len(family) == 3  # the starter and two workers
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=180)
        assert process.returncode == 75, stderr
        wait_for(lambda: alive(family) == [], timeout_s=30)
    stopped = Run.load(out)
    assert stopped.status.state == "interrupted"
    assert len(stopped.epochs) < 30
    done = turnaround("resume", str(out), "--engine", "torch", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    run = Run.load(out)
    assert run.status.state == "finished"
    assert run.machine["engine"] == "torch gloo"
    assert run.recipe["workers"]["engine"] == "torch"


@pytest.mark.horovod
def test_nothing_outlives_the_launcher(fruit_folder: Path, tmp_path: Path) -> None:
    with running(tmp_path / "run", fruit_folder, epochs=500) as process:
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        wait_for(lambda: alive(family) == [], timeout_s=30)
