"""A resume with other images, with other code, and a record without names of hosts."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forking import ForkingLauncher
from running import request
from struck import SETTINGS, struck
from turnaround import recipes
from turnaround.errors import InputError, ProcessFailedError, RunDirectoryError
from turnaround.launch import lifecycle
from turnaround.launch.checks import refuse_other_code
from turnaround.record import machine
from turnaround.record.files import read_json
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run
from turnaround.record.writer import write_json
from turnaround.reporting.page.build import write_page
from turnaround.reporting.run_text import changed_sentence


@pytest.mark.fault(30, "`resume --accept-data-change`: goes on with other images, and the record keeps what changed")
def test_other_images_are_accepted_on_request(fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher) -> None:
    photos = Path(shutil.copytree(fruit_folder, tmp_path / "photos"))
    out = tmp_path / "run"
    struck("kind=kill,step=14", photos, out, ProcessFailedError, launcher=forking)
    before = Run.load(out).recipe["images"]
    folder = sorted(path for path in photos.iterdir() if path.is_dir())[0]
    for number in range(10):
        shutil.copy2(sorted(folder.iterdir())[0], folder / f"more-{number}.png")
    asked = request(out, launcher=forking)
    with pytest.raises(InputError, match="go on with them all the same: --accept-data-change"):
        lifecycle.resume(asked)
    run = lifecycle.resume(replace(asked, accepts_data_change=True))
    assert run.status.state == "finished"
    assert [record.epoch for record in run.epochs] == [1, 2]
    now = run.recipe["images"]
    assert now["num_train"] + now["num_validation"] == before["num_train"] + before["num_validation"] + 10
    (change,) = run.recipe["changes"]
    assert change["keys"] == {"images.fingerprint": [before["fingerprint"], now["fingerprint"]]}
    assert change["segment"] == 2
    assert change["images"].startswith("10 added")


@pytest.mark.fault(30, "images of other classes, or too few of them, are refused with --accept-data-change too")
def test_other_classes_are_never_accepted(fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher) -> None:
    photos = Path(shutil.copytree(fruit_folder, tmp_path / "photos"))
    out = tmp_path / "run"
    struck("kind=kill,step=14", photos, out, ProcessFailedError, launcher=forking)
    asked = replace(request(out, launcher=forking), accepts_data_change=True)
    folders = sorted(path for path in photos.iterdir() if path.is_dir())
    for folder in folders:
        for file in sorted(folder.iterdir())[24:]:
            file.rename(tmp_path / file.name)
    with pytest.raises(
        InputError, match="The last checkpoint lies behind 10 steps of an epoch, and with the images of"
    ):
        lifecycle.resume(asked)
    folders[0].rename(photos / "another")
    with pytest.raises(InputError, match="The classes are others, so the network does not fit them"):
        lifecycle.resume(asked)


@pytest.mark.fault(34, "`resume --strict`: another version of turnaround or of a library is refused and named")
def test_other_code_is_refused_when_strict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"commit": "a" * 40, "dirty": False}
    monkeypatch.setattr(machine, "is_tracked", lambda path: True)
    monkeypatch.setattr(machine, "git_state", lambda path: dict(state))
    directory = RunDirectory(tmp_path)
    refuse_other_code(directory)  # it never came so far as to describe its machine
    facts: dict[str, Any] = machine.describe(workers=1, processes=1, engine="torch", launch="local", device="cpu")
    write_json(directory.machine, facts)
    refuse_other_code(directory)
    write_json(directory.machine, {**facts, "versions": {**facts["versions"], "torch": "1.0"}})
    with pytest.raises(InputError, match=r"--strict: the code is not that of the last start \(versions.torch 1.0 -> "):
        refuse_other_code(directory)
    write_json(directory.machine, facts)
    state["commit"] = "b" * 40
    with pytest.raises(InputError, match=f"turnaround_git.commit {'a' * 40} -> {'b' * 40}"):
        refuse_other_code(directory)
    state |= {"commit": "a" * 40, "dirty": True}
    with pytest.raises(InputError, match="turnaround has uncommitted changes"):
        refuse_other_code(directory)


def test_other_code_is_said_at_a_resume_and_at_the_end(
    trained_run: Path, tmp_path: Path, forking: ForkingLauncher
) -> None:
    directory = RunDirectory(Path(shutil.copytree(trained_run, tmp_path / "run")))
    facts = read_json(directory.machine)
    write_json(directory.machine, {**facts, "versions": {**facts["versions"], "torch": "1.0"}})
    said: list[str] = []
    asked = replace(request(directory.path, launcher=forking), epochs=4)
    run = lifecycle.resume(replace(asked, announce=lambda recipe, prepared, processes: said.extend(prepared.notes)))
    assert [note.partition(" -> ")[0] for note in said if "code" in note] == [
        "The code is not that of the last start (versions.torch 1.0"
    ]
    assert "start 2: versions.torch 1.0 -> " in str(changed_sentence(run))
    assert changed_sentence(Run.load(trained_run)) is None


def texts(value: Any) -> Iterator[str]:
    """Every text in a value of JSON."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts(inner)


def test_a_private_run_names_no_host_no_command_and_no_folder(
    fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["turnaround", "train", "a-very-private-word"])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TURNAROUND_FAULT", "kind=raise,segment=2,step=14")
    out, images = tmp_path / "anna-the-secret-user" / "run", tmp_path / "anna-the-secret-user" / "my photos"
    shutil.copytree(fruit_folder, images)
    recipe = recipes.find(str(images), [*SETTINGS, "training.epochs=1", f"data.cache={tmp_path / 'anna' / 'cache'}"])
    lifecycle.start(recipe, replace(request(out, launcher=forking), is_private=True))
    asked = replace(request(out, launcher=forking), epochs=2)
    with pytest.raises(ProcessFailedError):
        lifecycle.resume(asked)  # stays private without being asked
    write_page([out], out=out / "page.html")
    # Torn away from where it began, a run can be looked at, and not resumed.
    (tmp_path / "state").rename(tmp_path / "elsewhere")
    with pytest.raises(RunDirectoryError, match="This run is private: where its images lie is only known to the user"):
        lifecycle.resume(replace(asked, epochs=None))
    (tmp_path / "elsewhere").rename(tmp_path / "state")
    run = lifecycle.resume(replace(asked, epochs=None))
    write_page([out], out=out / "page.html")
    assert (run.status.state, run.status.segments) == ("finished", 3)
    assert "TURNAROUND_PRIVATE_PLACES" not in os.environ
    for path in filter(Path.is_file, out.rglob("*")):
        content = path.read_bytes()
        for word in ("a-very-private-word", "anna-the-secret-user", str(tmp_path), str(Path.home()) + "/"):
            assert word.encode() not in content, (path, word)
        # By whole values: the name of a host may be as short as two letters, and be part of any word.
        if path.suffix in (".json", ".jsonl"):
            lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
            assert socket.gethostname() not in {text for line in lines for text in texts(json.loads(line))}, path
    assert run.recipe["data"]["source"] == "my photos"
    assert run.machine["hostname"].startswith("host-")
    assert run.machine["hostname"] == run.machine["ranks"][0]["host"]
    assert run.machine["command"] == run.recipe["command"] == []
    assert list(run.telemetry()) == [run.machine["hostname"]]
    assert json.loads((out / "recipe.json").read_text())["launch"]["private"] is True
