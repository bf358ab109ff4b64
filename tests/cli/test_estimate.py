"""`turnaround estimate` as a user sees it: one real trial, and how it refuses."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from console import Console
from forking import ForkingParent

QUICK = ("--device", "cpu", "--seconds", "0.05", "--size", "32", "--batch", "16", "--model", "small", "--epochs", "2")


def words(text: str) -> str:
    return " ".join(text.split())


def test_from_zero_runs_to_a_score(
    fruit_folder: Path,
    tmp_path: Path,
    forking_parent: ForkingParent,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The whole story: an estimate, the run that it speaks of, and the score."""
    (tmp_path / "p.csv").write_text("kind,price,currency\nT4,0.35,EUR\nCPU,0.05,EUR\n")

    def turnaround(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [forking_parent.python, "-m", "turnaround", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done

    asked = (str(fruit_folder), *QUICK, "--gpu", "t4", "--workers", "1-4", "--prices", "p.csv")
    found = json.loads(turnaround("estimate", *asked, "--json").stdout)
    assert {(e["gpu"], e["workers"]) for e in found["estimates"]} >= {("CPU", 1), ("T4", 1), ("T4", 4)}
    first = found["estimates"][0]
    assert (first["gpu"], first["epochs_planned"], first["global_batch"], first["currency"]) == ("CPU", 2, 16, "EUR")
    for figure in ("epoch_time_s", "epochs_to_stable", "time_to_stable_s", "job_time_s", "cost", "cost_to_stable"):
        assert 0 < first[figure]["low"] <= first[figure]["value"] <= first[figure]["high"]
    assert found["estimates"][-1]["memory"]["fits"] == "yes"
    assert found["best"]["fastest"]["gpu"] == "T4"
    assert found["next_run"]["command"].startswith("turnaround train ")
    assert " --set data.size_px=32" in found["next_run"]["command"]  # the training that was estimated
    assert (tmp_path / "runs" / "forecasts.jsonl").is_file()

    trained = ("--device", "cpu", "--size", "32", "--batch", "16", "--model", "small", "--epochs", "2")
    turnaround("train", str(fruit_folder), *trained, "--workers", "1", "--out", "runs/one")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    told = Console(monkeypatch, capsys)("report", "runs")
    assert "estimated before any run" in words(told.out)
    assert "fruit, small, from scratch, 32 px, 1 CPU process, an epoch: estimated" in words(told.out).replace(
        fruit_folder.name, "fruit"
    )
    scores = json.loads(Console(monkeypatch, capsys)("report", "runs", "--json").out)["estimates"]
    assert {"epoch_time_s", "images_per_s", "job_time_s", "cost"} <= {score["figure"] for score in scores}
    forecast = Console(monkeypatch, capsys)("predict", "runs", "--workers", "2")
    assert "estimated before any run" in words(forecast.out)


@pytest.fixture
def estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Console:
    monkeypatch.chdir(tmp_path)
    return Console(monkeypatch, capsys, always=("estimate",))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing-here",), "nothing-here"),
        (("{fruit}", "--gpu", "v10"), "No data sheet for the GPU 'v10'. Known: "),
        (("{fruit}", "--gpu", " , "), "--gpu takes kinds of GPU, with commas"),
        (("{fruit}", "--workers", "0"), "--workers takes whole numbers from 1"),
        (("{fruit}", "--workers", "1-1000000"), "--workers takes whole numbers from 1 to 100,000"),
        (("{fruit}", "--workers", "8-4"), "Received: '8-4'"),
        (("{fruit}", "--gpus-per-host", "0"), "--gpus-per-host must be 1 or more"),
        (("{fruit}", "--network", "0"), "--network must be above 0"),
        (("{fruit}", "--prices", "none.csv"), "The price table 'none.csv' cannot be read"),
        (("{fruit}", "--prices", "bad.csv"), "row 2 (V100): price is -1; a price is above 0"),
        (("{fruit}", "--device", "mps"), "--device mps: there is no Apple GPU here"),
    ],
)
def test_bad_input_is_one_message(
    arguments: tuple[str, ...], message: str, fruit_folder: Path, tmp_path: Path, estimate: Console
) -> None:
    (tmp_path / "bad.csv").write_text("kind,price\nV100,-1\n")
    done = estimate(*(word.format(fruit=fruit_folder) for word in arguments))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")  # nothing was decoded for it
    assert message in words(done.err)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.csv"]


def test_a_folder_without_runs_names_the_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = Console(monkeypatch, capsys)("predict", str(tmp_path), "--workers", "4")
    assert (done.code, done.out) == (2, "")
    assert "`turnaround estimate SOURCE` answers without any" in words(done.err)
