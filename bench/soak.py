"""Does a training survive anything? Random faults at random steps, resumed until it is finished.

    python bench/soak.py [--trainings 20] [--parallel 1] [--seconds 600] [--seed 0] [--most-processes 2] [--json]

Short trainings (48 generated images at 32 px, 18 steps, a checkpoint every 4) on one or two processes. Each gets one to
four faults of TURNAROUND_FAULT, one in each of its first starts, and is resumed until it has finished: by hand, or by
itself (--restarts), on as many processes as before or on another number. Compared with an undisturbed training: on as
many processes the weights and the curve must be the same to the bit, on another number to float tolerance.

Ends with 1 when they are not, when a process outlives its launcher for 10 s, when a start does not end, when a start
failed for which no fault was planned, or when more was lost than what came after the last checkpoint and the one that
was being written (and the one that was damaged on purpose). bench/kill.py strikes from outside instead: signals to the
command, to torch.distributed.run, to processes and decoders, also while they start.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import psutil
from soak_evidence import EPOCHS, SAVED_EVERY_STEPS, SETTINGS, curve, largest_difference

from turnaround import fruitbowl, recipes
from turnaround.children import die_with_parent
from turnaround.errors import RunDirectoryError, TurnaroundError
from turnaround.launch.lifecycle import Request, resume, start
from turnaround.record.reader import Run
from turnaround.training.checkpoint import newest_valid

STEPS_PER_EPOCH = 6
AT_A_STEP = (
    *("kill", "segv", "exit", "exit0", "raise", "oom", "nan"),
    *("sigterm", "sigint", "sigusr2", "stop", "hang", "gilhang"),
)
AT_A_SAVE = ("torn", "disk_full", "readonly", "vanish", "bitflip", "kill,phase=checkpoint", "kill,phase=saved")
ELSEWHERE = ("kill,phase=start", "raise,phase=start", "kill,phase=evaluation")
HARMLESS = ("slow,ms=20", "clock,ms=3600000", "clock,ms=-3600000", "slowfs,ms=500", "slow,phase=checkpoint,ms=200")
"""These change nothing, whatever else strikes."""
WATCHDOG_S = 10
LIMIT_VARIABLE, MAX_START_S = "SOAK_LIMIT_S", 120.0
"""What counts as a hang; a machine with other work needs longer."""
MAX_ORPHAN_S = 10.0
MAX_STARTS = 12
TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training and what is to happen to it."""

    number: int
    faults: list[str]
    """One for each of the first starts."""
    harmless: list[str]
    processes: list[int]
    """Of each start; the last number goes on."""
    restarts: int
    device: str

    @property
    def variable(self) -> str:
        return ";".join([*self.faults, *self.harmless])


@dataclass(kw_only=True)
class Outcome:
    """What became of trainings."""

    trainings: int = 0
    finished: int = 0
    same_to_the_bit: int = 0
    same_to_tolerance: int = 0
    """On another number of processes than the undisturbed one."""
    largest_difference: float = 0.0
    """Of those: relative, over all weights."""
    faults: Counter[str] = field(default_factory=Counter)
    resumes: int = 0
    """By hand, and by itself."""
    restarts: int = 0
    """Of these, by itself."""
    most_steps_lost: int = 0
    orphans: int = 0
    hangs: int = 0
    longest_start_s: float = 0.0
    """With those that followed it by themselves."""
    problems: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        same = self.same_to_the_bit + self.same_to_tolerance
        is_kept = same == self.finished == self.trainings and self.most_steps_lost <= 2 * SAVED_EVERY_STEPS
        return is_kept and not (self.orphans or self.hangs or self.problems)

    def add(self, other: Outcome) -> None:
        for name in (f.name for f in fields(self)):
            mine, theirs = getattr(self, name), getattr(other, name)
            is_most = name in ("largest_difference", "most_steps_lost", "longest_start_s")
            setattr(self, name, max(mine, theirs) if is_most else mine + theirs)


def planned(number: int, *, seed: int, device: str, most_processes: int = 2) -> Case:
    """By chance, and the same for the same seed and number."""
    chance = random.Random(f"{seed}/{number}")  # noqa: S311
    count = chance.choice((1, 2, 3, 3, 4, 4))
    possible = range(1, most_processes + 1)
    first = chance.choice(possible)
    is_elastic = chance.random() < 0.35
    processes = [first, *(chance.choice(possible) if is_elastic else first for _ in range(count))]
    steps = sorted(chance.sample(range(2, EPOCHS * STEPS_PER_EPOCH - 1), count))
    faults = []
    for segment, step in enumerate(steps, start=1):
        kinds = chance.choices((AT_A_STEP, AT_A_SAVE, ELSEWHERE), weights=(60, 32, 8))[0]
        rank = chance.randrange(processes[segment - 1]) if kinds is AT_A_STEP else 0
        kind = chance.choice(kinds)
        if kind == "bitflip":  # of a second checkpoint at the earliest: without any, a run is not begun anew
            step = max(step, SAVED_EVERY_STEPS + 1)
        where = "" if kinds is ELSEWHERE else f",step={step}"
        faults.append(f"kind={kind}{where},rank={rank},segment={segment}")
    harmless = [f"kind={kind},segment={chance.randint(1, count + 1)}" for kind in HARMLESS if chance.random() < 0.15]
    by_itself = chance.choice((0, 0, count))
    return Case(number=number, faults=faults, harmless=harmless, processes=processes, restarts=by_itself, device=device)


# --- one training


class HangError(Exception):
    """A start that did not end."""


@contextlib.contextmanager
def limited(starts: int) -> Iterator[None]:
    """HangError inside it after as long as so many starts may take."""

    def give_up(*_: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, starts * float(os.environ.get(LIMIT_VARIABLE, MAX_START_S)))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def request(out: Path, *, processes: int, restarts: int = 0, device: str = "cpu") -> Request:
    return Request(
        out=out, show=lambda *_: None, processes=processes, device=device, restarts=restarts, shows_progress=False
    )


def start_once(images: Path, out: Path, *, processes: int, restarts: int = 0, device: str = "cpu") -> None:
    """A new run, or the next start of one."""
    asked = request(out, processes=processes, restarts=restarts, device=device)
    if (out / "recipe.json").exists():
        resume(asked)
    else:
        start(recipes.find(str(images), list(SETTINGS)), asked)


def attempt(images: Path, out: Path, case: Case, *, processes: int) -> str | None:
    """One start; what it said when it did not come to the end."""
    with limited(1 + case.restarts):
        try:
            start_once(images, out, processes=processes, restarts=case.restarts, device=case.device)
        except TurnaroundError as error:
            return str(error)
        return None


def play(images: Path, folder: Path, case: Case) -> Outcome:
    """One training to its end, through all its faults."""
    outcome, out = Outcome(trainings=1), folder / f"run-{case.number}"
    used: set[int] = set()
    said: list[str] = []
    for number in range(MAX_STARTS):
        os.environ["TURNAROUND_FAULT"] = case.variable
        processes = case.processes[min(number, len(case.processes) - 1)]
        begun_s, before = time.monotonic(), _segments(out)
        try:
            error = attempt(images, out, case, processes=processes)
        except HangError:
            outcome.hangs += 1
            error = "did not end"
        outcome.longest_start_s = max(outcome.longest_start_s, time.monotonic() - begun_s)
        outcome.orphans += len(left_over(out))
        if out.with_name(f"{out.name}.gone").exists():  # the fault `vanish`
            out.with_name(f"{out.name}.gone").rename(out)
        used |= processes_used(out, processes)
        if error is None:
            break
        said.append(error[:300])
        outcome.most_steps_lost = max(outcome.most_steps_lost, steps_lost(out, case, segment=max(1, _segments(out))))
        outcome.resumes += before > 0
    outcome.resumes += len(said) > 0
    return judged(outcome, out, case, used=used, said=said)


def judged(outcome: Outcome, out: Path, case: Case, *, used: set[int], said: list[str]) -> Outcome:
    """Compared with the undisturbed training of as many processes as the first start."""
    try:
        run = Run.load(out)
        struck, state = run.status.segments - 1, run.status.state
    except RunDirectoryError as error:
        outcome.problems.append(f"training {case.number}: {error}")
        return outcome
    outcome.restarts = len(run.status.restarts)
    outcome.resumes += outcome.restarts
    outcome.faults.update(fault.split(",step")[0].split(",rank")[0][5:] for fault in case.faults[:struck])
    if struck > len(case.faults):
        outcome.problems.append(f"{asdict(case)}: {struck} starts failed: {said}")
    outcome.finished = int(state == "finished")
    undisturbed = Run.load(out.with_name(f"undisturbed-{case.processes[0]}"))
    difference = largest_difference(run, undisturbed) if outcome.finished else float("inf")
    if used == {case.processes[0]}:
        outcome.same_to_the_bit = int(difference == 0.0 and curve(run) == curve(undisturbed))
    else:
        pairs = zip(curve(run), curve(undisturbed), strict=False)
        is_near = all(abs(a - b) <= TOLERANCE * max(1.0, abs(b)) for a, b in pairs)
        outcome.same_to_tolerance = int(difference <= TOLERANCE and is_near)
        outcome.largest_difference = difference
    if not outcome.same_to_the_bit + outcome.same_to_tolerance:
        outcome.problems.append(f"{asdict(case)}: {state}, differs by {difference:g}; {said}")
    return outcome


def _segments(out: Path) -> int:
    try:
        return Run.load(out).status.segments
    except RunDirectoryError:
        return 0


def processes_used(out: Path, asked: int) -> set[int]:
    """Of the last start; fewer than asked for where it started again by itself without one."""
    try:
        return {asked, int(Run.load(out).machine["processes"])}
    except RunDirectoryError:
        return {asked}


def steps_lost(out: Path, case: Case, *, segment: int) -> int:
    """The steps before the fault of this start that the newest checkpoint does not have."""
    if segment > len(case.faults) or "step=" not in case.faults[segment - 1]:
        return 0
    path, _ = newest_valid(out / "checkpoint")
    saved = json.loads((path / "manifest.json").read_text())["update"] if path else 0
    said = dict(part.split("=") for part in case.faults[segment - 1].split(","))
    return max(0, int(said["step"]) - 1 - saved)


def left_over(out: Path) -> list[psutil.Process]:
    """Processes that still work for a run whose launcher has ended, some seconds after it."""
    latest_s = time.monotonic() + MAX_ORPHAN_S
    while found := [p for p in psutil.process_iter(["cmdline"]) if str(out) in (p.info["cmdline"] or [])]:
        living = [p for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        if not living or time.monotonic() > latest_s:
            return living
        time.sleep(0.2)
    return []


# --- many trainings


def prepare(folder: Path, counts: set[int]) -> Path:
    """Images, and trainings that nothing happens to, on so many processes."""
    os.environ |= {"OMP_NUM_THREADS": "1", "TURNAROUND_WATCHDOG_S": str(WATCHDOG_S), "TURNAROUND_FAULT": ""}
    images = fruitbowl.generate(folder / "images", images=60, size_px=32, seed=3)
    for processes in sorted(counts):
        start_once(images, folder / f"undisturbed-{processes}", processes=processes)
    return images


def soak(folder: Path, cases: list[Case], *, parallel: int, seconds: float) -> Outcome:
    """As many trainings as asked for, or as many as there is time for."""
    outcome, latest_s = Outcome(), time.monotonic() + seconds
    images = prepare(folder, {case.processes[0] for case in cases})
    if parallel == 1:
        for case in cases:
            if time.monotonic() < latest_s:
                outcome.add(play(images, folder, case))
        return outcome
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(parallel, mp_context=spawned, initializer=_ready, initargs=(latest_s,)) as pool:
        for done in as_completed([pool.submit(_in_time, images, folder, case) for case in cases]):
            outcome.add(done.result())
    return outcome


def _ready(latest_s: float) -> None:
    """In each process of the pool, which ends with this one however that ends."""
    global _latest_s
    die_with_parent()
    _latest_s = latest_s


def _in_time(images: Path, folder: Path, case: Case) -> Outcome:
    return play(images, folder, case) if time.monotonic() < _latest_s else Outcome()


_latest_s = 0.0


def shown(outcome: Outcome) -> str:
    struck = ", ".join(f"{count} {kind}" for kind, count in sorted(outcome.faults.items()))
    same = outcome.same_to_the_bit + outcome.same_to_tolerance == outcome.trainings
    lines = [
        f"trainings                {outcome.trainings}, finished {outcome.finished}",
        f"faults that struck       {sum(outcome.faults.values())} ({struck})",
        f"resumes                  {outcome.resumes}, of these by itself {outcome.restarts}",
        f"final weights equal      {'yes' if same else 'NO'}: {outcome.same_to_the_bit} to the bit, "
        f"{outcome.same_to_tolerance} on other processes to {outcome.largest_difference:.1e}",
        f"steps lost at most       {outcome.most_steps_lost} (a checkpoint every {SAVED_EVERY_STEPS})",
        f"orphans, hangs           {outcome.orphans}, {outcome.hangs} (longest start {outcome.longest_start_s:.0f} s)",
        *(f"PROBLEM {problem}" for problem in outcome.problems),
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainings", type=int, default=20)
    parser.add_argument("--parallel", type=int, default=1, help="trainings side by side; each has up to 4 processes")
    parser.add_argument("--seconds", type=float, default=600.0, help="no training is begun after these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-s", type=float, default=MAX_START_S, help="a start that takes longer is a hang")
    parser.add_argument("--most-processes", type=int, choices=(1, 2), default=2, help="of one training")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"TURNAROUND_CACHE": str(Path(folder) / "cache"), LIMIT_VARIABLE: str(options.limit_s)}
        how = {"seed": options.seed, "device": options.device, "most_processes": options.most_processes}
        cases = [planned(number, **how) for number in range(options.trainings)]
        outcome = soak(Path(folder), cases, parallel=options.parallel, seconds=options.seconds)
    print(json.dumps({**vars(outcome), "is_good": outcome.is_good}) if options.json else shown(outcome))
    return 0 if outcome.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
