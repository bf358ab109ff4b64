"""The soak in short: a few trainings, random faults, and the same weights in the end."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from forking import ForkingParent

SCRIPT = Path(__file__).parents[2] / "bench" / "soak.py"


@pytest.mark.fault(37, "random faults at random steps, resumed until finished: the same weights (bench/soak.py)")
def test_a_few_trainings_survive_random_faults(tmp_path: Path, forking_parent: ForkingParent) -> None:
    done = subprocess.run(
        [forking_parent.python, str(SCRIPT), "--trainings", "2", "--seconds", "120", "--seed", "190", "--json"],
        env={**os.environ, "TURNAROUND_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["trainings"] == outcome["finished"] >= 1
    assert outcome["same_to_the_bit"] + outcome["same_to_tolerance"] == outcome["trainings"]
    assert sum(outcome["faults"].values()) >= 1
    assert outcome["resumes"] >= 1
    assert outcome["most_steps_lost"] <= 8
    assert (outcome["orphans"], outcome["hangs"], outcome["problems"]) == (0, 0, [])
