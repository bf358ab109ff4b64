"""The comparison runs from end to end on a tiny set: every contender has its figures, and nothing is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from forking import ForkingParent

BENCH = Path(__file__).parents[2] / "bench"
CONTENDERS = ["torchvision", "timm", "keras", "turnaround"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jpegs") / "set"
    sizes = ["--images", "60", "--classes", "3", "--width-px", "60", "--height-px", "50"]
    subprocess.run([sys.executable, BENCH / "jpeg_set.py", folder, *sizes], check=True)
    return folder


def compare(python: str, source: Path, work: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [python, str(BENCH / "side_by_side.py"), str(source), "--work", str(work), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)


@pytest.fixture(scope="module")
def told(tiny: Path, tmp_path_factory: pytest.TempPathFactory, forking_parent: ForkingParent) -> dict[str, Any]:
    work = tmp_path_factory.mktemp("work")
    small = ["--size", "32", "--batch", "16", "--loaders", "1", "--seconds", "0.5"]
    done = compare(forking_parent.python, tiny, work, "--frozen", "--json", *small)
    assert done.returncode == 0, done.stderr
    assert list(work.iterdir()) == []
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_every_contender_has_positive_figures(told: dict[str, Any]) -> None:
    assert [(row["contender"], row["mode"], row["error"]) for row in told["rows"]] == [
        (name, "frozen", None) for name in CONTENDERS
    ]
    for row in told["rows"]:
        assert row["input_images_per_s"] > 0
        assert row["training_images_per_s"] > 0
        assert row["first_epoch_end_s"] > 0


def test_turnarounds_first_epoch_is_told_in_parts(told: dict[str, Any]) -> None:
    ours = told["rows"][-1]
    assert ours["first_epoch_end_s"] == pytest.approx(sum(ours["parts_s"].values()))
    assert ours["parts_s"].keys() == {"decode", "start_up", "training_cold"}
    assert ours["parts_s"]["decode"] >= 0  # as long as it was waited for: start-up may hide all of it


def test_the_settings_are_told(told: dict[str, Any]) -> None:
    assert told["settings"]["num_train"] == 48  # a fifth of 60 is held out, and nobody trains on it
    assert told["settings"]["num_classes"] == 3
    assert told["machine"]["precision"] == "fp32"


@pytest.fixture
def side_by_side(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    import side_by_side

    return side_by_side


def test_the_table_has_ratios_and_says_what_failed(side_by_side: Any) -> None:
    row = side_by_side.Row
    figures = {"mode": "frozen", "input_images_per_s": 100.0, "first_epoch_end_s": 9.0}
    rows = [
        row(contender="timm", training_images_per_s=50.0, **figures),
        row(contender="keras", mode="frozen", error="no result within 7 s"),
        row(
            contender="turnaround",
            training_images_per_s=400.0,
            parts_s={"decode": 2.0, "start_up": 3.0, "training_cold": 4.0},
            **figures,
        ),
    ]
    lines = side_by_side.table_text(rows, num_images=60).splitlines()
    assert [line.split() for line in lines if line.startswith("timm")] == [
        ["timm's", "loader", "and", "prefetcher", "100", "1.0", "50", "8.0", "9.0", "s"]
    ]
    assert any(line.startswith("Keras") and line.endswith("no result within 7 s") for line in lines)
    assert "    of which waiting for 60 images to be decoded 2.0 s, start-up 3.0 s, first epoch 4.0 s" in lines


def test_a_contender_that_hangs_is_ended_with_all_it_started(side_by_side: Any, tmp_path: Path) -> None:
    """The comparison goes on: the process and its own child are gone, and the row says how long they had."""
    hangs = "import subprocess; child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True); child.wait()"
    log = tmp_path / "log"
    with side_by_side.started([sys.executable, "-c", hangs], log) as process:
        while not log.read_text().endswith("\n"):
            time.sleep(0.01)
    assert side_by_side.failure(process, log, limit_s=7) == "no result within 7 s"
    with suppress(psutil.NoSuchProcess):  # the kernel ends it a moment later
        psutil.Process(int(log.read_text())).wait(timeout=10)


def test_a_contender_that_fails_says_why(side_by_side: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with side_by_side.started([sys.executable, "-c", "raise SystemExit('no such loader')"], log) as process:
        process.wait(timeout=30)
    assert side_by_side.failure(process, log, limit_s=7) == "exit status 1: no such loader"


def test_the_keras_map_leaves_the_centre_where_the_shift_puts_it(side_by_side: Any) -> None:
    import numpy as np
    import plain_loops

    random = np.random.default_rng(0)
    for _ in range(20):
        matrix, offset = plain_loops.keras_map(64, random)
        centre = np.full(2, 31.5)
        moved = matrix @ centre + offset - centre
        assert np.hypot(*moved) <= np.hypot(12.8, 12.8) + 1e-9
        assert 0.8**2 - 1e-9 <= np.linalg.det(matrix) <= 1.2**2 + 1e-9
