"""`turnaround bench` as a user runs it: real processes, real figures, nothing left behind."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from forking import ForkingParent

QUICK = ("--device", "cpu", "--seconds", "0.05", "--set", "data.size_px=32", "--set", "training.batch_per_worker=16")


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


def test_bad_input_is_one_message(tmp_path: Path, bench: Bench) -> None:
    done = bench("nothing-here", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
