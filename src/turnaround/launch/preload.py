"""A training process that begins with the command: it loads torch while the command still reads its flags.

A command takes a second until it knows its run directory and starts the process that trains, and that process takes
seconds for `import torch`. So `turnaround train` and `resume` start one before anything else, which loads its code and
then waits on its standard input for the order: a run directory and an environment. Where the training turns out to be
another one (several processes, a cluster, a fork server), or where there is none, it is ended; nothing else of it is
left. It is the same process afterwards: `LocalProcesses` cannot tell it from one that was started for the run.

Little is imported here: this runs before everything else.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise

from turnaround import safe_path
from turnaround.children import LAUNCHER_VARIABLE, die_with_parent
from turnaround.launch.process_settings import process_settings
from turnaround.workers.environment import is_run_by_others

VERBS = ("train", "resume")
OTHERWISE = ("--help", "-h", "--dry-run", "--on", "--hosts", "--show-batch", "--folds")
"""Flags with which the command trains nothing, or not in one process of its own."""
SWITCH, OFF = "TURNAROUND_PRELOAD", "off"
FORK_SERVER = "TURNAROUND_FORK_SERVER"
"""A fork server has loaded its code already (forked.py, which is too large to be imported here)."""
OWN_PREFIX = "TURNAROUND_"

_preloaded: subprocess.Popen[bytes] | None = None


def begin(words: Sequence[str], variables: Mapping[str, str] = os.environ) -> None:
    """Start a process for the training of a command with these words, if it looks like one that trains here."""
    global _preloaded
    is_here = sys.platform == "linux" and not is_run_by_others(variables)
    is_wanted = variables.get(SWITCH) != OFF and variables.get(FORK_SERVER, OFF) == OFF
    if not (is_here and is_wanted and words and words[0] in VERBS) or _asks_for_more(words):
        return
    with suppress(OSError):  # no memory, too many processes: the training will say so itself
        _preloaded = subprocess.Popen(
            [sys.executable, "-m", "turnaround.worker", "--preload", *words],
            env={
                **variables,
                **safe_path.settings(variables),
                **process_settings(1, variables),
                LAUNCHER_VARIABLE: str(os.getpid()),
            },
            stdin=subprocess.PIPE,
            stdout=sys.stderr,
            stderr=subprocess.DEVNULL,  # until it has a log: what does not import here is said by the next one
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def _asks_for_more(words: Sequence[str]) -> bool:
    """Tell whether the flags ask for something else than one process of this machine, or for nothing that trains."""
    spaced = [word for flag in words for word in (flag.split("=", 1) if flag.startswith("--") else [flag])]
    values = dict(pairwise(spaced))
    # Several workers have a process each, unless one is asked for or there is one device (contract.choose_processes).
    processes = values.get("--processes", "1" if num_gpus() == 1 else values.get("--workers", "1"))
    return not set(spaced).isdisjoint(OTHERWISE) or processes != "1"


def num_gpus(devices: str = "/dev") -> int:
    """Return the GPUs of NVIDIA's driver, by their device files: NVML and torch take longer to load."""
    with suppress(OSError):
        return sum(name.startswith("nvidia") and name[6:].isdigit() for name in os.listdir(devices))
    return 0


def adopted(run: str, environment: Mapping[str, str], added: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
    """Give the waiting process its order, and return it; None where there is none, or where it does not fit.

    `added` is what the environment has that is not the command's own: a device that is to be seen must be known before
    its context is made.
    """
    global _preloaded
    process, _preloaded = _preloaded, None
    if process is None:
        return None
    if process.poll() is None and all(name.startswith(OWN_PREFIX) for name in added):
        with suppress(OSError):  # it has ended in this very moment
            assert process.stdin is not None
            process.stdin.write(json.dumps({"run": run, "environment": dict(environment)}).encode() + b"\n")
            process.stdin.close()
            return process
    _end(process)
    return None


def end() -> None:
    """End the waiting process, if there is one: the training is of another kind, or there is none."""
    global _preloaded
    process, _preloaded = _preloaded, None
    if process is not None:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for its end, too: a GPU that only one process may use is free then."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
