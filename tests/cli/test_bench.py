"""`turnaround bench` as a user runs it: real processes, real figures, nothing left behind."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from console import Console
from forking import ForkingParent

QUICK = ("--device", "cpu", "--seconds", "0.05", "--size", "32", "--batch", "16", "--model", "small")


Bench = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def bench(forking_parent: ForkingParent) -> Bench:
    def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        command = [forking_parent.python, "-m", "turnaround", "bench", *arguments]
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)

    return run


@pytest.mark.parametrize("processes", [1, 2])
def test_every_part_has_a_rate(fruit_folder: Path, tmp_path: Path, processes: int, bench: Bench) -> None:
    spread = ("--workers", str(processes), "--processes", str(processes))
    done = bench(str(fruit_folder), *QUICK, *spread, "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    parts = {"decode", "augmentation", "input", "model", "training"} | ({"all_reduce"} if processes > 1 else set())
    assert set(found["rates"]) == parts
    for rate in found["rates"].values():
        assert 0 < rate["low"] <= rate["images_per_s"] <= rate["high"]
        assert rate["rounds"] >= 3
    rates = {name: rate["images_per_s"] for name, rate in found["rates"].items()}
    assert found["share_of_ceiling"] == pytest.approx(rates["training"] / rates["model"])
    assert found["limit"] in ("model", "input", "communication", "host")
    assert found["processes"] == processes
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing-here",), "nothing-here"),
        (("{fruit}", "--model", "resnet5O"), "Unknown model.name 'resnet5O'. Did you mean"),
        (("{fruit}", "--epochs", "0"), "training.epochs"),
        (("{fruit}", "--device", "mps"), "--device mps: there is no Apple GPU here"),
    ],
)
def test_bad_input_is_one_message(
    arguments: tuple[str, ...],
    message: str,
    fruit_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = Console(monkeypatch, capsys)("bench", *(word.format(fruit=fruit_folder) for word in arguments))
    assert done.code == 2
    assert message in done.err
    assert done.err.startswith("error: ")  # nothing was decoded for it
    assert "Traceback" not in done.err
