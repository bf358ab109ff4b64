"""Whether others want our cores, and that threads sleep then: with nothing else changed, and nothing left behind."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from turnaround.training import neighbours as module
from turnaround.training.neighbours import (
    CALM_LOOKS,
    MAX_CALM_LOOKS,
    Crowd,
    SleepingThreads,
    extra_threads,
    gnu_openmp,
    waited_s,
    watched_neighbours,
)
from turnaround.workers.environment import OMP_WAITING

GNU = gnu_openmp()
needs_gnu = pytest.mark.skipif(GNU is None, reason="torch has another OpenMP than GNU's here")
TASKS = Path("/proc/self/task")
BUSY, CALM = 0.8, 0.02
PATIENCE_S = 30.0


def looks(crowd: Crowd, *shares: float) -> list[bool]:
    return [crowd.look(share) for share in shares]


def test_one_look_shows_a_crowd_and_several_calm_ones_take_it_back() -> None:
    crowd = Crowd()
    assert looks(crowd, CALM, 0.2, BUSY) == [False, False, True]
    assert looks(crowd, *[CALM] * CALM_LOOKS) == [True] * (CALM_LOOKS - 1) + [False]


def test_a_crowd_stays_while_threads_still_wait() -> None:
    crowd = Crowd()
    crowd.look(BUSY)
    for _ in range(20):
        assert looks(crowd, *[CALM] * (CALM_LOOKS - 1), 0.2) == [True] * CALM_LOOKS


def test_a_crowd_that_only_sleeping_hid_is_looked_for_more_and_more_seldom() -> None:
    crowd, calm_s = Crowd(), []
    for _ in range(8):
        assert crowd.look(BUSY)
        count = 1
        while crowd.look(CALM):
            count += 1
        calm_s.append(count)
    assert calm_s == [3, 6, 12, 24, 48, MAX_CALM_LOOKS, MAX_CALM_LOOKS, MAX_CALM_LOOKS]


def test_a_crowd_that_comes_much_later_is_a_new_one() -> None:
    crowd = Crowd()
    looks(crowd, BUSY, *[CALM] * CALM_LOOKS, *[CALM] * MAX_CALM_LOOKS)
    assert looks(crowd, BUSY, *[CALM] * CALM_LOOKS)[-1] is False


@needs_gnu
def test_threads_that_do_nothing_are_made_and_end() -> None:
    assert GNU is not None
    before = len(os.listdir(TASKS))
    with SleepingThreads(GNU, 3):
        assert len(os.listdir(TASKS)) == before + 4  # and the one that owns them
    until_s = time.monotonic() + PATIENCE_S
    while len(os.listdir(TASKS)) > before:
        assert time.monotonic() < until_s, "threads are left"
        time.sleep(0.01)


WAITING = """
import ctypes, resource, sys, time
import torch
from turnaround.training.neighbours import SleepingThreads, extra_threads, gnu_openmp

torch.set_num_threads(2)
library = gnu_openmp()
extra = extra_threads(library, threads=2)
numbers = torch.ones(2**20)

def cpu_s():
    begun_s = time.process_time()
    for _ in range(30):
        numbers.add_(1)
        time.sleep(0.02)
    return time.process_time() - begun_s

cpu_s()
spinning_s = cpu_s()
with SleepingThreads(library, extra):
    asleep_s = cpu_s()
print(spinning_s, asleep_s, cpu_s())
"""


@needs_gnu
def test_threads_spin_alone_and_sleep_beside_those_that_do_nothing() -> None:
    """Between operations 20 ms apart, a thread that spins 10 ms and more computes nothing all the while."""
    environment = {key: value for key, value in os.environ.items() if key not in OMP_WAITING}
    command = [sys.executable, "-c", WAITING]
    environment["GOMP_SPINCOUNT"] = "100000000"
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    spinning_s, asleep_s, afterwards_s = map(float, shown.split())
    assert asleep_s < spinning_s / 2
    assert asleep_s < afterwards_s / 2, "spinning is long again when the threads have ended"


@needs_gnu
def test_extra_threads_make_one_more_than_cores() -> None:
    assert GNU is not None
    cores = int(ctypes.CDLL(str(GNU)).omp_get_num_procs())
    assert extra_threads(GNU, threads=1) == 0, "one thread waits for nobody"
    assert extra_threads(GNU, threads=max(2, cores)) == max(0, cores - max(2, cores) + 1)
    assert extra_threads(GNU, threads=cores + 2) == 0, "more threads than cores sleep already"


def test_a_library_that_is_gone_is_no_error(tmp_path: Path) -> None:
    assert extra_threads(tmp_path / "libgomp.so.1 (deleted)", threads=2) == 0


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that always waits for cores, has two threads, and is looked at often."""
    monkeypatch.setattr(module, "EVERY_S", 0.01)
    monkeypatch.setattr(module, "CROWDED_SHARE", -1.0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(module, "extra_threads", lambda _library, threads: 1)


def names() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("neighbours")}


@needs_gnu
@pytest.mark.usefixtures("crowded")
def test_a_crowded_process_has_sleeping_threads_until_the_end() -> None:
    until_s = time.monotonic() + PATIENCE_S
    with watched_neighbours({}):
        while len(names()) < 2:
            assert time.monotonic() < until_s, "the crowd was not seen"
            time.sleep(0.01)
    assert names() == set()


@pytest.mark.usefixtures("crowded")
@pytest.mark.parametrize("name", OMP_WAITING)
def test_what_the_user_has_set_is_left_alone(name: str) -> None:
    with watched_neighbours({name: "1"}):
        assert names() == set()


@pytest.mark.usefixtures("crowded")
def test_nobody_watches_where_the_system_does_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "RUN_QUEUES", tmp_path / "none")
    with watched_neighbours({}):
        assert names() == set()


LINE = "7f0000000000-7f0000001000 r-xp 00000000 fe:00 1234 {}\n"


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (["/env/torch/lib/libgomp.so.1", "/env/torch/lib/libtorch.so"], "/env/torch/lib/libgomp.so.1"),
        (["/env/torch/lib/libgomp.so.1", "/env/sk learn.libs/libgomp-1.so"], "/env/torch/lib/libgomp.so.1"),
        (["/env/torch.libs/libgomp-24e2.so.1", "/usr/lib/libgomp.so.1"], "/env/torch.libs/libgomp-24e2.so.1"),
        (["/usr/lib/libgomp.so.1"], "/usr/lib/libgomp.so.1"),
        (["/usr/lib/libgomp.so.1", "/env/sklearn.libs/libgomp-1.so"], None),
        (["/env/torch/lib/libgomp.so.1", "/env/lib/libiomp5.so"], None),
        (["/env/lib/libomp.so"], None),
        ([], None),
    ],
)
def test_the_openmp_of_torch_is_found_where_it_is_gnus(files: list[str], chosen: str | None, tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text("".join(LINE.format(file) for file in [*files, *files, "/usr/lib/libc.so.6"]))
    assert gnu_openmp(maps) == (None if chosen is None else Path(chosen))
    assert gnu_openmp(tmp_path / "none") is None


def test_waiting_is_read_of_every_thread(tmp_path: Path) -> None:
    for name, text in {"11": "5000000000 1500000000 7\n", "12": "0 0 0\n", "13": ""}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "schedstat").write_text(text)
    (tmp_path / "14").mkdir()  # it has just ended
    assert waited_s(tmp_path) == {"11": 1.5, "12": 0.0}
    assert waited_s(tmp_path / "none") == {}
