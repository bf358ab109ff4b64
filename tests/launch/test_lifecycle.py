"""One run from its recipe to its end: what is left when it is over already."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from analysis.build import Plan, build, rising
from running import request
from turnaround.launch import lifecycle
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
