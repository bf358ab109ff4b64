"""Runs what is missing of a study, on this machine. Enters: the planned runs. Leaves: their run directories.

Every run is a `turnaround train` (or `resume`) of its own, or somebody else's program under a watcher. A run that is
timed has the machine to itself; rehearsals, whose times nobody uses, share it, one to a GPU. The processes of all are
forked from one that has loaded their code, which is then waiting for the next. Nothing outlives this process, and
whatever happens to it, the same command goes on: what was done is read from the directories.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from turnaround import safe_path
from turnaround.children import die_with_parent
from turnaround.errors import InterruptedRunError
from turnaround.launch.forked import fork_server
from turnaround.launch.process_settings import process_settings
from turnaround.recipe import Recipe
from turnaround.record.files import open_log
from turnaround.study.plan import PlannedRun
from turnaround.study.program import Program
from turnaround.study.state import RunState, log_of, state_of

# Every look reads all run directories of the study: more often would cost the runs their disk and cores.
POLL_S = 0.5
URGENT_S = 5.0
"""Time for a process to end its own children when nobody waits any more."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Settings that all runs of the study share."""

    folder: Path
    source: str = ""
    """The images to train on; empty when the program is somebody else's."""
    program: Program | None = None
    """Somebody else's, in place of `turnaround train`."""
    overrides: tuple[str, ...] = ()
    device: str = "auto"
    gpus: tuple[str, ...] = ()
    """GPUs as CUDA_VISIBLE_DEVICES names them; empty without GPUs."""
    retries_failed: bool = False
    budget_gpu_s: float | None = None
    """No run is started that would probably exceed it; the first one always is."""

    def command(self, state: RunState) -> list[str]:
        """Return the command for a new run, or a resume; somebody else's program always begins anew."""
        if self.program is not None:
            log = log_of(state.planned, self.folder).absolute()
            return self.program.watched(state.planned, state.directory.absolute(), log)
        planned, program = state.planned, [sys.executable, "-m", "turnaround"]
        where = ["--processes", str(planned.processes), "--device", self.device]
        if state.standing != "missing":
            return [*program, "resume", str(state.directory), *where]
        settings = [*self.overrides, f"training.seed={planned.seed}"]
        return [
            *(*program, "train", self.source, "--workers", str(planned.workers), *where),
            *("--out", str(state.directory), *(part for setting in settings for part in ("--set", setting))),
        ]

    def shown(self, state: RunState) -> str:
        """Return the command as a person would type it."""
        if self.program is not None:
            return self.program.shown(state.planned, state.directory.absolute())
        return shlex.join(self.command(state))


def shared_settings(recipe: Recipe) -> dict[str, object]:
    """Return what all runs of a study share: everything but seed and workers."""
    values = recipe.replace("training", seed=0).replace("workers", count=1).to_dict()
    return {section: content for section, content in values.items() if section != "name"}


@dataclass
class StudyConductor(ABC):
    """Starts the runs of a study that are missing, here or on a cluster, and watches them."""

    work: Work
    planned: Sequence[PlannedRun]
    on_change: Callable[[list[RunState]], None] = field(default=lambda states: None, kw_only=True)
    left_out: list[str] = field(default_factory=list, init=False)
    """Labels of the runs that the budget does not pay for."""
    _tried: set[str] = field(default_factory=set, init=False)
    """The runs that this command has started: one that fails at once would otherwise be started for ever."""

    def states(self) -> list[RunState]:
        """Return the state of every planned run."""
        return [self._state(planned) for planned in self.planned]

    @abstractmethod
    def _state(self, planned: PlannedRun) -> RunState:
        """Return the state of one run, by its record and by what only this command knows of it."""

    @abstractmethod
    def run(self) -> list[RunState]:
        """Run the study to its end; raise InterruptedRunError when asked to stop before."""


@dataclass
class Conductor(StudyConductor):
    """Starts runs on this machine, watches them, and ends with nothing left running."""

    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _gpu_of: dict[str, str] = field(default_factory=dict)
    _stop_asked: bool = False
    _open: ExitStack = field(default_factory=ExitStack)
    _fork_server: dict[str, str] | None = None
    """The variable by which a training finds the fork server; None before the first run."""

    def run(self) -> list[RunState]:
        with self._listening():
            try:
                while True:
                    self._collect()
                    # After `_collect`: a run that has just ended is then read with its final status.
                    states = self.states()
                    self.on_change(states)
                    if self._stop_asked:
                        self._stop()
                        kept = "is saved" if self.work.program is None else "will begin anew"
                        raise InterruptedRunError(f"Stopped; what was running {kept}. The same command goes on.")
                    self._start_what_fits(states)
                    if not self._running:
                        return self.states()
                    time.sleep(POLL_S)
            finally:
                self._kill()
                self._open.close()

    def _state(self, planned: PlannedRun) -> RunState:
        """Return the state of a run; one that ended without leaving a directory has failed."""
        state = state_of(planned, self.work.folder)
        if state.standing != "missing" or planned.name not in self._tried:
            return state
        if planned.name in self._running:
            # A training makes its directory within seconds; a program of somebody else may never make one.
            return replace(state, standing="starting" if self.work.program is None else "running")
        return replace(state, standing="failed", cause="It ended before it had begun; its log says why.")

    def _start_what_fits(self, states: list[RunState]) -> None:
        waiting = [state for state in states if self._is_wanted(state)]
        for state in waiting:
            if not self._has_room(state.planned):
                return  # in order: what comes later must not make it wait for ever
            if not is_paid_for(self.work.budget_gpu_s, state, states):
                self.left_out = [other.planned.label for other in waiting if other.planned.name not in self._tried]
                return
            self._start(state)

    def _is_wanted(self, state: RunState) -> bool:
        if state.is_done or state.standing in ("starting", "running") or state.planned.name in self._tried:
            return False
        return state.standing != "failed" or self.work.retries_failed

    def _has_room(self, planned: PlannedRun) -> bool:
        """A timed run is alone; rehearsals go one to a GPU, and on a CPU one at a time."""
        if not self._running:
            return True
        running = [other for other in self.planned if other.name in self._running]
        if not planned.is_rehearsal or any(not other.is_rehearsal for other in running):
            return False
        return len(running) < len(self.work.gpus)

    def _start(self, state: RunState) -> None:
        name = state.planned.name
        environment = {**os.environ, **safe_path.settings()}  # of its watcher, where the program is somebody else's
        if self.work.gpus and state.planned.processes == 1:
            # `_has_room` allows a run only while fewer run than there are GPUs, so one is free.
            free = [gpu for gpu in self.work.gpus if gpu not in self._gpu_of.values()]
            self._gpu_of[name] = environment["CUDA_VISIBLE_DEVICES"] = free[0]
        if self.work.program is None:
            environment |= self._server()
        with open_log(log_of(state.planned, self.work.folder)) as log:
            self._running[name] = subprocess.Popen(
                self.work.command(state),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C in the terminal is ours to pass on
                preexec_fn=die_with_parent,
            )
        self._tried.add(name)

    def _server(self) -> dict[str, str]:
        """Return the fork server's variable. The first run starts it, and waits for the code as it would alone."""
        if self._fork_server is None:
            self._fork_server = self._open.enter_context(fork_server(process_settings(1)))
        return self._fork_server

    def _collect(self) -> None:
        for name, process in list(self._running.items()):
            if process.poll() is not None:
                del self._running[name]
                self._gpu_of.pop(name, None)

    def _stop(self) -> None:
        """Ask all runs to stop: each saves what it has. A second request ends the wait."""
        self._stop_asked = False
        for process in self._running.values():
            process.terminate()
        # No limit: each run may wait for its step, an evaluation and a checkpoint. A second Ctrl-C is the limit.
        while self._running and not self._stop_asked:
            time.sleep(0.1)
            self._collect()

    def _kill(self) -> None:
        """Kill what is left, after a second SIGTERM that lets each run end the processes it has started itself."""
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(timeout=URGENT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @contextmanager
    def _listening(self) -> Iterator[None]:
        def ask(_number: int, _frame: object) -> None:
            self._stop_asked = True

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def is_paid_for(budget_gpu_s: float | None, state: RunState, states: Sequence[RunState]) -> bool:
    """Return whether the budget covers one more run, by the dearest of its kind so far."""
    done = [s for s in states if s.program_s]
    if budget_gpu_s is None or not done:
        return True
    costs = {s.planned.name: (s.program_s or 0.0) * s.planned.processes for s in done}
    alike = [costs[s.planned.name] for s in done if s.planned.is_rehearsal == state.planned.is_rehearsal]
    return sum(costs.values()) + max(alike or costs.values()) <= budget_gpu_s


def seconds_left(states: Sequence[RunState]) -> float | None:
    """Estimate the time left from the runs that are done; None before the first."""
    done = [s.program_s for s in states if s.is_done and s.program_s]
    if not done:
        return None
    each = sum(done) / len(done)
    shares = [1 - (s.epochs_done / s.epochs if s.epochs else 0.0) for s in states if not s.is_done]
    return each * sum(shares)
