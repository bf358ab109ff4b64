"""Small programs of others, as processes: what a recorder inside them must survive."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCE = str(Path(__file__).parents[2] / "src")

LOOP = """
import sys, time, turnaround
rec = turnaround.Recorder("run", batch_per_worker=8, num_train=80, num_validation=20, epochs=3, model="toy")
with rec:
    for epoch in range(3):
        for batch in rec.steps(range(10)):
            {step}
        rec.epoch(train_loss=1.0 / (epoch + 1), val_accuracy=0.5 + 0.1 * epoch)
print("trained")
"""


def start(code: str, folder: Path, *flags: str, **variables: str) -> subprocess.Popen[str]:
    """A program that runs beside the test."""
    environment = {**os.environ, "PYTHONPATH": SOURCE, **variables}
    return subprocess.Popen(
        [sys.executable, *flags, "-c", code],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(code: str, folder: Path, *flags: str, **variables: str) -> tuple[int, str, str]:
    """Its exit status, what it printed, and what it complained about."""
    process = start(code, folder, *flags, **variables)
    printed, complained = process.communicate(timeout=180)
    return process.returncode, printed, complained
