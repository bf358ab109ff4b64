"""What we start looks for code where it is installed; what the user starts finds the environment as it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from turnaround import safe_path


def test_a_program_of_the_user_finds_its_environment_as_it_was() -> None:
    mine = {"A": "1"}
    assert safe_path.as_it_was({**mine, **safe_path.settings(mine)}) == mine
    theirs = {safe_path.VARIABLE: "1"}
    assert safe_path.settings(theirs) == {}
    assert safe_path.as_it_was(theirs) == theirs


def test_whoever_works_in_the_folder_of_our_code_trusts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(safe_path.__file__).parents[1])
    assert safe_path.settings({}) == {}


def test_the_line_of_a_job_does_the_same(tmp_path: Path) -> None:
    show = f"{safe_path.shell_line()}; {sys.executable} -c 'import sys; print(int(sys.flags.safe_path))'"
    for own, shown in ({}, "1"), ({safe_path.VARIABLE: "1"}, "1"):
        done = subprocess.run(["bash", "-euc", show], env=own, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == shown
