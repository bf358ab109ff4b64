"""The comparison of finished models: every program trains on the same split, and the table says who is where."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from forking import ForkingParent

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def good_models(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    import good_models

    return good_models


def trained(good_models: Any, program: str, *accuracies: float, command_s: float, error: str | None = None) -> Any:
    curve = [(command_s * (i + 1) / len(accuracies), value) for i, value in enumerate(accuracies)]
    return good_models.Training(program=program, seed=0, command_s=command_s, imports_s=1.0, curve=curve, error=error)


def test_the_table_says_who_is_above_and_left(good_models: Any) -> None:
    trainings = [
        trained(good_models, "turnaround", 0.80, 0.92, command_s=20.0),
        trained(good_models, "fastai", 0.85, 0.87, command_s=50.0),
        trained(good_models, "timm", 0.90, 0.94, command_s=10.0),
        trained(good_models, "tutorial", command_s=0.0, error="no result within 240 s"),
    ]
    text = good_models.table_text(trainings)
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert lines["fastai"].split() == ["fastai", "87.0", "87.0", "50.0", "1.0", "2.50", "20.0", "s"]
    assert lines["timm"].split() == ["timm", "94.0", "94.0", "10.0", "1.0", "0.50", "never"]
    assert "no result within 240 s" in lines["tutorial"]
    assert "turnaround is above and left of fastai: +5.0 points, 2.50 times its speed" in text
    assert "turnaround is BELOW and RIGHT of timm: -2.0 points, 0.50 times its speed" in text
    assert "of tutorial" not in text  # nothing is claimed about what has no figure


def test_a_missing_program_is_named(good_models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(good_models.NEEDS, "fastai", ("no_such_package", "json"))
    assert good_models.missing_packages("fastai") == ["no_such_package"]


def test_ours_trains_on_the_split_that_all_get(tmp_path: Path, forking_parent: ForkingParent) -> None:
    """From end to end with ours alone: the quick-start command takes the weights file, and the curve is in seconds."""
    import timm
    from safetensors.torch import save_file

    weights = tmp_path / "test_resnet.safetensors"
    save_file(timm.create_model("test_resnet").state_dict(), weights)
    for name, colour in (("red", (200, 30, 30)), ("blue", (30, 30, 200))):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(10):
            Image.new("RGB", (40, 40), colour).save(tmp_path / "photos" / name / f"{number}.png")
    work = tmp_path / "work"
    work.mkdir()
    command = [forking_parent.python, str(BENCH / "good_models.py"), str(tmp_path / "photos"), "--work", str(work)]
    command += ["--weights", str(weights), "--seeds", "1", "--epochs", "2", "--size", "32", "--programs", "none"]
    done = subprocess.run(
        [*command, "--json"], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    )
    assert done.returncode == 0, done.stderr
    (training,) = json.loads(done.stdout)["trainings"]
    assert training["program"] == "turnaround"
    assert training["error"] is None
    seconds = [second for second, _ in training["curve"]]
    assert len(seconds) == 2
    assert 0 < training["imports_s"] <= seconds[0] <= seconds[1] <= training["command_s"]
    assert list(work.iterdir()) == []
