"""Does a training survive signals from outside, at any moment? A black box: commands, signals, and what is left.

    python bench/kill.py [--minutes 3] [--seed S] [--case N] [--parallel 2] [--limit-s 120]
    python bench/kill.py --device cuda --within-steps --strikes 50     graphs, compiled passes, Muon, EMA, mixup

Starts `turnaround train` on one or two processes, with a cold or a warm cache, and sends KILL, TERM, INT, HUP or STOP
and CONT to the command, its group, torch.distributed.run, a process of the training or a decoder; half of them while it
starts. Then `turnaround resume RUN`, without flags, until it has finished. It must end with the weights and the curve
of an undisturbed training to the bit, on as many processes as it began with; no process may be left 10 s after its
command, no command may hang or show a traceback, and one that nothing happened to must not fail. A file too many or too
few is printed as UNTIDY, and fails with --tidy only: nothing of the training is lost by it.

What is sent to whom, and after which event (a file that appears, a step, a checkpoint that is being written), is a pure
function of the seed and the number of the training. A problem is printed with the command that repeats its training.
bench/soak.py strikes from within instead: at exact steps, and disks and clocks too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from kill_plan import STARTING, STEPS_PER_EPOCH, Case, Strike, is_of_python, kind_of, planned
from soak_evidence import SETTINGS, curve, largest_difference

from turnaround import fruitbowl
from turnaround.errors import RunDirectoryError
from turnaround.record.layout import CheckpointName, RunDirectory
from turnaround.record.reader import Run

IMAGES = 80  # enough for decoding processes: data/decoders.py starts none below 64
STEP_MS = 100
"""Every step is made to take so long: there must be time to strike within it."""
CUDA_IMAGES = 310
CUDA_SETTINGS = (
    *("data.size_px=32", "workers.count=1", "training.batch_per_worker=32", "training.epochs=3", "training.compile=on"),
    *("training.optimizer=muon", "training.ema=0.99", "training.checkpoint_every_s=1000"),
    *("training.checkpoint_every_steps=4", "augment.mixup=0.2", "augment.flip=true", "augment.rotation_degrees=10"),
)
"""As many steps an epoch, compiled and captured as CUDA graphs."""

WATCHDOG_S = 20
MAX_ORPHAN_S = 10.0
MAX_STARTS = 12
MARK = "TURNAROUND_KILL_CASE"
"""An environment variable: whatever inherits it belongs to the training that it names."""


@dataclass(kw_only=True)
class Tally:
    """What became of all trainings."""

    trainings: int = 0
    starts: int = 0
    same_to_the_bit: int = 0
    struck: Counter[str] = field(default_factory=Counter)
    """By signals and victim."""
    while_starting: int = 0
    longest_start_s: float = 0.0
    problems: list[str] = field(default_factory=list)
    untidy: list[str] = field(default_factory=list)
    """Files too many or too few, where nothing of a training was lost."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all trainings of one call share."""

    folder: Path
    device: str
    settings: tuple[str, ...]
    limit_s: float
    tally: Tally

    @property
    def images(self) -> Path:
        return self.folder / "images"


class Training:
    """One training to its end, through all its strikes."""

    def __init__(self, case: Case, shared: Setting) -> None:
        self.case, self.shared, self.tally = case, shared, shared.tally
        self.home = shared.folder / f"case-{case.number}"
        self.out = RunDirectory(self.home / "run")
        self.cache = self.home / "cache" if case.is_cold else shared.folder / "cache"
        self.mark = f"{os.getpid()}-{case.number}"
        self.log: list[str] = []

    def play(self) -> None:
        (self.home / "tmp").mkdir(parents=True)
        strikes: Iterator[Strike | None] = itertools.chain(self.case.strikes, itertools.repeat(None))
        for strike in itertools.islice(strikes, MAX_STARTS):
            # Without its page, Ctrl-C came after the training: `resume` of a finished run has only this left to write.
            if self._start(strike) == 0 and self._state() == "finished" and self.out.page.exists():
                break
        self.tally.trainings += 1
        problems, untidy = list(self._differences()), list(self._untidy())
        for problem in problems:
            self._problem(problem)
        self.tally.untidy += [self._told(text) for text in untidy]
        self.tally.same_to_the_bit += not problems
        if not problems:
            shutil.rmtree(self.home)

    def _start(self, strike: Strike | None) -> int:
        """One command, struck once at most; return its exit status."""
        command, begun_s = self._command(), time.monotonic()
        output = self.home / "output.txt"
        with output.open("wb") as said:
            process = subprocess.Popen(
                command, env=self._environment(), stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                start_new_session=True, cwd=self.home,
            )  # fmt: skip
            try:
                struck = self._strike(strike, process, begun_s) if strike else None
                status = self._wait(process, until_s=begun_s + self.shared.limit_s)
            finally:
                self._end_all(signal.SIGCONT)
                process.kill() if process.poll() is None else None
        self.tally.starts += 1
        self.tally.longest_start_s = max(self.tally.longest_start_s, time.monotonic() - begun_s)
        text = output.read_text(errors="replace")
        self.log.append(f"{command[3]}, {struck or 'not struck'}: exit status {status}: {text.strip()[-300:]!r}")
        if status is None:
            self._problem(f"did not end within {self.shared.limit_s:g} s")
        if orphans := self._orphans():
            self._problem(f"left behind {orphans}")
            self._end_all(signal.SIGKILL)
        if "Traceback (most recent call last)" in text and not is_of_python(text):
            self._problem(f"shows a traceback: {text[text.index('Traceback') :][-1500:]}")
        if status != 0 and struck is None:
            self._problem(f"failed although nothing had happened to it: {text.strip()[-1500:]}")
        process.wait()
        return 1 if status is None else status

    def _command(self) -> list[str]:
        """`resume` without flags, as soon as there is a run."""
        python = [sys.executable, "-m", "turnaround"]
        if self.out.is_run():
            return [*python, "resume", str(self.out.path)]
        settings = [word for setting in self.shared.settings for word in ("--set", setting)]
        how = ["--processes", str(self.case.processes), "--device", self.shared.device]
        restarts = ["--restarts", str(self.case.restarts)] if self.case.restarts else []
        return [*python, "train", str(self.shared.images), "--out", str(self.out.path), *settings, *how, *restarts]

    def _environment(self) -> dict[str, str]:
        slow = ";".join(f"kind=slow,ms={STEP_MS},segment={n}" for n in range(1, 3 * MAX_STARTS))
        own = {
            "OMP_NUM_THREADS": "1",
            "TURNAROUND_CACHE": str(self.cache),
            "TURNAROUND_WATCHDOG_S": str(WATCHDOG_S),
            "TURNAROUND_FAULT": slow,
            "TMPDIR": str(self.home / "tmp"),
            MARK: self.mark,
        }
        return {**os.environ, **own}

    # --- when, and whom

    def _strike(self, strike: Strike, process: subprocess.Popen[bytes], begun_s: float) -> str | None:
        """Wait for the event, then send the signals; None when the command ended before."""
        reached = self._events(strike, process)[strike.event]
        while process.poll() is None and not reached():
            if time.monotonic() > begun_s + self.shared.limit_s:
                return None
            time.sleep(0.005)
        time.sleep(strike.delay_s)
        victim = self._victim(strike, process)
        if victim is None:
            return None
        (kind, pid), names = victim, strike.signals.split()
        self.tally.struck[f"{strike.signals} to {kind}"] += 1
        self.tally.while_starting += strike.event in STARTING
        for place, name in enumerate(names):
            if place:
                time.sleep(strike.between_s)
                if process.poll() is not None:
                    return f"{names[0]} to {strike.victim}"
            with suppress(ProcessLookupError):
                (os.killpg if kind == "group" else os.kill)(pid, getattr(signal, f"SIG{name}"))
        return str(strike)

    def _events(self, strike: Strike, process: subprocess.Popen[bytes]) -> dict[str, Callable[[], bool]]:
        out = self.out
        segments = self._segments()
        before = CheckpointName(0) if not (there := out.checkpoints()) else there[-1].name or CheckpointName(0)
        return {
            "command": lambda: True,
            "directory": lambda: out.path.exists(),
            "processes": lambda: bool(_kinds(process.pid)["worker"]),
            "decoding": lambda: bool(_kinds(process.pid)["decoder"]) or self._segments() > segments,
            "told": lambda: self._segments() > segments,
            "heartbeat": lambda: self._segments() > segments and bool(out.heartbeat_ranks()),
            "step": lambda: self._step() >= strike.at,
            "saving": lambda: any(CheckpointName.is_leftover(name) for name in _names(out.checkpoint)),
            "epoch": lambda: self._num_epochs() >= strike.at and self._newest() > before,
            "finished": lambda: self._state() == "finished",
        }

    def _victim(self, strike: Strike, process: subprocess.Popen[bytes]) -> tuple[str, int] | None:
        """The victim, or who there is of the kinds before it, and its kind; all signals of a strike go to this one.

        Looked up once: a launcher that was stopped because there was no process yet must be the one that goes on.
        """
        if process.poll() is not None:
            return None
        if strike.victim == "group":
            return "group", process.pid
        kinds = _kinds(process.pid)
        order = {"agent": ("agent", "worker"), "decoder": ("decoder", "worker")}.get(strike.victim, (strike.victim,))
        kind = next(kind for kind in (*order, "launcher") if kinds[kind])
        if kind == "launcher" and strike.signals == "STOP":  # nobody would end it
            return None
        return kind, kinds[kind][strike.which % len(kinds[kind])]

    def _wait(self, process: subprocess.Popen[bytes], *, until_s: float) -> int | None:
        try:
            return process.wait(timeout=max(1.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None

    # --- what can be seen from outside

    def _segments(self) -> int:
        with suppress(RunDirectoryError):
            return Run.load(self.out.path).status.segments
        return 0

    def _state(self) -> str:
        with suppress(RunDirectoryError):
            return Run.load(self.out.path).status.state
        return "none"

    def _num_epochs(self) -> int:
        with suppress(OSError):
            return self.out.epochs.read_bytes().count(b"\n")
        return 0

    def _newest(self) -> CheckpointName:
        there = self.out.checkpoints()
        return (there[-1].name if there else None) or CheckpointName(0)

    def _step(self) -> int:
        newest = self._newest()
        beats = [newest.epoch * STEPS_PER_EPOCH + newest.step]
        for rank in self.out.heartbeat_ranks():
            with suppress(OSError, ValueError, KeyError):
                beats.append(int(json.loads(self.out.heartbeat(rank).read_text())["step"]))
        return max(beats)

    def _orphans(self) -> list[str]:
        """Whatever carries our mark 10 s after its command has ended."""
        latest_s = time.monotonic() + MAX_ORPHAN_S
        while living := list(self._marked()):
            if time.monotonic() > latest_s:
                return [" ".join(words)[-200:] for process in living if (words := _cmdline(process))]
            time.sleep(0.2)
        return []

    def _marked(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    yield process

    def _end_all(self, number: int) -> None:
        for process in self._marked():
            with suppress(psutil.Error):
                process.send_signal(number)

    # --- the judgement

    def _differences(self) -> Iterator[str]:
        try:
            run, whole = Run.load(self.out.path), Run.load(self.shared.folder / f"undisturbed-{self.case.processes}")
        except RunDirectoryError as error:
            yield str(error)
            return
        if run.status.state != "finished":
            yield f"is {run.status.state} after {MAX_STARTS} starts: {run.status.cause}"
        elif difference := largest_difference(run, whole):
            yield f"differs by {difference:g}, on {run.machine.get('processes')} processes"
        elif curve(run) != curve(whole) or run.evaluation != whole.evaluation:
            yield "has the same weights and another record"

    def _untidy(self) -> Iterator[str]:
        """Files too many or too few, of a training that has lost nothing."""
        whole = RunDirectory(self.shared.folder / f"undisturbed-{self.case.processes}")
        if files := _files(self.out) ^ _files(whole):
            yield f"has other files than an undisturbed training: {sorted(files)}"
        yield from (f"{path} is left over" for path in self._leftovers())

    def _leftovers(self) -> list[str]:
        places = (self.home / "tmp", self.cache if self.case.is_cold else self.home / "none", self.home)
        known = {"run", "cache", "tmp", "output.txt"}
        return [
            str(path.relative_to(self.home))
            for place in places
            for path in place.glob("*")
            if path.name not in known and not path.name.startswith(("pixels-", "torchinductor_"))  # torch's own cache
        ]

    def _problem(self, text: str) -> None:
        self.tally.problems.append(self._told(text))

    def _told(self, text: str) -> str:
        said = "\n  ".join([*map(str, self.case.strikes), *self.log])
        return f"case {self.case.number} {text}\n  {said}"


def _kinds(pid: int) -> dict[str, list[int]]:
    """The processes below a command, by what they are."""
    kinds: dict[str, list[int]] = {"launcher": [pid], "agent": [], "worker": [], "decoder": []}
    with suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            if kind := kind_of(_cmdline(process)):
                kinds[kind].append(process.pid)
    return kinds


def _cmdline(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return list(process.cmdline())
    return []


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)
    return []


def _files(directory: RunDirectory) -> set[str]:
    """All names in a run. Those of the last checkpoints but one differ with the steps at which it was asked to stop."""
    kept = {files.path.name for files in directory.checkpoints()[:-1]}
    paths = [path.relative_to(directory.path) for path in directory.path.rglob("*")]
    return {str(path) for path in paths if not kept & set(path.parts)}


def undisturbed(shared: Setting, processes: int) -> None:
    """The training that nothing happens to; it fills the shared cache."""
    training = Training(Case(number=-processes, processes=processes, is_cold=False, restarts=0, strikes=()), shared)
    (training.home / "tmp").mkdir(parents=True)
    training._start(None)
    training.out.path.rename(shared.folder / f"undisturbed-{processes}")


def shown(tally: Tally, *, repeat: str) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(tally.struck.items()))
    return "\n".join(
        [
            f"trainings    {tally.trainings} in {tally.starts} starts, {tally.same_to_the_bit} equal to the bit",
            f"strikes      {sum(tally.struck.values())}, of these {tally.while_starting} while it started ({kinds})",
            f"longest      {tally.longest_start_s:.0f} s for one start",
            *(f"UNTIDY {text}" for text in tally.untidy),
            *(f"PROBLEM {problem}" for problem in tally.problems),
            *([f"Repeat with: {repeat} --case N"] if tally.problems or tally.untidy else []),
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0, help="no training is begun after these")
    parser.add_argument("--strikes", type=int, default=10**9, help="no training is begun after so many")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="default: a new one")
    parser.add_argument("--case", type=int, help="only the training of this number")
    parser.add_argument("--parallel", type=int, default=2, help="trainings side by side")
    parser.add_argument("--limit-s", type=float, default=120.0, help="a start that takes longer is a hang")
    parser.add_argument("--most-processes", type=int, choices=(1, 2), default=2, help="of one training")
    parser.add_argument("--within-steps", action="store_true", help="only KILL, only of processes that are in a step")
    parser.add_argument("--tidy", action="store_true", help="fail for a file too many or too few too")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    most_processes = 1 if options.device == "cuda" else options.most_processes
    how = {"seed": options.seed, "most_processes": most_processes, "within_steps": options.within_steps}
    numbers = itertools.count() if options.case is None else iter([options.case])
    tally = Tally()
    print(f"seed {options.seed}", file=sys.stderr, flush=True)
    # A shell that starts us in the background ignores these, and whatever we start would inherit that.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        shared = Setting(
            folder=Path(folder),
            device=options.device,
            settings=CUDA_SETTINGS if options.device == "cuda" else SETTINGS,
            limit_s=options.limit_s,
            tally=tally,
        )
        images = CUDA_IMAGES if options.device == "cuda" else IMAGES
        fruitbowl.generate(shared.images, images=images, size_px=32, seed=3)
        for processes in range(1, most_processes + 1):
            undisturbed(shared, processes)
        latest_s = time.monotonic() + 60 * options.minutes

        def work(_: int) -> None:
            for number in numbers:
                if time.monotonic() > latest_s or tally.struck.total() >= options.strikes:
                    return
                Training(planned(number, **how), shared).play()

        tally.starts, tally.longest_start_s = 0, 0.0
        with ThreadPoolExecutor(options.parallel) as pool:
            list(pool.map(work, range(options.parallel)))
    words = [word for word in sys.argv[1:] if not word.startswith("--json")]
    repeat = " ".join(["python bench/kill.py", *words, *([] if "--seed" in words else ["--seed", str(options.seed)])])
    print(json.dumps(vars(tally)) if options.json else shown(tally, repeat=repeat))
    return 1 if tally.problems or (options.tidy and tally.untidy) or not tally.trainings else 0


if __name__ == "__main__":
    sys.exit(main())
