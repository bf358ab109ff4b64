"""File systems that fail for a moment: the same call is made again, after a pause."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

PASSING = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, getattr(errno, "EREMOTEIO", errno.EIO)}
"""Errors of a server that restarts, a handle that it has forgotten, a cable: the same call may work a moment later."""
PAUSES_S = (0.1, 0.5, 2.0)
"""Between the tries. A training waits for them, so they are short; what fails for longer is tried again when due."""

Value = TypeVar("Value")


def patiently(action: Callable[[], Value]) -> Value:
    """Return what the action returns; it is called again, after a pause, where a file system fails for a moment."""
    for pause_s in PAUSES_S:
        try:
            return action()
        except OSError as error:
            if error.errno not in PASSING:
                raise
        time.sleep(pause_s)
    return action()
