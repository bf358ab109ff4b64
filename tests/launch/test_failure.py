"""Each process tells why it failed; the launcher finds who was first."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnaround import errors
from turnaround.errors import DataError, DivergedError, InterruptedRunError, ProcessFailedError, TurnaroundError
from turnaround.launch import failure
from turnaround.record.layout import RunDirectory
from turnaround.record.writer import write_json


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "my run")


def first(directory: RunDirectory, exit_status: int = 1) -> TurnaroundError:
    return failure.first_cause(directory, exit_status=exit_status, log=directory.logs / "processes.log")


@pytest.mark.parametrize("error", [DataError("no images"), DivergedError("nan"), InterruptedRunError("stopped")])
def test_an_error_of_ours_comes_back_as_it_was(error: TurnaroundError, directory: RunDirectory) -> None:
    failure.tell(directory, rank=0, error=error)
    found = first(directory)
    assert type(found) is type(error)
    assert str(found) == str(error)


def test_every_error_of_the_tree_comes_back(directory: RunDirectory) -> None:
    for kind in vars(errors).values():
        if isinstance(kind, type):
            failure.tell(directory, rank=0, error=kind("why"))
            assert type(first(directory)) is kind


def test_any_other_error_names_its_process_and_the_log(directory: RunDirectory) -> None:
    failure.tell(directory, rank=3, error=ZeroDivisionError("division by zero"))
    found = first(directory)
    assert isinstance(found, ProcessFailedError)
    assert str(found) == (
        f"Process 3 failed: ZeroDivisionError: division by zero. Details are in {directory.logs / 'processes.log'}."
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
    failure.tell(directory, rank=0, error=DataError("old"))
    (directory.logs / "processes.log").write_text("kept")
    failure.clear(directory)
    assert "without a word" in str(first(directory))
    assert (directory.logs / "processes.log").read_text() == "kept"


def test_an_unknown_kind_is_still_ours(directory: RunDirectory) -> None:
    """Of a newer turnaround's worker, perhaps."""
    write_json(directory.logs / "failure-0.json", {"rank": 0, "kind": "NewError", "message": "why", "at_s": 1.0})
    assert type(first(directory)) is TurnaroundError
    assert str(first(directory)) == "why"
