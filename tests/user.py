"""Somebody who gives commands and looks at what they leave: for tests of bad input."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from turnaround import cli


@dataclass(frozen=True)
class User:
    """Somebody with a working directory, a cache and a folder for temporary files, all to be left clean."""

    folder: Path
    cache: Path
    python: str = sys.executable
    """Or one that has loaded torch already (tests/forking.py)."""

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The real command."""
        return subprocess.run(
            [self.python, "-m", "turnaround", *arguments],
            cwd=self.folder,
            env={**os.environ, **self._environment(), **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def call(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The same in this process."""
        with (
            io.StringIO() as out,
            tempfile.TemporaryFile("w+", encoding="utf-8") as err,  # processes that it starts write there too
            pytest.MonkeyPatch.context() as patch,
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            for name, value in (self._environment() | environment).items():
                patch.setenv(name, value)
            patch.setattr(tempfile, "tempdir", None)
            patch.setattr(sys, "argv", ["turnaround", *arguments])
            patch.setattr(sys, "executable", self.python)
            with pytest.raises(SystemExit) as ended:
                cli.main()
            err.seek(0)
            return subprocess.CompletedProcess(arguments, int(ended.value.code or 0), out.getvalue(), err.read())

    def refused(self, *arguments: str, is_real: bool = False, **environment: str) -> str:
        """The one message of a command that must fail, after which everything is as it was."""
        before = self._files()
        done = (self.run if is_real else self.call)(*arguments, **environment)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""
        *_, message = done.stderr.partition("error: ")
        assert message
        assert [line for line in done.stderr.splitlines() if line.startswith("error:")] == [
            "error: " + message.splitlines()[0]
        ]
        assert self._files() == before
        return message

    def _environment(self) -> dict[str, str]:
        temporary = self.folder.with_name(f"{self.folder.name}-tmp")
        temporary.mkdir(exist_ok=True)
        return {
            "TURNAROUND_CACHE": str(self.cache),
            "TMPDIR": str(temporary),
            "COLUMNS": "200",
            "OMP_NUM_THREADS": "1",
        }

    def _files(self) -> set[Path]:
        """All that is there, but for finished entries of the cache and for torch's own compilation cache."""
        found = {p for top in (self.folder, self.folder.with_name(f"{self.folder.name}-tmp")) for p in top.rglob("*")}
        unfinished = {p for p in self.cache.glob("*") if not p.name.startswith("pixels-") or p.suffix == ".lock"}
        return {p for p in found | unfinished if not p.name.startswith("torchinductor_")}
