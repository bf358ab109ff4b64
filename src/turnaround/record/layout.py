"""Every path inside a run directory. Enters: a path from the user. Leaves: a RunDirectory or a helpful error.

No other file knows a file name inside a run (tests/record/test_one_owner.py walks the source for them):

    RUN/            RunDirectory      recipe, machine, status, epochs, spans, telemetry, evaluation, page, job script
    RUN/logs/       RunDirectory      what processes print, their heartbeats, failures and notes
    RUN/checkpoint/ CheckpointFiles   one folder for each saved position, named by CheckpointName
    RUN/best/       CheckpointFiles   the weights of the best epoch, in a folder of the same kind of name
    STUDY/          StudyDirectory    what a study asked for, its runs' output, forecasts that were saved
"""

import difflib
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from turnaround.errors import RunDirectoryError
from turnaround.record.files import is_temporary, make_folder, names_in, read_json_or_nothing, storage_error

OTHER_OUT = "choose another directory with --out"

# A number of up to 9 digits: what int() reads of a hostile name stays small.
_CHECKPOINT = re.compile(r"epoch-(\d{5,9})(?:-step-(\d{5,9}))?")
_LEFTOVER = re.compile(r"\.epoch-.*")
_SPANS = re.compile(r"spans-([0-9]{1,9})\.jsonl")
_TELEMETRY = re.compile(r"telemetry-([A-Za-z0-9._-]+)\.jsonl")
_HEARTBEAT = re.compile(r"pulse-([0-9]{1,9})\.json")
_HEARTBEAT_FILE = re.compile(r"\.?pulse-[0-9]+\..*")
_FAILURE = re.compile(r"failure-([0-9]{1,9})\.json")
_RANK_NOTE = re.compile(r"rank-([0-9]{1,9})\.json")
_JOB = re.compile(r"slurm-.*")
_JOB_NOTE = re.compile(r"slurm-.*\.json")


class CheckpointName(NamedTuple):
    """The name of a checkpoint's folder, which is its position. Tuples compare in the order of the training."""

    epoch: int
    """Whole epochs behind it."""
    step: int = 0
    """Steps of the next epoch behind it."""

    def __str__(self) -> str:
        return f"epoch-{self.epoch:05d}" + (f"-step-{self.step:05d}" if self.step else "")

    @classmethod
    def parse(cls, name: str) -> "CheckpointName | None":
        """Return the position in a folder's name; None for a folder that is no visible checkpoint."""
        match = _CHECKPOINT.fullmatch(name)
        return cls(int(match[1]), int(match[2] or 0)) if match else None

    @staticmethod
    def is_leftover(name: str) -> bool:
        """Return whether a save that was killed has left this: folders become visible by a rename at the end."""
        return _LEFTOVER.fullmatch(name) is not None


@dataclass(frozen=True)
class CheckpointFiles:
    """The files of one checkpoint; training/checkpoint.py owns their content."""

    path: Path

    @property
    def weights(self) -> Path:
        """The network: parameters and buffers."""
        return self.path / "weights.safetensors"

    @property
    def optimizer(self) -> Path:
        """The optimizer's tensors."""
        return self.path / "optimizer.safetensors"

    @property
    def average(self) -> Path:
        """The moving average of what learns; only where the recipe asks for one."""
        return self.path / "average.safetensors"

    @property
    def manifest(self) -> Path:
        """The position, and the SHA-256 of everything."""
        return self.path / "manifest.json"

    @property
    def tensors(self) -> tuple[Path, Path]:
        """The files that every checkpoint has; the manifest states their SHA-256 by name, and that of others."""
        return self.weights, self.optimizer

    @property
    def name(self) -> CheckpointName | None:
        """The position that the folder's name states."""
        return CheckpointName.parse(self.path.name)

    @classmethod
    def all_in(cls, folder: Path) -> "list[CheckpointFiles]":
        """Return the visible checkpoints in a run's checkpoint folder, in the order of the training."""
        # A resume that took "no answer" for "none" would begin anew, over what is there.
        names = names_in(folder, folder.parent, must_answer=True)
        positions = {name: text for text in names if (name := CheckpointName.parse(text))}
        return [cls(folder / positions[name]) for name in sorted(positions)]


@dataclass(frozen=True)
class StudyDirectory:
    """The paths of a folder of runs that belong together."""

    path: Path

    @property
    def study(self) -> Path:
        """The request of the study, and the runs that were planned."""
        return self.path / "study.json"

    @property
    def forecasts(self) -> Path:
        """One line for each forecast that was saved, to be scored by later runs."""
        return self.path / "forecasts.jsonl"

    @property
    def lock(self) -> Path:
        """The lock of the command that starts its runs now; each run has one of its own."""
        return self.path / "study.lock"

    @property
    def earlier(self) -> Path:
        """The folder of what was moved away before a program was started anew."""
        return self.path / ".earlier"

    def log(self, run: str) -> Path:
        """Return the path of the output of the command of the run of this name."""
        return self.path / f"{run}.log"

    def has_job_notes(self) -> bool:
        """Return whether a job of a cluster has ever started in one of its runs."""
        return any(RunDirectory(self.path / name).job_notes() for name in names_in(self.path))


@dataclass(frozen=True)
class RunDirectory:
    """The paths of one run. Making the value touches no disk; `create` and `open` do."""

    path: Path

    @property
    def recipe(self) -> Path:
        """The resolved recipe. Its presence makes a directory a run directory."""
        return self.path / "recipe.json"

    @property
    def machine(self) -> Path:
        """The machine that it ran on."""
        return self.path / "machine.json"

    @property
    def status(self) -> Path:
        """The state of the run."""
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
        """The figures of somebody else's table or log; only an imported run has it."""
        return self.path / "imported.json"

    @property
    def pixels(self) -> Path:
        """The folder of decoded images while they are not kept in a cache; it goes when the run ends."""
        return self.path / ".pixels"

    @property
    def bench(self) -> Path:
        """The measurements of `turnaround bench`, in a folder that lives only as long as it runs."""
        return self.path / "bench.json"

    @property
    def checkpoint(self) -> Path:
        """The folder of saved weights; training/checkpoint.py owns its content."""
        return self.path / "checkpoint"

    @property
    def best(self) -> Path:
        """The folder of the best epoch's weights; training/saving.py owns its content."""
        return self.path / "best"

    @property
    def logs(self) -> Path:
        """The folder of what the processes printed; for people, never parsed."""
        return self.path / "logs"

    @property
    def lock(self) -> Path:
        """The lock of the process that is writing here now."""
        return self.path / "run.lock"

    @property
    def job_script(self) -> Path:
        """The batch script that was submitted."""
        return self.path / "job.sh"

    @property
    def page(self) -> Path:
        """The report of this run."""
        return self.path / "page.html"

    @property
    def process_log(self) -> Path:
        """The output of the training processes of all starts."""
        return self.logs / "processes.log"

    @property
    def start_message(self) -> Path:
        """The start message of the present start (launch/handshake.py)."""
        return self.logs / "start.json"

    @property
    def tensorboard(self) -> Path:
        """The folder of TensorBoard's event files."""
        return self.logs / "tensorboard"

    def viewer_note(self, viewer: str) -> Path:
        """Return the path of the note which run of a viewer shows this one, for a resume."""
        return self.logs / f"{viewer}.json"

    # --- files of which each process, host or job has one

    def spans(self, rank: int) -> Path:
        """Return the path of the step parts that process `rank` measured."""
        return self.path / f"spans-{rank}.jsonl"

    def telemetry(self, host: str) -> Path:
        """Return the path of the samples of one host."""
        return self.path / f"telemetry-{re.sub(r'[^A-Za-z0-9._-]', '_', host)}.jsonl"

    def heartbeat(self, rank: int) -> Path:
        """Return the path of the heartbeat of process `rank`, rewritten once a second."""
        return self.logs / f"pulse-{rank}.json"

    def failure(self, rank: int) -> Path:
        """Why process `rank` failed."""
        return self.logs / f"failure-{rank}.json"

    def rank_note(self, rank: int) -> Path:
        """Return the path of the note of process `rank` of a recorded program: its host."""
        return self.logs / f"rank-{rank}.json"

    def span_ranks(self, names: Sequence[str] | None = None) -> list[int]:
        """Return the ranks that have a spans file, in order; `names` is what lies in the directory, where known."""
        return _numbers(_SPANS, names_in(self.path) if names is None else names)

    def telemetry_hosts(self, names: Sequence[str] | None = None) -> list[str]:
        """Return the hosts that have a telemetry file, in order."""
        matches = (_TELEMETRY.fullmatch(name) for name in (names_in(self.path) if names is None else names))
        return sorted(match[1] for match in matches if match)

    def heartbeat_ranks(self, names: Sequence[str] | None = None) -> list[int]:
        """Return the ranks that have a heartbeat file, in order; `names` is what lies in the logs, where known."""
        return _numbers(_HEARTBEAT, self._log_names() if names is None else names)

    def heartbeat_files(self) -> list[Path]:
        """Return the heartbeat files, and what a process left that was killed while it replaced its own."""
        return [self.logs / name for name in self._log_names() if _HEARTBEAT_FILE.fullmatch(name)]

    def failed_ranks(self) -> list[int]:
        """Return the ranks that have said why they failed, in order."""
        return _numbers(_FAILURE, self._log_names())

    def noted_ranks(self) -> list[int]:
        """Return the ranks of a recorded program that have said where they run, in order."""
        return _numbers(_RANK_NOTE, self._log_names())

    def other_logs(self) -> list[Path]:
        """Return the logs besides the output and the notes of the jobs of a cluster."""
        return [self.logs / name for name in self._log_names() if not _JOB.fullmatch(name)]

    def job_notes(self) -> list[Path]:
        """Return the notes of all jobs of a cluster that have started here."""
        return [self.logs / name for name in self._log_names() if _JOB_NOTE.fullmatch(name)]

    def line_files(self) -> list[Path]:
        """Return every file of lines that is there: epochs, spans, telemetry."""
        return [self.path / name for name in names_in(self.path) if name.endswith(".jsonl")]

    def checkpoints(self) -> list[CheckpointFiles]:
        """Return the visible checkpoints, in the order of the training."""
        return CheckpointFiles.all_in(self.checkpoint)

    def _log_names(self) -> list[str]:
        return names_in(self.logs, below=self.path)

    def is_run(self) -> bool:
        """Return whether a run is recorded here."""
        try:
            return self.recipe.is_file()
        except (OSError, ValueError):
            return False

    @classmethod
    def create(cls, path: Path, *, job_id: str | None = None) -> "RunDirectory":
        """Create an empty run directory with its logs folder.

        What an attempt leaves that ended before its recipe was written (a lock, the logs of its start) is no run.
        Neither is what the job `job_id`, in which this process runs, has brought: its script, its status, its output.
        Take the RunLock next: it decides between two that start at once.
        """
        directory = cls(Path(path))
        try:
            if directory.path.is_file():
                raise RunDirectoryError(f"{path} is a file, not a directory: {OTHER_OUT}.")
            directory.path.mkdir(parents=True, exist_ok=True)
            directory._refuse_if_taken(job_id)
            make_folder(directory.logs)
        except (OSError, ValueError) as error:
            raise storage_error("create the run directory", directory.path, error) from error
        return directory

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """Return the run directory at `path`, which must hold a run."""
        directory = cls(Path(path))
        if not directory.is_run():
            raise RunDirectoryError(_not_a_run(directory.path))
        return directory

    def refuse_linked_folders(self) -> None:
        """Raise StorageError where a folder of the run is a link: before a resume has written anything."""
        for folder in (self.logs, self.checkpoint, self.best, self.pixels):
            try:
                if folder == self.logs or os.path.lexists(folder):
                    make_folder(folder)  # a run that was copied without its logs gets them back
            except OSError as error:
                raise storage_error("write into", folder, error) from error

    def _refuse_if_taken(self, job_id: str | None) -> None:
        # Looked at before the recipe, which comes last: of a start at the same time nothing is foreign without it.
        names, status, has_logs = names_in(self.path), read_json_or_nothing(self.status), self._has_logs(job_id)
        if self.recipe.exists():
            raise RunDirectoryError(
                f"{self.path} already holds a run ({_summary(self)}). Go on with it: "
                f"`turnaround resume {shlex.quote(str(self.path))}`; or {OTHER_OUT}."
            )
        job = status.get("slurm")
        owner = job.get("job_id") if isinstance(job, dict) else None
        if owner is not None and owner != job_id:
            cluster = str(job.get("cluster", "slurm"))[:100] if isinstance(job, dict) else ""
            raise RunDirectoryError(
                f"{self.path} belongs to job {owner} of a {cluster.capitalize()} cluster. Follow it, or submit it "
                f"again: `turnaround resume {shlex.quote(str(self.path))} --on {cluster}`; or {OTHER_OUT}."
            )
        harmless = {self.lock.name} | (set() if has_logs else {self.logs.name})
        harmless |= set() if job_id is None else {self.job_script.name}
        # A start writes its status before its recipe, and may be killed in between.
        harmless |= {self.status.name} if owner is not None or status.get("state") == "queued" else set()
        foreign = [name for name in names if name not in harmless and not is_temporary(name)]
        if foreign:
            shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
            ours = {p.name for p in (self.machine, self.status, self.epochs, self.job_script, self.logs)}
            what = "parts of a run without its recipe.json" if ours & set(foreign) else "other files"
            raise RunDirectoryError(f"{self.path} is not empty: it holds {what} ({shown}). Empty it, or {OTHER_OUT}.")

    def _has_logs(self, job_id: str | None) -> bool:
        """Return whether a run has left logs; not those of the present job, or of a start that was killed early.

        Processes start before the images are decoded, and with them these two files, so a start that is killed
        meanwhile leaves them in a directory that never became a run.
        """
        early = {self.start_message.name, self.process_log.name}
        names = [name for name in self._log_names() if name not in early and not is_temporary(name)]
        return any(job_id is None or not _JOB.fullmatch(name) for name in names)


def job_note(logs: Path, job_id: str) -> Path:
    """Return where a job of a cluster keeps what its later starts must know, in the folder of its output."""
    return logs / f"slurm-{job_id}.json"


def job_log(logs: Path, job_id: str) -> Path:
    """Return where a job of a cluster prints to; `job_id` may be a placeholder of Slurm or bash."""
    return logs / f"slurm-{job_id}.out"


def safe_name(name: str) -> str:
    """Return a name for a folder: no separators or control characters, not hidden; empty if nothing is left."""
    # 200 bytes leave room for a number or a temporary ending: file systems end at 255.
    plain = re.sub(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069/\\]+", "-", name).strip(" .-")
    return plain.encode("utf-8", "replace")[:200].decode("utf-8", "ignore").strip(" .-")


def default_run_path(root: Path, name: str) -> Path:
    """Return root/NAME, or the first of NAME-2, NAME-3, ... that is free. NAME is made safe as a folder's name."""
    taken = set(names_in(root))
    safe = safe_name(name) or "run"
    number = 1
    while (candidate := safe if number == 1 else f"{safe}-{number}") in taken:
        number += 1
    return root / candidate


def _numbers(pattern: re.Pattern[str], names: Sequence[str]) -> list[int]:
    """Return the numbers of the files whose names fit, in order."""
    return sorted(int(match[1]) for match in map(pattern.fullmatch, names) if match)


def _summary(directory: RunDirectory) -> str:
    # A message about a broken run must not break: what cannot be read is not said.
    recipe, status = read_json_or_nothing(directory.recipe), read_json_or_nothing(directory.status)
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
    """Return why this is no run directory, and what was probably meant."""
    try:
        kind = "it is a file" if path.is_file() else "no recipe.json" if path.is_dir() else "no such directory"
    except (OSError, ValueError):
        kind = "it cannot be read"
    message = f"{path} is not a run directory: {kind}."
    if RunDirectory(path.parent).is_run():
        return f"{message} Did you mean {path.parent}?"
    below = [name for name in names_in(path) if RunDirectory(path / name).is_run()]
    if below:
        return f"{message} Runs below it: {', '.join(below[:5])}{', ...' if len(below) > 5 else ''}."
    beside = [name for name in names_in(path.parent) if RunDirectory(path.parent / name).is_run()]
    near = difflib.get_close_matches(path.name, beside, n=1, cutoff=0.4)
    if near:
        return f"{message} Did you mean {path.parent / near[0]}?"
    return f"{message} Check the path: a run of `turnaround train` lies in runs/ unless --out said otherwise."
