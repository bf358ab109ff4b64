"""Somebody else's program as the thing that is studied. Pure: its command goes in, the words of each run come out.

The command is split into words as a shell would split them, and no shell runs it: whatever stands in a path or a
placeholder cannot become another command.
"""

from __future__ import annotations

import difflib
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from turnaround.errors import InputError
from turnaround.record.layout import safe_name
from turnaround.study.plan import PlannedRun

RUN_VARIABLE = "TURNAROUND_RUN_DIR"
"""Names the run directory, to the program and to a Recorder in it, whatever path that was given."""
WORKERS_VARIABLE = "TURNAROUND_WORKERS"
SEED_VARIABLE = "TURNAROUND_SEED"

PLACEHOLDERS = ("{workers}", "{seed}", "{out}")
OUTSIDE_MODULE = "turnaround.study.outside"

_SHELL_WORDS = frozenset({"|", "||", "&", "&&", ";", ">", ">>", "<", "2>", "2>&1", "&>"})


@dataclass(frozen=True, kw_only=True)
class Program:
    """A command with placeholders."""

    template: str
    """The command as it was typed."""
    words: tuple[str, ...]

    @classmethod
    def parse(cls, template: str) -> Program:
        """InputError for what could not be run as it is meant."""
        try:
            words = shlex.split(template)
        except ValueError as error:
            raise InputError(f"--command cannot be split into words: {error}. Received: {template!r}.") from error
        if not words:
            raise InputError('--command is empty; it takes a program: --command "python lab10.py --gpus {workers}".')
        _refuse_shell_words(words)
        for name in re.findall(r"\{[A-Za-z_]+\}", template):
            near = difflib.get_close_matches(name, PLACEHOLDERS, n=1, cutoff=0.8)
            if near and name not in PLACEHOLDERS:
                raise InputError(f"--command has {name}; did you mean {near[0]}? Known: {', '.join(PLACEHOLDERS)}.")
        return cls(template=template, words=tuple(words))

    @property
    def name(self) -> str:
        """The name for a folder: `lab10` of `python lab10.py --gpus {workers}`."""
        script = next((word for word in self.words if re.search(r"\.(py|sh)$", word)), self.words[0])
        return safe_name(Path(script).stem) or "program"

    def filled(self, planned: PlannedRun, directory: Path) -> list[str]:
        """Return the words of one run; a brace that is no placeholder stays."""
        values = dict(zip(PLACEHOLDERS, (str(planned.workers), str(planned.seed), str(directory)), strict=True))
        pattern = "|".join(map(re.escape, PLACEHOLDERS))
        return [re.sub(pattern, lambda found: values[found[0]], word) for word in self.words]

    def shown(self, planned: PlannedRun, directory: Path) -> str:
        """Return one run as it would be typed in a shell."""
        settings = environment(planned.workers, planned.seed, directory)
        assignments = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
        return " ".join([*assignments, shlex.join(self.filled(planned, directory))])

    def watched(self, planned: PlannedRun, directory: Path, log: Path) -> list[str]:
        """Return one run, watched by what times it, keeps what it prints, and leaves a run directory in any case."""
        return [
            *(sys.executable, "-m", OUTSIDE_MODULE, "--run", str(directory), "--log", str(log)),
            *("--workers", str(planned.workers), "--seed", str(planned.seed), f"--template={self.template}"),
            *("--", *self.filled(planned, directory)),
        ]

    def refuse_if_unfit(self, planned: Sequence[PlannedRun]) -> None:
        """Configurations that would all run the same."""
        counts = sorted({run.workers for run in planned})
        if len(counts) > 1 and "{workers}" not in self.template:
            raise InputError(
                f"--command has no {{workers}}, so that its {len(counts)} configurations "
                f"({', '.join(map(str, counts))} workers) would all run the same. Write it where the program takes its "
                f"number of workers. Received: {self.template!r}."
            )

    def refuse_if_missing(self, planned: Sequence[PlannedRun], folder: Path) -> None:
        """Raise InputError for a program that is not on this machine, before anything is started."""
        for run in planned:
            first = self.filled(run, folder / run.name)[0]
            if shutil.which(first) is None:
                raise InputError(
                    f"--command starts with {first!r}, and there is no such program here that may be executed. Write "
                    "its path, or the interpreter before it: python lab10.py."
                )


def environment(workers: int, seed: int, directory: Path) -> dict[str, str]:
    """Return the variables that the program finds in its environment."""
    return {RUN_VARIABLE: str(directory), WORKERS_VARIABLE: str(workers), SEED_VARIABLE: str(seed)}


def _refuse_shell_words(words: Sequence[str]) -> None:
    strange = next((word for word in words if word in _SHELL_WORDS), None)
    if strange is not None:
        raise InputError(
            f"--command is not run by a shell, which {strange!r} needs. Ask for one: "
            "--command \"sh -c 'python lab10.py --gpus {workers} | tee log'\"."
        )
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*=.*", words[0]):
        raise InputError(
            f"--command is not run by a shell, which {words[0]!r} needs. Write env before it: "
            f'--command "env {words[0]} ...".'
        )
