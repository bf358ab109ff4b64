"""A CSV with one row an epoch: joined to a table by name, or alone."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from turnaround.errors import InputError
from turnaround.record.importers.read import read_runs
from turnaround.record.importers.values import ImportOptions, Reading

TABLE = ("name,workers,epochs,images_per_epoch", "a,1,3,1000", "b,2,3,")


def read(tmp_path: Path, *curves: str, table: tuple[str, ...] = TABLE, is_percent: bool = False) -> Reading:
    runs, points = tmp_path / "runs.csv", tmp_path / "curves.csv"
    points.write_text("\n".join(curves) + "\n")
    if not table:
        return read_runs(points, options=ImportOptions(workers=4, gpu="T4"), is_percent=is_percent)
    runs.write_text("\n".join(table) + "\n")
    return read_runs(runs, curves=points, options=ImportOptions(), is_percent=is_percent)


def test_a_curve_joins_its_run(tmp_path: Path) -> None:
    lines = ("name,epoch,val_accuracy,train_accuracy,time_s", "a,2,0.6,0.7,10", "a,1,0.5,,20", "a,3,0.65,0.8,10")
    first, second = read(tmp_path, *lines).runs
    assert [e.epoch for e in first.curve] == [1, 2, 3]
    assert [e.val_accuracy for e in first.curve] == [0.5, 0.6, 0.65]
    assert [e.images_per_s for e in first.curve] == [50.0, 100.0, 100.0]
    assert math.isnan(first.curve[0].train_accuracy)
    assert math.isnan(first.curve[0].val_loss)
    assert second.curve == ()


def test_losses_are_read_and_unknown_columns_named(tmp_path: Path) -> None:
    reading = read(tmp_path, "name;epoch;val_loss;train_loss;weather", "a;1;1,5;1,25;fair", "a;2;1;1;", "a;3;1;1;")
    assert (reading.runs[0].curve[0].val_loss, reading.runs[0].curve[0].train_loss) == (1.5, 1.25)
    assert reading.notes == ("curves.csv: columns that are not known were ignored: 'weather'.",)


def test_a_curve_of_an_unknown_run_is_named(tmp_path: Path) -> None:
    reading = read(tmp_path, "name,epoch,val_accuracy", "a,1,0.5", "c,1,0.5", "c,2,0.5")
    (item,) = reading.left_out
    assert (item.where, item.name) == ("curves.csv, line 3", "c")
    assert item.reason == "a curve of a run that was not imported"


def test_a_repeated_epoch_is_refused_with_both_lines(tmp_path: Path) -> None:
    reading = read(tmp_path, "name,epoch,val_accuracy", "a,1,0.5", "a,2,0.6", "b,1,0.4", "a,1,0.9")
    assert [e.val_accuracy for e in reading.runs[0].curve] == [0.5, 0.6]
    (item,) = reading.left_out
    assert (item.where, item.name) == ("curves.csv, line 5", "a")
    assert item.reason == "epoch 1 stands in line 2 already (line 5 repeats it)"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("a,one,0.5,", "epoch must be a number, received 'one'"),
        ("a,-1,0.5,", "epoch must be a whole number from 0 to 100,000"),
        ("a,1000000000,0.5,", "epoch must be a whole number from 0 to 100,000"),
        ("a,,0.5,", "epoch is empty"),
        ("a,1,high,", "val_accuracy must be a number, received 'high'"),
        ("a,1,7,", "val_accuracy must be from 0 to 1, received 7: percent among fractions?"),
        ("a,1,0.5,-2", "time_s must be a number above 0, received '-2'"),
        ("a,1,,3", "nothing was measured"),
        (",1,0.5,", "it has no name"),
    ],
)
def test_a_bad_row_is_left_out_by_name(row: str, words: str, tmp_path: Path) -> None:
    reading = read(tmp_path, "name,epoch,val_accuracy,time_s", row, "a,4,0.5,", "a,5,0.5,", "a,6,0.5,")
    assert [e.epoch for e in reading.runs[0].curve] == [4, 5, 6]
    assert words in reading.left_out[0].reason


def test_epochs_from_zero_are_counted_from_one(tmp_path: Path) -> None:
    reading = read(tmp_path, "name,epoch,val_accuracy", "a,0,0.5", "a,1,0.6", "a,2,0.7")
    assert [e.epoch for e in reading.runs[0].curve] == [1, 2, 3]
    assert reading.notes == ("a: its epochs are counted from 0; here from 1.",)


def test_a_running_clock_becomes_times_of_epochs(tmp_path: Path) -> None:
    reading = read(tmp_path, "name,epoch,val_accuracy,time_s", "a,1,0.5,20", "a,2,0.6,32", "a,3,0.7,43")
    assert [e.epoch_time_s for e in reading.runs[0].curve] == [20.0, 12.0, 11.0]
    assert "time_s grows like a clock" in reading.notes[0]


def test_epochs_that_slow_down_are_no_clock(tmp_path: Path) -> None:
    reading = read(tmp_path, "name,epoch,val_accuracy,time_s", "a,1,0.5,20", "a,2,0.6,21", "a,3,0.7,22")
    assert [e.epoch_time_s for e in reading.runs[0].curve] == [20.0, 21.0, 22.0]
    assert reading.notes == ()


def test_a_curve_that_ends_elsewhere_than_the_table_says(tmp_path: Path) -> None:
    notes = read(tmp_path, "name,epoch,val_accuracy", "a,1,0.5", "a,2,0.6").notes
    assert notes == ("a: the table says 3 epochs, its curve ends with epoch 2.",)


def test_percent_in_a_curve(tmp_path: Path) -> None:
    lines = ("name,epoch,val_accuracy", "a,1,0.4", "a,2,20.5", "a,3,33")
    with pytest.raises(InputError, match="val_accuracy looks like percent; give --percent"):
        read(tmp_path, *lines)
    # The first epoch of many classes may well be below 1 %.
    assert [e.val_accuracy for e in read(tmp_path, *lines, is_percent=True).runs[0].curve] == [0.004, 0.205, 0.33]


def test_curves_without_a_table_are_runs(tmp_path: Path) -> None:
    reading = read(tmp_path, "name,epoch,val_accuracy", "x,1,0.5", "y,1,0.4", "x,2,0.6", table=())
    assert [(run.name, run.epochs, run.val_accuracy, run.workers) for run in reading.runs] == [
        ("x", 2, 0.6, 4),
        ("y", 1, 0.4, 4),
    ]
    assert {(run.format, run.source, run.gpu) for run in reading.runs} == {("curves", "curves.csv", "T4")}


def test_names_come_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "curves.csv"
    file.write_text("name,epoch,val_accuracy\na,1,0.5\n")
    with pytest.raises(InputError, match="--name is for a file of one run"):
        read_runs(file, options=ImportOptions(name="x"))
    assert "1 is assumed" in read_runs(file, options=ImportOptions()).notes[0]


def test_a_file_without_a_metric_has_no_curve(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no curve in it: add at least one of the columns val_accuracy"):
        read(tmp_path, "name,epoch,time_s", "a,1,3")


def test_what_is_no_curve_cannot_join(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"curves\.csv holds no curves for a table \(keras\)"):
        read(tmp_path, "epoch,accuracy", "0,0.5")


def test_a_table_that_its_curve_contradicts_is_told(tmp_path: Path) -> None:
    table = ("name,workers,val_accuracy,train_accuracy", "a,1,0.6888,0.9", "b,1,0.5,")
    reading = read(
        tmp_path, "name,epoch,val_accuracy,train_accuracy", "a,1,0.6,", "a,2,0.62,0.9004", "b,1,,0.7", table=table
    )
    assert reading.notes == ("a: the table says val_accuracy 0.6888, its curve ends with 0.62, which counts.",)
