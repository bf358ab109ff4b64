"""Everything that can go wrong, as one tree. The command line prints the message and exits with the code.

    TurnaroundError                    exit code
    ├── InputError                     2   the user can repair it: nothing was trained
    │   ├── RecipeError                    unknown key, value out of range, unknown recipe
    │   ├── DataError                      no images, one class, an unreadable image
    │   ├── ModelError                     unknown network, weights that do not fit
    │   ├── RunDirectoryError              not a run, or already another run
    │   ├── StorageError                   not writable
    │   │   ├── DamagedCacheError              decoded pixels have changed: they are decoded again
    │   │   └── PassingStorageError            it may pass: a training goes on without what it would have saved
    │   │       └── DiskFullError                  not enough space
    │   └── MissingPartError               an optional part is not installed, or no network
    ├── TrainingError                  1   it started and did not finish
    │   ├── DivergedError                  the loss is no longer a number
    │   └── ProcessFailedError             a process died; names the first one
    └── InterruptedRunError            75  stopped from outside; `turnaround resume` goes on

A message says what is wrong, what was received, and what to do next.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

EXIT_CTRL_C = 130
"""Exit code of a command that a Ctrl-C has ended and that left nothing to resume: 128 + 2, as a shell says it."""
STOPPED = "Stopped by Ctrl-C."


def end_on_ctrl_c(signum: int, frame: FrameType | None) -> None:
    """Handle SIGINT while nothing has begun that would have to be put away: say it and end."""
    os.write(2, f"{STOPPED}\n".encode())  # not through sys.stderr, which may be in the middle of a line
    os._exit(EXIT_CTRL_C)


class TurnaroundError(Exception):
    """The root: nothing else leaves turnaround on purpose."""

    exit_code = 1


class InputError(TurnaroundError):
    """Wrong use or bad input; nothing was trained and nothing is left half-written."""

    exit_code = 2


class RecipeError(InputError):
    """A recipe, or a value in it, is not valid."""


class DataError(InputError):
    """The images cannot be trained on as they are."""


class ModelError(InputError):
    """The network or its weights cannot be had as asked for."""


class RunDirectoryError(InputError):
    """A directory is not the run it should be, or holds another one."""


class StorageError(InputError):
    """A disk is full or cannot be written."""


class DamagedCacheError(StorageError):
    """Decoded pixels in the cache are no longer those that were written; nothing was trained on them."""


class PassingStorageError(StorageError):
    """A file system that fails in a way that may pass (a server that does not answer), however often it was tried."""


class DiskFullError(PassingStorageError):
    """A disk or a quota has no room left; what was there before stays."""


class MissingPartError(InputError):
    """An optional package, a download or a device is not there."""


class TrainingError(TurnaroundError):
    """Training started and did not finish."""


class DivergedError(TrainingError):
    """The loss is no longer a number."""


class ProcessFailedError(TrainingError):
    """A worker process died; the message names the first cause."""


class InterruptedRunError(TurnaroundError):
    """Stopped from outside; the run can go on with `turnaround resume`."""

    exit_code = 75


def one_of(what: str, received: object, valid: list[str] | tuple[str, ...]) -> str:
    """Return the sentence for an unknown name: what was received, the nearest valid name, and all of them."""
    import difflib

    near = difflib.get_close_matches(str(received), valid, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"Unknown {what} {received!r}.{hint} Valid: {', '.join(valid)}."
