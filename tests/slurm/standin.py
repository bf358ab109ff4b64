"""Plays `python` in a job, without torch: notes how it was started on each host, and does what STANDIN_DO says.

    end       ends at once
    save      waits for USR2 or TERM, then leaves the run as `turnaround train` does: interrupted, a failed launcher (1)
    late      the same, but it does not listen to USR2
    deaf      listens to nothing
    lock      takes the run's lock and waits

`turnaround resume` always ends at once with 0 and records the run as finished.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from turnaround.record.layout import RunDirectory
from turnaround.record.lock import RunLock
from turnaround.record.writer import write_json

NOTED = ("SLURM_", "CUDA_VISIBLE_DEVICES", "GLOO_", "NCCL_", "OMP_")


def main(arguments: list[str]) -> int:
    restart, node = os.environ.get("SLURM_RESTART_COUNT", "0"), os.environ["SLURM_NODEID"]
    said = {
        "arguments": arguments,
        "host": os.uname().nodename,
        "folder": str(Path.cwd()),
        "variables": {name: value for name, value in os.environ.items() if name.startswith(NOTED)},
        "ignores_usr2": signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN,
    }
    note = Path(os.environ["STANDIN_NOTES"]) / f"start-{restart}-node-{node}.json"
    if "turnaround" not in arguments:
        raise SystemExit(f"not a training: {arguments}")
    is_new = "train" in arguments
    directory = RunDirectory(Path(arguments[arguments.index("--out") + 1] if is_new else arguments[-1]))
    todo = os.environ.get("STANDIN_DO", "end") if is_new else "end"
    warned: list[int] = []
    if todo in ("save", "late"):
        for number in (signal.SIGUSR2, signal.SIGTERM) if todo == "save" else (signal.SIGTERM,):
            signal.signal(number, lambda number, _frame: warned.append(number))
    write_whole(note, said)
    if node == "0":
        directory.logs.mkdir(parents=True, exist_ok=True)
        write_json(directory.recipe, {"data": {}})
        write_json(directory.status, {"state": "running", "segments": 1 if is_new else 2})
    if todo == "end":
        return ended(directory, "finished", 0)
    if todo == "lock" and node == "0":
        RunLock(directory.lock).acquire()
    end_s = time.monotonic() + 120
    while not warned and time.monotonic() < end_s:
        time.sleep(0.05)
    return ended(directory, "interrupted", 1)


def ended(directory: RunDirectory, state: str, status: int) -> int:
    if os.environ["SLURM_NODEID"] == "0":
        write_json(directory.status, {"state": state})
    return status


def write_whole(path: Path, content: object) -> None:
    path.with_suffix(".tmp").write_text(json.dumps(content))
    path.with_suffix(".tmp").rename(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
