"""The measurement of the pause for a checkpoint runs and says what it should."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from forking import ForkingParent

SCRIPT = Path(__file__).parents[2] / "bench" / "checkpoint_pause.py"


def test_both_ways_are_measured(forking_parent: ForkingParent) -> None:
    done = subprocess.run(
        [forking_parent.python, str(SCRIPT), "--saves", "3", "--network", "small", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["small"]
    assert found["state_mib"] > 1
    assert 0 < found["background_median_ms"] <= found["background_worst_ms"]
    assert 0 < found["foreground_median_ms"] <= found["foreground_worst_ms"]
