"""Do the compute nodes see the run directory? A job that finds no directory has no place to say so.

A job of seconds looks for a file that was just written. It asks for no GPU, so that it seldom waits.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from turnaround.errors import InputError
from turnaround.launch.clusters.contract import JobState
from turnaround.launch.clusters.slurm import client
from turnaround.launch.clusters.slurm.script import header_lines, quote
from turnaround.launch.clusters.slurm.settings import SlurmSettings
from turnaround.record.files import storage_error

NOT_SEEN = 44
"""The exit status of a job that has looked and not found: unlike those of a job that failed."""
NETWORK_FILE_S = 10
"""A new file may take so long to appear on the other hosts of a network file system."""
POLL_S = 0.5


@dataclass(frozen=True, kw_only=True)
class VisiblePaths:
    """The answer of the probe."""

    answer: Literal["yes", "no", "unknown"]
    hosts: tuple[str, ...] = ()
    """The hosts on which it has looked."""
    reason: str | None = None
    """Why the answer is unknown."""


def require_visible(directory: Path, settings: SlurmSettings, *, patience_s: float = 60.0) -> VisiblePaths:
    """Raise InputError when compute nodes do not see the directory; a cluster too busy to answer does not count."""
    seen = probe(directory, settings, patience_s=patience_s)
    if seen.answer == "no":
        raise InputError(
            f"The compute nodes do not see {directory}: a new file does not appear on {', '.join(seen.hosts)}. "
            "Choose a directory on a file system that all hosts share, often your home or a scratch folder, with --out."
        )
    return seen


def probe(directory: Path, settings: SlurmSettings, *, patience_s: float = 60.0) -> VisiblePaths:
    """Look on as many hosts as the job will have; give up, and cancel the probe, after `patience_s`."""
    directory = directory.absolute()
    file = directory / f".turnaround-probe-{secrets.token_hex(8)}"
    new = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file.write_text("turnaround\n")
    except OSError as error:
        raise storage_error("write a file into", directory, error) from None
    try:
        return _look(file, settings, patience_s=patience_s)
    finally:
        file.unlink(missing_ok=True)
        with suppress(OSError):  # somebody else's work is in there by now
            for folder in new:
                folder.rmdir()


def probe_script(file: Path, settings: SlurmSettings) -> str:
    """Return a script whose exit status is the answer: there may be no place for output that both sides see."""
    lines = ["--job-name=turnaround-probe", *header_lines(settings), f"--nodes={settings.hosts}", "--ntasks-per-node=1"]
    lines += ["--time=1", "--chdir=/", "--output=/dev/null", "--no-requeue"]
    header = "\n".join(f"#SBATCH {line}" for line in lines)
    return f"""\
#!/bin/bash
# Looks on each host for a file that was just written.
{header}

export file={quote(file)}
srun --ntasks-per-node=1 bash -c '
    for _ in $(seq {NETWORK_FILE_S * 2}); do
        if [ -e "$file" ]; then exit 0; fi
        sleep 0.5
    done
    exit {NOT_SEEN}'
"""


def _look(file: Path, settings: SlurmSettings, *, patience_s: float) -> VisiblePaths:
    latest_s = time.monotonic() + patience_s
    with tempfile.TemporaryDirectory(prefix="turnaround-") as folder:
        script = Path(folder) / "probe.sh"
        script.write_text(probe_script(file, settings), encoding="utf-8", errors="surrogateescape")
        try:
            # sbatch copies the script: the folder may go as soon as it has answered.
            job_id = client.submit_script(script)
        except InputError as error:
            return VisiblePaths(answer="unknown", reason=str(error))
    try:
        state = client.job_state(job_id)
        while not state.is_over and time.monotonic() < latest_s:
            time.sleep(POLL_S)
            state = client.job_state(job_id)
    finally:
        # Harmless after its end; when we give up or are interrupted, the probe must not stay in the queue.
        client.cancel(job_id)
    return _answer(state, patience_s=patience_s)


def _answer(state: JobState, *, patience_s: float) -> VisiblePaths:
    if state.succeeded:
        return VisiblePaths(answer="yes", hosts=state.hosts)
    if state.is_over and state.exit_code == NOT_SEEN:
        return VisiblePaths(answer="no", hosts=state.hosts)
    if not state.is_over:
        reason = f"the cluster did not look within {patience_s:g} s ({state.state}, {state.reason})"
        return VisiblePaths(answer="unknown", hosts=state.hosts, reason=reason)
    ended = f"the job that looked ended with {state.state}, exit status {state.exit_code}"
    return VisiblePaths(answer="unknown", hosts=state.hosts, reason=ended)
