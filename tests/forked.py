"""Stands for processes that tests/forking_parent.py forks: `forked.py SOCKET PYTHON KIND WORD...`, the last ones being
the words of a Python command. PYTHON is the program that was called, KIND is `with-agent` or `without-agent`.

They get its environment, folder and files, and its signals; when it ends they end, and it ends as they do. Imports as
little as it can: it is started once for every training.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys

AGENTS = ("torch.distributed.run", "turnaround.workers.torch_agent")
MODULES = (
    *("turnaround", "turnaround.worker", "turnaround.workers.probe", "traced_worker", "conformance_worker"),
    *AGENTS,
)
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
PR_SET_PDEATHSIG = 1


def main(name: str, python: str, kind: str, *words: str) -> int:
    """The exit status of the one process, or 1 when one of several has failed, as torch.distributed.run has it."""
    # A worker asks for this itself (turnaround/children.py), but its parent is the process that forks, not ours.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    processes, program = 1, words[words[0] == "-u" :]  # as the agent starts its processes
    if kind == "without-agent" and program[0] == "-m" and program[1] in AGENTS:
        program = program[2:]
        while program[0].startswith("--"):  # options of torch.distributed.run, each with its value
            if program[0] == "--nproc-per-node":
                processes = int(program[1])
            program = program[2:]
    is_ours = (program[0] == "-c" and "turnaround" in program[1]) or (program[0] == "-m" and program[1] in MODULES)
    if not is_ours and not program[0].endswith(".py"):
        os.execv(sys.executable, [sys.executable, *words])
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # until there is somebody to pass them on to
    with socket.socket(socket.AF_UNIX) as parent:
        parent.connect(f"\0{name}")

        def pass_on(number: int, _frame: object) -> None:
            with contextlib.suppress(OSError):  # whoever would hear it has just ended
                parent.sendall(bytes([number]))

        for number in PASSED_ON:
            signal.signal(number, pass_on)
        task = {"program": program, "processes": processes, "folder": os.getcwd(), "python": python}
        text = json.dumps({**task, "environment": dict(os.environ)}).encode()
        socket.send_fds(parent, [len(text).to_bytes(8, "big")], [0, 1, 2])
        parent.sendall(text)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        answer = parent.recv(4096)
    assert answer, "the process that forks has ended"
    statuses = json.loads(answer)
    if len(statuses) > 1:
        return int(any(statuses))
    if statuses[0] < 0:
        if -statuses[0] in PASSED_ON:
            signal.signal(-statuses[0], signal.SIG_DFL)
        os.kill(os.getpid(), -statuses[0])
    return statuses[0]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
