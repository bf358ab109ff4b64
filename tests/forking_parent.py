"""The process that tests/forking.py forks trainings from.

A line on its standard input says what to train, one on its standard output how each process ended.
"""

import json
import os
import signal
import sys
import time

import timm  # noqa: F401  # some networks are its own: every process that builds one would load it anew

import traced_worker  # noqa: F401  # notes what every step consumed, where a test asks for it
from turnaround.children import die_with_parent
from turnaround.cli import worker
from turnaround.launch.local import GRACE_S


def train(arguments: list[str], environment: dict[str, str]) -> int:
    """The process that is forked for it."""
    process = os.fork()
    if process == 0:
        os.environ.update(environment)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)  # the answer is the parent's
        worker.leave(worker.main(arguments))
    return process


def ended(processes: list[int]) -> list[int]:
    """The exit status of each. When one has failed the others may say why they fail too; then they go."""
    statuses: dict[int, int] = {}
    latest_s = float("inf")
    while len(statuses) < len(processes):
        process, status = os.waitpid(-1, os.WNOHANG)
        if process:
            statuses[process] = os.waitstatus_to_exitcode(status)
            latest_s = min(latest_s, time.monotonic() + GRACE_S) if status else latest_s
        elif time.monotonic() > latest_s:
            for other in set(processes) - statuses.keys():
                os.kill(other, signal.SIGKILL)
            latest_s = float("inf")
        else:
            time.sleep(0.01)
    return [statuses[process] for process in processes]


if __name__ == "__main__":
    die_with_parent()
    for line in sys.stdin:
        task = json.loads(line)
        environments = [{**environment, **task["meeting_point"]} for environment in task["environments"]]
        statuses = ended([train(task["arguments"], environment) for environment in environments])
        print(json.dumps(statuses), flush=True)
