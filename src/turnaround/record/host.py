"""This host and this command as a record names them; a code and nothing where the record is private.

`turnaround train --private`, or TURNAROUND_PRIVATE=1 for all runs: host names become codes; command lines are left out,
and folders too (places.py). The code is the same for all processes of a host, so that a record still tells hosts apart,
and says nothing about its name: it comes from a number that the system draws anew at every boot.
"""

import hashlib
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "TURNAROUND_PRIVATE"
NOTIFY_FLAG, LEFT_OUT = "--notify", "..."
REFERENCE = re.compile(r"\$(\w+|\{\w+\})")
"""A name of the environment, which is no secret itself."""
PLACES_VARIABLE = "TURNAROUND_PRIVATE_PLACES"
"""Tells the processes of a private run where its images lie (places.py)."""
JOB_VARIABLES = ("TURNAROUND_JOB_ID", "SLURM_JOB_ID")
"""The script of any cluster may set the first; Slurm sets the second itself."""


def is_private() -> bool:
    """Return whether records are to be written without names of hosts."""
    return os.environ.get(VARIABLE, "").lower() not in ("", "0", "false", "no")


@contextmanager
def private(is_wanted: bool = True) -> Iterator[None]:
    """Keep names out of what this process, and those that it starts, write meanwhile."""
    before = {name: os.environ.get(name) for name in (VARIABLE, PLACES_VARIABLE)}
    os.environ.pop(PLACES_VARIABLE, None)  # another run's
    if is_wanted:
        os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def host_name() -> str:
    """Return the name of this host, or its code."""
    name = socket.gethostname()
    if not is_private():
        return name
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:  # not Linux: a code all the same, though one that a list of names could be tried on
        boot = ""
    return "host-" + hashlib.sha256(f"{boot}{name}".encode()).hexdigest()[:8]


def own_job(variables: Mapping[str, str] = os.environ) -> str | None:
    """Return the job of a batch system that this process belongs to."""
    return next((variables[name] for name in JOB_VARIABLES if name in variables), None)


def process_age_s() -> float:
    """Return the age of this process: called when everything is imported, that is how long imports took."""
    try:
        # The 22nd field of proc_pid_stat(5): ticks from the boot to the start. psutil knows the boot to a second only.
        after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started_s = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)
    except (OSError, ValueError, IndexError, AttributeError):  # no Linux
        import psutil

        return max(0.0, time.time() - psutil.Process().create_time())


def command_line() -> list[str]:
    """Return the command of this process, without what may be a secret; nothing where the record is private."""
    return [] if is_private() else without_secrets(sys.argv)


def without_secrets(words: Sequence[str]) -> list[str]:
    """Return a command line whose addresses and commands after --notify are left out; a bare $NAME tells nothing."""
    said, is_next = [], False
    for word in words:
        name, has_value, value = word.partition("=")
        if is_next:
            said.append(word if REFERENCE.fullmatch(word) else LEFT_OUT)
        elif name == NOTIFY_FLAG and has_value and not REFERENCE.fullmatch(value):
            said.append(f"{NOTIFY_FLAG}={LEFT_OUT}")
        else:
            said.append(word)
        is_next = word == NOTIFY_FLAG and not is_next
    return said
