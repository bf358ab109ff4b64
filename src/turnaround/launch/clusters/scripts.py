"""Which scripts of jobs this user's own command has submitted: no other one is submitted again without a question.

A script runs as whoever submits it, and `resume --on slurm` submits the one that lies in the run directory, which may
come from somebody else. The SHA-256 of each that was submitted is the name of an empty file of the user, in
$XDG_STATE_HOME/turnaround/scripts: a script that says the same is the same, wherever it lies.
"""

from __future__ import annotations

import hashlib
import shlex
from contextlib import suppress

from turnaround.errors import InputError, RunDirectoryError, StorageError
from turnaround.record.files import kind_of, read_bytes, replace_file
from turnaround.record.layout import RunDirectory
from turnaround.record.places import state_folder

ACCEPT_FLAG = "--accept-script"


def refuse_unknown(directory: RunDirectory, *, go_on: str, is_accepted: bool) -> None:
    """Raise InputError for a script that nobody here has submitted, or `--accept-script` has vouched for."""
    if is_accepted:
        remember(directory)
        return
    if kind_of(state_folder("scripts") / _digest(directory)) != "file":
        path = directory.job_script
        raise InputError(
            f"{path} is not as you have submitted it from here: somebody has changed it, or the run is another user's "
            f"or an older version's. It would run as you. Look at it (less {shlex.quote(str(path))}); then {go_on}, "
            f"with {ACCEPT_FLAG}."
        )


def remember(directory: RunDirectory) -> None:
    """Note the script as this user's own; without a home to note it in, a resume asks."""
    with suppress(StorageError, RunDirectoryError, OSError):
        folder = state_folder("scripts")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(folder / _digest(directory), b"")


def _digest(directory: RunDirectory) -> str:
    """Return the SHA-256; RunDirectoryError for what is no plain file."""
    return hashlib.sha256(read_bytes(directory.job_script)).hexdigest()
