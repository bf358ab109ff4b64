"""A run from somebody else, with links, FIFOs and devices in it: nothing outside changes, nothing hangs."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from forking import ForkingLauncher
from running import request
from turnaround.analysis.workloads import survey
from turnaround.errors import RunDirectoryError, StorageError, TurnaroundError
from turnaround.launch import lifecycle
from turnaround.record import files, heartbeat
from turnaround.record.follow import FollowedRun
from turnaround.record.growing import MAX_LINE_BYTES
from turnaround.record.layout import CheckpointFiles, RunDirectory
from turnaround.record.lock import RunLock, is_held
from turnaround.record.reader import Run
from turnaround.record.telemetry import Telemetry
from turnaround.record.writer import Lines, truncate_epochs, write_json
from turnaround.use.trained import load_trained

MINE = b'{"a": "file of mine", "epoch": 99}\n{"epoch": 100}\nhalf a line'


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the person who opens the run, outside of it."""
    (tmp_path / "mine").mkdir()
    file = tmp_path / "mine" / "work.jsonl"
    file.write_bytes(MINE)
    return file


@pytest.fixture
def copied(trained_run: Path, tmp_path: Path) -> RunDirectory:
    """The run as somebody else hands it over, interrupted after its second epoch."""
    directory = RunDirectory(Path(shutil.copytree(trained_run, tmp_path / "theirs")))
    shutil.rmtree(directory.checkpoints()[-1].path)
    status = json.loads(directory.status.read_text())
    directory.status.write_text(json.dumps({**status, "state": "interrupted", "epochs_done": 2}))
    directory.evaluation.unlink()
    return directory


def linked(path: Path, target: Path | str) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


# --- what each writer does with a link in its place

WRITERS: dict[str, Callable[[Path], object]] = {
    "append": lambda path: Lines(path, sync=True),
    "log": files.open_log,
    "cut": lambda path: truncate_epochs(path, 0),
    "lock": lambda path: RunLock(path).acquire(),
    "folder": files.make_folder,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_no_writer_goes_through_a_link(writer: str, tmp_path: Path, victim: Path) -> None:
    (tmp_path / "run").mkdir()
    linked(tmp_path / "run" / "x", victim)
    with pytest.raises((StorageError, RunDirectoryError, OSError), match="symbolic link"):
        WRITERS[writer](tmp_path / "run" / "x")
    assert victim.read_bytes() == MINE


def test_a_replaced_or_removed_file_is_the_link_and_not_its_target(tmp_path: Path, victim: Path) -> None:
    path = tmp_path / "status.json"
    linked(path, victim)
    write_json(path, {"state": "running"})
    assert not path.is_symlink()
    linked(path, victim)
    files.remove_file(path)
    assert not os.path.lexists(path)
    linked(tmp_path / "folder", victim.parent)
    files.remove_folder(tmp_path / "folder")
    files.remove_folder(tmp_path / "folder" / "work.jsonl", below=tmp_path)
    assert victim.read_bytes() == MINE


def test_a_folder_of_the_run_that_is_a_link(tmp_path: Path, victim: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    linked(directory.logs, victim.parent)
    (victim.parent / directory.heartbeat(0).name).write_text("{}")
    (victim.parent / directory.failure(0).name).write_text("{}")
    before = sorted(os.listdir(victim.parent))
    assert (directory.heartbeat_ranks(), directory.failed_ranks(), directory.other_logs()) == ([], [], [])
    heartbeat.clear(directory)
    with pytest.raises(StorageError, match=r"written through links: logs is a symbolic link"):
        write_json(directory.failure(1), {"rank": 1}, directory.path)
    with pytest.raises(StorageError, match="written through links"):
        files.open_log(directory.process_log, directory.path)
    with pytest.raises(OSError, match="symbolic link"):
        files.remove_file(directory.start_message, directory.path)
    assert sorted(os.listdir(victim.parent)) == before


@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_what_is_no_plain_file_is_not_waited_for(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    for write in (lambda: Lines(path, sync=False), lambda: files.open_log(path)):
        with pytest.raises(StorageError, match="Cannot open"):
            write()
    with Telemetry(path, 0.05) as telemetry:
        pass
    assert telemetry.failure is not None
    assert not is_held(path) or kind == "folder"
    with pytest.raises(RunDirectoryError):
        files.read_json(path)


# --- the verbs


@pytest.mark.parametrize(
    "name", ["spans-0.jsonl", "telemetry", "epochs.jsonl", "status.json", "checkpoint", "best", "logs"]
)
def test_resume_changes_nothing_outside(
    name: str, copied: RunDirectory, victim: Path, forking: ForkingLauncher
) -> None:
    outside = victim.parent
    path = copied.telemetry(socket.gethostname()) if name == "telemetry" else copied.path / name
    if path.is_dir():
        for inner in (".epoch-00009.1", "epoch-00001", "epoch-00002", "epoch-00003"):
            shutil.copytree(copied.checkpoints()[0].path, outside / inner)
        linked(path, outside)
    else:
        linked(path, victim)
    before = {file: file.stat().st_mtime_ns for file in outside.rglob("*")}
    if name == "telemetry":  # a training goes on without what only watches it
        lifecycle.resume(request(copied.path, launcher=forking))
    else:
        with pytest.raises(TurnaroundError, match="link"):
            lifecycle.resume(request(copied.path, launcher=forking))
    assert victim.read_bytes() == MINE
    assert {file: file.stat().st_mtime_ns for file in outside.rglob("*")} == before


def changed(directory: RunDirectory, section: str, **values: object) -> None:
    recipe = json.loads(directory.recipe.read_text())
    recipe[section] = {**recipe.get(section, {}), **values}
    directory.recipe.write_text(json.dumps(recipe))


@pytest.mark.parametrize("kind", ["linked", "filled with links"])
def test_images_are_not_decoded_through_a_link(
    kind: str, copied: RunDirectory, victim: Path, forking: ForkingLauncher
) -> None:
    """With data.cache=off the folder of decoded images lies in the run."""
    changed(copied, "data", cache="off")
    if kind == "linked":
        linked(copied.pixels, victim.parent)
        with pytest.raises(StorageError, match=r"written through links: \.pixels is a symbolic link"):
            lifecycle.resume(request(copied.path, launcher=forking))
    else:
        copied.pixels.mkdir()
        linked(copied.pixels / "pixels-x", victim.parent)
        lifecycle.resume(request(copied.path, launcher=forking))
        assert not copied.pixels.exists()
    assert os.listdir(victim.parent) == [victim.name]
    assert victim.read_bytes() == MINE


@pytest.mark.parametrize("cache", ["FOLDER", "FOLDER/new", "\0", "~nobody-of-that-name/x"])
def test_a_record_names_no_folder_to_write_to(
    cache: str, copied: RunDirectory, victim: Path, forking: ForkingLauncher
) -> None:
    changed(copied, "data", cache=cache.replace("FOLDER", str(victim.parent)))
    said: list[str] = []
    asked = request(copied.path, launcher=forking)
    lifecycle.resume(replace(asked, announce=lambda recipe, prepared, processes: said.extend(prepared.notes)))
    assert [note for note in said if "as the cache, where there is none" in note]
    assert os.listdir(victim.parent) == [victim.name]


def test_a_cache_that_this_user_has_used_goes_on_being_used(
    copied: RunDirectory, tmp_path: Path, forking: ForkingLauncher
) -> None:
    own = Path(shutil.copytree(os.environ["TURNAROUND_CACHE"], tmp_path / "own"))
    changed(copied, "data", cache=str(own))
    said: list[str] = []
    asked = request(copied.path, launcher=forking)
    lifecycle.resume(replace(asked, announce=lambda recipe, prepared, processes: said.extend(prepared.notes)))
    assert said == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("wanted", "x"), ("wanted", [1]), ("device", 7), ("device", {}), ("share", [1]), ("share", "9" * 5000)],
)
def test_one_wrong_value_of_the_last_start_is_named(
    name: str, value: object, copied: RunDirectory, forking: ForkingLauncher
) -> None:
    changed(copied, "launch", **{name: value})
    with pytest.raises(RunDirectoryError, match=rf"recipe.json is damaged: launch.{name} must be"):
        lifecycle.resume(request(copied.path, launcher=forking))


@pytest.mark.parametrize("kind", ["link", "fifo", "device"])
@pytest.mark.parametrize("file", ["weights", "optimizer", "manifest"])
def test_a_checkpoint_of_other_things_is_passed_over(file: str, kind: str, trained_run: Path, tmp_path: Path) -> None:
    copied = RunDirectory(Path(shutil.copytree(trained_run, tmp_path / "theirs")))
    newest = copied.checkpoints()[-1]
    path: Path = {"weights": newest.weights, "optimizer": newest.optimizer, "manifest": newest.manifest}[file]
    made_into(path, kind, aside=tmp_path / "aside")
    trained = load_trained(copied.path, weights="last")
    assert (trained.epoch, len(trained.passed_over)) == (2, 1)
    assert "symbolic link" in trained.passed_over[0] or "not a plain file" in trained.passed_over[0]


def made_into(path: Path, kind: str, *, aside: Path) -> None:
    """In place of a file: a link to where it is now, a pipe that nobody writes to, or a device that never ends."""
    path.rename(aside)
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else aside)


@pytest.mark.parametrize("kind", ["link", "fifo", "device"])
@pytest.mark.parametrize("file", ["weights", "manifest"])
def test_best_weights_of_other_things_are_passed_over(file: str, kind: str, trained_run: Path, tmp_path: Path) -> None:
    copied = RunDirectory(Path(shutil.copytree(trained_run, tmp_path / "theirs")))
    best = CheckpointFiles.all_in(copied.best)[-1]
    made_into({"weights": best.weights, "manifest": best.manifest}[file], kind, aside=tmp_path / "aside")
    trained = load_trained(copied.path)
    assert (trained.epoch, trained.best, len(trained.passed_over)) == (3, None, 1)
    assert "symbolic link" in trained.passed_over[0] or "not a plain file" in trained.passed_over[0]


def test_a_report_names_what_it_cannot_read(copied: RunDirectory, victim: Path) -> None:
    linked(copied.epochs, victim)
    left_out = survey([copied.path]).left_out
    assert "is a symbolic link; put the file itself there" in str(left_out[0].error)
    assert victim.read_bytes() == MINE


# --- whole and followed: one decoder, one set of limits


def _odd(directory: RunDirectory, kind: str) -> None:
    """Make the run odd in one way."""
    lines = directory.epochs.read_bytes()
    match kind:
        case "long line":
            directory.epochs.write_bytes(lines + b" " * (MAX_LINE_BYTES + 5) + b"{}\n" + lines)
        case "line of 300 KiB":
            directory.epochs.write_bytes(lines.replace(b"{", b"{" + b" " * 300 * 2**10, 1))
        case "endless line":
            directory.epochs.write_bytes(lines + b"y" * 3 * MAX_LINE_BYTES)
        case "bad lines":
            directory.epochs.write_bytes(b"\xff\n[]\n7\n{}\n" + lines + b'{"epoch": "x"}\n{"torn')
        case "zeros":
            directory.epochs.write_bytes(lines + b"\0\0\0\n" + lines)
        case "newer line":
            directory.epochs.write_bytes(lines + b'{"format": 99}\n')
        case "linked lines":
            linked(directory.spans(0), "/etc/hostname")
        case "big recipe":
            recipe = json.loads(directory.recipe.read_text())
            directory.recipe.write_text(json.dumps({**recipe, "padding": "x" * 20 * 2**20}))
        case "damaged status":
            directory.status.write_text("{" * 50)
        case "missing machine":
            directory.machine.unlink()
        case "newer evaluation":
            directory.evaluation.write_text('{"format": 99}')
        case "folder for a file":
            directory.imported.mkdir()
        case "notes":
            directory.telemetry("odd").write_text('{"note": "GPU 0: lost"}\n{"time_s": 1, "at": "then"}\n')


ODD = (
    *("plain", "long line", "line of 300 KiB", "endless line", "bad lines", "zeros", "newer line", "linked lines"),
    *("big recipe", "damaged status", "missing machine", "newer evaluation", "folder for a file", "notes"),
)


@pytest.mark.parametrize("kind", ODD)
def test_a_followed_run_says_what_a_whole_one_says(kind: str, trained_run: Path, tmp_path: Path) -> None:
    directory = RunDirectory(Path(shutil.copytree(trained_run, tmp_path / "odd")))
    _odd(directory, kind)
    now_s = [0.0]
    followed = FollowedRun(tmp_path, ("odd",), lambda: now_s[0])
    for _ in range(3):
        now_s[0] += 100.0  # zeros do not arrive any more
        followed.look(2**30)
    whole, snapshot = Run(directory), followed.snapshot
    parts: dict[str, Callable[[Run], object]] = {
        **{name: lambda run, name=name: getattr(run, name) for name in ("recipe", "machine", "status", "evaluation")},  # type: ignore[misc]
        **{name: lambda run, name=name: getattr(run, name) for name in ("imported", "epochs", "bad_lines", "is_torn")},  # type: ignore[misc]
        "ranks": lambda run: run.ranks,
        "spans": lambda run: run.spans(0),
        "check": lambda run: run.check_epochs(),
        "telemetry": lambda run: run.telemetry(),
        "notes": lambda run: run.telemetry_notes(),
    }
    for name, read in parts.items():
        assert _said(read, whole) == _said(read, snapshot), name
    assert followed.has_recipe == (kind != "none")


def _said(read: Callable[[Run], object], run: Run) -> str:
    """The value, or the error without the directory in front of it."""
    try:
        return repr(read(run))
    except RunDirectoryError as error:
        return str(error).removeprefix(f"{run.path}/").removeprefix(f"{run.path.name}: ")


def test_a_checkpoint_within_an_epoch_has_a_name_of_its_own(tmp_path: Path) -> None:
    for name in ("epoch-00003-step-00040", "epoch-00003", "epoch-00010", ".epoch-00011.7", "epoch-x", "other"):
        (tmp_path / "checkpoint" / name).mkdir(parents=True)
    found = CheckpointFiles.all_in(tmp_path / "checkpoint")
    assert [tuple(checkpoint.name or ()) for checkpoint in found] == [(3, 0), (3, 40), (10, 0)]
    assert [str(checkpoint.name) for checkpoint in found] == [checkpoint.path.name for checkpoint in found]
