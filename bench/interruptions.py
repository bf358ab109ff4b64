"""Is the forecast for machines that are taken away right? Simulated jobs, and real trainings that are really killed.

    python bench/interruptions.py [--trainings 10] [--parallel 3] [--seed 1] [--out interruptions.json]      10 minutes

1. Some trainings run undisturbed: their record has the start, the pause of a checkpoint and the time of the work.
2. `turnaround predict --interruptions` forecasts the job from that record.
3. Two hundred jobs are played through, event by event, with the measured figures.
4. Real trainings run with `training.checkpoint_every_s=auto`. TURNAROUND_FAULT kills the launcher, and with it all of
   the training, at a step that is drawn for each start from the rate; `turnaround resume` goes on until the end.

Steps are slowed down (TURNAROUND_FAULT, too), so that they take the same time on a busy machine. An interruption during
a start strikes at its first step: at 150 an hour, with starts of 8 s, that takes 5 % of the jobs out of the interval.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from turnaround.analysis.workloads import survey_of
from turnaround.forecast.interval import Interval
from turnaround.forecast.predict import fit_forecaster
from turnaround.forecast.preemption import work_time
from turnaround.forecast.question import InterruptedForecast, Prediction, Question
from turnaround.interruptions import HOUR_S
from turnaround.record.files import read_json
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run

EPOCHS, STEP_MS = 20, 150
SETTINGS = ("data.images=120", "data.size_px=16", "model.name=small", f"training.epochs={EPOCHS}")
"""Three steps an epoch."""
MAX_STARTS = 40
PLAYED = 200


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One training that was killed and resumed until its end."""

    interruptions: int
    time_s: float
    saves: int


@dataclass(frozen=True, kw_only=True)
class Bench:
    folder: Path
    per_h: float

    def command(self, run: Path, faults: str, *, resumes: bool) -> subprocess.Popen[bytes]:
        keys = (*SETTINGS, "training.checkpoint_every_s=auto", f"training.interruptions_per_h={self.per_h}")
        keys = (*keys, f"data.cache={self.folder / 'cache'}")
        sets = [part for key in keys for part in ("--set", key)]
        train = ["train", "fruitbowl", "--out", str(run), "--processes", "1", *sets]
        words = ["resume", str(run)] if resumes else train
        log = (self.folder / f"{run.name}.log").open("ab")
        return subprocess.Popen(
            [sys.executable, "-m", "turnaround", *words],
            env={**os.environ, "TURNAROUND_FAULT": faults},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    def undisturbed(self, name: int | str) -> None:
        run = self.folder / ("undisturbed" if isinstance(name, int) else "unused") / f"run-{name}"
        run.parent.mkdir(exist_ok=True)
        status = self.command(run, f"kind=slow,ms={STEP_MS}", resumes=False).wait()
        assert status == 0, (self.folder / f"{run.name}.log").read_text()[-2000:]

    def killed(self, number: int, seed: int, forecast: Prediction) -> Outcome:
        """One training under a rate of interruptions, from its first start to its end."""
        rng, run = random.Random(f"{seed}/{number}"), self.folder / f"killed-{number}"  # noqa: S311
        assert forecast.interrupted is not None
        start_s, step_s = forecast.interrupted.costs.start_s.value, seconds_per_step(forecast)
        time_s, directory = 0.0, RunDirectory(run)
        for start in range(MAX_STARTS):
            lives_s = rng.expovariate(self.per_h / HOUR_S)
            step = reached(directory) + 1 + max(0, round((lives_s - start_s) / step_s))
            segment = start + 1
            faults = f"kind=slow,ms={STEP_MS},segment={segment};kind=launcher,step={step},segment={segment}"
            began_s = time.time()
            status = self.command(run, faults, resumes=start > 0).wait()
            if status == 0:
                record = Run.load(run)
                assert record.status.segments == segment
                # Until the training's own end: the page that is written afterwards is no part of the job.
                ended_s = datetime.fromisoformat(str(record.status.ended_at)).timestamp()
                time_s += ended_s - began_s
                print(f"training {number}: {start} interruptions, {time_s:.0f} s", file=sys.stderr, flush=True)
                return Outcome(interruptions=start, time_s=time_s, saves=record.status.saves or 0)
            time_s += time.time() - began_s
        raise AssertionError(f"{run} did not end within {MAX_STARTS} starts")


def reached(directory: RunDirectory) -> int:
    """Steps behind the newest checkpoint."""
    saved = directory.checkpoints() if directory.path.exists() else []
    return int(read_json(saved[-1].manifest, below=directory.path)["update"]) if saved else 0


def seconds_per_step(forecast: Prediction) -> float:
    """Work of a step, with its share of the evaluations."""
    assert forecast.job_time_s is not None
    assert forecast.interrupted is not None
    return (forecast.job_time_s.value - forecast.interrupted.costs.start_s.value) / (3 * EPOCHS)


def simulated(work: Interval, found: InterruptedForecast, rng: random.Random) -> float:
    """One job, event by event, each figure drawn from its interval."""
    work_s = drawn(work, rng)
    start_s, pause_s = drawn(found.costs.start_s, rng), drawn(found.costs.pause_s, rng)
    time_s = saved_s = 0.0
    while True:
        lives_s, here_s, done_s = rng.expovariate(found.per_h / HOUR_S), start_s, saved_s
        while here_s < lives_s and done_s < work_s:
            length_s = min(found.checkpoint_every_s or work_s, work_s - done_s)
            here_s += length_s + pause_s
            done_s += length_s if here_s <= lives_s else 0.0
        if done_s >= work_s:
            return time_s + here_s
        saved_s, time_s = done_s, time_s + lives_s


def drawn(interval: Interval, rng: random.Random) -> float:
    """A value as the forecast takes its intervals: 80 % lie within."""
    return float(interval.spread(np.array(rng.gauss(0, 1))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainings", type=int, default=10)
    parser.add_argument("--undisturbed", type=int, default=3)
    parser.add_argument("--parallel", type=int, default=3)
    parser.add_argument("--per-h", type=float, default=60.0, help="interruptions an hour; an hour is long here")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bench = Bench(folder=folder, per_h=options.per_h)
        with ThreadPoolExecutor(options.parallel) as pool:
            bench.undisturbed("warm-up")  # makes and decodes the images: no start after it does
            list(pool.map(bench.undisturbed, range(options.undisturbed)))
            question = Question(workers=1, interruptions_per_h=options.per_h)
            forecaster = fit_forecaster(survey_of([folder / "undisturbed"]), question)
            forecast = forecaster.predict(1)
            work = work_time(forecaster.laws, forecast, Interval.exact(EPOCHS))
            numbers = range(options.trainings)
            outcomes = list(pool.map(lambda number: bench.killed(number, options.seed, forecast), numbers))
    print_table(forecast, work, outcomes, options.seed)
    if options.out:
        options.out.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))


def print_table(forecast: Prediction, work: Interval, outcomes: list[Outcome], seed: int) -> None:
    found = forecast.interrupted
    assert found is not None
    assert found.job_time_s is not None
    assert forecast.job_time_s is not None
    time_s, costs = found.job_time_s, found.costs
    print(
        f"{found.per_h:g} interruptions an hour; undisturbed {forecast.job_time_s.value:.0f} s, start "
        f"{costs.start_s.value:.1f} ({costs.start_s.low:.1f} to {costs.start_s.high:.1f}) s, pause "
        f"{1000 * costs.pause_s.value:.0f} ms, saving every {found.checkpoint_every_s or 0:.1f} s"
    )
    interval = f"{time_s.value:.0f} ({time_s.low:.0f} to {time_s.high:.0f}) s"
    print(f"forecast: {interval}, {found.interruptions or 0:.1f} interruptions")
    rng = random.Random(seed)  # noqa: S311
    played = [simulated(work, found, rng) for _ in range(PLAYED)]
    inside = sum(time_s.low <= each <= time_s.high for each in played)
    print(f"simulated: mean {sum(played) / PLAYED:.0f} s; {inside} of {PLAYED} inside")
    undisturbed = forecast.job_time_s
    print(f"undisturbed: {undisturbed.value:.1f} ({undisturbed.low:.1f} to {undisturbed.high:.1f}) s")
    for number, outcome in enumerate(outcomes, start=1):
        mark = "" if time_s.low <= outcome.time_s <= time_s.high else "  outside"
        print(
            f"training {number:2d}: {outcome.interruptions} interruptions, {outcome.saves} checkpoints, "
            f"{outcome.time_s:.0f} s{mark}"
        )
    inside = sum(time_s.low <= outcome.time_s <= time_s.high for outcome in outcomes)
    mean_s = sum(outcome.time_s for outcome in outcomes) / len(outcomes)
    count = sum(outcome.interruptions for outcome in outcomes) / len(outcomes)
    print(f"real: mean {mean_s:.0f} s, {count:.1f} interruptions; {inside} of {len(outcomes)} inside")


if __name__ == "__main__":
    main()
