"""Children that are interrupted at any moment of their start say nothing, and end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from turnaround.children import LAUNCHER_VARIABLE, ChildPool, PoolClosedError, in_children, launcher_is_alive, mark
from turnaround.errors import ProcessFailedError

PROGRAM = """
import signal, sys, time
from turnaround import children

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
with children.ChildPool(time.sleep, 2) as pool:
    pool.submit(*[float(sys.argv[1])] * 4)
    print("submitted", flush=True)
    while pool.num_unfinished:
        pool.take()
"""


def started(sleep_s: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(sleep_s)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "submitted\n"
    return process


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.05, 0.1, 0.3])
def test_ctrl_c_reaches_the_parent_alone(after_s: float) -> None:
    with started(sleep_s=1.0) as process:  # longer than this test may be held up
        time.sleep(after_s)
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all of them
        _, shown = process.communicate(timeout=180)
    assert "SpawnProcess" not in shown
    assert shown.count("Traceback") == 1, shown  # the parent's own
    assert process.returncode == -signal.SIGINT


def test_children_end_with_a_killed_parent() -> None:
    with started(sleep_s=60.0) as process:
        time.sleep(0.5)
        born = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    assert len(born) >= 2
    _, alive = psutil.wait_procs(born, timeout=180)
    for child in alive:
        child.kill()
    assert not alive


def test_a_script_without_a_guard_runs_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('once')\n" + PROGRAM)
    done = subprocess.run([sys.executable, script, "0"], capture_output=True, text=True, timeout=180, check=True)
    assert done.stdout.count("once") == 1


def marked(task: tuple[int, int | None]) -> int:
    """Leave a mark; die of the signal that the task names."""
    number, signal_number = task
    mark(number)
    if signal_number is not None:
        os.kill(os.getpid(), signal_number)
    return number * number


@pytest.mark.parametrize("looks_ahead", [False, True])
def test_a_child_that_dies_is_replaced_and_no_task_is_lost(looks_ahead: bool) -> None:
    tasks = [(number, signal.SIGKILL if number in (3, 4, 17) else None) for number in range(20)]
    with ChildPool(marked, 2, looks_ahead=looks_ahead) as pool:
        pool.submit(*tasks)
        outcomes = [pool.take() for _ in tasks]
        assert pool.num_unfinished == 0
        pids = [psutil.Process(pid) for pid in pool.pids]
    results = {outcome.task[0]: outcome.result for outcome in outcomes if outcome.death is None}
    assert results == {number: number**2 for number in range(20) if number not in (3, 4, 17)}
    deaths = {outcome.task[0]: outcome.death for outcome in outcomes if outcome.death is not None}
    assert {number: (death.signal, death.mark) for number, death in deaths.items()} == {
        number: (signal.SIGKILL, number) for number in (3, 4, 17)
    }
    assert not any(process.is_running() for process in pids)


def test_an_exception_comes_back_as_itself() -> None:
    with ChildPool(os.stat, 1) as pool:
        pool.submit("/nowhere/at/all")
        with pytest.raises(FileNotFoundError):
            pool.take()
        pool.submit("/")
        assert pool.take().result is not None


def test_results_of_many_children_and_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnaround.children.num_helpers", lambda: 2)
    tasks = [(number, None) for number in range(9)]
    for min_tasks in (4, 100):
        found = in_children(marked, tasks, purpose="squares numbers", min_tasks=min_tasks)
        assert sorted(found) == [number**2 for number in range(9)]


def test_a_child_that_dies_is_an_error_where_nobody_looks_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnaround.children.num_helpers", lambda: 2)
    tasks = [(number, signal.SIGKILL if number == 5 else None) for number in range(9)]
    with pytest.raises(ProcessFailedError, match=r"A process that squares numbers was killed \(signal 9\)"):
        list(in_children(marked, tasks, purpose="squares numbers"))


class SlowToSend:
    """A task that another thread closes the pool under, while it is turned into bytes."""

    def __init__(self) -> None:
        self.is_being_sent, self.is_closed = threading.Event(), threading.Event()

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        self.is_being_sent.set()
        self.is_closed.wait(timeout=0.5)  # `close` may wait for us, as we for it
        return int, (1,)


def test_a_pool_that_is_closed_while_a_task_is_sent() -> None:
    pool, task = ChildPool(time.sleep, 1), SlowToSend()

    def close() -> None:
        task.is_being_sent.wait()
        pool.close()
        task.is_closed.set()

    closing = threading.Thread(target=close)
    closing.start()
    pool.submit(task)  # type: ignore[arg-type]
    with pytest.raises(PoolClosedError):
        pool.take()
    closing.join()
    assert not any(psutil.pid_exists(pid) for pid in pool.pids if pid)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_launcher_that_has_ended_is_dead_before_anybody_asks_for_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A zombie has an entry in /proc: processes that began in that moment waited minutes for a dead launcher."""
    launcher = subprocess.Popen(["sleep", "60"])
    monkeypatch.setenv(LAUNCHER_VARIABLE, str(launcher.pid))
    assert launcher_is_alive()
    launcher.kill()
    latest_s = time.monotonic() + 60
    while psutil.Process(launcher.pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < latest_s
        time.sleep(0.01)
    assert not launcher_is_alive()
    launcher.wait()
    assert not launcher_is_alive()
    monkeypatch.delenv(LAUNCHER_VARIABLE)
    assert launcher_is_alive()
