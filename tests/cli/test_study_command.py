"""`turnaround study --command` as a user runs it: over a plain script that knows nothing of us."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from forking import ForkingParent
from turnaround.record.reader import Run, find_runs

Study = Callable[..., subprocess.CompletedProcess[str]]
SCRIPT = """
import pathlib, sys, time
workers = int(sys.argv[sys.argv.index("--gpus") + 1])
with pathlib.Path("ran").open("a") as file:
    file.write(f"{workers}\\n")
print("training on", workers)
if pathlib.Path("broken").exists() and workers == 2:
    sys.exit("no room for two")
while pathlib.Path("wait").exists():
    time.sleep(0.05)
time.sleep(0.8 / workers)
"""
COMMAND = f"{sys.executable} lab10.py --gpus {{workers}}"


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    (tmp_path / "lab10.py").write_text(SCRIPT)
    return tmp_path


def words(*arguments: str, command: str = COMMAND, python: str = sys.executable) -> list[str]:
    return [python, "-m", "turnaround", "study", "--command", command, *arguments]


@pytest.fixture(scope="module")
def study(forking_parent: ForkingParent) -> Study:
    def run(lab: Path, *arguments: str, command: str = COMMAND) -> subprocess.CompletedProcess[str]:
        asked = words(*arguments, command=command, python=forking_parent.python)
        return subprocess.run(asked, cwd=lab, capture_output=True, text=True, check=False, timeout=300)

    return run


def ran(lab: Path) -> list[str]:
    return (lab / "ran").read_text().split()


def test_times_and_exit_codes_of_a_plain_script(study: Study, lab: Path, forking_parent: ForkingParent) -> None:
    done = study(lab, "--workers", "1,2,4", "--out", "s")
    assert done.returncode == 0, done.stderr
    assert ran(lab) == ["1", "4", "2"]  # those that answer most first; more workers than cores are its own business
    assert "3 of 3 runs done" in done.stderr
    for shown in ("1 worker ", "4 workers", "job time", "baseline", "exit", "no accuracies, no epochs", "any-loop.md"):
        assert shown in done.stdout
    assert "What other numbers of workers" not in done.stdout  # there is nothing to learn it from
    report = [forking_parent.python, "-m", "turnaround", "report", "s", "--json"]
    content = json.loads(subprocess.run(report, cwd=lab, capture_output=True, text=True, check=True).stdout)
    times_s = {run["workers"]: run["job_time_s"] for run in content["runs"]}
    assert times_s[1] >= 0.8  # as long as it slept, and however long its start took
    assert times_s[4] >= 0.2
    assert [run["exit_code"] for run in content["runs"]] == [0, 0, 0]


def test_nothing_runs_twice_and_other_configurations_join(study: Study, lab: Path) -> None:
    assert study(lab, "--workers", "1", "--out", "s").returncode == 0
    assert study(lab, "--workers", "1,2", "--repeat", "2", "--out", "s").returncode == 0
    assert ran(lab) == ["1", "2", "1", "2"]
    assert [path.name for path in find_runs(lab / "s")] == ["1w-seed0", "1w-seed1", "2w-seed0", "2w-seed1"]
    other = study(lab, "--workers", "1", "--out", "s", command=f"{COMMAND} --fast")
    assert other.returncode == 2
    assert "holds a study with another command" in other.stderr


def test_a_failed_run_is_named_and_retried_on_request(study: Study, lab: Path) -> None:
    (lab / "broken").touch()
    done = study(lab, "--workers", "1,2", "--out", "s")
    assert done.returncode == 1
    assert "2 workers, seed 0 failed" in done.stderr
    assert "ended with exit status 1. Its last words: training on 2 / no room for two" in done.stderr
    (lab / "broken").unlink()
    assert study(lab, "--workers", "1,2", "--out", "s").returncode == 1  # as long as nobody asks for it
    assert ran(lab) == ["1", "2"]
    again = study(lab, "--workers", "1,2", "--out", "s", "--retry")
    assert again.returncode == 0, again.stderr
    assert ran(lab) == ["1", "2", "2"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_stopped_and_called_again_it_runs_what_is_missing(study: Study, lab: Path, number: int) -> None:
    asked = words("--workers", "1,2", "--out", "s")
    (lab / "wait").touch()
    process = subprocess.Popen(asked, cwd=lab, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    latest_s = time.monotonic() + 120
    while not (lab / "ran").exists():
        assert time.monotonic() < latest_s
        time.sleep(0.05)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) == 2  # the watcher and the program
    process.send_signal(number)
    process.wait(timeout=300)
    assert process.returncode == (75 if number == signal.SIGTERM else -9)
    assert psutil.wait_procs(family, timeout=60)[1] == []
    (lab / "wait").unlink()
    done = study(lab, "--workers", "1,2", "--out", "s")
    assert done.returncode == 0, done.stderr
    assert ran(lab) == ["1", "1", "2"]
    assert {Run.load(path).status.state for path in find_runs(lab / "s")} == {"finished"}


def test_dry_run_prints_the_commands(study: Study, lab: Path) -> None:
    done = study(lab, "--workers", "1,2", "--out", "s", "--dry-run", command="python a.py -n {workers} --to {out}/[b]")
    assert done.returncode == 0, done.stderr
    run = lab / "s" / "2w-seed0"
    assert done.stdout.splitlines()[2:] == [
        "# 2 workers, seed 0: missing",
        f"TURNAROUND_RUN_DIR={run} TURNAROUND_WORKERS=2 TURNAROUND_SEED=0 python a.py -n 2 --to '{run}/[b]'",
    ]
    assert not (lab / "s").exists()


def test_the_budget_ends_the_study(study: Study, lab: Path) -> None:
    done = study(lab, "--workers", "1,2", "--out", "s", "--budget", "0.1gpu-seconds")
    assert done.returncode == 0, done.stderr
    assert ran(lab) == ["1"]
    assert "The budget does not pay for: 2 workers, seed 0." in done.stderr


@pytest.mark.parametrize(
    ("arguments", "command", "message"),
    [
        (("photos", "--workers", "1"), COMMAND, "A study is of SOURCE or of --command, not of both"),
        (("--rehearse", "4"), COMMAND, "nobody else's program can be rehearsed"),
        (("--workers", "1", "--set", "training.epochs=1"), COMMAND, "no recipe, so training.epochs=1 cannot be set"),
        (("--workers", "1", "--epochs", "2"), COMMAND, "no recipe, so training.epochs=2 cannot be set"),
        ((), COMMAND, "A study of a --command needs configurations: --workers 1,2,4"),
        (("--workers", "1,2"), "python lab10.py", "--command has no {workers}"),
        (("--workers", "1,2"), "no-such-program {workers}", "there is no such program here"),
    ],
)
def test_bad_input_is_one_message(
    study: Study, lab: Path, arguments: tuple[str, ...], command: str, message: str
) -> None:
    done = study(lab, *arguments, "--out", "s", command=command)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (lab / "s").exists()


def test_a_study_of_nothing(forking_parent: ForkingParent, lab: Path) -> None:
    asked = [forking_parent.python, "-m", "turnaround", "study", "--workers", "1"]
    done = subprocess.run(asked, cwd=lab, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "A study needs SOURCE" in done.stderr
