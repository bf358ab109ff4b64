"""W&B and trackio: a run of the service that their own variables name, the same one after a resume.

W&B: WANDB_API_KEY (or `wandb login`), WANDB_PROJECT, WANDB_ENTITY, WANDB_BASE_URL; WANDB_MODE=offline keeps the run in
a folder wandb/ (or WANDB_DIR), which `wandb sync` sends later. trackio: TRACKIO_PROJECT, TRACKIO_SPACE_ID, TRACKIO_DIR.
Without a project both show the run under turnaround.
"""

from __future__ import annotations

import netrc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any
from urllib.parse import urlsplit

from turnaround.errors import InputError, RunDirectoryError
from turnaround.record.files import read_json
from turnaround.record.host import is_private
from turnaround.record.reader import Run
from turnaround.record.schema import EpochRecord
from turnaround.record.viewers.follow import scalars_of, settings_of
from turnaround.record.writer import write_json

PROJECT = "turnaround"
OFFLINE = ("offline", "dryrun", "disabled")
MAX_START_S = 15.0  # W&B itself would try for 90 s to reach its server
EXIT_CODES = {"finished": 0}


class TrackerNote:
    """What a tracker has of a run, in logs/NAME.json: the epochs that it has heard of, for a resume."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._run: Run | None = None
        self.facts: dict[str, Any] = {}
        self._epochs: set[int] = set()

    def load(self, run: Run) -> set[int]:
        self._run = run
        try:
            self.facts = read_json(run.directory.viewer_note(self.name), run.path)
            self._epochs = {int(epoch) for epoch in self.facts.get("epochs", ())}
        except (RunDirectoryError, TypeError, ValueError):
            self.facts, self._epochs = {}, set()
        return set(self._epochs)

    def add(self, epoch: int | None = None, **facts: str) -> None:
        self._epochs |= set() if epoch is None else {epoch}
        assert self._run is not None, "a note is loaded before it is added to"
        self.facts |= {**facts, "epochs": sorted(self._epochs)}
        known = {name: value for name, value in self.facts.items() if name != "format"}
        write_json(self._run.directory.viewer_note(self.name), known, self._run.path)


class WandB:
    """One run of a W&B project."""

    def __init__(self) -> None:
        if os.environ.get("WANDB_MODE", "online") not in OFFLINE and not _has_key():
            raise InputError("W&B has no key here. Set WANDB_API_KEY, or WANDB_MODE=offline to send it later.")
        import wandb

        self._wandb, self._note = wandb, TrackerNote("wandb")
        self._tracked: Any = None

    def begin(self, run: Run) -> set[int]:
        known = self._note.load(run)
        # Not its own description of the machine: that has the command line, and the record keeps a better one.
        settings = self._wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            save_code=False,
            init_timeout=MAX_START_S,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=is_private(),
        )
        self._tracked = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            name=run.path.name,
            id=self._note.facts.get("run_id"),
            resume="allow",
            config=settings_of(run.recipe),
            settings=settings,
        )
        self._tracked.define_metric("epoch")
        # Curves over epochs: the step of W&B counts calls, whatever they logged.
        self._tracked.define_metric("*", step_metric="epoch")
        self._note.add(run_id=str(self._tracked.id))
        return known

    def epoch(self, record: EpochRecord) -> None:
        # Noted after it was logged: a kill in between repeats an epoch, which is better than one that is missing.
        self._tracked.log({"epoch": record.epoch, **scalars_of(record)})
        self._note.add(record.epoch)

    def end(self, run: Run) -> None:
        status = run.status
        self._tracked.summary["state"] = status.state
        if status.cause:
            self._tracked.summary["cause"] = status.cause[:500]
        self._tracked.finish(exit_code=EXIT_CODES.get(status.state, 1))


def _has_key() -> bool:
    """Tell whether W&B would start without asking at the terminal, where a training must not wait."""
    if any(os.environ.get(name) for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


class Trackio:
    """One run of a trackio project."""

    def __init__(self) -> None:
        with _quiet():
            import trackio

        self._trackio, self._note = trackio, TrackerNote("trackio")
        self._tracked: Any = None

    def begin(self, run: Run) -> set[int]:
        known = self._note.load(run)
        with _quiet():
            self._tracked = self._trackio.init(
                project=os.environ.get("TRACKIO_PROJECT") or PROJECT,
                name=run.path.name,
                config=settings_of(run.recipe),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
            )
        self._note.add(run_name=str(self._tracked.name))
        return known

    def epoch(self, record: EpochRecord) -> None:
        self._tracked.log({"epoch": record.epoch, **scalars_of(record)}, step=record.epoch)
        self._note.add(record.epoch)

    def end(self, run: Run) -> None:
        with _quiet():
            self._tracked.finish()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what a tracker prints off stdout, which belongs to the result (--json)."""
    with redirect_stdout(sys.stderr):
        yield
