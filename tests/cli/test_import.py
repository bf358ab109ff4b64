"""`turnaround import` as a user sees it: what it prints, what it writes, and how it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from console import Console, Done
from turnaround.analysis.summary import summarise
from turnaround.record.reader import Run, find_runs

TABLE = """name,dataset,gpu,workers,batch_per_worker,images_per_epoch,epochs,fine_tune,augment,job_time_s,epoch_time_s,\
epochs_to_stable,train_accuracy,val_accuracy
first,fruit,T4,1,32,,10,true,true,660,20,,,
second,fruit,T4,2,32,,10,true,true,320,11,,,0.95
third,caltech,V100,4,32,24000,30,false,true,2500,80,20,0.87,0.68
"""


@pytest.fixture
def turnaround(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """The console script, in this process: its text and its exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return Console(monkeypatch, capsys)


def refused(done: Done, *words: str) -> None:
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert [word for word in words if word not in done.err] == []
    assert not Path("out").exists()


def test_a_table_is_imported_and_shown(turnaround: Callable[..., Done]) -> None:
    Path("runs.csv").write_text(TABLE)
    done = turnaround("import", "runs.csv", "--out", "out")
    assert (done.code, done.err) == (0, "")
    rows = [" ".join(line.split()) for line in done.out.splitlines()]
    assert rows[3] == "third caltech, frozen 4 V100 128 30 80 41 min 40 s 68.0 % -"
    assert "3 runs imported into out." in done.out
    assert [path.name for path in find_runs(Path("out"))] == ["first", "second", "third"]
    summary = summarise(Run.load(Path("out/third")))
    assert (summary.is_imported, summary.gpu, summary.images_per_s) == (True, "V100", 300.0)


def test_json_for_programs(turnaround: Callable[..., Done]) -> None:
    Path("runs.csv").write_text(TABLE + "bad,fruit,T4,none at all\n")
    Path("curves.csv").write_text("name,epoch,val_accuracy\nthird,1,0.5\nthird,30,0.68\n")
    done = turnaround("import", "runs.csv", "--curves", "curves.csv", "--out", "out", "--json")
    result = json.loads(done.out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert [run["name"] for run in result["imported"]] == ["first", "second", "third"]
    assert result["imported"][2]["curve"]["val_accuracy"] == [0.5, 0.68]
    assert result["imported"][2]["curve"]["train_accuracy"] == [None, None]
    assert [(item["where"], item["name"]) for item in result["left_out"]] == [("line 5", "bad")]
    assert "left out: line 5 (bad): workers must be a number" in done.err


def test_rows_that_are_left_out_are_said_and_the_rest_is_imported(turnaround: Callable[..., Done]) -> None:
    Path("runs.csv").write_text("name,workers,epochs,mood\na,1,ten,\n[b],2,10,\na,2,3,\nc,0,1,\n")
    done = turnaround("import", "runs.csv", "--out", "out")
    assert done.code == 0
    assert [path.name for path in find_runs(Path("out"))] == ["[b]"]
    assert "note: runs.csv: columns that are not known were ignored: 'mood'." in done.err
    assert "line 2 (a): epochs must be a number, received 'ten'" in done.out
    assert "line 4 (a): the name 'a' is that of line 2 already" in done.out
    assert "line 5 (c): workers must be a whole number from 1" in done.out
    assert "left out" not in done.err  # once is enough
    assert "1 run imported into out, 3 left out." in done.out
    assert "[b]" in done.out


def test_a_keras_log_with_flags(turnaround: Callable[..., Done]) -> None:
    Path("log").write_text("epoch;accuracy;val_accuracy\n0;0,5;0,4\n1;0,6;0,5\n")
    flags = ("--workers", "4", "--gpu", "Tesla V100-SXM2-16GB", "--batch-per-worker", "32", "--dataset", "fruit")
    done = turnaround(
        "import", "log", "--out", "out", "--name", "mine", *flags, "--images-per-epoch", "960", "--nodes", "2"
    )
    assert (done.code, done.err) == (0, "")
    summary = summarise(Run.load(Path("out/mine")))
    assert (summary.workers, summary.gpu, summary.hosts, summary.global_batch) == (4, "V100", 2, 128)
    assert (summary.job, summary.images_per_epoch, summary.epochs) == ("fruit", 960, 2)
    assert (summary.best_epoch, summary.final_val_accuracy, summary.final_train_accuracy) == (2, 0.5, 0.6)


def test_workers_that_nobody_gave_are_said(turnaround: Callable[..., Done]) -> None:
    Path("log.csv").write_text("epoch,accuracy\n0,0.5\n")
    done = turnaround("import", "log.csv", "--out", "out")
    assert done.code == 0
    assert "note: The log does not say how many workers there were: 1 is assumed." in done.err


def test_the_lab_in_percent(turnaround: Callable[..., Done]) -> None:
    Path("runs.csv").write_text("name,workers,val_accuracy\na,1,95.63\nb,2,92.19\n")
    refused(turnaround("import", "runs.csv", "--out", "out"), "val_accuracy looks like percent; give --percent")
    assert turnaround("import", "runs.csv", "--out", "out", "--percent").code == 0
    assert summarise(Run.load(Path("out/a"))).final_val_accuracy == 0.9563


@pytest.mark.photos
def test_the_table_of_the_lab(turnaround: Callable[..., Done], samples: Path) -> None:
    done = turnaround("import", str(samples / "lab" / "runs.csv"), "--out", "out")
    assert (done.code, done.err) == (0, "")
    runs = {run.name: run for run in (summarise(Run.load(path)) for path in find_runs(Path("out")))}
    assert len(runs) == 7
    assert {run.job for run in runs.values()} == {"fruit, fine-tuned", "caltech256, frozen"}
    assert runs["lab9"].final_val_accuracy is None
    model5 = runs["model5"]
    assert (model5.gpu, model5.workers, model5.global_batch, model5.epochs) == ("V100", 4, 128, 30)
    assert (model5.job_time_s, model5.turnaround_s, model5.epoch_time_s) == (2502.0, 2502.0, 80.0)
    assert model5.images_per_s == pytest.approx(306, abs=0.1)
    assert (model5.final_train_accuracy, model5.final_val_accuracy) == (0.8713, 0.6861)


# --- bad input


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["runs.csv is empty"]),
        (b"once upon a time\n", ["nothing that can be imported", "What can be imported:", ":::MLLOG"]),
        (b"\x7fELF\x00\x00", ["is not text"]),
        (b"name,gpu\na,T4\n", ["lacks the column 'workers'", "It has 'name', 'gpu'"]),
        (b"name,workers\n", ["a header and no rows"]),
        (b"name,workers\na,x\n", ["Nothing in runs.csv can be imported", "line 2 (a): workers must be a number"]),
    ],
)
def test_files_that_cannot_be_imported(content: bytes, words: list[str], turnaround: Callable[..., Done]) -> None:
    Path("runs.csv").write_bytes(content)
    refused(turnaround("import", "runs.csv", "--out", "out"), *words)


def test_a_missing_file(turnaround: Callable[..., Done]) -> None:
    refused(turnaround("import", "runs.csv", "--out", "out"), "There is no file runs.csv.")
    Path("runs.csv").write_text(TABLE)
    refused(turnaround("import", "runs.csv", "--curves", "x.csv", "--out", "out"), "There is no file x.csv.")


def test_flags_that_cannot_be(turnaround: Callable[..., Done]) -> None:
    Path("log.csv").write_text("epoch,accuracy\n0,0.5\n")
    refused(
        turnaround("import", "log.csv", "--out", "out", "--workers", "0"), "--workers must be 1 or more. Received: 0"
    )
    Path("runs.csv").write_text(TABLE)
    refused(turnaround("import", "runs.csv", "--out", "out", "--gpu", "T4"), "--gpu is for logs")


def test_an_existing_run_is_never_overwritten(turnaround: Callable[..., Done]) -> None:
    Path("runs.csv").write_text(TABLE)
    assert turnaround("import", "runs.csv", "--out", "out").code == 0
    before = {path: path.read_bytes() for path in Path("out").rglob("*.json*")}
    done = turnaround("import", "runs.csv", "--out", "out")
    assert (done.code, done.out) == (2, "")
    assert "out/first and 2 more already exist. Choose another --out" in done.err
    assert {path: path.read_bytes() for path in Path("out").rglob("*.json*")} == before


def test_the_real_command_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise RuntimeError('torch was imported')\n")
    (tmp_path / "runs.csv").write_text(TABLE)
    command = [sys.executable, "-m", "turnaround", "import", "runs.csv", "--out", "out"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 runs imported into out." in done.stdout


def test_a_terminal_without_the_letters_of_a_name(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("name,workers,dataset\ncafé,1,fruit 😀\n", encoding="utf-8")
    command = [sys.executable, "-m", "turnaround", "import", "runs.csv", "--out", "out"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "caf?" in done.stdout
    assert [path.name for path in find_runs(tmp_path / "out")] == ["café"]


def test_a_narrow_terminal_names_every_run(turnaround: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    Path("runs.csv").write_text(TABLE)
    lines = turnaround("import", "runs.csv", "--out", "out").out.splitlines()
    assert [line for line in lines if len(line) > 40 and "turnaround report" not in line] == []
    assert sum(line.startswith("third") for line in lines) > 1
