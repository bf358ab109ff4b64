"""Does a training survive anything? Random faults at random steps, resumed until it is finished.

    python bench/soak.py [--trainings 20] [--seconds 600] [--seed 0] [--json]

Short trainings (48 generated images at 32 px, 18 steps, a checkpoint every 4) on one or two processes of the CPU. Each
gets one to three faults of TURNAROUND_FAULT, one in each of its first starts, and is resumed until it has finished.
Compared with an undisturbed training on as many processes: the weights must be the same to the bit. Ends with 1 when
they are not, when a process outlives its launcher, when a start does not end, or when more was lost than what came
after the last checkpoint and the one that was being written.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch
from safetensors.torch import load_file

from turnaround import recipes
from turnaround.data import fruitbowl
from turnaround.errors import TurnaroundError
from turnaround.launch.conduct import Request, resume, start
from turnaround.record.reader import Run
from turnaround.training.checkpoint import newest_valid

EPOCHS, STEPS_PER_EPOCH, SAVED_EVERY = 3, 6, 4
SETTINGS = (
    "data.size_px=32",
    "workers.count=2",
    "training.batch_per_worker=4",
    f"training.epochs={EPOCHS}",
    "training.checkpoint_every_s=1000",
    f"training.checkpoint_every_steps={SAVED_EVERY}",
    "augment.rotation_degrees=10",
    "augment.flip=true",
)
AT_A_STEP = ("kill", "segv", "exit", "exit0", "raise", "sigterm", "sigusr2", "stop", "hang")
AT_A_SAVE = ("torn", "disk_full", "bitflip", "kill,phase=checkpoint", "kill,phase=saved")
WATCHDOG_S = 6
LONGEST_START_S = 90.0
MOST_STARTS = 8


@dataclass
class Outcome:
    """What became of all trainings."""

    trainings: int = 0
    finished: int = 0
    same_weights: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    resumes: int = 0
    most_steps_lost: int = 0
    orphans: int = 0
    hangs: int = 0
    causes: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        kept = self.finished == self.same_weights == self.trainings and not self.orphans and not self.hangs
        return kept and self.most_steps_lost <= 2 * SAVED_EVERY


def request(out: Path, *, processes: int) -> Request:
    return Request(out=out, show=lambda *_: None, processes=processes, device="cpu", shows_progress=False)


def faults(chance: random.Random, *, processes: int) -> list[str]:
    """One for each of the first starts; each at a later step than the one before, so that it is reached."""
    count = chance.randint(1, 3)
    steps = sorted(chance.sample(range(2, EPOCHS * STEPS_PER_EPOCH - 1), count))
    planned = []
    for segment, step in enumerate(steps, start=1):
        is_at_save = chance.random() < 0.35
        kind = chance.choice(AT_A_SAVE if is_at_save else AT_A_STEP)
        rank = 0 if is_at_save else chance.randrange(processes)
        planned.append(f"kind={kind},step={step},rank={rank},segment={segment}")
    return planned


def trained(folder: Path, out: Path, *, processes: int, planned: list[str], outcome: Outcome) -> Run | None:
    """To its end, through all its faults; None when it does not get there."""
    os.environ["TURNAROUND_FAULT"] = ";".join(planned)
    for number in range(MOST_STARTS):
        begun_s = time.monotonic()
        try:
            if number == 0:
                run = start(recipes.find(str(folder), list(SETTINGS)), request(out, processes=processes))
            else:
                outcome.resumes += 1
                run = resume(request(out, processes=processes))
        except TurnaroundError as error:
            outcome.causes.append(f"{planned[number] if number < len(planned) else 'nothing'} -> {error}")
            if number < len(planned):
                outcome.faults[planned[number].split(",step")[0].removeprefix("kind=")] += 1
                outcome.most_steps_lost = max(outcome.most_steps_lost, steps_lost(out, planned[number]))
        else:
            return run
        finally:
            outcome.hangs += time.monotonic() - begun_s > LONGEST_START_S
            outcome.orphans += len(left_over(out))
    return None


def steps_lost(out: Path, fault: str) -> int:
    """Of a fault at a step: the steps before it that the newest checkpoint does not have."""
    path, _ = newest_valid(out / "checkpoint")
    saved = json.loads((path / "manifest.json").read_text())["update"] if path else 0
    said = dict(part.split("=") for part in fault.split(","))
    return max(0, int(said["step"]) - 1 - saved) if said["kind"] in AT_A_STEP and "phase" not in said else 0


def left_over(out: Path) -> list[psutil.Process]:
    """Processes that still work for a run whose launcher has ended."""
    found = [p for p in psutil.process_iter(["cmdline"]) if str(out) in (p.info["cmdline"] or [])]
    return [p for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def is_same(one: Run, other: Run) -> bool:
    """The last weights and the accuracies, to the bit."""
    last = [newest_valid(run.directory.checkpoint)[0] for run in (one, other)]
    a, b = (load_file(path / "weights.safetensors") for path in last if path is not None)
    curves = [[(e.train_loss, e.val_loss, e.val_accuracy) for e in run.epochs] for run in (one, other)]
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a) and curves[0] == curves[1]


def soak(folder: Path, *, trainings: int, seconds: float, seed: int) -> Outcome:
    """As many trainings as asked for, or as many as there is time for."""
    chance, outcome, begun_s = random.Random(seed), Outcome(), time.monotonic()  # noqa: S311
    os.environ |= {"OMP_NUM_THREADS": "1", "TURNAROUND_WATCHDOG_S": str(WATCHDOG_S), "TURNAROUND_FAULT": ""}
    images = fruitbowl.generate(folder / "images", images=60, size_px=32, seed=3)
    undisturbed: dict[int, Run] = {}
    while outcome.trainings < trainings and time.monotonic() - begun_s < seconds:
        processes = chance.choice((1, 2))
        if processes not in undisturbed:
            os.environ["TURNAROUND_FAULT"] = ""
            out = folder / f"undisturbed-{processes}"
            undisturbed[processes] = start(recipes.find(str(images), list(SETTINGS)), request(out, processes=processes))
        planned, out = faults(chance, processes=processes), folder / f"run-{outcome.trainings}"
        outcome.trainings += 1
        run = trained(images, out, processes=processes, planned=planned, outcome=outcome)
        if run is not None:
            outcome.finished += run.status.state == "finished"
            outcome.same_weights += is_same(run, undisturbed[processes])
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainings", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=600.0, help="no training is begun after these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("TURNAROUND_CACHE", str(Path(folder) / "cache"))
        outcome = soak(Path(folder), trainings=options.trainings, seconds=options.seconds, seed=options.seed)
    if options.json:
        print(json.dumps({**vars(outcome), "is_good": outcome.is_good}))
        return 0 if outcome.is_good else 1
    struck = ", ".join(f"{count} {kind}" for kind, count in sorted(outcome.faults.items()))
    print(f"trainings                {outcome.trainings}, finished {outcome.finished}")
    print(f"faults that struck       {sum(outcome.faults.values())} ({struck})")
    print(f"resumes                  {outcome.resumes}")
    print(f"weights and curves equal {'yes' if outcome.same_weights == outcome.trainings else 'NO'}")
    print(f"steps lost at most       {outcome.most_steps_lost} (a checkpoint every {SAVED_EVERY})")
    print(f"orphans, hangs           {outcome.orphans}, {outcome.hangs}")
    return 0 if outcome.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
