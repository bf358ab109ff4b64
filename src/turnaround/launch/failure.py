"""Why a process failed: each one writes its own reason, the launcher finds the first. No log is ever parsed.

A process that dies takes its connections with it, and the others then report that they have lost it, often before
anybody knows of the death. So a lost connection is a cause only where nobody has a better one.
"""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Any

from turnaround import errors
from turnaround.errors import ProcessFailedError, RunDirectoryError, StorageError, TurnaroundError
from turnaround.record import heartbeat, places
from turnaround.record.files import read_json, remove_file
from turnaround.record.host import host_name
from turnaround.record.layout import RunDirectory
from turnaround.record.writer import write_json
from turnaround.workers.engines import ENGINES

LOST_ERRORS = {name for engine in ENGINES.values() for name in engine.lost_errors}
# The words of Gloo, which several engines use, and of sockets, for "the other side is gone".
LOST_WORDS = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Connection refused", "gloo/")
MAX_REASON_S = 10.0
"""Time for another process to write why it failed, once we have lost it: a Python process with torch in it takes
seconds to end, and a network file system shows the file some seconds later."""


class RankFailedError(ProcessFailedError):
    """A process died; `ranks` says which."""

    def __init__(self, message: str, *, ranks: tuple[int, ...]) -> None:
        super().__init__(message)
        self.ranks = ranks


def clear(directory: RunDirectory) -> None:
    """Remove the reasons of an earlier start."""
    for rank in directory.failed_ranks():
        remove_file(directory.failure(rank), directory.path)


def write_failure(directory: RunDirectory, *, rank: int, error: BaseException, step: int = 0) -> None:
    """Write why this process fails; called by itself, before it closes its connections."""
    expected = isinstance(error, TurnaroundError)
    message = str(error) if expected else f"{type(error).__name__}: {error}"
    # An error of ours may quote such words (a full disk, a broken pipe to a child) and is still a cause.
    lost = type(error).__name__ in LOST_ERRORS or any(word in message for word in LOST_WORDS)
    payload = {
        "rank": rank,
        "host": host_name(),
        "step": step,
        "kind": type(error).__name__ if expected else None,
        "message": places.redacted(message),
        "is_lost_connection": lost and not expected,
        "at_s": time.time(),
    }
    write_json(directory.failure(rank), payload, directory.path)


def write_exit(directory: RunDirectory, *, rank: int, exit_status: int) -> None:
    """Write how a process ended that could not say anything itself; called by whoever started it."""
    # The heartbeat that the process left behind is all that is known of its host and step.
    seen = next((process for process in heartbeat.read(directory) if process.rank == rank), None)
    payload = {
        "rank": rank,
        "host": seen.host if seen else host_name(),
        "step": seen.step if seen else 0,
        "kind": None,
        "exit_status": exit_status,
        "message": f"died without a word ({_exit_text(exit_status)})",
        "at_s": time.time(),
    }
    write_json(directory.failure(rank), payload, directory.path)


def write_exit_if_silent(directory: RunDirectory, *, rank: int, exit_status: int) -> None:
    """Write the exit status of a process, unless it has written a reason itself."""
    if rank not in directory.failed_ranks():
        write_exit(directory, rank=rank, exit_status=exit_status)


def has_failures(directory: RunDirectory) -> bool:
    """Return whether any process has written why it ended."""
    return bool(directory.failed_ranks())


def wait_for_others(directory: RunDirectory, *, patience_s: float = MAX_REASON_S) -> None:
    """Wait while all that is known is a lost connection; processes with launchers of their own take a moment."""
    latest_s = time.monotonic() + patience_s
    while time.monotonic() < latest_s and all(_is_lost(reason) for reason in _reasons(directory)):
        time.sleep(0.1)


def first_cause(
    directory: RunDirectory, *, exit_status: int, log: Path, gone: heartbeat.ProcessHeartbeat | None = None
) -> TurnaroundError:
    """Return the root cause; `gone` is a process that was seen to have ended before the others."""
    reasons = _reasons(directory)
    causes = [reason for reason in reasons if not _is_lost(reason)]
    if not causes:
        # All that is known is who lost whom: then one that wrote nothing at all was probably the first.
        written = {reason["rank"] for reason in reasons}
        silent = [process for process in heartbeat.read(directory) if process.rank not in written]
        # One that was seen to go before the others is a better guess than all that are silent by now.
        silent = [gone] if gone is not None and gone.rank not in written else silent
        if silent or not reasons:
            # The exit status is the launcher's, unless there is one process only.
            alone = len(silent) == 1 and not reasons
            who = " and ".join(process.name for process in silent) or "A process"
            ending = f" ({_exit_text(exit_status)})" if alone or not silent else ""
            ranks = tuple(process.rank for process in silent)
            return _death(f"{who} died without a word{ending}", directory, log, ranks=ranks)
    # Clocks of hosts differ, but lost connections are sorted out above: a wrong order names another real cause.
    first = min(causes or reasons, key=lambda reason: reason["at_s"])
    if first["kind"] is not None:
        # The name comes from a file: it may only choose among our own errors.
        kind = getattr(errors, first["kind"], None)
        if not (isinstance(kind, type) and issubclass(kind, TurnaroundError)):
            kind = TurnaroundError
        return kind(first["message"])
    if "exit_status" in first:
        return _death(f"{_name(first)} {first['message']}", directory, log, ranks=(first["rank"],))
    sentence = f"{_name(first)} failed: {first['message']}. Details are in {log}."
    return RankFailedError(sentence, ranks=(first["rank"],))


def vanished(directory: RunDirectory) -> StorageError:
    """Return the error for a run directory that was moved or removed, or whose file system is gone."""
    return StorageError(
        f"{directory.path} is not there any more: somebody moved or removed it, or took its file system away, while "
        f"the run was writing. Put it back and go on with `turnaround resume {shlex.quote(str(directory.path))}`."
    )


def how_to_go_on(directory: RunDirectory, log: Path) -> str:
    """Return the sentence that follows the cause: where the log is, and how to resume."""
    return (
        f"What it printed is in {log}. Go on from the last checkpoint with "
        f"`turnaround resume {shlex.quote(str(directory.path))}`."
    )


def _death(what: str, directory: RunDirectory, log: Path, *, ranks: tuple[int, ...]) -> RankFailedError:
    sentence = f"{what}: killed from outside, out of memory, or ended early. {how_to_go_on(directory, log)}"
    return RankFailedError(sentence, ranks=ranks)


def _reasons(directory: RunDirectory) -> list[dict[str, Any]]:
    found = (_parsed(directory, rank) for rank in directory.failed_ranks())
    return [reason for reason in found if reason is not None]


def _parsed(directory: RunDirectory, rank: int) -> dict[str, Any] | None:
    """Return what a process has written; None where the file is damaged."""
    try:
        content = read_json(directory.failure(rank), directory.path)
        kind = content["kind"] if isinstance(content["kind"], str) else None
        message, rank, at_s = str(content["message"]), int(content["rank"]), float(content["at_s"])
        return {**content, "kind": kind, "message": message, "rank": rank, "at_s": at_s}
    except (RunDirectoryError, ValueError, KeyError, TypeError, OverflowError):
        return None


def _is_lost(reason: dict[str, Any]) -> bool:
    return bool(reason.get("is_lost_connection"))


def _name(reason: dict[str, Any]) -> str:
    where = [f"host {reason['host']}"] if reason.get("host") else []
    where += [f"step {reason['step']}"] if reason.get("step") else []
    return f"Process {reason['rank']}" + (f" ({', '.join(where)})" if where else "")


def _exit_text(exit_status: int) -> str:
    return f"signal {-exit_status}" if exit_status < 0 else f"exit status {exit_status}"
