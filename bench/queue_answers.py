"""How good are the answers about the queue? On a real Slurm whose queue is kept filled; nothing is trained.

    python bench/queue_answers.py --jobs 30 [--seed 1] [--out first.json]     as root; 12 minutes, hardly any computing
    python bench/queue_answers.py --jobs 30 --seed 2 --earlier first.json     answered with what those have taught

Others' jobs come all the time, each with a time limit that it does not use up. Every few seconds one job of ours is
asked about (`sbatch --test-only`) and then submitted. The answer is that of `turnaround predict --on slurm` at that
moment: the cluster's estimate, with the error learnt from those of our jobs that had started by then. Afterwards the
real waits are held against it, against the estimate as it is, and against the answer of the prior alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from slurm.cluster import Cluster, missing  # the cluster of the tests: four nodes with two fake GPUs each
from turnaround.forecast.interval import Interval
from turnaround.forecast.queue import CYCLE_S, Wait, WaitLaw
from turnaround.launch.clusters.slurm import client

OTHERS_WAITING = 5
"""So many jobs of others are kept in the queue."""
EVERY_S = 13.0
"""Between two jobs of ours."""
KINDS = ("t4", "v100")


@dataclass(kw_only=True)
class Asked:
    """One job of ours: what was answered, and what happened."""

    gpus: int
    gpu: str
    job_id: str
    estimated_s: float
    learned_from: int
    answer: Interval
    prior: Interval
    wait_s: float | None = None


def script(*, gpus: int, gpu: str, limit_min: int, seconds: float) -> str:
    """A job that holds GPUs for so long; more than two are those of two nodes."""
    hosts = max(1, gpus // 2)
    asked = f"--gres=gpu:{gpu}:{gpus // hosts} --nodes={hosts} --time={limit_min} --output=/dev/null"
    return f"#!/bin/bash\n#SBATCH {asked}\nsleep {seconds:.1f}\n"


def submit(text: str, folder: Path) -> str:
    file = folder / "job.sh"
    file.write_text(text)
    return client.submit_script(file)


def fill(others: set[str], rng: random.Random, folder: Path) -> None:
    """Jobs of others, until enough of them wait. They use 10 to 90 % of their limits."""
    states = client.job_states()
    waiting = sum(1 for job_id in others if job_id in states and states[job_id].is_waiting)
    for _ in range(OTHERS_WAITING - waiting):
        limit_min = rng.randint(1, 4)
        seconds = limit_min * 60 * rng.uniform(0.1, 0.9)
        gpus = rng.choice((1, 1, 2, 2, 4))
        others.add(submit(script(gpus=gpus, gpu=rng.choice(KINDS), limit_min=limit_min, seconds=seconds), folder))


def note_starts(asked: list[Asked]) -> None:
    states = client.job_states()
    for one in asked:
        state = states.get(one.job_id)
        if one.wait_s is None and state is not None and not state.is_waiting:
            one.wait_s = state.queue_time_s()


def ask(asked: list[Asked], earlier: list[Wait], rng: random.Random, folder: Path) -> None:
    """Ask about one job of ours, answer with what is known now, submit it."""
    gpus, gpu = rng.choice((1, 2, 4)), rng.choice(KINDS)
    text = script(gpus=gpus, gpu=gpu, limit_min=1, seconds=rng.uniform(5, 25))
    estimated_s = client.start_estimate_s(text)
    assert estimated_s is not None, "this cluster always has a plan"
    started = [
        Wait(gpus=one.gpus, gpu=one.gpu, wait_s=one.wait_s, estimated_s=one.estimated_s)
        for one in asked
        if one.wait_s is not None
    ]
    started += earlier
    answers = [WaitLaw().fit(known).predict(gpus=gpus, gpu=gpu, estimated_s=estimated_s) for known in (started, [])]
    learnt, prior = (answer for answer in answers if answer is not None)
    job_id = submit(text, folder)
    asked.append(
        Asked(
            gpus=gpus,
            gpu=gpu,
            job_id=job_id,
            estimated_s=estimated_s,
            learned_from=len(started),
            answer=learnt,
            prior=prior,
        )
    )


def conduct(jobs: int, seed: int, folder: Path, earlier: list[Wait]) -> list[Asked]:
    rng = random.Random(seed)  # noqa: S311
    asked, others = list[Asked](), set[str]()
    next_s = time.monotonic() + 20  # the queue fills first
    while len(asked) < jobs or any(one.wait_s is None for one in asked):
        if len(asked) < jobs:  # then nobody comes any more, and the rest starts
            fill(others, rng, folder)
        note_starts(asked)
        if len(asked) < jobs and time.monotonic() >= next_s:
            ask(asked, earlier, rng, folder)
            next_s += EVERY_S
        time.sleep(2)
    return asked


def is_inside(interval: Interval, wait_s: float) -> bool:
    """Slurm starts jobs in cycles, here of 2 s: nothing is told apart below that."""
    return interval.low - 2 <= wait_s <= interval.high + 2


def print_table(asked: list[Asked]) -> None:
    print("job  GPUs     estimate  learnt from  answer (80 %)           wait")
    for number, one in enumerate(asked, start=1):
        assert one.wait_s is not None
        a = one.answer
        mark = "" if is_inside(a, one.wait_s) else "  outside"
        answer = f"{a.value:4.0f} ({a.low:.0f} to {a.high:.0f}) s"
        print(
            f"{number:3d}  {one.gpus} {one.gpu:5s}  {one.estimated_s:6.0f} s  {one.learned_from:11d}  {answer:22s}"
            f"  {one.wait_s:4.0f} s{mark}"
        )
    done = [(one, one.wait_s) for one in asked if one.wait_s is not None]
    for name, chosen in (("all", done), ("after ten had started", [d for d in done if d[0].learned_from >= 10])):
        if not chosen:
            continue
        inside = sum(is_inside(one.answer, wait_s) for one, wait_s in chosen)
        by_prior = sum(is_inside(one.prior, wait_s) for one, wait_s in chosen)
        plain = statistics.median(abs(one.estimated_s - wait_s) for one, wait_s in chosen)
        learnt = statistics.median(abs(one.answer.value - wait_s) for one, wait_s in chosen)
        pairs = zip(*((one.answer, one.prior) for one, _ in chosen), strict=True)
        widths = [statistics.median(answer.high - answer.low for answer in each) for each in pairs]
        print(
            f"{name}: {inside} of {len(chosen)} inside the answer, {by_prior} inside the prior's; median width "
            f"{widths[0]:.0f} and {widths[1]:.0f} s; median error {learnt:.0f} s, of Slurm's own estimate {plain:.0f} s"
        )


def waits_of(lines: list[dict[str, Any]]) -> list[Wait]:
    return [Wait(**{key: line[key] for key in ("gpus", "gpu", "wait_s", "estimated_s")}) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--earlier", type=Path, help="an --out of another call, whose jobs are known from the beginning"
    )
    options = parser.parse_args()
    earlier = waits_of(json.loads(options.earlier.read_text())) if options.earlier else []
    if problem := missing():
        sys.exit(problem)
    with Cluster() as cluster, tempfile.TemporaryDirectory() as folder:
        os.environ["PATH"] = f"{cluster.commands}{os.pathsep}{os.environ['PATH']}"
        asked = conduct(options.jobs, options.seed, Path(folder), earlier)
    print(f"floor of a wait {CYCLE_S:g} s; seed {options.seed}")
    print_table(asked)
    if options.out:
        options.out.write_text(json.dumps([asdict(one) for one in asked], indent=1))


if __name__ == "__main__":
    main()
