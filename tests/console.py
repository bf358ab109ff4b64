"""The console script, called in the process of the test: quick, and its text and exit code are those of a user."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from turnaround import cli


@dataclass(frozen=True)
class Done:
    """What a command leaves."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """Its text without line breaks and blanks."""
        return "".join(self.out.split())


@dataclass(frozen=True)
class Console:
    """Calls `turnaround` with the arguments that it is given, after those that all calls have."""

    monkeypatch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]
    always: tuple[str, ...] = ()

    def __call__(self, *arguments: str | Path) -> Done:
        self.monkeypatch.setattr(sys, "argv", ["turnaround", *self.always, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        text = self.capture.readouterr()
        return Done(int(ended.value.code or 0), text.out, text.err)
