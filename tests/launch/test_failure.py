"""Each process tells why it failed; the launcher finds who was first."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest

from turnaround import errors
from turnaround.errors import DataError, DivergedError, InterruptedRunError, ProcessFailedError, TurnaroundError
from turnaround.launch import failure
from turnaround.record import heartbeat
from turnaround.record.layout import RunDirectory
from turnaround.record.writer import write_json
from turnaround.workers.engines import ENGINES


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "my run")


def first(directory: RunDirectory, exit_status: int = 1) -> TurnaroundError:
    return failure.first_cause(directory, exit_status=exit_status, log=directory.logs / "processes.log")


@pytest.mark.parametrize("error", [DataError("no images"), DivergedError("nan"), InterruptedRunError("stopped")])
def test_an_error_of_ours_comes_back_as_it_was(error: TurnaroundError, directory: RunDirectory) -> None:
    failure.write_failure(directory, rank=0, error=error)
    found = first(directory)
    assert type(found) is type(error)
    assert str(found) == str(error)


def test_every_error_of_the_tree_comes_back(directory: RunDirectory) -> None:
    for kind in vars(errors).values():
        if isinstance(kind, type):
            failure.write_failure(directory, rank=0, error=kind("why"))
            assert type(first(directory)) is kind


def test_any_other_error_names_its_process_and_the_log(directory: RunDirectory) -> None:
    failure.write_failure(directory, rank=3, error=ZeroDivisionError("division by zero"), step=37)
    found = first(directory)
    assert isinstance(found, ProcessFailedError)
    assert str(found) == (
        f"Process 3 (host {socket.gethostname()}, step 37) failed: ZeroDivisionError: division by zero. "
        f"Details are in {directory.logs / 'processes.log'}."
    )


def test_the_earliest_is_the_cause(directory: RunDirectory) -> None:
    for rank, at_s in ((0, 20.0), (1, 10.0), (2, 30.0)):
        payload = {"rank": rank, "kind": None, "message": f"lost the connection {rank}", "at_s": at_s}
        write_json(directory.logs / f"failure-{rank}.json", payload)
    assert "Process 1 failed: lost the connection 1" in str(first(directory))


@pytest.mark.parametrize(("exit_status", "how"), [(-9, "(signal 9)"), (1, "(exit status 1)")])
def test_a_death_without_a_word(exit_status: int, how: str, directory: RunDirectory) -> None:
    message = str(first(directory, exit_status))
    assert "died without a word" in message
    assert how in message
    assert str(directory.logs / "processes.log") in message
    assert f"`turnaround resume '{directory.path}'`" in message  # a path with a space, as it must be typed


def test_an_earlier_start_is_forgotten(directory: RunDirectory) -> None:
    failure.write_failure(directory, rank=0, error=DataError("old"))
    (directory.logs / "processes.log").write_text("kept")
    failure.clear(directory)
    assert "without a word" in str(first(directory))
    assert (directory.logs / "processes.log").read_text() == "kept"


def test_an_unknown_kind_is_still_ours(directory: RunDirectory) -> None:
    """Of a newer turnaround's worker, perhaps."""
    write_json(directory.logs / "failure-0.json", {"rank": 0, "kind": "NewError", "message": "why", "at_s": 1.0})
    assert type(first(directory)) is TurnaroundError
    assert str(first(directory)) == "why"


# --- a lost connection is never the first cause when there is a better one

LOST = RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711")


def seen(directory: RunDirectory, rank: int, *, step: int = 0, host: str = "node7") -> None:
    """Process `rank` has begun, and its file says where it was."""
    said = {"rank": rank, "host": host, "pid": 1, "step": step, "doing": "computes", "beats": 1, "ticks": 1}
    (directory.logs / f"pulse-{rank}.json").write_text(json.dumps({**said, "program_s": 5.0}))


@pytest.mark.fault(14, "a lost connection is never the cause where somebody knows better")
def test_a_lost_connection_is_not_the_cause_when_another_process_knows_better(directory: RunDirectory) -> None:
    failure.write_failure(directory, rank=0, error=LOST)
    failure.write_failure(directory, rank=1, error=ZeroDivisionError("x"))
    assert "failed: ZeroDivisionError: x" in str(first(directory))


def test_who_went_without_a_word_is_the_cause_of_lost_connections(directory: RunDirectory) -> None:
    for rank in (0, 1, 2):
        seen(directory, rank, step=40 + rank)
    failure.write_failure(directory, rank=0, error=LOST, step=42)
    failure.write_failure(directory, rank=2, error=LOST, step=42)
    found = first(directory)
    assert isinstance(found, ProcessFailedError)
    assert str(found).startswith("Process 1 (host node7, step 41) died without a word: killed from outside")
    assert "turnaround resume" in str(found)


def test_who_was_seen_to_go_first_is_the_cause(directory: RunDirectory) -> None:
    seen(directory, 0, step=9)
    seen(directory, 1, step=8)  # ended by us, afterwards
    (first_gone, _) = heartbeat.read(directory)
    found = failure.first_cause(directory, exit_status=-9, log=directory.logs / "x", gone=first_gone)
    assert str(found).startswith("Process 0 (host node7, step 9) died without a word")


def test_whoever_started_a_process_can_tell_its_death(directory: RunDirectory) -> None:
    seen(directory, 1, step=20)
    failure.write_failure(directory, rank=0, error=LOST)
    failure.write_exit_if_silent(directory, rank=0, exit_status=1)  # it has spoken
    failure.write_exit_if_silent(directory, rank=1, exit_status=-9)
    assert str(first(directory)).startswith("Process 1 (host node7, step 20) died without a word (signal 9): killed")


@pytest.mark.parametrize("engine", ENGINES)
def test_what_an_engine_raises_for_a_lost_connection_is_one(engine: str, directory: RunDirectory) -> None:
    for rank, kind in enumerate(ENGINES[engine].lost_errors):
        failure.write_failure(directory, rank=rank, error=type(kind, (RuntimeError,), {})("gone"))
    failure.write_failure(directory, rank=9, error=ZeroDivisionError("x"))
    assert "failed: ZeroDivisionError: x" in str(first(directory))


def test_only_lost_connections_leave_the_first_of_them(directory: RunDirectory) -> None:
    failure.write_failure(directory, rank=0, error=LOST)
    assert "Connection closed by peer" in str(first(directory))


def test_the_others_are_waited_for_only_while_nothing_better_is_known(directory: RunDirectory) -> None:
    failure.write_failure(directory, rank=0, error=LOST)
    begun_s = time.monotonic()
    failure.wait_for_others(directory, patience_s=0.3)
    assert time.monotonic() - begun_s >= 0.3
    failure.write_failure(directory, rank=1, error=ZeroDivisionError("x"))
    begun_s = time.monotonic()
    failure.wait_for_others(directory, patience_s=10)
    assert time.monotonic() - begun_s < 8
