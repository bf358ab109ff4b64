"""`turnaround verify`: whole, damaged or unknown, of every file; nothing hangs, nothing outside is opened."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from turnaround.cli import app
from turnaround.data.folder import scan
from turnaround.data.pixels import prepare
from turnaround.errors import RunDirectoryError
from turnaround.record.coding import own_digest
from turnaround.record.files import read_json
from turnaround.record.layout import RunDirectory
from turnaround.record.writer import Lines, write_json


def verified(path: Path) -> tuple[int, dict[str, tuple[str, str]]]:
    """The exit code, and (state, reason) of every file."""
    done = CliRunner().invoke(app, ["verify", str(path), "--json"])
    payload: dict[str, Any] = json.loads(done.stdout)
    files = {file["path"]: (file["state"], file["reason"]) for file in payload["files"]}
    counts = [payload[state] for state in ("whole", "damaged", "unknown")]
    assert sum(counts) == len(payload["files"]) == len(files)
    return done.exit_code, files


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> RunDirectory:
    return RunDirectory(Path(shutil.copytree(trained_run, tmp_path / "runs" / "a")))


def test_a_run_that_was_trained_is_whole(run: RunDirectory) -> None:
    exit_code, files = verified(run.path)
    assert exit_code == 0
    ours = [run.recipe, run.machine, run.status, run.evaluation, run.epochs, run.spans(0)]
    for checkpoint in run.checkpoints():
        ours += [checkpoint.weights, checkpoint.optimizer, checkpoint.manifest]
    for path in ours:
        assert files[str(path.relative_to(run.path))] == ("whole", "as_written")
    assert {state for state, _ in files.values()} == {"whole", "unknown"}
    assert files["logs/processes.log"] == ("unknown", "not_checked")
    said = CliRunner().invoke(app, ["verify", str(run.path)]).stdout
    assert f"{len(files)} files: " in said
    assert " 0 damaged" in said


def flip(path: Path, at: int = -9) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def in_first_line(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"epoch":1,', b'"epoch":9,', 1))


def edit(path: Path) -> None:
    path.write_text(path.read_text().replace('"state": "finished"', '"state": "finished "'))


DAMAGE: dict[str, tuple[Callable[[RunDirectory], Path], Callable[[Path], object], str]] = {
    "weights": (lambda run: run.checkpoints()[-1].weights, flip, "digest"),
    "manifest": (lambda run: run.checkpoints()[-1].manifest, lambda path: flip(path, 60), "digest"),
    "line": (lambda run: run.epochs, in_first_line, "lines"),
    "status": (lambda run: run.status, edit, "checksum"),
    "cut": (lambda run: run.evaluation, lambda path: os.truncate(path, 20), "unreadable"),
    "gone": (lambda run: run.checkpoints()[-1].optimizer, os.unlink, "missing"),
}


@pytest.mark.fault(22, "`verify` finds a changed line, a changed or cut file, by its checksum; exit code 1")
@pytest.mark.fault(23, "`verify` finds a changed, cut or missing file of a checkpoint by its digest; exit code 1")
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found(damage: str, run: RunDirectory) -> None:
    which, harm, reason = DAMAGE[damage]
    path = which(run)
    harm(path)
    exit_code, files = verified(run.path)
    assert exit_code == 1
    label = str(path.relative_to(run.path))
    assert files.pop(label)[0] == "damaged" or damage == "manifest"
    if damage == "manifest":  # then nobody knows what its tensors should be
        beside = [verdict for name, verdict in files.items() if name.startswith(f"{Path(label).parent}/")]
        assert set(beside) == {("damaged", "manifest")}
        files = {name: verdict for name, verdict in files.items() if Path(name).parent != Path(label).parent}
    else:
        assert verified(run.path)[1][label] == ("damaged", reason)
    assert "damaged" not in {state for state, _ in files.values()}
    said = CliRunner().invoke(app, ["verify", str(run.path)])
    assert said.exit_code == 1
    assert any(line.startswith("damaged") and label in line for line in said.stdout.splitlines())


def lines_of(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def another_accuracy(run: RunDirectory) -> None:
    """The epochs of another run of as many: each line has its checksum."""
    lines = [json.loads(line) for line in run.epochs.read_text().splitlines()]
    run.epochs.unlink()
    with Lines(run.epochs, sync=False) as file:
        for line in lines:
            file.write({key: value for key, value in line.items() if key != "crc"} | {"val_accuracy": 0.123})


def another_recipe(run: RunDirectory) -> None:
    recipe = read_json(run.recipe)
    write_json(run.recipe, recipe | {"training": recipe["training"] | {"seed": 99}})


def another_checkpoint(run: RunDirectory) -> None:
    manifest = read_json(run.checkpoints()[-1].manifest, run.path)
    manifest["recipe"]["training.seed"] = 99
    manifest["digest"] = own_digest(manifest)
    write_json(run.checkpoints()[-1].manifest, manifest, run.path)


GONE: dict[str, tuple[str, str, Callable[[RunDirectory], object]]] = {
    "first epoch": ("epochs.jsonl", "epochs", lambda run: lines_of(run.epochs, lambda lines: lines[1:])),
    "last epoch": ("epochs.jsonl", "epochs", lambda run: lines_of(run.epochs, lambda lines: lines[:-1])),
    "swapped": ("epochs.jsonl", "epochs", lambda run: lines_of(run.epochs, lambda lines: lines[::-1])),
    "doubled": ("epochs.jsonl", "epochs", lambda run: lines_of(run.epochs, lambda lines: [*lines, lines[-1]])),
    "emptied": ("epochs.jsonl", "epochs", lambda run: run.epochs.write_bytes(b"")),
    "no epochs": ("epochs.jsonl", "missing", lambda run: run.epochs.unlink()),
    "no checkpoints": ("checkpoint/epoch-00003", "missing", lambda run: shutil.rmtree(run.checkpoint)),
    "newest gone": ("checkpoint/epoch-00003", "missing", lambda run: shutil.rmtree(run.checkpoints()[-1].path)),
    "no evaluation": ("evaluation.json", "missing", lambda run: run.evaluation.unlink()),
    "no machine": ("machine.json", "missing", lambda run: run.machine.unlink()),
    "no status": ("status.json", "missing", lambda run: run.status.unlink()),
    "other epochs": ("epochs.jsonl", "other_run", another_accuracy),
    "other recipe": ("recipe.json", "other_run", another_recipe),
    "other checkpoint": ("checkpoint/epoch-00003/manifest.json", "other_run", another_checkpoint),
}


@pytest.mark.fault(
    22, "`verify` finds epochs that are gone, doubled or swapped, and files that are gone or of another run"
)
@pytest.mark.parametrize("kind", GONE)
def test_what_is_gone_or_of_another_run_is_found(kind: str, run: RunDirectory) -> None:
    label, reason, harm = GONE[kind]
    harm(run)
    exit_code, files = verified(run.path)
    assert exit_code == 1
    assert {name: verdict for name, verdict in files.items() if verdict[0] == "damaged"} == {label: ("damaged", reason)}
    assert f"damaged  {label}: " in CliRunner().invoke(app, ["verify", str(run.path)]).stdout.replace("\n", "")


def test_runs_that_promise_less_are_not_accused(run: RunDirectory) -> None:
    """Of another program, imported, of a version without checksums, or stopped before its first checkpoint."""
    recipe, status = read_json(run.recipe), read_json(run.status)
    for path in (run.evaluation, run.epochs, run.machine):
        path.unlink()
    shutil.rmtree(run.checkpoint)
    assert verified(run.path)[0] == 1
    write_json(run.recipe, recipe | {"recorded_by": "turnaround.Recorder"})
    assert verified(run.path)[0] == 0
    run.recipe.write_text(json.dumps({"format": 1, **recipe}))
    assert verified(run.path)[0] == 0
    write_json(run.recipe, recipe)
    begun = {"state": "interrupted", "epochs_done": 0, "first_step_at": None, "best": None}
    write_json(run.status, status | begun)
    assert verified(run.path)[0] == 0
    write_json(run.status, status)
    write_json(run.imported, {"source": "x.csv"})
    assert verified(run.path)[0] == 0


def test_what_earlier_versions_wrote_is_unknown(run: RunDirectory) -> None:
    for path in (run.status, run.epochs):
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path == run.epochs else None
        contents = lines if lines is not None else [json.loads(path.read_text())]
        path.write_text("".join(json.dumps({k: v for k, v in one.items() if k != "crc"}) + "\n" for one in contents))
    exit_code, files = verified(run.path)
    assert exit_code == 0
    assert files[run.status.name] == files[run.epochs.name] == ("unknown", "no_checksum")


def test_a_hostile_run_is_looked_at_and_not_believed(run: RunDirectory, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("{}")
    newest = run.checkpoints()[-1]
    manifest = json.loads(newest.manifest.read_text())
    newest.weights.unlink()
    os.mkfifo(newest.weights)
    run.machine.unlink()
    run.machine.symlink_to(secret)
    (run.path / "spans-1.jsonl").symlink_to("/dev/zero")
    os.mkfifo(run.path / "telemetry-x.jsonl")
    (run.path / "\x1b]0;title\x07.json").write_text("[" * 100_000)
    (run.logs / "loop").symlink_to(run.path)
    shutil.rmtree(run.best, ignore_errors=True)
    run.best.symlink_to(tmp_path)
    deep = run.path.joinpath("deep", *"abcdefgh")
    deep.mkdir(parents=True)
    older = run.checkpoints()[0]
    older.manifest.write_text(json.dumps({**manifest, "sha256": {"../../../secret": "0"}, "digest": 5}))
    exit_code, files = verified(run.path)
    assert exit_code == 1
    assert files["machine.json"] == files["spans-1.jsonl"] == files["logs/loop"] == files["best"] == ("damaged", "link")
    assert files[str(newest.weights.relative_to(run.path))] == ("damaged", "not_plain")
    assert files["telemetry-x.jsonl"] == ("damaged", "not_plain")
    assert not [name for name in files if "secret" in name]
    assert "damaged" in {state for name, (state, _) in files.items() if name.startswith("deep")}
    said = CliRunner().invoke(app, ["verify", str(run.path)]).stdout
    assert "\x1b]0" not in said


def test_a_folder_of_runs(run: RunDirectory) -> None:
    shutil.copytree(run.path, run.path.parent / "b")
    flip(RunDirectory(run.path.parent / "b").checkpoints()[-1].weights)
    exit_code, files = verified(run.path.parent)
    assert exit_code == 1
    (damaged,) = [name for name, (state, _) in files.items() if state == "damaged"]
    assert damaged.startswith("b/checkpoint/")
    assert files["a/status.json"] == ("whole", "as_written")


@pytest.fixture(scope="module")
def cache(session_folder: Path, fruit_folder: Path) -> Path:
    table = scan(fruit_folder, holdout=0.2, seed=0)
    prepare(table, size_px=16, cache=session_folder / "verified-cache", skip_bad=False)
    return session_folder / "verified-cache"


@pytest.mark.fault(23, "`verify CACHE` compares every picture, label and manifest with its digest")
@pytest.mark.parametrize("name", ["images.npy", "labels.npy", "digests.npy", "manifest.json", None])
def test_a_cache(name: str | None, cache: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(cache, tmp_path / "cache"))
    (entry,) = copy.glob("pixels-*")
    if name is None:
        exit_code, files = verified(copy)
        assert (exit_code, set(files.values())) == (0, {("whole", "as_written")})
        assert verified(entry)[1].keys() == {Path(label).name for label in files}
        return
    if name == "manifest.json":
        (entry / name).write_text((entry / name).read_text().replace('"size_px": 16', '"size_px": 17'))
    elif name == "images.npy":
        images = np.load(entry / name, mmap_mode="r+")
        images[-1, 3, 3, 0] ^= 1  # the last pixel of all would be missed by no sample, this one by nearly every one
        images.flush()
    else:
        flip(entry / name, -1)
    exit_code, files = verified(copy)
    assert exit_code == 1
    assert files[f"{entry.name}/{name}"][0] == "damaged"


def test_what_is_nothing_of_ours_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["verify", str(tmp_path)])
    assert isinstance(done.exception, RunDirectoryError)
    assert "is not a run directory: no recipe.json" in str(done.exception)
