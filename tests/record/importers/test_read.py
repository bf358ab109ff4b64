"""The registry of importers: what a file is, by looking into it, and the runs in it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnaround.errors import InputError, TurnaroundError
from turnaround.record.importers.read import IMPORTERS, READABLE, read_runs, recognise
from turnaround.record.importers.values import ImportOptions


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("name,workers\na,1\n", "table"),
        ("workers,gpu\n1,T4\n", "table"),  # and the table says that the name is missing
        ("name,epoch,val_accuracy\na,1,0.5\n", "curves"),
        ("epoch,accuracy,loss\n0,0.5,1\n", "keras"),
        ("epoch;val_acc\n0;0.5\n", "keras"),
        ('chatter\n0: :::MLLOG {"key": "run_start", "time_ms": 1}\n', "mllog"),
        ("epoch,step,val_loss\n0,5,1.0\n", "lightning"),
        ("epoch,train_loss,eval_loss,eval_top1,eval_top5,lr\n0,1.0,1.0,50,90,0.1\n", "timm"),
        ("epoch,time,train/loss,metrics/accuracy_top1,lr/pg0\n1,1,1,0.5,0.1\n", "ultralytics"),
        ("_step,_runtime,val/acc\n0,1,0.5\n", "wandb"),
        ('[{"_step": 0, "_runtime": 1, "val/acc": 0.5}]', "wandb"),
        ('{"log_history": [{"epoch": 1.0, "eval_loss": 1.0}]}', "huggingface"),
    ],
)
def test_the_content_decides(content: str, kind: str, tmp_path: Path) -> None:
    for name in ("x.csv", "x.log", "events.out.tfevents.1"):
        (tmp_path / name).write_text(content)
        assert recognise(tmp_path / name)[0].name == kind


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        ("just a letter\nto a friend\n", "it is no CSV: it begins with 'just a letter to a friend'"),
        ("a,b,c\n1,2,3\n", "its first line has the columns 'a', 'b', 'c'"),
        ("epoch,lr\n0,0.1\n", "its first line has the columns 'epoch', 'lr'"),
        ('{"name": "x"}', "it is no CSV"),
    ],
)
def test_what_is_not_known_lists_what_can_be_read(content: str, seen: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(content)
    with pytest.raises(InputError) as caught:
        recognise(tmp_path / "x.csv")
    assert seen in str(caught.value)
    for kind in ("one row a run", "one row an epoch", "Keras CSVLogger", "TensorBoard", ":::MLLOG"):
        assert kind in str(caught.value)


def test_every_importer_has_a_name_of_its_own_and_a_line_in_what_can_be_imported() -> None:
    names = list(dict.fromkeys(importer.name for importer in IMPORTERS))
    logs = ["keras", "lightning", "timm", "ultralytics", "wandb", "tensorboard", "mllog", "huggingface", "trackio"]
    assert names == ["table", "curves", *logs]
    told = [importer for importer in IMPORTERS if importer.reads]
    assert {importer.name for importer in told} == {*names}
    assert READABLE.splitlines() == ["What can be imported:", *(f"- {importer.reads}" for importer in told)]


def test_a_binary_file_that_mentions_an_mllog_line_is_no_mllog(tmp_path: Path) -> None:
    line = b'\n:::MLLOG {"key": "run_start", "time_ms": 1}\n'
    (tmp_path / "x.log").write_bytes(b"\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22\t\0\0\x80brain.Event:2" + line)
    assert recognise(tmp_path / "x.log")[0].name == "tensorboard"
    (tmp_path / "x.log").write_bytes(b"\0" + line)
    with pytest.raises(InputError, match="is not text: it begins with"):
        recognise(tmp_path / "x.log")


def test_a_header_without_rows(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("name,workers\n")
    with pytest.raises(InputError, match="has a header and no rows"):
        recognise(tmp_path / "x.csv")


def test_folders_that_hold_no_event_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder without event files: it is empty"):
        recognise(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match=r"there are 'notes\.txt' in it"):
        recognise(tmp_path)
    (tmp_path / "recipe.json").write_text("{}")
    with pytest.raises(InputError, match="is a run directory of turnaround already"):
        recognise(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o000)
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        recognise(tmp_path / "closed")


def test_flags_are_for_logs(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("name,workers\na,1\n")
    with pytest.raises(InputError, match=r"--batch-per-worker is for logs .* column 'batch_per_worker', row by row"):
        read_runs(tmp_path / "x.csv", options=ImportOptions(batch_per_worker=32))


def test_without_a_single_row_the_reasons_are_told(tmp_path: Path) -> None:
    rows = "".join(f"r{number},none at all\n" for number in range(12))
    (tmp_path / "x.csv").write_text("name,workers\n" + rows)
    with pytest.raises(InputError) as caught:
        read_runs(tmp_path / "x.csv", options=ImportOptions())
    assert "- line 2 (r0): workers must be a number, received 'none at all'" in str(caught.value)
    assert "- and 2 more" in str(caught.value)


cells = st.sampled_from(
    ["", "a", "b", "0", "1", "2", "0.5", "68.9", "-1", "nan", "1e400", "x,y", '"', "\x1b", "../a", "\u202e"]
)
columns = st.sampled_from(
    ["name", "workers", "epoch", "val_accuracy", "accuracy", "time_s", "epochs", "loss", "", "new", "step", "_step"]
)
sheets = st.tuples(
    st.lists(columns, min_size=1), st.lists(st.lists(cells, max_size=8), max_size=6), st.sampled_from(",;\t")
)
contents = st.binary(max_size=300) | sheets.map(
    lambda sheet: "\n".join(sheet[2].join(row) for row in (sheet[0], *sheet[1])).encode()
)
logs = st.lists(
    st.dictionaries(st.sampled_from(["key", "value", "time_ms", "metadata"]), st.none() | st.text() | st.floats())
)
histories = st.lists(
    st.dictionaries(
        st.sampled_from(["_step", "_runtime", "epoch", "loss", "val/acc", "eval_loss", "train_runtime", "step", "lr"]),
        st.none() | st.text() | st.floats() | st.integers() | st.dictionaries(st.text(), st.floats()),
    )
)
jsons = histories.map(lambda rows: json.dumps(rows).encode()) | histories.map(
    lambda rows: json.dumps({"log_history": rows, "num_train_epochs": 3}).encode()
)
mllogs = logs.map(lambda lines: "\n".join(f":::MLLOG {json.dumps(line)}" for line in lines).encode())


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=contents | mllogs | jsons, is_percent=st.booleans())
def test_whatever_is_in_the_file_only_our_errors_come_out(content: bytes, is_percent: bool, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(content)
    try:
        reading = read_runs(tmp_path / "x.csv", options=ImportOptions(), is_percent=is_percent)
    except TurnaroundError:
        return
    assert all(run.name and run.workers >= 1 for run in reading.runs)
    assert len({run.name for run in reading.runs}) == len(reading.runs)
