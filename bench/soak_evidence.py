"""What soak.py and kill.py train, and by what they judge that two trainings are the same. No torch."""

from __future__ import annotations

import numpy as np
from safetensors.numpy import load_file

from turnaround.record.reader import Run

EPOCHS, SAVED_EVERY_STEPS = 3, 4
SETTINGS = (
    "data.size_px=32",
    "workers.count=2",
    "training.batch_per_worker=4",
    f"training.epochs={EPOCHS}",
    "training.learning_rate=0.001",
    "training.checkpoint_every_s=1000",
    f"training.checkpoint_every_steps={SAVED_EVERY_STEPS}",
    "augment.rotation_degrees=10",
    "augment.flip=true",
)


def curve(run: Run) -> list[float]:
    return [value for e in run.epochs for value in (e.train_loss, e.val_loss, e.val_accuracy)]


def largest_difference(one: Run, other: Run) -> float:
    """Over all last weights, relative to the largest value in each; infinite where they cannot be compared."""
    last = [files[-1].weights if (files := run.directory.checkpoints()) else None for run in (one, other)]
    a, b = (load_file(path) if path else {} for path in last)
    if a.keys() != b.keys() or not a or len(curve(one)) != len(curve(other)):
        return float("inf")
    pairs = [(a[k].astype(np.float64), b[k].astype(np.float64)) for k in a if a[k].size]
    return max(float(np.abs(x - y).max() / max(np.abs(y).max(), 1e-12)) for x, y in pairs)
