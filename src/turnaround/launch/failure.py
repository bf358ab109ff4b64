"""Why a process failed: each one writes its own reason, the launcher finds the first. No log is ever parsed."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

from turnaround import errors
from turnaround.errors import ProcessFailedError, TurnaroundError
from turnaround.record.layout import RunDirectory
from turnaround.record.writer import write_json


def clear(directory: RunDirectory) -> None:
    """Forgets the reasons of an earlier start."""
    for path in directory.logs.glob("failure-*.json"):
        path.unlink(missing_ok=True)


def tell(directory: RunDirectory, *, rank: int, error: BaseException) -> None:
    """Called by the failing process."""
    expected = isinstance(error, TurnaroundError)
    message = str(error) if expected else f"{type(error).__name__}: {error}"
    payload = {
        "rank": rank,
        "kind": type(error).__name__ if expected else None,
        "message": message,
        "at_s": time.time(),
    }
    write_json(directory.logs / f"failure-{rank}.json", payload)


def is_told(directory: RunDirectory) -> bool:
    """Whether any process has said why it ended."""
    return any(directory.logs.glob("failure-*.json"))


def first_cause(directory: RunDirectory, *, exit_status: int, log: Path) -> TurnaroundError:
    """The error that came first: the others often only lost their connection to it."""
    reasons = [json.loads(path.read_text()) for path in directory.logs.glob("failure-*.json")]
    if not reasons:
        how = f"signal {-exit_status}" if exit_status < 0 else f"exit status {exit_status}"
        return ProcessFailedError(
            f"A process died without a word ({how}): killed from outside, or out of memory. What it printed is in "
            f"{log}. Go on from the last checkpoint with `turnaround resume {shlex.quote(str(directory.path))}`."
        )
    first = min(reasons, key=lambda reason: reason["at_s"])
    if first["kind"] is not None:
        kind: type[TurnaroundError] = getattr(errors, first["kind"], TurnaroundError)
        return kind(first["message"])
    return ProcessFailedError(f"Process {first['rank']} failed: {first['message']}. Details are in {log}.")
