"""The benchmark of the page in short: it builds runs, makes their page and opens it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "page.py"
SMALL = ("--runs", "4", "--epochs", "8", "--seeds", "2", "--opened", "1")


@pytest.mark.browser
def test_a_few_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *SMALL, "--folder", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = {line[:26].strip(): line[26:].split()[0] for line in done.stdout.splitlines()}
    assert figures["runs"] == "4"
    assert 1.5 < float(figures["page"]) < 8
    assert 0 < float(figures["first paint"]) <= float(figures["all figures drawn"])
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
