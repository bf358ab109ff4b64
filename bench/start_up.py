"""How much of a short training is start-up, and how much of it does the fork server of a study save?

    python bench/start_up.py [SOURCE] [--device cuda] [--rounds 3] [--workers 16] [--set KEY=VALUE ...]

Whole commands, the cache warm: `import torch` alone, a training alone, and a rehearsal alone and forked (as the
rehearsals of a study are), taking turns so that noise of the machine hits all. Prints medians, the parts of the
start-up from the record, and the ratio of the two rehearsals.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from turnaround.launch.forked import fork_server
from turnaround.launch.process_settings import process_settings
from turnaround.record.reader import Run

SMALL = ("data.images=600", "data.size_px=32", "training.epochs=3", "model.name=small")

PARTS = ("start_up", "import")


def timed(command: list[str], variables: Mapping[str, str]) -> float:
    begun_s = time.perf_counter()
    subprocess.run(command, env={**os.environ, **variables}, check=True, capture_output=True)
    return time.perf_counter() - begun_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", default="fruitbowl")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=16, help="of the rehearsal")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    settings = [*(SMALL if options.source == "fruitbowl" else ()), *options.set]
    words = [word for setting in settings for word in ("--set", setting)]
    whole_s: dict[str, list[float]] = defaultdict(list)
    time_s: dict[str, list[Mapping[str, float]]] = defaultdict(list)
    parts_s: dict[str, list[Mapping[str, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, fork_server(process_settings(1)) as server:

        def train(name: str, workers: int, variables: Mapping[str, str], round_: int) -> None:
            out = Path(folder) / f"{name.replace(' ', '-')}-{round_}"
            how = ["--workers", str(workers), "--processes", "1", "--device", options.device, "--out", str(out)]
            seconds = timed([sys.executable, "-m", "turnaround", "train", options.source, *how, *words], variables)
            if round_ >= 0:
                whole_s[name].append(seconds)
                run = Run.load(out)
                time_s[name].append(dict(run.status.time_s))
                parts_s[name].append(run.machine["start_up_s"])

        train("fills the cache", 1, {}, -1)
        train("loads the server", options.workers, server, -1)
        for round_ in range(options.rounds):
            whole_s["import torch"].append(timed([sys.executable, "-c", "import torch"], {}))
            train("alone", 1, {}, round_)
            train("rehearsal alone", options.workers, {}, round_)
            train("rehearsal forked", options.workers, server, round_)
    print(f"{'':20}{'whole command':>15}{'start-up':>12}{'import':>10}   (s, median of {options.rounds})")
    for name, seconds in whole_s.items():
        columns = [median(each.get(part, 0.0) for each in time_s[name]) for part in PARTS if time_s[name]]
        print(f"{name:20}{median(seconds):15.1f}" + "".join(f"{column:11.1f}" for column in columns))
    ratio = median(whole_s["rehearsal forked"]) / median(whole_s["rehearsal alone"])
    print(f"\nrehearsal, forked / alone: {ratio:.2f} of the whole command")
    print("\nparts of the start-up, alone (s, median):")
    for part in parts_s["alone"][0]:
        print(f"{part:32}{median(each.get(part, 0.0) for each in parts_s['alone']):8.2f}")


if __name__ == "__main__":
    main()
