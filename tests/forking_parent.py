"""The process that tests/forking.py forks others from: `python -m forking_parent LISTENING`.

LISTENING is the number of a socket. Each connection (tests/forked.py) asks for one command or training, and a process
of its own is forked to look after that one. What a command starts is forked too: it finds as `sys.executable` the
program that it was started by.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import multiprocessing.spawn  # noqa: F401  # children of commands are spawned by the real Python, which it notes here
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import rich.progress  # noqa: F401  # this and the next: what commands load when they need it
import scipy.stats  # noqa: F401
import torch.distributed.run
from PIL import Image

import traced_worker  # noqa: F401  # notes what every step consumed, where a test asks for it
import turnaround
from http_client import free_port
from turnaround import children, cli, worker
from turnaround.children import die_with_parent
from turnaround.errors import TurnaroundError
from turnaround.launch.local import GRACE_S
from turnaround.workers import torch_agent

LOOKS_EVERY_S = 0.02
HUGE = 2**21
ROOMS = ("analysis", "check", "data", "findings", "forecast", "model", "reporting", "study", "training", "use")
"""Whose modules a command or a training loads when it needs them."""
OPTIONAL = ("jinja2", "timm", "torch.distributed.algorithms.ddp_comm_hooks.default_hooks", "typer._adapters")
"""Packages that commands load when they need them; not every environment of .ci has them."""


def main(listening: socket.socket) -> NoReturn:
    modules = [module.name for module in pkgutil.walk_packages(turnaround.__path__, "turnaround.")]
    modules = [name for name in modules if not name.endswith("_triton")]  # of GPUs, or of Triton's interpreter
    for name in (*OPTIONAL, *(name for name in modules if name.split(".")[1] in ROOMS)):
        with contextlib.suppress(ImportError):  # of what is not installed here
            importlib.import_module(name)
    # Two more processes take longer to start than they would have to decode (conftest.py).
    children.num_helpers = lambda: 1
    Image.init()  # its formats, which it would load when a picture is saved or not known at once
    with contextlib.suppress(ImportError, TurnaroundError):
        write_a_page()
    gc.collect()
    gc.freeze()  # a collection in one that is forked would touch, and so copy, all that was loaded here
    use_huge_pages()
    while True:
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            die_with_parent()
            look_after(connection)
        connection.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def write_a_page() -> None:
    """Pack plotly and compile the templates once: every training and study of a command leaves a page."""
    from turnaround.reporting.page.blocks import Block
    from turnaround.reporting.page.render import render_page

    render_page([Block(id="block")], title="", live=False)


def use_huge_pages() -> None:
    """Gather what was loaded in pages of 2 MiB, where Linux can (6.1): a fork copies the table of 500 MB in pages of
    4 KiB in 39 ms of computing, that of huge pages in 12 (2026-11-18, two cores)."""
    collapse = 25  # MADV_COLLAPSE of <linux/mman.h>
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, may, offset, _, _, *name = line.split(maxsplit=5)
        if may == "rw-p" and int(offset, 16) == 0 and not (name and name[0].startswith("[stack")):
            start, end = (int(address, 16) for address in addresses.split("-"))
            for place in range(-(-start // HUGE) * HUGE, end - HUGE + 1, HUGE):
                madvise(place, HUGE, collapse)  # a place that Linux refuses stays as it is


def look_after(connection: socket.socket) -> NoReturn:
    """One command or training, from its task to the answer."""
    length, files, _, _ = socket.recv_fds(connection, 8, 3)
    text = b""
    while len(text) < int.from_bytes(length, "big"):
        part = connection.recv(2**20)
        if not part:  # whoever asked was killed meanwhile
            os._exit(1)
        text += part
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    task, free = json.loads(text), meeting_point()
    size = task["processes"]
    places = [place(rank, size) | free if size > 1 else {} for rank in range(size)]
    processes = [forked(connection, task, each) for each in places]
    for number in range(3):
        os.close(number)  # who reads what they print waits for them, not for us
    statuses = ended(processes, connection)
    connection.sendall(json.dumps(statuses).encode())
    os._exit(0)


def forked(connection: socket.socket, task: dict[str, Any], own: dict[str, str]) -> int:
    """One process of the task."""
    process = os.fork()
    if process == 0:
        connection.close()
        os.chdir(task["folder"])
        os.environ.clear()
        os.environ.update(task["environment"] | own)
        worker.leave(exit_status_of(program(task["program"], task["python"])))
    return process


def program(words: list[str], python: str) -> Callable[[], object]:
    """What Python would run: a script, after `-m` a module, or after `-c` a text."""
    sys.argv = words[words[0] == "-m" :]
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    if sys.argv[0] in ("turnaround.worker", "traced_worker"):
        return worker.main
    if sys.argv[0] in ("conformance_worker", "turnaround.workers.probe"):  # the first changes the code of trainings
        return lambda: runpy.run_module(words[1], run_name="__main__")
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        return lambda: exec(words[1], {"__name__": "__main__"})
    sys.executable = python
    if sys.argv[0] == "torch.distributed.run":
        return torch.distributed.run.main
    if sys.argv[0] == "turnaround.workers.torch_agent":
        return torch_agent.main
    if sys.argv[0] == "turnaround":
        return cli.main
    sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
    return lambda: runpy.run_path(words[0], run_name="__main__")


def exit_status_of(main: Callable[[], object]) -> int:
    """As the interpreter has it: nothing that is raised may come to who has forked."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        status = main()
        return status if isinstance(status, int) else 0
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return 1 if isinstance(ended.code, str) else ended.code or 0
    except BaseException:
        traceback.print_exc()
        return 1


def ended(processes: list[int], connection: socket.socket) -> list[int]:
    """The exit status of each. When one has failed the others may say why they fail too; then they go."""
    statuses: dict[int, int] = {}
    latest_s = float("inf")
    while left := set(processes) - statuses.keys():
        signals = b""
        if select.select([connection], [], [], LOOKS_EVERY_S)[0]:
            signals = connection.recv(64) or bytes([signal.SIGKILL])  # nobody is there any more who could ask
        if time.monotonic() > latest_s:
            signals, latest_s = bytes([signal.SIGKILL]), float("inf")
        for process in left:
            for number in signals:
                os.kill(process, number)
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                statuses[process] = os.waitstatus_to_exitcode(status)
                latest_s = min(latest_s, time.monotonic() + GRACE_S) if status else latest_s
    return [statuses[process] for process in processes]


def place(rank: int, size: int) -> dict[str, str]:
    """As torch.distributed.run says it."""
    return {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "WORLD_SIZE": f"{size}", "LOCAL_WORLD_SIZE": f"{size}"}


def meeting_point() -> dict[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}


if __name__ == "__main__":
    die_with_parent()
    main(socket.socket(fileno=int(sys.argv[1])))
