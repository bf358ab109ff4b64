"""A training as its command shows it: what is loaded before its processes start, and what while it waits for them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from turnaround.record.reader import Run
from turnaround.reporting.training_display import print_result

PROGRAM = """
import json, os, sys, threading
from turnaround.launch.local import LocalLauncher

AT_THE_END = {
    "scipy", "jinja2", "turnaround.analysis.summary", "turnaround.findings", "turnaround.forecast",
    "turnaround.reporting.page.build",
}

def started(self, plan):
    from turnaround.reporting import training_display

    before = sorted(AT_THE_END & set(sys.modules))
    training_display._load_for_the_end()
    for thread in threading.enumerate():
        if thread.name == "load for the end":
            thread.join()
    print(json.dumps([before, sorted(AT_THE_END - set(sys.modules))]), flush=True)
    os._exit(0)  # nothing is trained

LocalLauncher.started = started
from turnaround.__main__ import main
main()
"""


def test_what_the_end_needs_is_loaded_while_the_processes_work(tmp_path: Path) -> None:
    """A Python of its own: what is loaded in this one says nothing."""
    arguments = ["train", "fruitbowl", "--device", "cpu", "--out", str(tmp_path / "run")]
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    loaded_before, missing_after = json.loads(done.stdout)
    assert loaded_before == []
    assert missing_after == []


def test_an_epoch_that_is_gone_is_said_at_the_end(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.load(Path(shutil.copytree(trained_run, tmp_path / "run")))
    print_result(run, as_json=False)
    assert "warning" not in capsys.readouterr().err
    lines = run.directory.epochs.read_bytes().splitlines(keepends=True)
    for kept, said in ((lines[1:], "lacks 1 epoch before its last"), (lines[:-1], "ends with epoch 2, though 3")):
        run.directory.epochs.write_bytes(b"".join(kept))
        print_result(Run.load(run.path), as_json=False)
        assert said in " ".join(capsys.readouterr().err.split())
