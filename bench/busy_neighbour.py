"""What does a training lose to a busy neighbour on the same cores, and what does the remedy cost on an idle machine?

    python bench/busy_neighbour.py [--rounds 3] [--epochs 3] [--images 1200] [--busy 1] [--cores 0,1]

OpenMP's threads spin while they wait for each other. When a neighbour holds the core of one of them, all others burn
their time slices until it comes back. A training of fruitbowl on this machine, by turns, alone and beside busy loops:

    spinning       OMP_WAIT_POLICY=ACTIVE: for ever
    soon asleep    GOMP_SPINCOUNT=3000, which `turnaround train` set until 2026-11-18
    watching       what `turnaround train` does when nothing is set: long spinning, and hardly any beside neighbours
                   (src/turnaround/training/neighbours.py)

Prints the images/s of each, ratios taken in the same run, and whether all have trained the same weights to the bit.
`--cores` keeps all of it on these cores: two of a large idle machine are an idle machine with two cores.
"""

from __future__ import annotations

import argparse
import hashlib
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

WAITS = {
    "spinning": {"OMP_WAIT_POLICY": "ACTIVE"},
    "soon asleep": {"GOMP_SPINCOUNT": "3000"},
    "watching": {},
}
SET_BY_US = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@contextmanager
def busy_loop() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def trained(folder: Path, *, epochs: int, images: int, wait: dict[str, str]) -> tuple[list[float], str]:
    """Train once; return images/s of each epoch but the first, which loads and compiles, and the weights' SHA-256."""
    out = Path(tempfile.mkdtemp(dir=folder)) / "run"
    settings = {"data.images": images, "training.epochs": epochs + 1, "data.cache": folder / "cache"}
    command = [sys.executable, "-m", "turnaround", "train", "fruitbowl", "--device", "cpu", "--out", str(out), "--json"]
    command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    environment = {k: v for k, v in os.environ.items() if k not in SET_BY_US}
    subprocess.run(command, env={**environment, **wait}, capture_output=True, check=True)
    lines = [json.loads(line) for line in (out / "epochs.jsonl").read_text().splitlines()]
    # Slow trainings have checkpoints within epochs, too.
    weights = out / "checkpoint" / f"epoch-{epochs + 1:05}" / "weights.safetensors"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    return [line["images_per_s"] for line in lines[1:]], digest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, default=1200)
    parser.add_argument("--busy", type=int, default=1, help="busy loops beside the training")
    parser.add_argument("--cores", help="the numbers of the cores to use, with commas between them")
    options = parser.parse_args()
    if options.cores:
        os.sched_setaffinity(0, {int(core) for core in options.cores.split(",")})
    rates: dict[tuple[str, int], list[float]] = defaultdict(list)
    digests = set()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for busy in (0, options.busy):
                for name, wait in WAITS.items():
                    with ExitStack() as loops:
                        for _ in range(busy):
                            loops.enter_context(busy_loop())
                        each, digest = trained(Path(folder), epochs=options.epochs, images=options.images, wait=wait)
                    rates[name, busy] += each
                    digests.add(digest)
                    shown = ", ".join(f"{rate:.0f}" for rate in each)
                    how = f"round {number + 1}, {name}, {busy} busy loops (load {os.getloadavg()[0]:.1f})"
                    print(f"{how}: {shown} images/s, weights {digest[:8]}", flush=True)
    middle = {case: median(each) for case, each in rates.items()}
    for name in WAITS:
        alone, beside = middle[name, 0], middle[name, options.busy]
        print(
            f"{name}: alone {alone:.0f} images/s ({alone / middle['spinning', 0]:.3f} of spinning), "
            f"beside {options.busy} {beside:.0f}: an epoch takes {alone / beside:.2f} times as long"
        )
    print(f"{len(digests)} different weights at the end" if len(digests) > 1 else "the same weights, to the bit")


if __name__ == "__main__":
    main()
