"""Starts the processes of a training on this machine for the engine horovod, without horovodrun and without ssh:

    python -m turnaround.launch.horovod --processes 2 turnaround.worker RUN

A process of its own, because Horovod's meeting point (an HTTP server on loopback where its processes leave their
addresses) is Horovod's code, which the reading side does not import. Nothing outlives it.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from turnaround.children import die_with_parent
from turnaround.launch import failure
from turnaround.record.layout import RunDirectory
from turnaround.workers.engines import require
from turnaround.workers.environment import VARIABLES

HOST = "127.0.0.1"
GRACE_S = 10.0
"""Time for the others to end by themselves, when one has ended with an error that they probably share."""


def main(arguments: list[str] | None = None) -> int:
    die_with_parent()
    options = _parser().parse_args(arguments)
    require("horovod")
    with _meeting_point(options.processes) as port:
        processes: list[subprocess.Popen[bytes]] = []
        # Before the first process starts, or a signal in between would end us and leave it to die unasked.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, lambda *_: _ask_to_stop(processes))
        command = [sys.executable, "-m", options.module, *options.arguments]
        for rank in range(options.processes):
            # The handlers look at the list, so a request during the loop reaches those that are started.
            environment = environment_of(rank, options.processes, port=port)
            processes.append(subprocess.Popen(command, env=environment, preexec_fn=die_with_parent))
        exit_status = _wait(processes)
        _write_exits(processes, options.arguments)
        return exit_status


def _write_exits(processes: list[subprocess.Popen[bytes]], arguments: list[str]) -> None:
    """Write the exit status of a process that was killed: it has said nothing, and only its parent knows it."""
    directory = RunDirectory(Path(arguments[0] if arguments else "."))
    killed = [(rank, process.returncode) for rank, process in enumerate(processes) if process.returncode < 0]
    if killed and directory.is_run():
        failure.write_exit_if_silent(directory, rank=killed[0][0], exit_status=killed[0][1])


def environment_of(rank: int, size: int, *, port: int, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of one process: Horovod's variables, and none that another launcher has left."""
    # Variables of an outer launcher (torchrun, Slurm) would tell the worker another rank and size.
    left_over = {name for names in VARIABLES.values() for name in names}
    place = dict(zip(VARIABLES["horovod"], map(str, (rank, size, rank, size)), strict=True))
    return {
        **{name: value for name, value in base.items() if name not in left_over},
        **place,
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_HOSTNAME": "localhost",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": HOST,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_IFACE": "lo" if sys.platform == "linux" else "lo0",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }


@contextmanager
def _meeting_point(processes: int) -> Iterator[int]:
    """Run Horovod's rendezvous server, on loopback only, and yield its port."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    with RendezvousHTTPServer((HOST, 0), RendezvousHandler, 0) as server:
        server.init(get_host_assignments(parse_hosts(f"localhost:{processes}"), processes))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


def _ask_to_stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """Send SIGTERM to all workers: each notes it and stops after its step."""
    for process in processes:
        with suppress(ProcessLookupError):
            process.terminate()


def _wait(processes: list[subprocess.Popen[bytes]]) -> int:
    """Wait for all; return the exit status of the first that failed, after ending the others."""
    while True:
        states = [process.poll() for process in processes]
        failed = [status for status in states if status]
        if failed:
            # One that was killed has said nothing: what the others would say is only that they have lost it.
            _end(processes, grace_s=GRACE_S if failed[0] > 0 else 0.0)
            # 128 + the signal, as a shell says it: a process cannot exit with a negative status.
            return failed[0] if failed[0] > 0 else 128 - failed[0]
        if None not in states:
            return 0
        time.sleep(0.05)


def _end(processes: list[subprocess.Popen[bytes]], *, grace_s: float) -> None:
    latest_s = time.monotonic() + grace_s
    for process in processes:
        try:
            process.wait(timeout=max(0.0, latest_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="turnaround.launch.horovod", description=__doc__)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


if __name__ == "__main__":
    sys.exit(main())
