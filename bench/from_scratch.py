"""How good is a network that starts from nothing, how soon, and does the accuracy survive more workers?

    python bench/from_scratch.py FOLDER [--seeds 3] [--workers 1,4,16,64] [--epochs 30] [--batch 128]

The default command first (`turnaround train FOLDER`, no other flag), once for each seed: final validation accuracy and
the seconds of the whole command. Then the same network with so many workers of `--batch` images, all on one process (a
rehearsal: the accuracies are those of the workers, the times are not), and how far each is from one worker.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple


class Trained(NamedTuple):
    accuracy_percent: float
    command_s: float


def train(folder: str, out: Path, *settings: str) -> Trained:
    """Train once, in a process of its own, and return its last epoch's accuracy and the seconds from start to end."""
    command = [sys.executable, "-m", "turnaround", "train", folder, "--out", str(out), "--json"]
    begun_s = time.perf_counter()
    subprocess.run([*command, *settings], stdout=subprocess.DEVNULL, check=True)
    command_s = time.perf_counter() - begun_s
    last = json.loads((out / "epochs.jsonl").read_text().splitlines()[-1])
    return Trained(100 * last["val_accuracy"], command_s)


def spread(values: list[float]) -> str:
    """Return the mean and, of several, the standard deviation."""
    return f"{mean(values):.2f}" + (f" (sd {stdev(values):.2f})" if len(values) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", default="1,4,16,64", help="counts, with commas; none: only the default command")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=128, help="images a worker takes at each step")
    options = parser.parse_args()
    counts = [] if options.workers == "none" else [int(count) for count in options.workers.split(",")]
    seeds = [("--set", f"training.seed={seed}") for seed in range(options.seeds)]
    with tempfile.TemporaryDirectory() as temporary:
        runs = Path(temporary)
        found = [train(options.folder, runs / f"default-{i}", *seed) for i, seed in enumerate(seeds)]
        # The first command decodes the images as well; the cache has them afterwards.
        times = ", ".join(f"{one.command_s:.1f}" for one in found)
        print(f"default command: {spread([one.accuracy_percent for one in found])} % in {times} s", flush=True)
        one_worker: float | None = None
        for count in counts:
            settings = ["--workers", str(count), "--processes", "1"]
            settings += ["--set", f"training.epochs={options.epochs}"]
            settings += ["--set", f"training.batch_per_worker={options.batch}"]
            done = [train(options.folder, runs / f"{count}-{i}", *settings, *seed) for i, seed in enumerate(seeds)]
            accuracies = [one.accuracy_percent for one in done]
            one_worker = mean(accuracies) if one_worker is None else one_worker
            difference = mean(accuracies) - one_worker
            print(f"{count:>4} workers: {spread(accuracies)} %, {difference:+.2f} points", flush=True)


if __name__ == "__main__":
    main()
