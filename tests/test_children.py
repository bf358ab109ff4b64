"""Children that are interrupted at any moment of their start say nothing, and end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

PROGRAM = """
import signal, sys, time
from turnaround import children

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
with children.pool(2) as pool:
    with children.starting():
        tasks = [pool.submit(time.sleep, float(sys.argv[1])) for _ in range(4)]
    print("submitted", flush=True)
    [task.result() for task in tasks]
"""


def started(sleep_s: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(sleep_s)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "submitted\n"
    return process


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.05, 0.1, 0.3])
def test_ctrl_c_reaches_the_parent_alone(after_s: float) -> None:
    with started(sleep_s=1.0) as process:  # longer than this test may be held up
        time.sleep(after_s)
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all of them
        _, shown = process.communicate(timeout=180)
    assert "SpawnProcess" not in shown
    assert shown.count("Traceback") == 1, shown  # the parent's own
    assert process.returncode == -signal.SIGINT


def test_children_end_with_a_killed_parent() -> None:
    with started(sleep_s=60.0) as process:
        time.sleep(0.5)
        born = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    assert len(born) >= 2
    _, alive = psutil.wait_procs(born, timeout=180)
    for child in alive:
        child.kill()
    assert not alive


def test_a_script_without_a_guard_runs_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('once')\n" + PROGRAM)
    done = subprocess.run([sys.executable, script, "0"], capture_output=True, text=True, timeout=180, check=True)
    assert done.stdout.count("once") == 1
