"""This machine: one process directly, several through the engine's launcher (torch_agent.py, horovod.py).

Where the command itself was started once for each process, it starts one. Nothing outlives the launcher.
"""

from __future__ import annotations

import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace

from turnaround import safe_path
from turnaround.children import LAUNCHER_VARIABLE, die_with_parent
from turnaround.errors import InputError, InterruptedRunError, StorageError, TurnaroundError
from turnaround.launch import failure, handshake, preload
from turnaround.launch.contract import WORKER_MODULE, LaunchPlan, MoreProcessesError, never
from turnaround.launch.forked import (
    SERVER_MODULE,
    ForkedProcess,
    PendingFork,
    TrainingProcess,
    ask_for_fork,
    has_server,
)
from turnaround.launch.handshake import StartMessage
from turnaround.launch.process_settings import process_settings
from turnaround.launch.watchdog import ProcessTreeWatch
from turnaround.record import heartbeat
from turnaround.record.files import open_log
from turnaround.record.host import is_private
from turnaround.record.layout import RunDirectory
from turnaround.record.places import clear_log
from turnaround.record.reader import Run
from turnaround.record.writer import remove_leftovers
from turnaround.workers.engines import ENGINES

GRACE_S = 15.0
"""Time that the others have, after one process has ended, to save what they have or to say why they fail."""
PATIENCE_S = 300.0
"""The watchdog ends a training without progress after this; less than a collective waits (workers/torch_ddp.py)."""
GROW_EVERY_S = 30.0
"""A run that has lost GPUs asks so often whether they are back: NVML answers in milliseconds, a start takes seconds."""
PATIENCE_VARIABLE = "TURNAROUND_WATCHDOG_S"


class LocalLauncher:
    """Processes of this machine."""

    def text(self, plan: LaunchPlan) -> str:
        settings = [f"{k}={shlex.quote(v)}" for k, v in settings_for(plan).items()]
        return " ".join([*settings, shlex.join(command(plan))])

    @contextmanager
    def started(self, plan: LaunchPlan) -> Iterator[LocalProcesses]:
        directory, writes_message = plan.directory, plan.place.rank == 0
        if writes_message:
            # Before any process may start: what an earlier start has left must not be taken for word of this one.
            clear_traces(directory)
            handshake.write(directory, plan.message)
        processes = LocalProcesses(plan)
        try:
            processes.start()
            yield processes
        finally:
            # The processes first: `clear_log` replaces the log of a private run, and whoever still wrote would write
            # into the file that it replaced.
            processes.end()
            if writes_message:
                handshake.clear(directory)
            if plan.place.is_alone and is_private():
                clear_log(directory.process_log, directory.path)


class LocalProcesses:
    """The processes of one start on this machine: one process, or a launcher with several below it."""

    def __init__(self, plan: LaunchPlan) -> None:
        self.plan = plan
        self._process: TrainingProcess | None = None
        self._pending: PendingFork | None = None
        self._grows = False

    def start(self) -> None:
        """Start what `command` says, or ask the fork server for the same, once the network is known: its code is loaded
        there, for the next run too."""
        if self.plan.message.network is None and has_server(os.environ):
            return
        # A signal must not come while a process is made that nobody has in hand yet: it comes right afterwards.
        with _stop_requests(self.plan) as requests:
            self._pending = _ask_fork_server(self.plan)
            if self._pending is None:
                self._process = _start(self.plan)
        for number in requests.received:
            signal.raise_signal(number)

    def tell(self, message: StartMessage) -> None:
        if message == self.plan.message:
            return
        self.plan = replace(self.plan, message=message)
        if self.plan.place.rank == 0:
            handshake.write(self.plan.directory, message)
        if self._process is None and self._pending is None:
            self.start()

    def end(self) -> None:
        """End whatever is left of them: the group; those with groups of their own die with their parent."""
        if self._pending is not None:
            self._pending.close()
        # A forked process leads a group as well (worker_server._become), so one call ends either kind.
        process, self._process = self._process, None  # a group's number may be another's later: it is ended once
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def run(self, message: StartMessage, *, can_grow: Callable[[], bool] = never) -> None:
        plan = self.plan
        watch = heartbeat.HeartbeatMonitor(plan.directory, patience_s=patience_s())
        with _stop_requests(plan) as requests:
            if plan.place.rank == 0:
                # Before the answer of the fork server: what it forks finds the complete message at once.
                handshake.write(plan.directory, message)
            try:
                if self._pending is not None:
                    # `_pending` stays until there is a process: should this raise, `end` takes the request back.
                    forked = self._pending.result(is_given_up=lambda: bool(requests.received))
                    self._process = forked or _start(plan)
                    self._pending = None
                # The handlers are installed before the message is out: from then on a process may train and have
                # something to save, so a signal to us must be passed on instead of ending us.
                exit_status = self._wait(message, requests, watch, can_grow)
            finally:
                self.end()
        # Only now, when nothing of the start can write any more, the record says how it ended.
        if not plan.directory.is_run():
            raise failure.vanished(plan.directory)
        if _is_done(plan, exit_status):
            if plan.place.is_alone:  # a process that was killed after its last word could not do it
                clear_traces(plan.directory)
            return
        go_on = f"Go on with `turnaround resume {shlex.quote(str(plan.directory.path))}`."
        # The user's wish goes before what the processes say: it is the second request that has killed them.
        if requests.is_urgent:
            raise InterruptedRunError(f"Stopped at once, within an epoch; the last checkpoint is kept. {go_on}")
        # A training that stops on request writes that down (failure.py): without a word of any, none had begun.
        if requests.received and not failure.has_failures(plan.directory):
            raise InterruptedRunError(f"Stopped before the first step. {go_on}")
        cause = _cause(plan, exit_status, watch)
        if self._grows and not requests.received and isinstance(cause, InterruptedRunError):
            raise MoreProcessesError(str(cause))
        raise InterruptedRunError(f"{cause} {go_on}") if isinstance(cause, InterruptedRunError) else cause

    def _wait(
        self,
        message: StartMessage,
        requests: _StopSignals,
        watch: heartbeat.HeartbeatMonitor,
        can_grow: Callable[[], bool],
    ) -> int:
        """Return the exit status. The first request to stop is passed on; the second ends the wait, as a death does.

        A request may reach one process before it listens, and the others would wait for it in vain. Where nobody
        trains yet there is nothing to save: they get a moment to end by themselves.
        """
        process, passed_on_s, looked_s = self._process, math.inf, time.monotonic()
        asked_s = looked_s
        assert process is not None, "started once, and run once"
        tree = _watched_tree(process, self.plan, patience_s=watch.patience_s)
        while True:
            try:
                # Python resumes a wait after a signal handler (PEP 475): a request is seen when this one times out.
                return process.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                if requests.is_urgent:
                    return -signal.SIGKILL
                if requests.received and passed_on_s == math.inf:
                    passed_on_s = time.monotonic()
                    sys.stderr.write("\nStopping after this step. Ctrl-C again stops at once.\n")
                    # To our child alone, which passes it on: the workers of torch.distributed.run have sessions of
                    # their own, and a signal to the group would miss them.
                    process.terminate()
            if time.monotonic() - looked_s >= heartbeat.EVERY_S:
                looked_s = time.monotonic()
                # One is gone and the others have had their time to say why, or nothing gets on: `end` kills what is
                # left.
                if watch.look() is not None or watch.gone_for_s > GRACE_S:
                    return -signal.SIGKILL
                if (verdict := tree.look(with_heartbeat=watch.pids)) is not None:
                    watch.verdict, watch.silent_ranks = verdict, tree.silent_ranks
                    return -signal.SIGKILL
                # -inf while no request was passed on: never true then.
                if not watch.has_begun and looked_s - passed_on_s > GRACE_S:
                    return -signal.SIGKILL
                message = self._repeat(message, has_begun=watch.has_begun)
                if looked_s - asked_s >= GROW_EVERY_S and watch.has_begun and not (self._grows or requests.received):
                    asked_s, self._grows = looked_s, can_grow()
                    if self._grows:
                        process.terminate()

    def _repeat(self, message: StartMessage, *, has_begun: bool) -> StartMessage:
        """Write the message anew, for processes of other launchers: to them a message counts that changes.

        The first step of any process needs all of them, so once one trains everybody has heard it.
        """
        if self.plan.place.is_alone or self.plan.place.rank != 0 or has_begun:
            return message
        message = replace(message, beat=message.beat + 1)
        with suppress(StorageError):  # a full disk: the training will say so itself
            handshake.write(self.plan.directory, message)
        return message


def clear_traces(directory: RunDirectory) -> None:
    """Remove what only a start that is under way needs: heartbeats, reasons, files that were not finished."""
    remove_leftovers(directory.path, directory.path, directory.logs)
    failure.clear(directory)
    heartbeat.clear(directory)


def patience_s(variables: Mapping[str, str] = os.environ) -> float:
    """Return the watchdog's timeout: how long a training may make no progress."""
    text = variables.get(PATIENCE_VARIABLE, str(PATIENCE_S))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    # Not `seconds <= 0`, which is false of a NaN.
    if not seconds > 0:
        raise InputError(f"{PATIENCE_VARIABLE} must be a number of seconds above 0. Received: {text!r}.")
    return seconds


def _is_done(plan: LaunchPlan, exit_status: int) -> bool:
    """Return whether the run is finished: a process that leaves early without an error has not finished it."""
    # A measurement trains nothing: its run never says "finished".
    if plan.message.bench_part_s is not None:
        return exit_status == 0
    is_finished = Run.load(plan.directory.path).status.state == "finished"
    # Asked to stop at the very end, torch.distributed.run calls it a failure, but it is the end. Under a launcher of
    # others only process 0 knows the end for certain.
    return is_finished or (exit_status == 0 and plan.place.rank > 0)


def _cause(plan: LaunchPlan, exit_status: int, watch: heartbeat.HeartbeatMonitor) -> TurnaroundError:
    """Return the root cause: what the processes have said, who died without a word, or the watchdog's verdict."""
    directory, log = plan.directory, plan.directory.process_log
    # The verdict first: what is written once it has ended them is a consequence.
    if watch.verdict is not None:
        sentence = f"{watch.verdict} {failure.how_to_go_on(directory, log)}"
        return failure.RankFailedError(sentence, ranks=watch.silent_ranks)
    if not plan.place.is_alone:
        # Other launchers look for their cause too: a process that was killed is named before we wait for theirs.
        failure.write_exit_if_silent(directory, rank=plan.place.rank, exit_status=exit_status)
        failure.wait_for_others(directory)
    return failure.first_cause(directory, exit_status=exit_status, log=log, gone=watch.gone)


def command(plan: LaunchPlan) -> list[str]:
    """Return the command line of the worker entry point, for one process or for all of them."""
    python = [sys.executable, "-m"]
    if plan.processes == 1 or not plan.place.is_alone:
        return [*python, WORKER_MODULE, *plan.worker_arguments()]
    return [*python, *ENGINES[plan.engine].spread(plan.processes), WORKER_MODULE, *plan.worker_arguments()]


def launcher_of(plan: LaunchPlan) -> str | None:
    """Return the name of what starts the processes below ours; None where our child is the training process itself."""
    if plan.processes == 1 or not plan.place.is_alone:
        return None
    # The module that `python -m` runs: the first word with a dot.
    return next(part for part in ENGINES[plan.engine].spread(plan.processes) if "." in part)


def _watched_tree(process: TrainingProcess, plan: LaunchPlan, *, patience_s: float) -> ProcessTreeWatch:
    """Return the watch over what was started: by a launcher of its own, by the fork server, or directly."""
    launcher, ranks = launcher_of(plan), None
    if isinstance(process, ForkedProcess):
        launcher, ranks = SERVER_MODULE if plan.processes > 1 else None, process.ranks
    log = plan.directory.process_log
    return ProcessTreeWatch(process.pid, log, patience_s=patience_s, launcher=launcher, ranks=ranks)


def settings_for(plan: LaunchPlan, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what the processes' environment gets on top of ours; whatever the user has set already stays."""
    settings = process_settings(plan.processes_here, base)
    # Not under a launcher of others: its processes may be on several hosts, which loopback does not connect.
    if plan.processes > 1 and plan.place.is_alone:
        settings |= {k: v for k, v in loopback().items() if k not in base}
    return settings


def loopback() -> dict[str, str]:
    """Return the settings for loopback: no question about which interface, and nobody outside reaches the processes.

    They are for messages alone; the store where the processes meet is bound by loopback_store.py.
    """
    return {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}


def _environment(plan: LaunchPlan) -> dict[str, str]:
    # The plan's own variables after the user's: the GPUs that are left after a failure, whatever was visible before.
    settings = {**safe_path.settings(), **settings_for(plan), **plan.environment}
    environment = {**os.environ, **settings, LAUNCHER_VARIABLE: str(os.getpid())}
    return {**environment, handshake.START_VARIABLE: plan.message.start} if plan.place.is_alone else environment


def _ask_fork_server(plan: LaunchPlan) -> PendingFork | None:
    """Ask the fork server, where there is one, for the processes of this plan."""
    if not plan.place.is_alone:
        return None
    with open_log(plan.directory.process_log, plan.directory.path) as log:
        return ask_for_fork(
            plan.directory.path,
            network=plan.message.network,
            environment=_environment(plan),
            log=log,
            processes=plan.processes,
            engine=plan.engine,
        )


def _start(plan: LaunchPlan) -> TrainingProcess:
    if plan.processes == 1 and plan.place.is_alone:
        waiting = preload.adopted(str(plan.directory.path), _environment(plan), plan.environment)
        if waiting is not None:
            return waiting
    # Where the waiting process does not fit: it may hold a context of the GPU that the others need for themselves.
    preload.end()
    with open_log(plan.directory.process_log, plan.directory.path) as log:
        # What a process prints on purpose (the progress) goes to our stderr, everything else into the log; a group of
        # its own keeps a Ctrl-C in the terminal from reaching the processes before us.
        return subprocess.Popen(
            command(plan),
            env=_environment(plan),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


class _StopSignals:
    """The requests to stop that have come: Ctrl-C, a batch system before its time limit (SIGTERM, SIGUSR2)."""

    def __init__(self, *, is_alone: bool = True) -> None:
        self.received: list[int] = []
        self.is_alone = is_alone

    @property
    def is_urgent(self) -> bool:
        """The same request twice; a batch system's two different ones are one wish, and so are its warnings, which are
        repeated in case they came too early. A launcher of others passes on what its processes have received already:
        twice is one wish then, and who has no patience ends the launcher."""
        requests = [number for number in self.received if number != signal.SIGUSR2]
        return self.is_alone and len(requests) > len(set(requests))


@contextmanager
def _stop_requests(plan: LaunchPlan) -> Iterator[_StopSignals]:
    requests = _StopSignals(is_alone=plan.place.is_alone)

    def ask(number: int, _frame: object) -> None:
        requests.received.append(number)

    # A handler only notes the request: it may interrupt any line, also one that writes a file.
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)}
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
