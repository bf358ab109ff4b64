"""The entry point of every process of a training, whoever starts it:

    python -m turnaround.worker RUN
    python -m turnaround.workers.torch_agent --nproc-per-node 4 -m turnaround.worker RUN
    python -m turnaround.launch.horovod --processes 4 turnaround.worker RUN
    python -m turnaround.worker --preload WORDS     begins with the command, which says RUN later (launch/preload.py)

It loads its code and waits for the start message, which says everything else (launch/handshake.py).

Not for people: `turnaround train` prepares what it needs. Prints progress on stdout from process 0 and nothing else.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from turnaround.children import die_with_parent
from turnaround.launch.handshake import Handshake, StartMessage
from turnaround.record.files import open_log
from turnaround.record.host import process_age_s
from turnaround.record.layout import RunDirectory
from turnaround.workers.environment import RankInfo, place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnaround.training.run import Assignment

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
FORKED_VARIABLE = "TURNAROUND_FORKED"
"""Set where a fork server has made this process: from when to when, by the clock of the host, it has loaded the code
of this run. What was loaded before the run began is not in its start-up, and the record says so."""


def main(arguments: list[str] | None = None) -> int:
    die_with_parent()  # before anything that takes time: imports of seconds follow
    stop_requests = _listen()
    options = _parser().parse_args(arguments)
    preloaded = _preloaded(options.preload) if options.preload is not None else None
    run = options.run if preloaded is None else preloaded.run
    if run is None:
        return 1  # the command has ended, or trains otherwise
    directory = RunDirectory(run)
    here = place()
    # Before the imports too: a message that lies there now may be of a start that was killed.
    handshake = Handshake(directory, here, stop_asked=lambda: bool(stop_requests))
    if (early := handshake.look()) is not None:
        begin_cuda_context(early.device, here)

    from turnaround.errors import TurnaroundError
    from turnaround.launch import failure
    from turnaround.record.heartbeat import Heartbeat
    from turnaround.reporting.progress import SilentProgress, progress_for

    heartbeat = Heartbeat()
    try:
        with without_collections():
            from turnaround.training.run import train

        import_time_s = process_age_s() if preloaded is None else preloaded.import_time_s
        message = handshake.wait()
        if message is None:
            return 1  # nobody is left to be told
        assignment = _assignment(handshake, message, here, import_time_s=import_time_s)
        if assignment is None:
            return 1
        if message.bench_part_s is not None:
            from turnaround.training.bench_run import bench

            bench(assignment, here, part_s=message.bench_part_s)
            return 0
        shows = here.rank == 0 and message.shows_progress
        with progress_for(sys.stdout) if shows else SilentProgress() as progress:
            train(
                assignment,
                here,
                progress,
                heartbeat=heartbeat,
                stop_asked=lambda: bool(stop_requests),
                is_stable=_is_stable,
            )
    except BaseException as error:
        if directory.logs.is_dir():  # else process 0 has given the run up
            # Before the process ends: then its connections close, and the launcher looks for the root cause here.
            failure.write_failure(directory, rank=here.rank, error=error, step=heartbeat.step)
        if isinstance(error, TurnaroundError):
            return error.exit_code
        traceback.print_exc()
        return 1
    return 0


class Preloaded(NamedTuple):
    """What a process that begins with the command knows when its code is loaded and its order has come."""

    run: Path | None
    """None: the order never came."""
    import_time_s: float


def _preloaded(words: list[str]) -> Preloaded:
    """Load the code of a training, then wait for the order; take its environment, and the run's log for what is said.

    `words` are the command's: with its own choice of a device it makes no context of a GPU in advance.
    """
    if not any(word.partition("=")[0] == "--device" for word in words):
        begin_cuda_context("auto", RankInfo())
    with without_collections(), suppress(Exception):  # what fails here fails again below, and is said in the run's log
        import turnaround.training.run  # noqa: F401
    import_time_s = process_age_s()
    order = sys.stdin.readline()
    if not order:
        return Preloaded(None, import_time_s)
    told = json.loads(order)
    os.environ.update(told["environment"])
    directory = RunDirectory(Path(told["run"]))
    with open_log(directory.process_log, directory.path) as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    return Preloaded(directory.path, import_time_s)


def _assignment(
    handshake: Handshake, message: StartMessage, here: RankInfo, *, import_time_s: float
) -> Assignment | None:
    """Load what can be loaded without images, then wait for them; None when they will never come."""
    from turnaround.training.clock import StartUp
    from turnaround.training.loading import get_ready, load_late_code
    from turnaround.training.run import Assignment

    began_at_s = time.monotonic() - process_age_s()
    loaded_at_s = began_at_s + import_time_s
    with without_collections():
        get_ready(message.device, here, network=message.network, downloads=message.downloads)
        if message.network is None and (chosen := handshake.wait(for_network=True)) is not None:
            load_late_code(chosen.network, is_alone=here.size == 1, downloads=chosen.downloads)
    ready_at_s = time.monotonic()
    complete = handshake.wait(for_images=True)
    if complete is None or complete.pixels_dir is None:
        return None
    start_up = StartUp(complete.begun_at_s if complete.is_of_this_host else began_at_s)
    for part, at_s in (("command", began_at_s), ("import", loaded_at_s), ("device and network code", ready_at_s)):
        start_up.ended(part, at_s)
    start_up.ended("wait for images")
    return Assignment(
        start_up=start_up,
        directory=handshake.directory,
        pixels_dir=Path(complete.pixels_dir),
        device=complete.device,
        share=complete.share,
        launch="fork server" if FORKED_VARIABLE in os.environ else complete.launch,
        # Clocks of two hosts have nothing to do with each other: elsewhere the program began with this process.
        begun_at_s=complete.begun_at_s if complete.is_of_this_host else began_at_s,
        decode_time_s=complete.waited_s(began_at_s=began_at_s, ready_at_s=ready_at_s),
        import_time_s=import_time_s,
        preloaded_s=preloaded_s(os.environ.get(FORKED_VARIABLE, "[]"), begun_at_s=complete.begun_at_s),
    )


def begin_cuda_context(device: str, here: RankInfo) -> None:
    """Make the CUDA context of this process's GPU in a thread, while Python imports torch.

    The driver takes half a second and more for it, without the interpreter's lock. torch uses the same context, a
    device's primary one, as everything of CUDA's runtime does. Where there is no driver, nothing happens.
    """
    kinds = device.split(",")
    kind = kinds[here.rank] if len(kinds) > 1 else device
    # Of processes with a device of their own each, torch counts those with a GPU (training/choices.py): leave it to it.
    if kind not in ("auto", "cuda") or len(kinds) > 1 or not sys.platform.startswith("linux"):
        return

    def make() -> None:
        import ctypes

        with suppress(OSError, AttributeError):
            driver = ctypes.CDLL("libcuda.so.1")
            count, context = ctypes.c_int(), ctypes.c_void_p()
            if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value:
                # As choices.choose_device takes them. Kept to the end of the process: nobody releases it.
                driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), here.local_rank % count.value)

    threading.Thread(target=make, name="CUDA context", daemon=True).start()


def preloaded_s(loads: str, *, begun_at_s: float) -> float:
    """Return the seconds that a fork server has loaded code before a run began; what the run waited for is its own.

    `loads` is FORKED_VARIABLE's value: a list of [begin, end].
    """
    parts: list[list[float]] = json.loads(loads)
    return sum(min(max(begun_at_s, begin_s), end_s) - begin_s for begin_s, end_s in parts)


def _is_stable(val_accuracy: Sequence[float], num_validation: int) -> bool:
    """Apply the rule of the reports; loaded when it is asked, since most trainings never do."""
    from turnaround.analysis.stable import is_stable

    return is_stable(val_accuracy, num_validation=num_validation)


@contextmanager
def without_collections() -> Iterator[None]:
    """Load code without garbage collections, and leave what was loaded out of all that come later.

    Code lives as long as the process does: a collection would walk over all of it and find nothing. Without them
    `turnaround.training.run` is loaded in 2.4 s instead of 2.7 s of computing (4 starts each, two cores, 2026-11-16).
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _listen() -> list[int]:
    """Return a list that is empty until somebody asks us to stop. A handler only notes it: the loop acts on it."""
    # A request during the imports must not kill a process that the others wait for, so this comes before them.
    received: list[int] = []
    for number in STOP_SIGNALS:
        signal.signal(number, lambda number, _frame: received.append(number))
    # The fork server holds back what comes before somebody listens.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    return received


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="turnaround.worker", description=__doc__)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--preload", nargs=argparse.REMAINDER)
    return parser


def leave(exit_status: int) -> NoReturn:
    """Ends the process without tearing down torch: everything is written by now, and the destructors of Gloo's threads
    sometimes abort ("terminate called without an active exception"), which would look like a failed training."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_status)


if __name__ == "__main__":
    leave(main())
