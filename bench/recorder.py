"""What a turnaround.Recorder costs the loop it is in.

    python bench/recorder.py [--steps 20000] [--epochs 200] [--folder DIR] [--json]

Every figure is the time of the same loop with the recorder less that without it, the median over rounds. "worst" is the
longest single call: what a step waits at most. On a machine that others use too, the clock counts their work as well,
the CPU's time does not. Limits: 20 microseconds a step, 5 milliseconds an epoch. "the end" waits for the disk: here for
all the epochs that were told within milliseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import turnaround

STEP_LIMIT_US, EPOCH_LIMIT_MS = 20.0, 5.0
ROUNDS = 5


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one call."""

    wall_s: float
    cpu_s: float
    """Of all threads: what the recorder's own thread does later is in it."""
    worst_s: float


def cost(call: Callable[[], object], count: int) -> Cost:
    """Mean and longest; the cost of the loop and of its clock is taken off the mean."""
    worst_s = 0.0
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    for _ in range(count):
        before_s = time.perf_counter()
        call()
        worst_s = max(worst_s, time.perf_counter() - before_s)
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    for _ in range(count):
        before_s = time.perf_counter()
        max(worst_s, time.perf_counter() - before_s)
    wall_s, cpu_s = wall_s - (time.perf_counter() - began_s), cpu_s - (time.process_time() - began_cpu_s)
    return Cost(wall_s=max(0.0, wall_s) / count, cpu_s=max(0.0, cpu_s) / count, worst_s=worst_s)


def once(call: Callable[[], object]) -> Cost:
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    call()
    wall_s = time.perf_counter() - began_s
    return Cost(wall_s=wall_s, cpu_s=time.process_time() - began_cpu_s, worst_s=wall_s)


def steps_of(rec: turnaround.Recorder) -> dict[str, Callable[[], object]]:
    """The ways to tell a step, from the plainest to that of a callback with all five parts."""

    def with_spans() -> None:
        with rec.span("wait"):
            pass
        with rec.span("update"):
            pass
        rec.step()

    def with_marks() -> None:
        for part in ("wait", "copy", "compute", "reduce", "update"):
            rec.mark(part)
        rec.step()

    return {"step()": rec.step, "2 spans and step()": with_spans, "5 marks and step()": with_marks}


def measure(folder: Path, *, steps: int, epochs: int) -> dict[str, Cost]:
    """Medians over the rounds."""
    found: defaultdict[str, list[Cost]] = defaultdict(list)
    for number in range(ROUNDS):
        rec = turnaround.Recorder(folder / f"run-{number}", workers=4, batch_per_worker=32, num_train=10**6)
        found["the beginning"].append(once(rec.start))
        for name, call in steps_of(rec).items():
            found[name].append(cost(call, steps))
        measures = {"train_loss": 0.5, "val_loss": 0.4, "val_accuracy": 0.9}
        found["epoch()"].append(cost(partial(rec.epoch, **measures), epochs))
        found["the end"].append(once(rec.close))
    return {name: _typical(rounds) for name, rounds in found.items()}


def _typical(rounds: list[Cost]) -> Cost:
    return Cost(
        wall_s=statistics.median(one.wall_s for one in rounds),
        cpu_s=statistics.median(one.cpu_s for one in rounds),
        worst_s=max(one.worst_s for one in rounds),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--folder", type=Path, help="Where to record: another disk. Default: a temporary folder.")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        found = measure(Path(folder), steps=given.steps, epochs=given.epochs)
    if given.json:
        print(json.dumps({name: asdict(one) for name, one in found.items()}, indent=2))
        return
    for name, one in found.items():
        both = f"{1e6 * one.wall_s:12,.1f} us   CPU {1e6 * one.cpu_s:10,.1f} us"
        print(f"{name:<20} {both}   worst {1e3 * one.worst_s:9.3f} ms")
    step_us = max(1e6 * one.wall_s for name, one in found.items() if "step" in name)
    epoch_ms = 1e3 * found["epoch()"].wall_s
    print(f"a step: {step_us:.1f} us (limit {STEP_LIMIT_US:g}), an epoch: {epoch_ms:.3f} ms (limit {EPOCH_LIMIT_MS:g})")


if __name__ == "__main__":
    main()
