"""The file of a Keras CSVLogger."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from turnaround.errors import InputError
from turnaround.record.importers.read import read_runs
from turnaround.record.importers.values import ImportOptions, Reading


def read(tmp_path: Path, *lines: str, options: ImportOptions | None = None, is_percent: bool = False) -> Reading:
    file = tmp_path / "training.log"
    file.write_text("\n".join(lines) + "\n")
    return read_runs(file, options=options or ImportOptions(workers=2), is_percent=is_percent)


def test_a_log_becomes_a_run(tmp_path: Path) -> None:
    lines = (
        "epoch,accuracy,learning_rate,loss,val_accuracy,val_loss",
        "0,0.5123,0.1,1.25,0.48,1.5",
        "1,0.75,0.01,0.75,0.6,1.0",
    )
    options = ImportOptions(
        workers=4, gpu="V100", batch_per_worker=32, dataset="fruit", images_per_epoch=960, name="mine", nodes=2
    )
    (run,) = read(tmp_path, *lines, options=options).runs
    assert (run.name, run.workers, run.gpu, run.batch_per_worker) == ("mine", 4, "V100", 32)
    assert (run.dataset, run.images_per_epoch, run.nodes) == ("fruit", 960, 2)
    assert (run.epochs, run.train_accuracy, run.val_accuracy) == (2, 0.75, 0.6)
    assert (run.format, run.source) == ("keras", "training.log")
    first = run.curve[0]
    assert (first.epoch, first.train_accuracy, first.val_accuracy) == (1, 0.5123, 0.48)
    assert (first.train_loss, first.val_loss, first.learning_rate) == (1.25, 1.5, 0.1)
    assert math.isnan(first.epoch_time_s)


@pytest.mark.parametrize(
    ("separator", "accuracy", "rate"),
    [(",", "acc", "lr"), (";", "categorical_accuracy", "learning_rate"), (";", "sparse_categorical_accuracy", "lr")],
)
def test_other_names_and_separators(separator: str, accuracy: str, rate: str, tmp_path: Path) -> None:
    header = separator.join(("epoch", accuracy, "loss", rate, f"val_{accuracy}", "val_loss"))
    (run,) = read(tmp_path, header, separator.join(("0", "0.5", "1.0", "0.1", "0.25", "2.0"))).runs
    assert (run.train_accuracy, run.val_accuracy, run.curve[0].learning_rate) == (0.5, 0.25, 0.1)


def test_as_the_csv_logger_writes_it(tmp_path: Path) -> None:
    """Keys sorted, NA where there was no validation, through csv.DictWriter."""
    file = tmp_path / "log.csv"
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, ["epoch", "accuracy", "loss", "val_accuracy", "val_loss"])
        writer.writeheader()
        writer.writerow({"epoch": 0, "accuracy": 0.5, "loss": 1.0, "val_accuracy": "NA", "val_loss": "NA"})
        writer.writerow({"epoch": 1, "accuracy": 0.6, "loss": 0.9, "val_accuracy": 0.55, "val_loss": 1.0})
    reading = read_runs(file, options=ImportOptions())
    (run,) = reading.runs
    assert math.isnan(run.curve[0].val_accuracy)
    assert (run.name, run.workers, run.val_accuracy) == ("log", 1, 0.55)
    assert reading.notes == (
        "The log does not say how many workers there were: 1 is assumed. Give --workers N if it was another number.",
    )


def test_other_metrics_are_named(tmp_path: Path) -> None:
    notes = read(tmp_path, "epoch,accuracy,auc,val_auc", "0,0.5,0.7,0.6").notes
    assert notes == ("training.log: columns that are not known were ignored: 'auc', 'val_auc'.",)


def test_two_trainings_in_one_file_are_not_mixed(tmp_path: Path) -> None:
    reading = read(tmp_path, "epoch,accuracy", "0,0.5", "1,0.6", "0,0.1", "1,0.2", "2,0.7")
    assert [e.train_accuracy for e in reading.runs[0].curve] == [0.5, 0.6, 0.7]
    assert [item.reason for item in reading.left_out] == [
        "epoch 0 stands in line 2 already (line 4 repeats it)",
        "epoch 1 stands in line 3 already (line 5 repeats it)",
    ]


def test_rows_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"(?s)Nothing in .*training\.log can be imported:.*line 2.*received 'high'"):
        read(tmp_path, "epoch,accuracy", "0,high")


def test_percent(tmp_path: Path) -> None:
    lines = ("epoch,accuracy,val_accuracy", "0,55.5,50", "1,66,60")
    with pytest.raises(InputError, match="val_accuracy looks like percent; give --percent"):
        read(tmp_path, *lines)
    assert read(tmp_path, *lines, is_percent=True).runs[0].train_accuracy == 0.66


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"workers": 0}, "--workers must be 1 or more. Received: 0."),
        ({"workers": 100_000}, "--workers must be 65,536 or less"),
        ({"batch_per_worker": -1}, "--batch-per-worker must be 1 or more. Received: -1."),
        ({"images_per_epoch": 0}, "--images-per-epoch must be 1 or more"),
        ({"nodes": 0}, "--nodes must be 1 or more"),
        ({"gpu": " "}, "--gpu must not be empty"),
    ],
)
def test_flags_out_of_range(given: dict[str, object], words: str) -> None:
    with pytest.raises(InputError) as caught:
        ImportOptions(**given)  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_a_name_that_is_no_folders_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'\.\.' cannot be a folder's name\. Give another with --name"):
        read(tmp_path, "epoch,accuracy", "0,0.5", options=ImportOptions(name=".."))


def test_curves_are_for_tables(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text("epoch,accuracy\n0,0.5\n")
    with pytest.raises(InputError, match=r"--curves adds curves to a table of runs; .*log\.csv is none \(keras\)"):
        read_runs(file, curves=file, options=ImportOptions())
