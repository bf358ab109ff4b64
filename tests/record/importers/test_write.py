"""Imported runs as run directories: read back as they were, all or none."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from turnaround.errors import RunDirectoryError, StorageError
from turnaround.record.importers import write
from turnaround.record.importers.values import ImportedRun, epoch_record
from turnaround.record.importers.write import machine_of, write_runs
from turnaround.record.reader import Run, find_runs
from turnaround.record.schema import Imported

RUN = ImportedRun(
    name="model4",
    source="runs.csv",
    format="table",
    workers=4,
    dataset="caltech256",
    gpu="T4",
    nodes=2,
    batch_per_worker=32,
    images_per_epoch=24_485,
    epochs=30,
    fine_tune=False,
    augment=True,
    job_time_s=2594.0,
    epoch_time_s=81.0,
    epochs_to_stable=19.0,
    train_accuracy=0.8678,
    val_accuracy=0.676,
    curve=(epoch_record(1, accuracy=(math.nan, 0.5), time_s=90.0), epoch_record(2, accuracy=(0.7, 0.6))),
)


def test_many_runs_are_synced_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _descriptor: calls.append("file"))
    monkeypatch.setattr(os, "sync", lambda: calls.append("disk"))
    write_runs([RUN], tmp_path / "one")
    assert set(calls) == {"file"}
    calls.clear()
    many = [replace(RUN, name=f"run-{number}") for number in range(30)]
    assert len(write_runs(many, tmp_path / "many")) == 30  # 20,000 rows: 8 syncs each took minutes
    assert calls == ["disk"]


def test_a_run_is_read_back(tmp_path: Path) -> None:
    (path,) = write_runs([RUN], tmp_path / "out")
    assert path == tmp_path / "out" / "model4"
    run = Run.load(path)
    assert run.imported == Imported(
        source="runs.csv",
        format="table",
        epochs=30,
        job_time_s=2594.0,
        epoch_time_s=81.0,
        epochs_to_stable=19.0,
        train_accuracy=0.8678,
        val_accuracy=0.676,
    )
    assert run.recipe == {
        "name": "model4",
        "data": {"source": "caltech256"},
        "model": {"name": None, "fine_tune": False},
        "training": {"epochs": 30, "batch_per_worker": 32, "batch_total": None},
        "augment": {"given": True},
        "workers": {"count": 4},
        "images": {"num_train": 24_485, "num_validation": None},
    }
    assert run.machine == {
        "workers": 4,
        "processes": 4,
        "hosts": 2,
        "device": "cuda",
        "gpus": [{"name": "T4", "index": index} for index in range(4)],
        "launch": "imported",
        "engine": None,
    }
    assert (run.status.state, run.status.epochs_done, run.status.time_s) == ("finished", 30, {"program": 2594.0})
    assert [(e.epoch, e.val_accuracy) for e in run.epochs] == [(1, 0.5), (2, 0.6)]
    assert math.isnan(run.epochs[0].train_accuracy)
    assert (run.bad_lines, run.is_torn, run.is_rehearsal) == (0, False, False)
    first = json.loads((path / "epochs.jsonl").read_text().splitlines()[0])
    assert first["train_accuracy"] is None


def test_the_least_that_can_be_known(tmp_path: Path) -> None:
    (path,) = write_runs([ImportedRun(name="x", source="log", format="keras", workers=1)], tmp_path / "out")
    run = Run.load(path)
    assert (run.epochs, run.recipe["augment"], run.machine["device"], run.machine["gpus"]) == ([], {}, None, [])
    assert not (path / "epochs.jsonl").exists()
    assert run.imported is not None
    assert "val_accuracy" in run.imported.missing


def test_a_run_on_processors_and_a_rehearsal() -> None:
    machine = machine_of(replace(RUN, gpu="CPU", nodes=None))
    assert (machine["device"], machine["gpus"], machine["hosts"]) == ("cpu", [], None)
    machine = machine_of(replace(RUN, processes=1))
    assert (machine["workers"], machine["processes"], len(machine["gpus"])) == (4, 1, 1)


def test_an_existing_one_is_never_touched(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "b").mkdir(parents=True)
    with pytest.raises(RunDirectoryError, match=r"out/b already exists\. Choose another --out, or remove what is"):
        write_runs([replace(RUN, name="a"), replace(RUN, name="b")], out)
    assert [path.name for path in out.iterdir()] == ["b"]
    (out / "a").symlink_to("nowhere")
    with pytest.raises(RunDirectoryError, match="out/a and 1 more already exist"):
        write_runs([replace(RUN, name="a"), replace(RUN, name="b")], out)


def test_other_runs_in_the_folder_stay(tmp_path: Path) -> None:
    write_runs([replace(RUN, name="a")], tmp_path)
    write_runs([replace(RUN, name="b")], tmp_path)
    assert [path.name for path in find_runs(tmp_path)] == ["a", "b"]
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_a_folder_that_is_a_run_or_a_file_is_refused(tmp_path: Path) -> None:
    (path,) = write_runs([RUN], tmp_path)
    with pytest.raises(RunDirectoryError, match="is a run itself"):
        write_runs([RUN], path)
    with pytest.raises(RunDirectoryError, match="model4 is a run itself; runs are not found inside a run"):
        write_runs([RUN], path / "inside" / "it")
    with pytest.raises(RunDirectoryError, match="is a file, not a folder"):
        write_runs([RUN], path / "recipe.json")


@pytest.mark.parametrize("is_there", [True, False])
def test_a_failure_on_the_way_leaves_nothing(is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    if is_there:
        out.mkdir()
    real, calls = os.rename, []

    def full_disk(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(write.os, "rename", full_disk)
    with pytest.raises(StorageError, match="the disk or your quota is full"):
        write_runs([replace(RUN, name="a"), replace(RUN, name="b")], out)
    assert len(calls) == 2
    assert out.exists() == is_there
    assert not is_there or list(out.iterdir()) == []


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(run: ImportedRun, path: Path, *, is_synced: bool) -> None:
        path.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(write, "write_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_runs([RUN], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="Cannot import into"):
        write_runs([RUN], Path("/proc/nowhere"))


def test_a_failure_leaves_what_another_import_has_put_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"

    def fails(run: ImportedRun, path: Path, *, is_synced: bool) -> None:
        (out / "theirs").mkdir()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "write_run", fails)
    with pytest.raises(StorageError):
        write_runs([RUN], out)
    assert [path.name for path in out.iterdir()] == ["theirs"]
