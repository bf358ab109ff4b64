"""What does a training lose to a busy neighbour on the same cores, and what does the remedy cost on an idle machine?

    python bench/busy_neighbour.py [--rounds 3] [--epochs 3] [--busy 1]

OpenMP's threads spin while they wait for each other. When a neighbour holds the core of one of them, all others burn
their time slices until it comes back. A training of fruitbowl on this machine, by turns with and without
`GOMP_SPINCOUNT=3000` (what `turnaround train` sets unless OpenMP's waiting is set already), alone and beside busy
loops. Prints the median epoch time of each, and ratios taken in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

WAITS = {"spinning": {"OMP_WAIT_POLICY": "ACTIVE"}, "soon asleep": {"GOMP_SPINCOUNT": "3000"}}


@contextmanager
def busy_loop() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def epoch_time_s(folder: Path, *, epochs: int, wait: dict[str, str]) -> float:
    """Train once and return the median epoch time without the first epoch, which loads and compiles."""
    out = Path(tempfile.mkdtemp(dir=folder)) / "run"
    settings = {"data.images": 1200, "training.epochs": epochs + 1, "data.cache": folder / "cache"}
    command = [sys.executable, "-m", "turnaround", "train", "fruitbowl", "--device", "cpu", "--out", str(out), "--json"]
    command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    environment = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "KMP_BLOCKTIME")}
    subprocess.run(command, env={**environment, **wait}, capture_output=True, check=True)
    lines = [json.loads(line) for line in (out / "epochs.jsonl").read_text().splitlines()]
    return median(line["epoch_time_s"] for line in lines[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--busy", type=int, default=1, help="busy loops beside the training")
    options = parser.parse_args()
    times_s: dict[tuple[str, int], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for busy in (0, options.busy):
                for name, wait in WAITS.items():
                    with ExitStack() as loops:
                        for _ in range(busy):
                            loops.enter_context(busy_loop())
                        times_s[name, busy].append(epoch_time_s(Path(folder), epochs=options.epochs, wait=wait))
    middle_s = {case: median(each) for case, each in times_s.items()}
    for (name, busy), each in times_s.items():
        shown = ", ".join(f"{value:.2f}" for value in each)
        print(f"{name}, {busy} busy loops: {middle_s[name, busy]:.2f} s an epoch ({shown})")
    for name in WAITS:
        print(f"{name}: beside {options.busy} / alone = {middle_s[name, options.busy] / middle_s[name, 0]:.2f}")
    print(f"alone: sleeping / spinning = {middle_s['sleeping', 0] / middle_s['spinning', 0]:.3f}")


if __name__ == "__main__":
    main()
