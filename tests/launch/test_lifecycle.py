"""One run from its recipe to its end: what is left when it is over already."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from analysis.build import Plan, build, rising
from running import request
from turnaround.errors import InterruptedRunError
from turnaround.launch import lifecycle
from turnaround.launch.contract import LaunchPlan
from turnaround.record.layout import RunDirectory
from turnaround.record.lock import RunLock

LOCK_AND_DIE = """
import os, pathlib, signal, sys
from turnaround.record.lock import RunLock
RunLock(pathlib.Path(sys.argv[1])).acquire()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_resume_of_a_finished_run_removes_what_a_killed_launcher_has_left(tmp_path: Path) -> None:
    directory = RunDirectory(build(tmp_path / "run", Plan(accuracy=rising(epochs=3))))
    before = {path: path.read_bytes() for path in directory.path.rglob("*") if path.is_file()}
    directory.logs.mkdir(exist_ok=True)
    directory.start_message.write_text("{}")
    for path in (directory.heartbeat(0), directory.failure(1), directory.path / ".status.json.7-0123abcd.tmp"):
        path.write_text("{}")
    lock = RunLock(directory.lock)
    lock.acquire()
    lifecycle.resume(request(directory.path))  # somebody works here: nothing of theirs is touched
    assert directory.start_message.exists()
    lock.release()
    dead = subprocess.run([sys.executable, "-c", LOCK_AND_DIE, str(directory.lock)], check=False)
    assert (dead.returncode, directory.lock.exists()) == (-signal.SIGKILL, True)
    assert lifecycle.resume(request(directory.path)).status.state == "finished"
    assert {path: path.read_bytes() for path in directory.path.rglob("*") if path.is_file()} == before
    # Killed while it wrote the page, after the lock was given back.
    (directory.path / ".page.html.7-0123abcd.tmp").write_text("<html>")
    lifecycle.resume(request(directory.path))
    assert {path: path.read_bytes() for path in directory.path.rglob("*") if path.is_file()} == before


class Noting:
    """A launcher that notes what it is asked to start, and starts nothing."""

    plan: LaunchPlan

    def started(self, plan: LaunchPlan) -> NoReturn:
        self.plan = plan
        raise InterruptedRunError("noted")


@pytest.mark.fault(31, "killed while it starts: `resume` without flags goes on with the processes and device asked for")
def test_a_run_killed_before_it_described_its_machine_is_resumed_as_it_was_started(
    trained_run: Path, tmp_path: Path
) -> None:
    directory, launcher = RunDirectory(Path(shutil.copytree(trained_run, tmp_path / "run"))), Noting()
    recipe = json.loads(directory.recipe.read_text())
    recipe |= {"launch": {"processes": 2, "device": "cpu"}, "workers": {**recipe["workers"], "count": 4}}
    directory.recipe.write_text(json.dumps(recipe))
    directory.status.write_text(json.dumps({**json.loads(directory.status.read_text()), "state": "queued"}))
    directory.machine.unlink()
    shutil.rmtree(directory.checkpoint)
    asked = replace(request(directory.path), processes=None, device=None, launcher=launcher)
    with pytest.raises(InterruptedRunError, match="noted"):
        lifecycle.resume(asked)
    assert (launcher.plan.processes, launcher.plan.message.device) == (2, "cpu")
