"""This machine: one process directly, several through torch.distributed.run or for Horovod through horovod.py.

Where the command itself was started once for each process, it starts one. Nothing outlives the launcher.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from turnaround.errors import InterruptedRunError
from turnaround.launch import failure
from turnaround.launch.contract import WORKER_MODULE, LaunchPlan, usable_cores
from turnaround.launch.joined import word_given
from turnaround.record.reader import Run

LONGEST_EPOCH_AFTER_STOP_S = 24 * 3600
"""A first Ctrl-C waits for the end of the epoch, however long; a second one does not wait."""

HOROVOD_MODULE = "turnaround.launch.horovod"

# glibc otherwise gives large blocks back to the system after every step and clears them again before the next:
# training a mobilenet on two cores is nearly twice as fast without that.
ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
    "MALLOC_TOP_PAD_": str(2**26),
}


class LocalLauncher:
    """Processes of this machine."""

    def text(self, plan: LaunchPlan) -> str:
        settings = [f"{k}={shlex.quote(v)}" for k, v in settings_for(plan).items()]
        return " ".join([*settings, shlex.join(command(plan))])

    def run(self, plan: LaunchPlan) -> None:
        log = plan.directory.logs / "processes.log"
        if plan.place.rank == 0:  # before the others may start: they could have failed already
            failure.clear(plan.directory)
        with word_given(plan), log.open("ab") as stderr, _stop_requests() as requests:
            process = _start(plan, stderr)
            try:
                exit_status = _wait(process, requests)
            finally:
                _end_group(process)
                shutil.rmtree(_scratch(plan), ignore_errors=True)
        if exit_status == 0 or Run.load(plan.directory.path).status.state == "finished":
            return  # asked to stop in the last epoch: torch.distributed.run calls that a failure, but it is the end
        go_on = f"Go on with `turnaround resume {shlex.quote(str(plan.directory.path))}`."
        if requests.count > 1:
            raise InterruptedRunError(f"Stopped at once, within an epoch; the last checkpoint is kept. {go_on}")
        if requests.count and not failure.is_told(plan.directory):
            raise InterruptedRunError(f"Stopped before the first step. {go_on}")
        cause = failure.first_cause(plan.directory, exit_status=exit_status, log=log)
        raise InterruptedRunError(f"{cause} {go_on}") if isinstance(cause, InterruptedRunError) else cause


def command(plan: LaunchPlan) -> list[str]:
    """The worker entry point, once or as often as there are processes."""
    python = [sys.executable, "-m"]
    if plan.processes == 1 or not plan.place.is_alone:
        return [*python, WORKER_MODULE, *plan.worker_arguments()]
    if plan.engine == "horovod":
        spread = [HOROVOD_MODULE, "--processes", str(plan.processes)]
        return [*python, *spread, WORKER_MODULE, *plan.worker_arguments()]
    spread = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(plan.processes)]
    spread += ["--log-dir", str(_scratch(plan))]
    return [*python, *spread, "-m", WORKER_MODULE, *plan.worker_arguments()]


def _scratch(plan: LaunchPlan) -> Path:
    """Where torch.distributed.run makes its empty folders; without it, they stay in /tmp for ever."""
    return plan.directory.logs / "torchrun"


def settings_for(plan: LaunchPlan, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the processes' environment gets on top of ours; whatever the user has set already stays."""
    settings = {
        # More threads than cores make every process slower: 2 x 2 on two cores is slower than one process.
        "OMP_NUM_THREADS": str(max(1, usable_cores() // plan.processes_here)),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(LONGEST_EPOCH_AFTER_STOP_S),
        **ALLOCATOR,
    }
    if plan.processes > 1 and plan.place.is_alone:
        settings |= loopback()
    return {k: v for k, v in settings.items() if k not in base}


def loopback() -> dict[str, str]:
    """Processes of one machine speak over loopback: no question about which interface, and nobody else can join."""
    return {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}


def die_with_parent() -> None:
    """Asks Linux to end this process when its parent ends, however that ended."""
    if sys.platform != "linux":
        return
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
    parent = os.getppid()
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:  # it ended between the two lines above
        os._exit(1)


def _start(plan: LaunchPlan, log: IO[bytes]) -> subprocess.Popen[bytes]:
    # What a process prints on purpose (the progress) goes to our stderr, everything else into the log; a group of its
    # own keeps a Ctrl-C in the terminal from reaching the processes before us.
    return subprocess.Popen(
        command(plan),
        env={**os.environ, **settings_for(plan)},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        stderr=log,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


class _Requests:
    """How often the user has asked to stop."""

    count = 0


@contextmanager
def _stop_requests() -> Iterator[_Requests]:
    requests = _Requests()

    def ask(_number: int, _frame: object) -> None:
        requests.count += 1

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(process: subprocess.Popen[bytes], requests: _Requests) -> int:
    """The exit status. The first request is passed on politely, the second ends the wait."""
    passed_on = False
    while True:
        try:
            return process.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            if requests.count > 1:
                return -signal.SIGKILL
            if requests.count == 1 and not passed_on:
                passed_on = True
                sys.stderr.write("\nStopping at the end of this epoch. Ctrl-C again stops at once.\n")
                process.terminate()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Whatever is left of the group goes; processes with groups of their own die with their parent."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
