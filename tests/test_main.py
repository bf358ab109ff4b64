"""The start of the command: what happens before a verb is known."""

from __future__ import annotations

import subprocess
import sys

INTERRUPTED = """
import os, runpy, signal, sys

class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.{handler})
sys.meta_path.insert(0, Interrupter())
sys.argv = ["turnaround", "--version"]
runpy.run_module("turnaround", run_name="__main__")
"""


def started(handler: str) -> subprocess.CompletedProcess[str]:
    code = INTERRUPTED.format(handler=handler)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_ctrl_c_while_the_program_loads_is_one_line() -> None:
    done = started("default_int_handler")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Stopped by Ctrl-C.\n")


def test_a_ctrl_c_that_is_ignored_stays_ignored() -> None:
    done = started("SIG_IGN")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("turnaround ")


IN_A_FINALIZER = """
import os, signal, time
import turnaround.__main__, turnaround.cli

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

def verb():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as cli/verbs.py does when a verb begins
    try:
        Finalized()
        for _ in range(1000):  # the second try comes from a thread, which may have to wait for a core
            time.sleep(0.02)
        print("lost")
    except KeyboardInterrupt:
        print("heard")

signal.signal(signal.SIGINT, signal.default_int_handler)
turnaround.cli.main = verb
turnaround.__main__.main()
"""


def test_a_ctrl_c_within_a_finalizer_is_heard_and_leaves_no_trace() -> None:
    """Python prints what a finalizer raises, and forgets it."""
    command = [sys.executable, "-c", IN_A_FINALIZER]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "heard\n", "")
