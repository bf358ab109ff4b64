"""`turnaround study` as a user runs it: real trainings, killed and started again."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from console import Console
from forking import ForkingParent, command_that_starts
from turnaround.launch.forked import OFF, SERVER_VARIABLE
from turnaround.record.reader import Run, find_runs

QUICK = ("--device", "cpu", "--set", "data.size_px=32", "--set", "training.batch_per_worker=8")
Study = Callable[..., subprocess.CompletedProcess[str]]


def command(*arguments: str, python: str) -> list[str]:
    return [python, "-m", "turnaround", "study", *arguments]


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside other tests, threads that wait by spinning make everything many times slower; and most trainings are
    forked by tests/forking.py, without a server of their own that would load all code once more."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv(SERVER_VARIABLE, OFF)


@pytest.fixture(scope="module")
def study(forking_parent: ForkingParent) -> Study:
    """The command and the trainings that it starts, in processes that have loaded torch already."""

    def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        words = command(*arguments, python=forking_parent.python)
        return subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Console:
    """`turnaround study` in an empty directory, for calls that train nothing."""
    monkeypatch.chdir(tmp_path)
    return Console(monkeypatch, capsys, ("study",))


BOTH = ("--set", "training.epochs=1", "--workers", "1", "--rehearse", "2", "--out", "s")


@pytest.fixture(scope="module")
def studied(
    fruit_folder: Path, tmp_path_factory: pytest.TempPathFactory, study: Study
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The study `s` of two configurations, and what it said."""
    folder = tmp_path_factory.mktemp("studied")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.delenv(SERVER_VARIABLE, raising=False)
        return folder / "s", study(str(fruit_folder), *QUICK, *BOTH, cwd=folder)


def ended(folder: Path) -> dict[str, str | None]:
    return {path.name: Run.load(path).status.ended_at for path in find_runs(folder)}


def test_a_study_ends_with_a_report(studied: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = studied
    assert done.returncode == 0, done.stderr
    assert [path.name for path in find_runs(folder)] == ["1w-seed0", "2w-rehearsed-seed0"]
    assert "2 of 2 runs done" in done.stderr
    assert "s/epoch" in done.stdout


def test_all_its_runs_share_one_process_that_has_loaded_their_code(
    studied: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    timed, rehearsed = (Run.load(path) for path in find_runs(studied[0]))
    assert [run.machine["launch"] for run in (timed, rehearsed)] == ["fork server"] * 2
    # The first has waited for the code itself, the second for none of it.
    assert timed.status.time_s.get("preloaded", 0.0) < rehearsed.status.time_s["preloaded"]


def test_it_runs_nothing_twice(
    fruit_folder: Path, tmp_path: Path, studied: tuple[Path, subprocess.CompletedProcess[str]], here: Console
) -> None:
    shutil.copytree(studied[0], tmp_path / "s")
    again = here(fruit_folder, *QUICK, *BOTH)
    assert again.code == 0, again.err
    assert "s/epoch" in again.out
    assert ended(tmp_path / "s") == ended(studied[0])
    other = here(fruit_folder, *QUICK, "--set", "training.epochs=2", "--workers", "1", "--out", "s")
    assert other.code == 2
    assert "holds a study with another recipe" in other.err


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_and_started_again_it_loses_nothing(
    fruit_folder: Path,
    tmp_path: Path,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
    study: Study,
    forking_parent: ForkingParent,
) -> None:
    monkeypatch.setenv("TURNAROUND_FAULT", "kind=slow,step=9,ms=1000")  # two epochs of four steps; then there is time
    quick = (*QUICK, "--set", "training.batch_per_worker=48", "--set", "training.epochs=4")
    asked = (str(fruit_folder), *quick, "--workers", "1", "--out", "s")
    keep = ("--set", "training.checkpoint_every_s=0")
    python = forking_parent.python
    if number == signal.SIGKILL:  # once all of it is real
        python = sys.executable
        monkeypatch.delenv(SERVER_VARIABLE)
    process = subprocess.Popen(
        [*command_that_starts(python), "study", *asked, *keep],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    epochs = tmp_path / "s" / "1w-seed0" / "epochs.jsonl"
    _wait_for(lambda: epochs.exists() and epochs.read_text().count("\n") >= 2)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    process.wait(timeout=180)
    if number == signal.SIGTERM:
        assert process.returncode == 75
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []
    done = study(*asked, *keep, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = Run.load(tmp_path / "s" / "1w-seed0")
    assert (run.status.state, run.status.segments) == ("finished", 2)
    assert [e.epoch for e in run.epochs] == [1, 2, 3, 4]


def _wait_for(condition, limit_s: float = 180.0) -> None:  # type: ignore[no-untyped-def]
    latest_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < latest_s, "it did not happen in time"
        time.sleep(0.05)


def test_the_flags_of_train_reach_every_run(fruit_folder: Path, here: Console) -> None:
    flags = ("--epochs", "3", "--batch", "4", "--lr", "0.01", "--model", "small", "--from-scratch", "--size", "24")
    done = here(fruit_folder, *flags, "--workers", "1", "--rehearse", "4", "--dry-run")
    assert done.code == 0, done.err
    keys = ("training.epochs=3", "training.batch_per_worker=4", "training.learning_rate=0.01", "model.name=small")
    for key in (*keys, "data.size_px=24", "model.weights=none"):
        assert done.out.count(f"--set {key}") == 2


def test_dry_run_prints_what_would_run(fruit_folder: Path, tmp_path: Path, here: Console) -> None:
    done = here(fruit_folder, *QUICK, "--workers", "1", "--rehearse", "4", "--dry-run")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == "# 1 worker, seed 0: missing"
    assert lines[2] == "# 4 workers rehearsed, seed 0: missing"
    assert "--workers 4 --processes 1" in lines[3]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workers", "x"), "--workers takes whole numbers"),
        ((), "A study needs configurations"),
        (("--workers", "1", "--budget", "ten dollars"), "--budget takes a time of GPUs"),
        (("--workers", "512"), "needs as many devices"),
        (("--workers", "1", "--model", "resnet5O"), "Unknown model.name 'resnet5O'. Did you mean"),
        (("--workers", "1", "--epochs", "0"), "training.epochs"),
        (
            ("--workers", "1", "--set", "model.weights=gone.safetensors"),
            "gone.safetensors'. model.weights takes a file",
        ),
    ],
)
def test_bad_input_is_one_message(
    fruit_folder: Path, tmp_path: Path, arguments: tuple[str, ...], message: str, here: Console
) -> None:
    done = here(fruit_folder, "--device", "cpu", *arguments, "--out", "s")
    assert done.code == 2
    assert message in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "s").exists()


def test_a_failed_run_is_named_and_retried_on_request(
    fruit_folder: Path,
    tmp_path: Path,
    studied: tuple[Path, subprocess.CompletedProcess[str]],
    here: Console,
    study: Study,
) -> None:
    """Its directory says that it failed; the images are as they were, so a retry finishes it."""
    shutil.copytree(studied[0], tmp_path / "s")
    status = tmp_path / "s" / "1w-seed0" / "status.json"
    content = json.loads(status.read_text())
    status.write_text(json.dumps({**content, "state": "failed", "cause": "the disk was full"}))
    (tmp_path / "s" / "1w-seed0.log").unlink()
    done = here(fruit_folder, *QUICK, *BOTH)
    assert done.code == 1
    assert "1 worker, seed 0 failed: the disk was full" in done.err
    assert "--retry" in done.err
    assert not (tmp_path / "s" / "1w-seed0.log").exists()  # nothing was started
    again = study(str(fruit_folder), *QUICK, *BOTH, "--retry", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "s" / "1w-seed0.log").exists()
    assert Run.load(tmp_path / "s" / "1w-seed0").status.state == "finished"
