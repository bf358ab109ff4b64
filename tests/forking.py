"""A Python for tests that has loaded torch already: loading it takes longer than most trainings of tests do.

`ForkingParent.python` takes the words that `sys.executable` takes. Where they are a script, `-m turnaround`, the worker
entry point, or torch.distributed.run with one of these, tests/forked.py asks tests/forking_parent.py for processes that
are forked and stands for them; all others get the real Python. So everything but the start is production's: the
environment, the log, the watch over heartbeats, the grace, the first cause.

How torch.distributed.run starts and ends its processes is tested with the real one: `ForkingParent.python_with_agent`
forks it too, and it starts its processes itself. Some tests of starts use neither: there the loading itself counts.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

from turnaround.launch import local, process_settings
from turnaround.launch.contract import LaunchPlan

TESTS = Path(__file__).parent
COMMAND = "import sys; sys.executable = sys.argv.pop(1); from turnaround.cli import main; main()"
WITHOUT_TIMM = """
import sys
for name in [name for name in sys.modules if name.partition(".")[0] == "timm"]:
    del sys.modules[name]
"""
"""At the head of a program that tells whether timm is loaded: a forking parent has loaded it."""


def command_that_starts(python: str) -> list[str]:
    """The real `turnaround`, of this Python, whose trainings `python` starts: its own start takes no torch."""
    return [sys.executable, "-c", COMMAND, python]


SHARED = "TURNAROUND_TESTS_FORKING_PARENT"
"""The socket of the one that all test processes of pytest-xdist share: loading it takes 8 s of computing."""


class ForkingParent:
    """The process that forks, from the first question for its Python on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def share(self) -> None:
        """Start it now, for all test processes that are started from here on."""
        os.environ[SHARED] = f"turnaround-tests-{os.getpid()}"
        self._process = self._started(os.environ[SHARED])

    @property
    def python(self) -> str:
        """The program that is called instead of `sys.executable`."""
        return self._program("without-agent")

    @property
    def python_with_agent(self) -> str:
        """The same, but several processes of a training are started, watched and ended by torch.distributed.run."""
        return self._program("with-agent")

    def _program(self, kind: str) -> str:
        own, shared = f"turnaround-tests-{os.getpid()}", os.environ.get(SHARED, "")
        name = shared if shared and f"@{shared}\n" in Path("/proc/net/unix").read_text() else own
        path = self._folder / kind / name / "python"
        is_alive = self._process is not None and self._process.poll() is None  # somebody may have ended it
        if name == own and not is_alive:
            self._process = self._started(name)
        if not path.exists():
            path.parent.mkdir(parents=True)
            words = shlex.join([sys.executable, "-IS", str(TESTS / "forked.py"), name, str(path), kind])
            path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
            path.chmod(0o700)
        return str(path)

    def close(self) -> None:
        """Ends it, and with it all that are left."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _started(self, name: str) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        # Whoever asks before torch is loaded waits in the queue of the socket. It ends with the process that forks,
        # since nobody else has it open.
        with socket.socket(socket.AF_UNIX) as listening, (self._folder / "parent.log").open("ab") as log:
            listening.bind(f"\0{name}")
            listening.listen(64)
            return subprocess.Popen(
                [sys.executable, "-m", "forking_parent", str(listening.fileno())],
                env={**os.environ, **process_settings.ALLOCATOR, **local.loopback(), **own},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[listening.fileno()],
            )


class ForkingLauncher(local.LocalLauncher):
    """Processes of this machine, on its CPU, with one thread each; fresh ones for every training."""

    def __init__(self, parent: ForkingParent, *, has_agent: bool = False) -> None:
        super().__init__()
        self.parent, self.has_agent = parent, has_agent

    @contextmanager
    def started(self, plan: LaunchPlan) -> Iterator[local.LocalProcesses]:
        assert plan.message.device == "cpu"
        with ExitStack() as stack:
            python = self.parent.python_with_agent if self.has_agent else self.parent.python
            with mock.patch.object(sys, "executable", python):
                processes = stack.enter_context(super().started(plan))
            yield processes
