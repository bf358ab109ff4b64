"""`turnaround report` as a user sees it: what it prints, what it leaves out, and how it refuses."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from console import Console, Done
from forking import ForkingLauncher
from running import train
from turnaround.record.coding import to_json
from turnaround.record.schema import Status
from turnaround.reporting.terminal import print_json

TABLE = """name,dataset,gpu,workers,batch_per_worker,images_per_epoch,epochs,fine_tune,augment,job_time_s,epoch_time_s,\
epochs_to_stable,train_accuracy,val_accuracy
one,photos,T4,2,32,24000,30,false,true,6000,200,15,0.86,0.69
two,photos,T4,4,32,24000,30,false,true,2600,80,19,0.87,0.68
three,photos,V100,4,32,24000,30,false,true,2500,80,20,0.87,0.69
four,fruit,T4,1,32,,10,true,true,660,20,,,
five,fruit,T4,2,32,,10,true,true,320,11,,,0.95
"""
CURVES = "name,epoch,val_accuracy\none,1,0.5\none,2,0.69\n"
OWN_RUNS = ("plain", "rehearsed")


@pytest.fixture(scope="module")
def own_runs(session_folder: Path, fruit_folder: Path, forking: ForkingLauncher) -> Path:
    """Two real trainings: one worker, and two rehearsed in one process."""
    folder = session_folder / "own runs"
    for name, workers in zip(OWN_RUNS, (1, 2), strict=True):
        settings = ("data.size_px=32", "training.epochs=7", f"workers.count={workers}")
        train(fruit_folder, folder / name, *settings, launcher=forking)
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


@pytest.fixture
def turnaround(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """The console script, in this process: its text and its exit code."""
    return Console(monkeypatch, capsys)


@pytest.fixture
def lab(turnaround: Callable[..., Done], here: Path) -> Path:
    """Imported by the command."""
    (here / "runs.csv").write_text(TABLE)
    (here / "curves.csv").write_text(CURVES)
    assert turnaround("import", "runs.csv", "--curves", "curves.csv", "--out", "lab").code == 0
    return here / "lab"


def refused(done: Done, *words: str) -> None:
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert [word for word in words if word not in done.err] == []


def parsed(done: Done) -> dict[str, Any]:
    """The JSON of a command; NaN and Infinity are no JSON."""
    assert (done.code, done.err) == (0, "")
    result = json.loads(done.out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert isinstance(result, dict)
    return result


# --- what it prints


def test_imported_runs(turnaround: Callable[..., Done], lab: Path) -> None:
    done = turnaround("report", "lab")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert max(cell_len(line) for line in lines) <= 80
    rows = [" ".join(line.split()) for line in lines]
    assert "4 T4 128 80 300 2.50x 125 % 43 min 20 s" in rows
    assert "Baseline of speed-up and efficiency: 2 T4." in rows
    assert "Not known for any of these runs: images/s, stable epoch, training accuracy." in rows
    assert any(row.startswith("Findings: ") for row in rows)
    assert "\x1b" not in done.out


def test_json_for_programs(turnaround: Callable[..., Done], lab: Path) -> None:
    result = parsed(turnaround("report", "lab", "--json"))
    assert list(result) == ["runs", "jobs", "findings", "left_out", "running", "notes", "estimates"]
    assert [run["name"] for run in result["runs"]] == ["four", "five", "one", "two", "three"]
    assert [job["name"] for job in result["jobs"]] == ["fruit, fine-tuned", "photos, frozen"]
    one = next(run for run in result["runs"] if run["name"] == "one")
    assert one["curve"]["val_accuracy"] == [0.5, 0.69]
    assert one["curve"]["train_accuracy"] == [None, None]  # a missing number is null
    for finding in result["findings"]:
        assert list(finding) == ["id", "severity", "text", "evidence", "next", "job"]
    ids = [finding["id"] for finding in result["findings"]]
    assert "faster-gpu-no-gain" in ids
    assert "more-than-linear" in ids


def test_findings_come_last_and_name_the_figures(turnaround: Callable[..., Done], lab: Path) -> None:
    done = turnaround("report", "lab")
    text = done.out[done.out.index("Findings: ") :]
    assert text.index("problem (photos, frozen): ") < text.index("Next: ")
    assert "epoch time: " in text


def test_one_job_alone(turnaround: Callable[..., Done], lab: Path) -> None:
    for name in ("fruit, fine-tuned", "FRUIT"):
        result = parsed(turnaround("report", "lab", "--json", "--job", name))
        assert {run["job"] for run in result["runs"]} == {"fruit, fine-tuned"}
        assert {finding["job"] for finding in result["findings"]} <= {"fruit, fine-tuned"}
    refused(
        turnaround("report", "lab", "--job", "cats"),
        "No job of these runs is called 'cats'. They are: 'fruit, fine-tuned', 'photos, frozen'.",
    )


def test_runs_of_our_own(turnaround: Callable[..., Done], own_runs: Path) -> None:
    done = turnaround("report", str(own_runs))
    assert (done.code, done.err) == (0, "")
    rows = [" ".join(line.split()) for line in done.out.splitlines()]
    assert rows[0] == "fruit, small, from scratch, 32 px"
    rehearsed = next(row for row in rows if row.startswith("2 workers rehearsed on"))
    assert " - - - " in rehearsed or rehearsed.endswith("-")  # a rehearsal has no times
    assert any(row.startswith("Rehearsed: one process stood in for several workers.") for row in rows)
    assert any("Validation accuracy from epoch 1 to 7" in row for row in rows)
    assert "imported" not in done.out


def test_several_directories_and_one_given_twice(turnaround: Callable[..., Done], lab: Path, own_runs: Path) -> None:
    result = parsed(turnaround("report", "lab", str(own_runs), "lab/one", str(own_runs / "plain"), "--json"))
    assert len(result["runs"]) == 7
    assert len(result["jobs"]) == 3


def test_two_runs_of_one_name_are_told_apart(turnaround: Callable[..., Done], lab: Path) -> None:
    shutil.copytree(lab, lab.parent / "again")
    result = parsed(turnaround("report", "lab", "again", "--json"))
    names = [run["name"] for run in result["runs"]]
    assert len(set(names)) == 10
    assert {"lab/one", "again/one"} <= set(names)


def test_a_run_that_is_still_going(turnaround: Callable[..., Done], here: Path, own_runs: Path) -> None:
    shutil.copytree(own_runs / "plain", here / "runs" / "going")
    status = json.loads((here / "runs/going/status.json").read_text())
    (here / "runs/going/status.json").write_text(json.dumps(status | {"state": "running", "ended_at": None}))
    lines = (here / "runs/going/epochs.jsonl").read_text().splitlines(keepends=True)
    (here / "runs/going/epochs.jsonl").write_text("".join(lines[:3]) + lines[3][:40])  # being written just now
    shutil.copytree(own_runs / "rehearsed", here / "runs" / "done")
    done = turnaround("report", "runs")
    assert done.code == 0
    assert "Still going: going. It is shown as far as it has come." in done.out
    going = next(run for run in parsed(turnaround("report", "runs", "--json"))["runs"] if run["state"] == "running")
    assert (going["name"], going["epochs"]) == ("going", 3)


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_no_line_is_wider_than_the_terminal(
    columns: int, turnaround: Callable[..., Done], lab: Path, own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    (lab / "broken").mkdir()
    (lab / "broken" / "recipe.json").write_text("{")
    done = turnaround("report", "lab", str(own_runs))
    assert [line for line in done.out.splitlines() if cell_len(line) > columns] == []
    for words in ("125%", "43min20s", "15(byeye)", "2workersrehearsed", "lab/broken", "Next:", "status.jsonismissing"):
        assert words in done.words


# --- damaged and foreign directories among good ones


def _truncated(run: Path) -> None:
    text = (run / "recipe.json").read_text()
    (run / "recipe.json").write_text(text[: len(text) // 2])


def _truncated_status(run: Path) -> None:
    (run / "status.json").write_text('{"state": "fini')


def _emptied(run: Path) -> None:
    shutil.rmtree(run)
    run.mkdir()


def _foreign(run: Path) -> None:
    shutil.rmtree(run)
    (run / "holiday").mkdir(parents=True)
    (run / "holiday" / "beach.jpg").write_bytes(b"\xff\xd8")


def _without_recipe(run: Path) -> None:
    (run / "recipe.json").unlink()


def _without_machine(run: Path) -> None:
    (run / "machine.json").unlink()


def _list_as_machine(run: Path) -> None:
    (run / "machine.json").write_text("[1, 2]")


def _newer(run: Path) -> None:
    status = to_json(Status(state="finished"))
    (run / "status.json").write_text(json.dumps(status | {"format": 99}))


DAMAGES = {
    _truncated: "not JSON",
    _truncated_status: "not JSON",
    _emptied: "no recipe.json",
    _foreign: "no recipe.json",
    _without_recipe: "no recipe.json",
    _without_machine: "machine.json is missing",
    _list_as_machine: "not a JSON object",
    _newer: "newer turnaround",
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_damaged_run_is_named_and_left_out(
    damage: Callable[[Path], None], reason: str, turnaround: Callable[..., Done], lab: Path
) -> None:
    damage(lab / "two")
    done = turnaround("report", "lab")
    assert (done.code, done.err) == (0, "")
    assert "Left out: 1" in done.out
    assert "lab/two" in done.out
    assert "".join(reason.split()) in done.words
    result = parsed(turnaround("report", "lab", "--json"))
    assert [item["directory"] for item in result["left_out"]] == ["lab/two"]
    assert reason in result["left_out"][0]["reason"]
    assert "two" not in [run["name"] for run in result["runs"]]
    alone = turnaround("report", "lab/one", "lab/two")  # named by the user, it is left out as well
    assert (alone.code, "Left out: 1" in alone.out) == (0, True)
    refused(turnaround("report", "lab/two"), "lab/two", reason, "turnaround import FILE --out DIR")


def test_what_is_left_out_is_named_once(turnaround: Callable[..., Done], lab: Path) -> None:
    _emptied(lab / "two")
    result = parsed(turnaround("report", "lab", "lab/two", "lab/two", "--json"))
    assert [item["directory"] for item in result["left_out"]] == ["lab/two"]


def test_epochs_that_are_no_text(turnaround: Callable[..., Done], here: Path, own_runs: Path) -> None:
    shutil.copytree(own_runs, here / "runs")
    (here / "runs" / "plain" / "epochs.jsonl").write_bytes(bytes(range(256)) * 20 + b"\n")
    done = turnaround("report", "runs")
    assert (done.code, done.err) == (0, "")
    assert "cannotberead" in done.words
    (left_out,) = parsed(turnaround("report", "runs", "--json"))["left_out"]
    assert "lines cannot be read, and epochs are missing: figures from the rest would mislead" in left_out["reason"]


def test_directories_without_runs(turnaround: Callable[..., Done], here: Path, lab: Path) -> None:
    refused(turnaround("report", "nowhere"), "nowhere is not a run directory: no such directory")
    refused(turnaround("report", "lab", "nowhere"), "nowhere is not a run directory: no such directory")
    refused(turnaround("report", "runs.csv"), "runs.csv is not a run directory: it is a file")
    (here / "empty").mkdir()
    refused(turnaround("report", "empty"), "empty is not a run directory: no recipe.json", "`turnaround train` records")
    (here / "all bad" / "x").mkdir(parents=True)
    (here / "all bad" / "x" / "recipe.json").write_text("")
    refused(turnaround("report", "all bad"), "No run can be read.", "all bad/x/status.json is missing")
    assert turnaround("report").code == 2


# --- terminals


def test_the_real_command_needs_no_torch_and_no_unicode(lab: Path, here: Path) -> None:
    (here / "torch.py").write_text("raise RuntimeError('torch was imported')\n")
    environment = {**os.environ, "PYTHONPATH": str(here), "PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    os.rename(os.fsencode(lab / "one"), os.fsencode(lab) + b"/\xff\xfe")  # a name that is no UTF-8
    for arguments in (["report", "lab"], ["report", "lab", "--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "turnaround", *arguments],
            cwd=here,
            env=environment,
            capture_output=True,
            timeout=180,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.isascii()
    assert json.loads(done.stdout)["runs"]


def test_colours_on_a_terminal(lab: Path, here: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-m", "turnaround", "report", "lab"]
    with subprocess.Popen(command, cwd=here, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # Linux says EIO when the other side has closed
            while part := os.read(ours, 65_536):
                shown += part
    os.close(ours)
    assert process.returncode == 0
    text = shown.decode()
    assert "\x1b[1" in text
    assert "█" in text


def test_every_verb_writes_null_for_what_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": float("nan"), "b": [float("inf"), 1.5], "c": Path("x"), "d": "ä"})
    shown = capsys.readouterr().out
    assert json.loads(shown) == {"a": None, "b": [None, 1.5], "c": "x", "d": "ä"}
    assert "ä" in shown


@pytest.mark.photos
def test_the_table_of_the_lab(turnaround: Callable[..., Done], samples: Path) -> None:
    assert turnaround("import", str(samples / "lab" / "runs.csv"), "--out", "lab").code == 0
    done = turnaround("report", "lab")
    assert (done.code, done.err) == (0, "")
    for words in ("4 V100 take as long as 4 T4", "2.58x", "129 %", "1 h 38 min", "25 (by eye)"):
        assert "".join(words.split()) in done.words
