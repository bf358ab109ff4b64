"""A launcher for tests: every process of a training is forked from one that has loaded torch already.

Loading torch takes longer than most trainings of tests do. This is for what is about the trainings themselves; how
processes start, fail and end is tested with the launcher of every day (launch/local.py).
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from turnaround.children import LAUNCHER_VARIABLE
from turnaround.launch import failure, handshake, local
from turnaround.launch.contract import LaunchPlan
from turnaround.launch.handshake import StartMessage
from turnaround.record import heartbeat
from turnaround.record.reader import Run

MAX_TRAINING_S = 300.0
TOLD = ("TRACED_", "TURNAROUND_FAULT")
"""Variables of the test, by how they begin, that the processes of its trainings get; the others are as at first."""


class ForkingLauncher:
    """Processes of this machine, on its CPU; fresh ones for every training."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._parent: subprocess.Popen[str] | None = None
        """tests/forking_parent.py, from the first training on."""

    def text(self, plan: LaunchPlan) -> str:
        return local.LocalLauncher().text(plan)

    @contextmanager
    def started(self, plan: LaunchPlan) -> Iterator[ForkedProcesses]:
        """Nothing is started before the images are there: a fork needs no time."""
        assert plan.message.device == "cpu"
        failure.clear(plan.directory)
        heartbeat.clear(plan.directory)
        yield ForkedProcesses(self, plan)
        handshake.clear(plan.directory)

    def close(self) -> None:
        """Ends the process that forks, and with it all that are left."""
        if self._parent is not None:
            self._parent.kill()
            self._parent.communicate()
            self._parent = None

    def answer(self, asked: dict[str, object]) -> list[int]:
        """What became of each process."""
        if self._parent is None:
            self._parent = self._started()
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps(asked) + "\n")
        self._parent.stdin.flush()
        is_there, _, _ = select.select([self._parent.stdout], [], [], MAX_TRAINING_S)
        answer = self._parent.stdout.readline() if is_there else ""
        if not answer:
            self.close()
            raise AssertionError(f"no answer within {MAX_TRAINING_S:.0f} s:\n{self.log.read_text()[-5000:]}")
        found: list[int] = json.loads(answer)
        return found

    def _started(self) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, LAUNCHER_VARIABLE: str(os.getpid())}
        general = {name: value for name, value in os.environ.items() if not name.startswith(TOLD)}
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "forking_parent"],
                env={**general, **local.ALLOCATOR, **local.loopback(), **own},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )


class ForkedProcesses:
    """One training."""

    def __init__(self, launcher: ForkingLauncher, plan: LaunchPlan) -> None:
        self.launcher, self.plan = launcher, plan

    def run(self, message: StartMessage) -> None:
        """To its end, or the error that production would raise."""
        plan = self.plan
        handshake.write(plan.directory, message)
        told = {name: value for name, value in os.environ.items() if name.startswith(TOLD)}
        told |= {handshake.START_VARIABLE: message.start}
        exit_statuses = self.launcher.answer(
            {
                "arguments": plan.worker_arguments(),
                "environments": [told | _place(rank, plan.processes) for rank in range(plan.processes)],
                "meeting_point": _meeting_point(),
            }
        )
        if any(exit_statuses):
            status = next(filter(None, exit_statuses))
            raise failure.first_cause(plan.directory, exit_status=status, log=self.launcher.log)
        assert Run.load(plan.directory.path).status.state == "finished"


def _place(rank: int, size: int) -> dict[str, str]:
    """As torch.distributed.run says it; a process that is alone is told nothing."""
    if size == 1:
        return {}
    return {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "WORLD_SIZE": f"{size}", "LOCAL_WORLD_SIZE": f"{size}"}


def _meeting_point() -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
