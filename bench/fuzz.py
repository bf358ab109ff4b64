"""Whatever is in the files, only our own errors come out: recipes, run directories, checkpoints and images, mutated.

    python bench/fuzz.py [--cases 10000] [--seed 0] [--json]

Each kind of file gets so many cases (hypothesis): valid files changed byte by byte, cut, doubled, with wrong numbers in
their headers; JSON whose values were replaced, removed and renamed. What reads them may return, or raise an error of
errors.py. Any other exception, a case over 20 s, or more than 1 GiB of memory is a failure, and hypothesis shows the
smallest case. tests/fuzz runs a few hundred cases of each kind.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz_cases import KINDS, Sample
from hypothesis import HealthCheck, given, seed, settings

from turnaround import recipes
from turnaround.errors import TurnaroundError

MAX_CASE_S = 20.0
MAX_BYTES = 2**30


@dataclass(kw_only=True)
class Tally:
    """Of one kind."""

    cases: int = 0
    ours: int = 0
    """Cases that ended in an error of errors.py."""
    slowest_s: float = 0.0
    memory_mib: float = 0.0
    """How much the process grew at most, over all cases."""


def hunt(kind: str, sample: Sample, *, cases: int, number: int = 0) -> Tally:
    """Raises what came out and should not have, with the smallest case."""
    strategy, read = KINDS[kind]
    cases_of_it, tally = strategy(sample), Tally()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    @seed(number)
    @settings(max_examples=cases, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(cases_of_it)
    def one(case: Any) -> None:
        begun_s = time.process_time()  # the machine may have other work
        try:
            read(sample, case)
        except TurnaroundError:
            tally.ours += 1
        taken_s = time.process_time() - begun_s
        tally.cases, tally.slowest_s = tally.cases + 1, max(tally.slowest_s, taken_s)
        assert taken_s < MAX_CASE_S, f"took {taken_s:.0f} s"

    one()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * (1 if sys.platform == "darwin" else 1024)
    tally.memory_mib = grown / 2**20
    assert grown < MAX_BYTES, f"{kind}: {grown / 2**20:.0f} MiB of memory"
    return tally


def trained(folder: Path) -> Path:
    """A small real run."""
    from turnaround import fruitbowl
    from turnaround.launch.lifecycle import Request, start

    images = fruitbowl.generate(folder / "images", images=60, size_px=32, seed=3)
    wanted = ["data.size_px=32", "training.epochs=3", "training.checkpoint_every_s=0", f"data.cache={folder / 'cache'}"]
    asked = Request(out=folder / "trained", show=lambda *_: None, device="cpu", shows_progress=False)
    return start(recipes.find(str(images), wanted), asked).path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="of each kind")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tallies: dict[str, Tally] = {}
    with tempfile.TemporaryDirectory() as name:
        sample = Sample(trained(Path(name)), Path(name))
        for kind in options.kind or KINDS:
            tallies[kind] = tally = hunt(kind, sample, cases=options.cases, number=options.seed)
            if not options.json:
                print(
                    f"{kind:<11} {tally.cases:>7,} cases, {tally.ours:>7,} ended in an error of ours, slowest "
                    f"{1000 * tally.slowest_s:,.0f} ms, {tally.memory_mib:,.0f} MiB more memory",
                    flush=True,
                )
    if options.json:
        print(json.dumps({kind: vars(tally) for kind, tally in tallies.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
