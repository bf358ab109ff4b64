"""Watches one program of somebody else from outside. Enters: its words. Leaves: a run directory, whatever it did.

    python -m turnaround.study.outside --run DIR --log FILE --workers N --seed S --template TEXT -- WORD...

A program that records itself (turnaround.Recorder) has written its run when it ends; what it could not know itself is
added: how it ended, and how long it took in all. Of any other program, that is all there is.

A program cannot be resumed by somebody who does not know it, so every start is a new one. What an earlier one left in
the run directory is moved to .earlier/ in the study's folder, where no report looks. In a job of a cluster, its script
and its output stay, and SIGUSR2, the warning that time is nearly up, ends the program: again, it would take as long.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from turnaround import safe_path
from turnaround.children import die_with_parent
from turnaround.errors import RunDirectoryError, TurnaroundError
from turnaround.record.files import open_file, open_log, read_json
from turnaround.record.host import own_job
from turnaround.record.layout import RunDirectory, StudyDirectory, default_run_path
from turnaround.record.machine import describe
from turnaround.record.reader import Run, status_of
from turnaround.record.schema import Status, utc_now
from turnaround.record.writer import write_json, write_status
from turnaround.study.program import environment
from turnaround.words import harmless

# Also the limit for ending what the program has left behind (`_end_all`).
GRACE_S = 30.0
"""Time to save something after a polite request, as batch systems give it. A second request ends it."""
POLL_S = 0.05
TAIL_LINES = 3
TAIL_CHARACTERS = 300
STOPPED = 75


@dataclass(frozen=True, kw_only=True)
class ProgramRun:
    """One run of a program."""

    run: Path
    log: Path
    workers: int
    seed: int
    template: str
    """The command of the study, placeholders and all: what its runs have in common."""
    words: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ProgramResult:
    """The end of a program, as seen from outside."""

    started_at: str
    wall_s: float
    exit_code: int | None
    """The exit status as Python counts: -9 was killed by signal 9. None when it never started."""
    was_stopped: bool = False
    """True when it was stopped on request: the study will start it again."""
    is_out_of_time: bool = False
    """Its job was warned of the end: the study will not start it again by itself."""
    refusal: str = ""
    """Why it never started."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status; 75 when it was asked to stop."""
    watched = _parsed(arguments)
    requests = _StopRequests()
    try:
        clear(watched.run)
        begins_at = watched.log.stat().st_size if watched.log.exists() else 0
        ending = _run(watched, requests)
        _record(watched, ending, begins_at)
    except TurnaroundError as error:
        sys.stderr.write(f"{harmless(str(error))}\n")
        return error.exit_code
    if ending.was_stopped:
        return STOPPED
    code = ending.exit_code
    return 1 if code is None else code if code >= 0 else 128 - code


def _parsed(arguments: Sequence[str] | None) -> ProgramRun:
    given = list(sys.argv[1:] if arguments is None else arguments)
    cut = given.index("--") if "--" in given else len(given)  # what follows is the program's, dashes and all
    parser = argparse.ArgumentParser(prog="turnaround.study.outside", description="Runs one program and times it.")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--template", required=True)
    return ProgramRun(**vars(parser.parse_args(given[:cut])), words=tuple(given[cut + 1 :]))


def clear(path: Path) -> None:
    """A directory to begin in. Nothing is deleted, and what the job has brought in which this runs stays."""
    directory = RunDirectory(path)
    status, entries = status_of(directory), set(path.glob("*"))
    slurm = status.job if status and status.job and status.job.job_id == own_job() else None
    if slurm:
        entries |= set(directory.other_logs())
        entries -= {directory.status, directory.job_script, directory.logs}
    earlier = default_run_path(StudyDirectory(path.parent).earlier, path.name)
    for entry in entries:
        target = earlier / entry.relative_to(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        entry.rename(target)
    if entries and status and slurm:
        # It has waited, run, and been taken back: all of that is queue now.
        anew = Status(state="queued", submitted_at=status.submitted_at, job=replace(slurm, requeued_s=0.0))
        write_status(directory, anew)
    path.mkdir(parents=True, exist_ok=True)


# --- running it


class _StopRequests:
    """Stop requests, and the end of the study, which Linux tells in the same way; and a batch system's warning."""

    def __init__(self) -> None:
        self.count, self.is_out_of_time = 0, False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)
        signal.signal(signal.SIGUSR2, self._warn)
        if sys.platform == "linux":
            library = ctypes.CDLL(None)
            parent_death_signal, child_subreaper = 1, 36  # of <sys/prctl.h>
            library.prctl(parent_death_signal, signal.SIGTERM)
            # Whatever the program leaves behind becomes our child, and can be found and ended.
            library.prctl(child_subreaper, 1)

    def _ask(self, _number: int, _frame: object) -> None:
        self.count += 1

    def _warn(self, _number: int, _frame: object) -> None:
        """Note a warning, which comes again and again in case it came too early: it is one request."""
        self.count += not self.is_out_of_time
        self.is_out_of_time = True


def _run(watched: ProgramRun, requests: _StopRequests) -> ProgramResult:
    started_at, began_s = utc_now(), time.monotonic()
    settings = environment(watched.workers, watched.seed, watched.run)
    with open_log(watched.log) as log:
        try:
            process = subprocess.Popen(
                watched.words,
                env={**safe_path.as_it_was(), **settings},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that a request reaches all of it, and nobody else
                preexec_fn=die_with_parent,
            )
        except (OSError, ValueError) as error:
            refusal = getattr(error, "strerror", None) or str(error)
            return ProgramResult(started_at=started_at, wall_s=0.0, exit_code=None, refusal=refusal)
        try:
            exit_code = _wait(process, requests)
            wall_s = time.monotonic() - began_s
        finally:
            _end_all(process)
    return ProgramResult(
        started_at=started_at,
        wall_s=wall_s,
        exit_code=exit_code,
        was_stopped=requests.count > 0 and not requests.is_out_of_time,
        is_out_of_time=requests.is_out_of_time,
    )


def _wait(process: subprocess.Popen[bytes], requests: _StopRequests) -> int:
    latest_s, asked = float("inf"), 0
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=POLL_S)
        if requests.count and not asked:
            # Requests that came together count as one; only a later one is a second.
            asked = requests.count
            latest_s = time.monotonic() + GRACE_S
            _signal_group(process, signal.SIGTERM)
        if (asked and requests.count > asked) or time.monotonic() > latest_s:
            return -signal.SIGKILL


def _end_all(process: subprocess.Popen[bytes]) -> None:
    """Kill whatever is left: its process group, and its descendants wherever they went."""
    # The group first, then the tree: a descendant with a session of its own is found as our child (subreaper).
    _signal_group(process, signal.SIGKILL)
    process.wait()
    latest_s = time.monotonic() + GRACE_S
    # Again until none is left: a process may fork between the listing and its kill.
    while (left := psutil.Process().children(recursive=True)) and time.monotonic() < latest_s:
        for child in left:
            with contextlib.suppress(psutil.Error):
                child.kill()
        psutil.wait_procs(left, timeout=1.0)


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


# --- what is left of it


def _record(watched: ProgramRun, ending: ProgramResult, begins_at: int) -> None:
    directory = RunDirectory(watched.run)
    cause = _cause(watched, ending, begins_at)
    if directory.is_run():
        _complete(directory, ending, cause)
    elif not ending.was_stopped:  # else there is nothing to tell: it was not run yet
        _write(directory, watched, ending, cause)


def _cause(watched: ProgramRun, ending: ProgramResult, begins_at: int) -> str | None:
    """Return why it is no result; None when it is one."""
    program = shlex.join(watched.words)
    if ending.was_stopped:
        return "It was stopped on request."
    if ending.is_out_of_time:
        return (
            f"{program} was stopped after {ending.wall_s:.0f} s: its job's time limit was near, or others go first. "
            "Give it more time (--time) and try it again (--retry)."
        )
    if ending.refusal:
        return f"{program} could not be started: {ending.refusal}."
    if ending.exit_code == 0:
        return None
    last = tail(watched.log, begins_at)
    said = f"Its last words: {last}" if last else "It printed nothing."
    return f"{program} {_how(ending.exit_code or 0)}. {said} (all of it: {watched.log})."


def _how(exit_code: int) -> str:
    if exit_code > 0:
        return f"ended with exit status {exit_code}"
    try:
        return f"was killed by signal {-exit_code} ({signal.Signals(-exit_code).name})"
    except ValueError:
        return f"was killed by signal {-exit_code}"


def tail(log: Path, begins_at: int) -> str:
    """Return the last lines printed since, on one line and without what could change a terminal."""
    with contextlib.suppress(RunDirectoryError, OSError), open_file(log) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(begins_at, end - 16_384))
        # Up to the end as it was: a log that still grows must not be read for ever.
        text = file.read(end - file.tell()).decode("utf-8", "replace")
        lines = ["".join(c if c.isprintable() else " " for c in line).strip() for line in text.splitlines()]
        return " / ".join([line for line in lines if line][-TAIL_LINES:])[-TAIL_CHARACTERS:]
    return ""


def _complete(directory: RunDirectory, ending: ProgramResult, cause: str | None) -> None:
    """Complete the program's own record with what only somebody outside can know."""
    try:
        status = Run(directory).status
        machine = read_json(directory.machine)
    except RunDirectoryError:  # the study says which file is damaged
        return
    # The status last: who sees the end of the run finds the rest in place.
    write_json(directory.machine, {**machine, "program": _program(ending)})
    write_status(directory, _completed(status, ending, cause))


def _completed(status: Status, ending: ProgramResult, cause: str | None) -> Status:
    program_s = max(ending.wall_s, status.time_s.get("program", 0.0))  # with what came before the recorder
    status = replace(status, time_s={**status.time_s, "program": program_s}, ended_at=status.ended_at or utc_now())
    is_open = status.state in ("queued", "running")
    if ending.was_stopped:
        return replace(status, state="interrupted", cause=status.cause or cause) if is_open else status
    if cause is not None and (is_open or status.state in ("finished", "failed")):
        return replace(status, state="failed", cause=status.cause or cause)
    return replace(status, state="finished") if is_open else status


def _write(directory: RunDirectory, watched: ProgramRun, ending: ProgramResult, cause: str | None) -> None:
    """Write the run of a program that keeps no record: the recipe last, since it makes the directory a run."""
    before = status_of(directory) or Status(state="running", started_at=ending.started_at)
    hosts = before.job.hosts if before.job else []
    write_json(
        directory.machine,
        {
            **describe(workers=watched.workers, processes=watched.workers, engine="", launch="command", device=""),
            "engine": None,
            "device": None,  # it did not say
            "hosts": len(hosts) or 1,
            "command": list(watched.words),
            "program": _program(ending),
        },
    )
    status = replace(before, time_s={"program": ending.wall_s}, started_at=before.started_at or ending.started_at)
    write_status(directory, _completed(status, ending, cause))
    write_json(directory.recipe, _recipe(watched))


def _program(ending: ProgramResult) -> dict[str, Any]:
    return {"exit_code": ending.exit_code, "wall_s": ending.wall_s}


def _recipe(watched: ProgramRun) -> dict[str, Any]:
    """The little that is known; `program` says that the program kept no record of its own."""
    return {
        "name": watched.run.name,
        "program": watched.template,
        "command": shlex.join(watched.words),
        "data": {"source": None},
        "model": {"name": None},
        "training": {"epochs": None, "batch_per_worker": None, "seed": watched.seed},
        "workers": {"count": watched.workers},
    }


if __name__ == "__main__":
    sys.exit(main())
