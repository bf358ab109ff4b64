"""Which directory: that of the processes that were started together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from turnaround.errors import StorageError
from turnaround.record.files import claim
from turnaround.record.layout import RunDirectory
from turnaround.recorder import folder


def say(directory: RunDirectory, start: str) -> None:
    (directory.logs / "rank-0.json").write_text(json.dumps({"rank": 0, "start": start}))


def test_the_newest_of_this_start_that_is_alive(tmp_path: Path) -> None:
    first, lock = folder.create_directory(tmp_path / "run")
    say(first, "node1 29500")
    assert folder.find_directory(tmp_path / "run", start="node1 29500") == first
    assert folder.find_directory(tmp_path / "run", start="node2 29500") is None
    first.recipe.write_text("{}")
    second, _ = folder.create_directory(tmp_path / "run")
    assert second.path == tmp_path / "run-2"
    assert folder.find_directory(tmp_path / "run", start="node1 29500") == first  # the second has not said who it is
    say(second, "node1 29500")
    assert folder.find_directory(tmp_path / "run", start="node1 29500") == second
    lock.release()
    second.lock.unlink()
    assert folder.find_directory(tmp_path / "run", start="node1 29500") is None  # both have ended


def test_names_that_only_look_alike(tmp_path: Path) -> None:
    other, _ = folder.create_directory(tmp_path / "run-large")
    say(other, "x")
    assert folder.find_directory(tmp_path / "run", start="x") is None
    assert folder.find_directory(tmp_path / "missing" / "run", start="x") is None


def test_one_that_is_held_by_another_run(tmp_path: Path) -> None:
    first, _ = folder.create_directory(tmp_path / "run")
    assert folder.create_directory(tmp_path / "run")[0].path != first.path


def test_a_place_where_nothing_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Cannot create the run directory"):
        folder.create_directory(tmp_path / "file" / "run")


def test_what_processes_have_said(tmp_path: Path) -> None:
    directory, _ = folder.create_directory(tmp_path / "run")
    say(directory, "x")
    (directory.logs / "rank-1.json").write_text("{torn")
    assert list(folder.ranks(directory)) == [0]


def test_one_of_them_writes_the_telemetry(tmp_path: Path) -> None:
    assert [claim(tmp_path / "telemetry-a.jsonl") for _ in range(3)] == [True, False, False]
