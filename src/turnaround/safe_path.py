"""The folder that a command is called in is no place for code: it may be a data set that somebody else has packed.

`python -m` and `python -c` look there first, so that a `numpy.py` among the images would run in every process of ours.
PYTHONSAFEPATH (Python 3.11) keeps each Python from it that has it in its environment: ours, those of
torch.distributed.run and of multiprocessing. A program of the user (a command to study, one to notify) gets the
environment as it was. Little is imported here: this runs before everything else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

VARIABLE = "PYTHONSAFEPATH"
OURS = "TURNAROUND_SAFE_PATH"
"""Says that the variable is our doing, to whoever starts a program of the user further below."""


def settings(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what a process of ours gets on top of these variables; what the user has set already stays."""
    return {} if variables.get(VARIABLE) or _is_our_own_folder() else {VARIABLE: "1", OURS: "1"}


def as_it_was(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a program that is not ours: as the user's before we have added to it."""
    added = {VARIABLE, OURS} if OURS in variables else set()
    return {name: value for name, value in variables.items() if name not in added}


def shell_line() -> str:
    """Return the line of bash that does the same in a job."""
    return f'[ -n "${{{VARIABLE}:-}}" ] || export {VARIABLE}=1 {OURS}=1'


def _is_our_own_folder() -> bool:
    """Whoever trains from the folder that holds this very code (cd src) trusts it, and the processes must find it."""
    with suppress(OSError):  # the current folder has been removed
        return os.path.dirname(os.path.dirname(os.path.abspath(__file__))) == os.getcwd()
    return False
