"""Every path inside a run directory. Enters: a path from the user. Leaves: a RunDirectory or a helpful error.

No other file knows a file name inside a run.
"""

import difflib
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnaround.errors import RunDirectoryError
from turnaround.record.writer import is_temporary, storage_error

OTHER_OUT = "choose another directory with --out"


@dataclass(frozen=True)
class RunDirectory:
    """The paths of one run. Making the value touches no disk; `create` and `open` do."""

    path: Path

    @property
    def recipe(self) -> Path:
        """What was trained, resolved. Its presence makes a directory a run directory."""
        return self.path / "recipe.json"

    @property
    def machine(self) -> Path:
        """What it ran on."""
        return self.path / "machine.json"

    @property
    def status(self) -> Path:
        """Where the run stands."""
        return self.path / "status.json"

    @property
    def epochs(self) -> Path:
        """One line for each epoch."""
        return self.path / "epochs.jsonl"

    @property
    def evaluation(self) -> Path:
        """The exact evaluation after the last epoch."""
        return self.path / "evaluation.json"

    @property
    def imported(self) -> Path:
        """What a table or a log of somebody else states; only an imported run has it."""
        return self.path / "imported.json"

    @property
    def bench(self) -> Path:
        """What `turnaround bench` measured, in a folder that lives only as long as it runs."""
        return self.path / "bench.json"

    @property
    def checkpoint(self) -> Path:
        """The folder of saved weights; training/checkpoint.py owns its content."""
        return self.path / "checkpoint"

    @property
    def logs(self) -> Path:
        """The folder of what the processes printed; for people, never parsed."""
        return self.path / "logs"

    @property
    def lock(self) -> Path:
        """Who is writing here now."""
        return self.path / "run.lock"

    @property
    def job_script(self) -> Path:
        """The batch script that was submitted."""
        return self.path / "job.sh"

    @property
    def page(self) -> Path:
        """The report of this run."""
        return self.path / "page.html"

    def spans(self, rank: int) -> Path:
        """The step parts that process `rank` measured."""
        return self.path / f"spans-{rank}.jsonl"

    def telemetry(self, host: str) -> Path:
        """The samples of one host."""
        return self.path / f"telemetry-{re.sub(r'[^A-Za-z0-9._-]', '_', host)}.jsonl"

    def span_ranks(self) -> list[int]:
        """The ranks that have a spans file, in order."""
        matches = (re.fullmatch(r"spans-([0-9]{1,9})\.jsonl", name) for name in _names(self.path))
        return sorted(int(match[1]) for match in matches if match)

    def telemetry_hosts(self) -> list[str]:
        """The hosts that have a telemetry file, in order."""
        matches = (re.fullmatch(r"telemetry-([A-Za-z0-9._-]+)\.jsonl", name) for name in _names(self.path))
        return sorted(match[1] for match in matches if match)

    def is_run(self) -> bool:
        """Whether a run is recorded here."""
        try:
            return self.recipe.is_file()
        except (OSError, ValueError):
            return False

    @classmethod
    def create(cls, path: Path, *, job_id: str | None = None) -> "RunDirectory":
        """A new, empty run directory with its logs folder.

        What an attempt leaves that ended before its recipe was written (a lock, an empty logs folder) is no
        run. Neither is what the job `job_id`, in which this process runs, has brought: its script, its status, its
        output. Take the RunLock next: it decides between two that start at once.
        """
        directory = cls(Path(path))
        try:
            if directory.path.is_file():
                raise RunDirectoryError(f"{path} is a file, not a directory: {OTHER_OUT}.")
            directory.path.mkdir(parents=True, exist_ok=True)
            directory._refuse_if_taken(job_id)
            directory.logs.mkdir(exist_ok=True)
        except (OSError, ValueError) as error:
            raise storage_error("create the run directory", directory.path, error) from error
        return directory

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """The run directory at `path`, which must hold a run."""
        directory = cls(Path(path))
        if not directory.is_run():
            raise RunDirectoryError(_not_a_run(directory.path))
        return directory

    def _refuse_if_taken(self, job_id: str | None) -> None:
        if self.recipe.exists():
            raise RunDirectoryError(
                f"{self.path} already holds a run ({_summary(self)}). Go on with it: "
                f"`turnaround resume {shlex.quote(str(self.path))}`; or {OTHER_OUT}."
            )
        job = _peek(self.status).get("slurm")
        owner = job.get("job_id") if isinstance(job, dict) else None
        if owner is not None and owner != job_id:
            raise RunDirectoryError(
                f"{self.path} belongs to job {owner} of a Slurm cluster. Follow it, or submit it again: "
                f"`turnaround resume {shlex.quote(str(self.path))} --on slurm`; or {OTHER_OUT}."
            )
        harmless = {self.lock.name} | (set() if self._has_logs(job_id) else {self.logs.name})
        harmless |= set() if job_id is None else {self.job_script.name}
        harmless |= set() if owner is None else {self.status.name}
        foreign = [name for name in _names(self.path) if name not in harmless and not is_temporary(name)]
        if foreign:
            shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
            ours = {p.name for p in (self.machine, self.status, self.epochs, self.job_script, self.logs)}
            what = "parts of a run without its recipe.json" if ours & set(foreign) else "other files"
            raise RunDirectoryError(f"{self.path} is not empty: it holds {what} ({shown}). Empty it, or {OTHER_OUT}.")

    def _has_logs(self, job_id: str | None) -> bool:
        """Whether anything but the output of the present job's starts is there."""
        return any(job_id is None or not name.startswith("slurm-") for name in _names(self.logs))


def safe_name(name: str) -> str:
    """The name as a folder may bear it: no separators or control characters, not hidden; empty if nothing is left."""
    # 200 bytes leave room for a number or a temporary ending: file systems end at 255.
    plain = re.sub(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069/\\]+", "-", name).strip(" .-")
    return plain.encode("utf-8", "replace")[:200].decode("utf-8", "ignore").strip(" .-")


def default_run_path(root: Path, name: str) -> Path:
    """root/NAME, or the first of NAME-2, NAME-3, ... that is free. NAME is made safe as a folder's name."""
    taken = set(_names(root))
    safe = safe_name(name) or "run"
    number = 1
    while (candidate := safe if number == 1 else f"{safe}-{number}") in taken:
        number += 1
    return root / candidate


def _names(folder: Path) -> list[str]:
    """What lies in the folder, sorted; nothing when it cannot be read."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except (OSError, ValueError):
        return []


def _peek(path: Path) -> dict[str, Any]:
    """The file's JSON object, or nothing: a message about a broken run must not break."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _summary(directory: RunDirectory) -> str:
    recipe, status = _peek(directory.recipe), _peek(directory.status)
    data, model = recipe.get("data"), recipe.get("model")
    source = data.get("source") if isinstance(data, dict) else None
    network = model.get("name") if isinstance(model, dict) else None
    when = status.get("started_at") or status.get("submitted_at")
    parts = [
        f"{source or 'an unreadable recipe'}" + (f" with {network}" if network else ""),
        f"state {status.get('state', 'unknown')}",
        f"since {when}" if when else "",
    ]
    return ", ".join(part[:100] for part in parts if part)


def _not_a_run(path: Path) -> str:
    """Why this is no run directory, and what was probably meant."""
    try:
        kind = "it is a file" if path.is_file() else "no recipe.json" if path.is_dir() else "no such directory"
    except (OSError, ValueError):
        kind = "it cannot be read"
    message = f"{path} is not a run directory: {kind}."
    if RunDirectory(path.parent).is_run():
        return f"{message} Did you mean {path.parent}?"
    below = [name for name in _names(path) if RunDirectory(path / name).is_run()]
    if below:
        return f"{message} Runs below it: {', '.join(below[:5])}{', ...' if len(below) > 5 else ''}."
    beside = [name for name in _names(path.parent) if RunDirectory(path.parent / name).is_run()]
    near = difflib.get_close_matches(path.name, beside, n=1, cutoff=0.4)
    return f"{message} Did you mean {path.parent / near[0]}?" if near else message
