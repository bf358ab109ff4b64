"""A training as its command shows it: what is loaded before its processes start, and what while it waits for them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
