"""The examples of docs/any-loop.md, as scripts that are run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DOC = REPOSITORY / "docs" / "any-loop.md"


def example(name: str) -> str:
    """The code of the block ```python NAME."""
    found = re.search(rf"(?s)```python {name}\n(.*?)```", DOC.read_text(encoding="utf-8"))
    assert found is not None, f"docs/any-loop.md has no example {name}"
    return found[1]


def run_script(
    code: str,
    folder: Path,
    *arguments: str,
    launcher: tuple[str, ...] = (),
    python: str = sys.executable,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """As a user runs it: a file of its own, in its own folder."""
    script = folder / "script.py"
    script.write_text(code, encoding="utf-8")
    source = str(REPOSITORY / "src")
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", **variables}
    command = [python, *launcher, str(script), *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def page_of(folder: Path) -> str:
    """The page of the runs that a script has left."""
    command = [sys.executable, "-m", "turnaround", "report", "runs", "--out", "page.html"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return (folder / "page.html").read_text(encoding="utf-8")
