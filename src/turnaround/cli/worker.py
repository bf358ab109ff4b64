"""The entry point of every process of a training, whoever starts it:

    python -m turnaround.cli.worker RUN --pixels CACHE ...
    python -m torch.distributed.run --nproc-per-node 4 -m turnaround.cli.worker RUN --pixels CACHE ...
    python -m turnaround.launch.horovod --processes 4 turnaround.cli.worker RUN --pixels CACHE ...

Without --pixels it gets ready, and waits until whoever started it says where the images are.

Not for people: `turnaround train` prepares what it needs. Prints progress on stdout from process 0 and nothing else.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from turnaround.launch.parent import die_with_parent

if TYPE_CHECKING:
    from turnaround.record.layout import RunDirectory
    from turnaround.training.run import Assignment
    from turnaround.workers.environment import RankInfo


def main(arguments: list[str] | None = None) -> int:
    die_with_parent()  # before anything that takes time: imports of seconds follow
    stop_asked = _listen()
    options = _parser().parse_args(arguments)

    from turnaround.errors import TurnaroundError
    from turnaround.launch import failure
    from turnaround.record.heartbeat import Heartbeat
    from turnaround.record.layout import RunDirectory
    from turnaround.report.progress import SilentProgress, progress_for
    from turnaround.workers.environment import place

    directory, heartbeat = RunDirectory(options.run), Heartbeat()
    here = place()
    shows = here.rank == 0 and not options.quiet
    try:
        from turnaround.training.run import bench, train

        assignment = _assignment(options, directory, here)
        if assignment is None:
            return 1  # nobody is left to be told
        if options.bench is not None:
            bench(assignment, here, part_s=options.bench)
            return 0
        with progress_for(sys.stdout) if shows else SilentProgress() as progress:
            train(assignment, here, progress, heartbeat=heartbeat, stop_asked=lambda: bool(stop_asked))
    except BaseException as error:
        failure.tell(directory, rank=here.rank, error=error, step=heartbeat.step)
        if isinstance(error, TurnaroundError):
            return error.exit_code
        traceback.print_exc()
        return 1
    return 0


def _assignment(options: argparse.Namespace, directory: RunDirectory, here: RankInfo) -> Assignment | None:
    """What we were told; without images only when the word comes that they are there, and None when it never will."""
    from turnaround.launch.handshake import wait_for_launcher
    from turnaround.training.run import Assignment, get_ready

    assignment = Assignment(
        directory=directory,
        pixels_dir=options.pixels or Path(),
        device=options.device,
        launch=options.launch,
        begun_at_s=options.begun_at_s,
        decode_time_s=options.decode_time_s,
        import_time_s=_age_s(),
    )
    if options.pixels is not None:
        return assignment
    get_ready(options.device, here, network=options.network)
    begun_at_s, ready_at_s = time.monotonic() - _age_s(), time.monotonic()
    word = wait_for_launcher(directory)
    if word is None:
        return None
    decode_time_s = word.waited_s(begun_at_s=begun_at_s, ready_at_s=ready_at_s)
    return replace(assignment, pixels_dir=word.pixels_dir, decode_time_s=decode_time_s)


def _age_s() -> float:
    """Since this process began: called when everything is imported, that is how long imports took."""
    import psutil

    return max(0.0, time.time() - psutil.Process().create_time())


def _listen() -> list[int]:
    """A list that is empty until somebody asks us to stop. A handler only notes it: the loop acts on it."""
    received: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, lambda number, _frame: received.append(number))
    return received


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="turnaround.cli.worker", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--pixels", type=Path)
    parser.add_argument("--network", help="without --pixels: whose code is loaded meanwhile")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--begun-at-s", type=float, required=True)
    parser.add_argument("--decode-time-s", type=float, default=0.0)
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--bench", type=float, metavar="SECONDS", help="measure each part for so long; do not train")
    parser.add_argument("--launch", default="local", help="who started the processes; for the record")
    return parser


def leave(exit_status: int) -> NoReturn:
    """Ends the process without tearing down torch: everything is written by now, and the destructors of Gloo's threads
    sometimes abort ("terminate called without an active exception"), which would look like a failed training."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_status)


if __name__ == "__main__":
    leave(main())
