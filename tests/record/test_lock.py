"""One live run in a directory: with real processes, real kills and real races."""

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from turnaround.errors import RunDirectoryError, StorageError
from turnaround.record import lock as lock_module
from turnaround.record.files import write_temporary
from turnaround.record.lock import RunLock
from turnaround.record.writer import remove_leftovers

HOLDER = """
import sys, time
from pathlib import Path
from turnaround.errors import RunDirectoryError
from turnaround.record.lock import RunLock
start_s = float(sys.argv[2])
while time.time() < start_s:
    pass
try:
    with RunLock(Path(sys.argv[1])):
        print("won", flush=True)
        sys.stdin.read()
except RunDirectoryError as error:
    print("refused", error, flush=True)
"""


def start_holder(path, start_s=0.0):
    command = [sys.executable, "-c", HOLDER, str(path), str(start_s)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def end(process):
    out, _ = process.communicate(timeout=60)
    return out


def test_the_lock_is_gone_afterwards_and_can_be_taken_again(tmp_path):
    path = tmp_path / "run.lock"
    for _ in range(2):
        with RunLock(path):
            assert json.loads(path.read_text())["pid"] == os.getpid()
        assert os.listdir(tmp_path) == []


def test_the_lock_is_given_back_when_the_run_fails(tmp_path):
    with pytest.raises(ZeroDivisionError), RunLock(tmp_path / "run.lock"):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


@pytest.mark.fault(24, "the second is told who the first is: host, process, since when")
def test_a_second_run_is_told_who_the_first_is(tmp_path):
    path = tmp_path / "run.lock"
    holder = start_holder(path)
    assert holder.stdout.readline() == "won\n"
    with pytest.raises(RunDirectoryError) as caught:
        RunLock(path).acquire()
    started_at = json.loads(path.read_text())["started_at"]
    for words in (
        f"host {socket.gethostname()}",
        f"process {holder.pid}",
        started_at,
        "--out",
        str(tmp_path),
    ):
        assert words in str(caught.value)
    assert os.listdir(tmp_path) == ["run.lock"]
    end(holder)
    assert os.listdir(tmp_path) == []


def test_the_same_process_cannot_hold_it_twice(tmp_path):
    with RunLock(tmp_path / "run.lock"), pytest.raises(RunDirectoryError, match="in use by another run"):
        RunLock(tmp_path / "run.lock").acquire()


def kill_a_holder(path):
    holder = start_holder(path)
    assert holder.stdout.readline() == "won\n"
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate(timeout=60)
    assert path.exists()


def test_the_lock_of_a_killed_run_is_taken_over(tmp_path):
    path = tmp_path / "run.lock"
    kill_a_holder(path)
    with RunLock(path):
        assert json.loads(path.read_text())["pid"] == os.getpid()
    assert os.listdir(tmp_path) == []


def test_the_lock_of_a_zombie_is_taken_over(tmp_path):
    path = tmp_path / "run.lock"
    holder = start_holder(path)
    assert holder.stdout.readline() == "won\n"
    os.kill(holder.pid, signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # dead, and not collected
    with RunLock(path):
        pass
    holder.communicate(timeout=60)


@pytest.mark.fault(24, "several take the lock at once, free or stale: exactly one gets it")
@pytest.mark.parametrize("is_stale", [False, True], ids=["free", "stale"])
def test_of_several_that_start_at_once_exactly_one_wins(tmp_path, is_stale):
    path = tmp_path / "run.lock"
    if is_stale:
        kill_a_holder(path)
    start_s = time.time() + 0.7
    holders = [start_holder(path, start_s) for _ in range(4)]
    first_lines = [holder.stdout.readline() for holder in holders]
    assert sorted(line.split()[0] for line in first_lines) == ["refused", "refused", "refused", "won"]
    winner = next(holder for holder, line in zip(holders, first_lines, strict=True) if line == "won\n")
    assert json.loads(path.read_text())["pid"] == winner.pid
    assert all(f"process {winner.pid}" in line for line in first_lines if line != "won\n")
    for holder in holders:
        end(holder)
    assert os.listdir(tmp_path) == []


def test_an_owner_that_clears_up_does_not_refuse_who_comes_beside_it(tmp_path, monkeypatch):
    """The owner removes temporary files of killed writers; that of a lock which is just being taken looks the same."""
    path, written = tmp_path / "run.lock", []

    def write_and_lose(path, content):
        written.append(write_temporary(path, content))
        if len(written) == 1:
            remove_leftovers(tmp_path, tmp_path)
        return written[-1]

    monkeypatch.setattr(lock_module, "write_temporary", write_and_lose)
    with RunLock(path):
        assert [file.name for file in tmp_path.iterdir()] == ["run.lock"]
    assert len(written) == 2


def write_owner(path, **changes):
    path.write_text(json.dumps(lock_module._identity() | changes))


@pytest.mark.parametrize("changes", [{"process_start": 1.0}, {"boot_id": "another"}])
def test_a_reused_process_number_or_a_new_boot_proves_the_owner_dead(tmp_path, changes):
    path = tmp_path / "run.lock"
    write_owner(path, **changes)
    with RunLock(path):
        assert json.loads(path.read_text())["pid"] == os.getpid()


@pytest.mark.fault(24, "an owner on another host or in another container keeps its lock, however old")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"host": "elsewhere"}, "host elsewhere, process .* cannot ask whether it still runs"),
        ({"host": "elsewhere", "boot_id": "another", "pid": 2**30}, "cannot ask"),
        ({"pid_namespace": "pid:[1]", "pid": 2**30}, "another container"),
        ({"pid": "x"}, "does not say which"),
        ({"pid": 2**70}, "does not say which"),
        ({"host": None}, "does not say which"),
    ],
)
def test_an_owner_that_cannot_be_asked_keeps_the_lock(tmp_path, changes, words):
    path = tmp_path / "with space" / "run.lock"
    path.parent.mkdir()
    write_owner(path, **changes)
    before = path.read_bytes()
    with pytest.raises(RunDirectoryError, match=f"{words}.* remove the file by hand: rm '{re.escape(str(path))}'"):
        RunLock(path).acquire()
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"\xff\0", b"[1]", b"[" * 9000])
def test_an_unreadable_lock_is_not_taken_over(tmp_path, content):
    path = tmp_path / "run.lock"
    path.write_bytes(content)
    with pytest.raises(RunDirectoryError, match=r"does not say which.*rm "):
        RunLock(path).acquire()


@pytest.mark.fault(27, "the clock is set: the owner of a lock stays its owner")
def test_a_change_of_the_clock_does_not_kill_the_owner(tmp_path, monkeypatch):
    path = tmp_path / "run.lock"
    holder = start_holder(path)
    assert holder.stdout.readline() == "won\n"
    monkeypatch.setattr(time, "time", lambda: 0.0)
    with pytest.raises(RunDirectoryError, match="in use"):
        RunLock(path).acquire()
    end(holder)


def test_release_leaves_the_lock_of_somebody_else(tmp_path):
    path = tmp_path / "run.lock"
    with RunLock(path):
        write_owner(path, host="elsewhere")
    assert json.loads(path.read_text())["host"] == "elsewhere"


def test_release_from_a_vanished_folder_is_silent(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with RunLock(folder / "run.lock"):
        (folder / "run.lock").unlink()
        folder.rmdir()


def test_a_file_system_without_hard_links(tmp_path, monkeypatch):
    def no_links(*_arguments, **_keywords):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "run.lock"
    with RunLock(path), pytest.raises(RunDirectoryError, match="in use by another run"):
        RunLock(path).acquire()
    assert os.listdir(tmp_path) == []


def test_a_disk_that_refuses_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match=r"Cannot lock .*folder is not there"):
        RunLock(tmp_path / "gone" / "run.lock").acquire()


def test_our_own_lock_that_we_could_not_give_back_is_taken_again(tmp_path):
    """The folder was away when the run ended, and is back."""
    folder = tmp_path / "run"
    folder.mkdir()
    with RunLock(folder / "run.lock"):
        folder.rename(tmp_path / "away")
    (tmp_path / "away").rename(folder)
    with RunLock(folder / "run.lock"), pytest.raises(RunDirectoryError, match="in use"):
        RunLock(folder / "run.lock").acquire()
