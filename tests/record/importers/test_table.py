"""A CSV with one row a run: what is taken, what is left out and why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from turnaround.errors import InputError
from turnaround.record.importers.sheet import read_sheet
from turnaround.record.importers.table import read_table
from turnaround.record.importers.values import Reading

HEADER = (
    "name,dataset,gpu,workers,batch_per_worker,images_per_epoch,epochs,fine_tune,augment,"
    "job_time_s,epoch_time_s,epochs_to_stable,train_accuracy,val_accuracy"
)
ROWS = (
    "one,fruit,T4,1,32,,10,true,true,662,20,,,",
    "two,fruit,T4,2,32,,10,true,true,319,11,,,0.95",
    "four,caltech,V100,4,32,24000,30,false,true,2502,80,20,0.87,0.68",
)


def read(tmp_path: Path, *lines: str, is_percent: bool = False) -> Reading:
    file = tmp_path / "runs.csv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_table(read_sheet(file), is_percent=is_percent)


def refused(tmp_path: Path, *lines: str, is_percent: bool = False) -> str:
    with pytest.raises(InputError) as caught:
        read(tmp_path, *lines, is_percent=is_percent)
    return str(caught.value)


def reasons(reading: Reading) -> dict[str, str]:
    return {item.where: item.reason for item in reading.left_out}


def test_a_table_becomes_runs(tmp_path: Path) -> None:
    reading = read(tmp_path, HEADER, *ROWS)
    assert (reading.left_out, reading.notes) == ((), ())
    assert [run.name for run in reading.runs] == ["one", "two", "four"]
    four = reading.runs[2]
    assert (four.dataset, four.gpu, four.workers, four.batch_per_worker) == ("caltech", "V100", 4, 32)
    assert (four.images_per_epoch, four.epochs, four.fine_tune, four.augment) == (24000, 30, False, True)
    assert (four.job_time_s, four.epoch_time_s, four.epochs_to_stable) == (2502.0, 80.0, 20.0)
    assert (four.train_accuracy, four.val_accuracy) == (0.87, 0.68)
    assert (four.source, four.format, four.missing()) == ("runs.csv", "table", [])


def test_empty_cells_are_named_as_missing(tmp_path: Path) -> None:
    one = read(tmp_path, HEADER, *ROWS).runs[0]
    assert one.missing() == ["images_per_epoch", "epochs_to_stable", "train_accuracy", "val_accuracy"]


@pytest.mark.parametrize("nothing", ["", "-", "NA", "n/a", "nan", "null", "None", " "])
def test_what_programs_write_for_nothing_is_nothing(nothing: str, tmp_path: Path) -> None:
    assert read(tmp_path, "name,workers,val_accuracy", f"a,1,{nothing}").runs[0].val_accuracy is None


def test_a_short_row_has_empty_cells_at_its_end(tmp_path: Path) -> None:
    assert read(tmp_path, HEADER, "a,fruit,T4,2").runs[0].epochs is None


def test_optional_columns(tmp_path: Path) -> None:
    run = read(tmp_path, "name,workers,nodes,images_per_s,processes,seed", "a,8,2,1234.5,4,0").runs[0]
    assert (run.nodes, run.images_per_s, run.processes, run.seed) == (2, 1234.5, 4, 0)


def test_unknown_columns_are_named_and_ignored(tmp_path: Path) -> None:
    notes = read(tmp_path, "name,workers,colour,mood", "a,1,red,good").notes
    assert notes == ("runs.csv: columns that are not known were ignored: 'colour', 'mood'.",)


def test_thousands_of_columns_make_a_short_note(tmp_path: Path) -> None:
    extra = ",".join(f"c{number}" for number in range(5000))
    reading = read(tmp_path, f"name,workers,{extra}", "a,3," + ",".join("1" * 5000))
    assert reading.runs[0].workers == 3
    assert "and 4,988 more" in reading.notes[0]
    assert len(reading.notes[0]) < 300


def test_missing_columns_are_listed_with_those_that_are_there(tmp_path: Path) -> None:
    message = refused(tmp_path, "name,gpus,epochs", "a,1,2")
    assert "lacks the column 'workers'" in message
    assert "It has 'name', 'gpus', 'epochs'" in message
    assert "columns 'name', 'workers'" in refused(tmp_path, "run,gpus", "a,1")


@pytest.mark.parametrize(
    ("column", "cell", "words"),
    [
        ("workers", "two", "workers must be a number, received 'two'"),
        ("workers", "0", "workers must be a whole number from 1 to 65,536, received '0'"),
        ("workers", "-4", "received '-4'"),
        ("workers", "2.5", "received '2.5'"),
        ("workers", "1e999", "workers must be a number, received '1e999'"),
        ("workers", "1_000", "workers must be a number"),
        ("workers", "", "workers is empty"),
        ("epochs", "ten", "epochs must be a number, received 'ten'"),
        ("epochs", "1000000", "epochs must be a whole number from 1 to 100,000"),
        ("job_time_s", "5:19", "job_time_s must be a number, received '5:19'"),
        ("job_time_s", "-3", "job_time_s must be a number above 0, received '-3'"),
        ("epoch_time_s", "0", "epoch_time_s must be a number above 0, received '0'"),
        ("epochs_to_stable", "-1", "epochs_to_stable must be a number above 0"),
        ("fine_tune", "maybe", "fine_tune must be true or false, received 'maybe'"),
        ("val_accuracy", "-0.1", "val_accuracy must be from 0 to 1, received -0.1"),
        ("val_accuracy", "150", "val_accuracy must be from 0 to 1, received 150"),
        ("processes", "9", "9 processes cannot host 4 workers"),
        ("nodes", "9", "9 nodes cannot share 4 processes"),
        ("seed", "-1", "seed must be a whole number from 0, received '-1'"),
    ],
)
def test_a_bad_cell_leaves_its_row_out_by_name(column: str, cell: str, words: str, tmp_path: Path) -> None:
    columns = ["name", "workers"] + ([column] if column != "workers" else [])
    bad = {"name": "bad", "workers": "4", column: cell}
    good = {"name": "good", "workers": "4"}
    lines = [",".join(row.get(name, "") for name in columns) for row in (bad, good)]
    reading = read(tmp_path, ",".join(columns), *lines)
    assert [run.name for run in reading.runs] == ["good"]
    (item,) = reading.left_out
    assert (item.where, item.name) == ("line 2", "bad")
    assert words in item.reason


def test_all_problems_of_a_row_are_told_at_once(tmp_path: Path) -> None:
    reading = read(tmp_path, "name,workers,epochs,job_time_s", "a,x,y,-1", "b,1,1,1")
    assert re.findall(r"(\w+) must be", reasons(reading)["line 2"]) == ["workers", "epochs", "job_time_s"]


def test_a_row_with_too_many_cells_is_left_out(tmp_path: Path) -> None:
    reading = read(tmp_path, "name,workers,job_time_s", "a,1,1,500", "b,1,1500")
    assert "1 more cells than the header" in reasons(reading)["line 2"]
    assert len(reading.runs) == 1


# --- percent


def test_percent_is_asked_for(tmp_path: Path) -> None:
    message = refused(tmp_path, "name,workers,val_accuracy", "a,1,68.9", "b,2,", "c,4,95")
    assert "val_accuracy looks like percent; give --percent" in message
    assert "from 68.9 to 95" in message


def test_percent_that_was_asked_for_is_divided(tmp_path: Path) -> None:
    reading = read(tmp_path, "name,workers,train_accuracy,val_accuracy", "a,1,86.10,68.88", "b,1,,0", is_percent=True)
    assert [(run.train_accuracy, run.val_accuracy) for run in reading.runs] == [(0.861, 0.6888), (None, 0.0)]


def test_fractions_are_not_divided_by_mistake(tmp_path: Path) -> None:
    message = refused(tmp_path, "name,workers,val_accuracy", "a,1,0.9563", "b,1,1", is_percent=True)
    assert "no value of val_accuracy is above 1 (the largest is 1)" in message
    assert "Leave --percent out" in message


def test_a_mixture_names_the_rows(tmp_path: Path) -> None:
    lines = ("name,workers,val_accuracy", "a,1,0.9563", "b,2,92.2", "c,4,93")
    reading = read(tmp_path, *lines)
    assert [run.name for run in reading.runs] == ["a"]
    assert reasons(reading) == {
        "line 3": "val_accuracy must be from 0 to 1, received 92.2: percent among fractions?",
        "line 4": "val_accuracy must be from 0 to 1, received 93: percent among fractions?",
    }
    reading = read(tmp_path, *lines, is_percent=True)
    assert [run.val_accuracy for run in reading.runs] == [0.922, 0.93]
    assert reasons(reading) == {"line 2": "val_accuracy is 0.9563: a fraction among percents?"}


# --- names


def test_the_second_of_two_equal_names_is_refused_with_both_lines(tmp_path: Path) -> None:
    reading = read(tmp_path, "name,workers", "a,1", "b,2", "a,4", "../b,8")
    assert [(run.name, run.workers) for run in reading.runs] == [("a", 1), ("b", 2)]
    assert reasons(reading)["line 4"] == "the name 'a' is that of line 2 already (line 4 repeats it)"
    assert reasons(reading)["line 5"] == "the name 'b' is that of line 3 already (line 5 repeats it)"


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("../x", "x"),
        ("a/b", "a-b"),
        ("a\\b", "a-b"),
        ("x" * 500, "x" * 200),
        ("a\tb\x1b[2J", "a-b-[2J"),
        (".hidden", "hidden"),
    ],
)
def test_an_unsafe_name_is_made_safe_and_said(written: str, name: str, tmp_path: Path) -> None:
    reading = read(tmp_path, "name,workers", f'"{written}",1')
    assert [run.name for run in reading.runs] == [name]
    assert f"was made safe as a folder's name: {name[:60]!r}" in reading.notes[0]
    assert "\x1b" not in reading.notes[0]


@pytest.mark.parametrize(
    ("written", "words"), [("", "it has no name"), ("..", "the name '..' cannot be a folder's name")]
)
def test_a_name_of_which_nothing_is_left_is_refused(written: str, words: str, tmp_path: Path) -> None:
    reading = read(tmp_path, "name,workers", f"{written},1", "b,2")
    assert [run.name for run in reading.runs] == ["b"]
    assert reasons(reading) == {"line 2": words}


def test_control_characters_reach_no_terminal(tmp_path: Path) -> None:
    run = read(tmp_path, "name,workers,dataset", "a,1,fr\x1b[31muit").runs[0]
    assert run.dataset == "fr [31muit"


def test_a_run_is_not_stable_after_its_end(tmp_path: Path) -> None:
    reading = read(tmp_path, "name,workers,epochs,epochs_to_stable", "a,1,30,45", "b,1,30,30", "c,1,,45")
    assert [run.name for run in reading.runs] == ["b", "c"]
    assert reasons(reading) == {"line 2": "epochs_to_stable is 45, after the last of its 30 epochs"}


@pytest.mark.parametrize(
    ("column", "cell", "time_s"),
    [
        ("epoch_time_s", "44", 44.0),
        ("epoch_time_s", "0.5 h", 1800.0),
        ("epoch_time_s", "1 h 38 min", 5880.0),
        ("epoch_time_s", "23 min 07 s", 1387.0),
        ("epoch_time_s", "1:38:30", 5910.0),
        ("epoch_time_s", "250ms", 0.25),
        ("epoch_time_h", "0.5", 1800.0),
        ("epoch_time_h", "90 s", 90.0),
        ("Epoch time (min)", "2", 120.0),
        ("epoch_hours", "2", 7200.0),
        ("epoch_time", "44", 44.0),
    ],
)
def test_a_time_carries_its_unit_in_the_cell_or_in_the_column(
    column: str, cell: str, time_s: float, tmp_path: Path
) -> None:
    reading = read(tmp_path, f"name,workers,{column}", f"a,2,{cell}")
    assert reading.left_out == ()
    assert reading.runs[0].epoch_time_s == pytest.approx(time_s)
    assert bool(reading.notes) == (column != "epoch_time_s")


def test_another_unit_of_a_column_is_told(tmp_path: Path) -> None:
    notes = read(tmp_path, "name,workers,job_time_h", "a,2,1.5").notes
    assert notes == ("runs.csv: 'job_time_h' was read as job_time_s, one unit of it being 3600 s.",)


def test_units_work_with_decimal_commas(tmp_path: Path) -> None:
    assert read(tmp_path, "name;workers;job_time_s", "a;2;0,5 h").runs[0].job_time_s == 1800.0


@pytest.mark.parametrize("cell", ["5 s 3 s", "3 m", "half an hour", "1:99:00", "-1 h", "0 h", "1e9 d"])
def test_what_is_no_time_is_named(cell: str, tmp_path: Path) -> None:
    [reason] = reasons(read(tmp_path, "name,workers,job_time_s", f"a,2,{cell}")).values()
    assert reason.startswith("job_time_s must be ")
    assert repr(cell) in reason


def test_two_columns_for_one_time_are_refused(tmp_path: Path) -> None:
    told = refused(tmp_path, "name,workers,job_time_s,job_time_h", "a,2,3600,1")
    assert "'job_time_s', 'job_time_h' all tell job_time_s. Keep one of them" in told


def test_columns_that_only_look_like_times_are_not_taken_for_them(tmp_path: Path) -> None:
    reading = read(tmp_path, "name,workers,epochs,job,epoch_size,job_id", "a,2,30,x,5,7")
    assert (reading.runs[0].epochs, reading.runs[0].epoch_time_s, reading.runs[0].job_time_s) == (30, None, None)
    assert "'job', 'epoch_size', 'job_id'" in reading.notes[0]
