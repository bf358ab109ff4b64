"""Runs -> workloads -> configurations -> repeats. Enters: run directories. Leaves: a Survey, the ground of findings.

A workload is one work: the same images, network, size, and what of it learns. Its runs that differ in nothing but the
seed are the repeats of one configuration.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from turnaround.analysis.compare import Fact, recipe_facts, result_facts, shared_gpu
from turnaround.analysis.configurations import Configuration, ConfigurationRuns, Member, Spread, Workload
from turnaround.analysis.summary import RunSummary, summarise
from turnaround.errors import InputError, RunDirectoryError
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run, find_runs

__all__ = [
    "Configuration",
    "ConfigurationRuns",
    "LeftOut",
    "Spread",
    "Survey",
    "Workload",
    "filter_jobs",
    "survey",
    "survey_of",
    "survey_runs",
]

UNDER_WAY = ("queued", "running")
MAX_NOTES = 3
"""Shown of one host: a driver that is gone is noted once for each GPU."""
TO_GET_RUNS = (
    "`turnaround train` records a run, `turnaround import FILE --out DIR` makes run directories of other people's "
    "runs, and `turnaround estimate SOURCE` answers without any."
)


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A run directory that could not be read, and why."""

    directory: str
    error: Exception
    """Ended the reading of it, or of a live page its rendering. It has no traceback: that would keep the runs alive."""
    state: str = "finished"
    """The state of a run that never began, where its status can be read."""
    cause: str | None = None


@dataclass(frozen=True, kw_only=True)
class RecordGap:
    """What the record of a run lacks: lines that cannot be read, epochs between its end and the last one done, or
    measurements that could not be taken."""

    run: str
    file: str
    bad_lines: int = 0
    last_epoch: int = 0
    epochs_done: int = 0
    lost_epochs: int = 0
    """Epochs before the last one that have no line."""
    note: str = ""
    """What could not be measured, as the telemetry noted it."""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """All runs, in order."""

    workloads: tuple[Workload, ...]
    left_out: tuple[LeftOut, ...] = ()
    running: tuple[str, ...] = ()
    """The names of runs that are still going: they are in their jobs with what they have."""
    gaps: tuple[RecordGap, ...] = ()
    """Parts that could not be read of runs that could."""


def survey(paths: Sequence[Path]) -> Survey:
    """Return every run at or below the paths, each once; RunDirectoryError for a path that holds none."""
    found: dict[Path, Path] = {}
    for path in paths:
        here = find_runs(Path(path))
        if not here:
            RunDirectory.open(Path(path))  # raises, and says what is there instead
        found |= {run.resolve(): run for run in here if run.resolve() not in found}
    return survey_runs([Run(RunDirectory(path)) for path in found.values()])


def survey_runs(runs: Sequence[Run]) -> Survey:
    """Group the runs by job and configuration. Leave out the damaged, foreign or not yet begun, with the reason."""
    read: list[Member] = []
    left_out: list[LeftOut] = []
    for run in runs:
        try:
            read.append(Member(summarise(run), run))
        except RunDirectoryError as error:
            left_out.append(_left_out(run, error))
    read = _with_distinct_names(read)
    by_job: defaultdict[str, list[Member]] = defaultdict(list)
    for member in read:
        by_job[member.summary.job].append(member)
    return Survey(
        workloads=tuple(_workload(name, members) for name, members in sorted(by_job.items())),
        left_out=tuple(left_out),
        running=tuple(summary.name for summary, _ in read if summary.state in UNDER_WAY),
        gaps=tuple(gap for summary, run in read for gap in _gaps(summary, run)),
    )


def _left_out(run: Run, error: RunDirectoryError) -> LeftOut:
    left = LeftOut(directory=str(run.path), error=error.with_traceback(None))
    try:
        return replace(left, state=run.status.state, cause=run.status.cause)
    except RunDirectoryError:  # the status is what cannot be read
        return left


def _gaps(summary: RunSummary, run: Run) -> Iterable[RecordGap]:
    file = run.directory.epochs.name
    if run.bad_lines:
        yield RecordGap(run=summary.name, file=file, bad_lines=run.bad_lines)
    last, done = (run.epochs[-1].epoch if run.epochs else 0), run.status.epochs_done
    for name, bad_lines in run.bad_measurements().items():
        yield RecordGap(run=summary.name, file=name, bad_lines=bad_lines)
    for host, notes in run.telemetry_notes().items():
        # Every start of a run notes the same again.
        for note in list(dict.fromkeys(notes))[:MAX_NOTES]:
            yield RecordGap(run=summary.name, file=run.directory.telemetry(host).name, note=note)
    if not summary.is_imported and last < done:
        yield RecordGap(run=summary.name, file=file, last_epoch=last, epochs_done=done)
    # Lines that cannot be read are told above; what is gone beside them left no line at all.
    lost = last - len(run.epochs) - run.bad_lines
    if lost > 0 and run.epochs and not summary.is_imported and not run.is_of_others:
        yield RecordGap(run=summary.name, file=file, lost_epochs=lost)


def _with_distinct_names(read: Sequence[Member]) -> list[Member]:
    """Runs of one recipe have one name: they go by their folders, and by the folders around those where needed."""
    names = [summary.name for summary, _ in read]
    depth = 1
    while repeated := {name for name, count in Counter(names).items() if count > 1}:
        parts = [run.path.absolute().parts for _, run in read]
        names = ["/".join(own[-depth:]) if name in repeated else name for name, own in zip(names, parts, strict=True)]
        depth += 1
        if depth > max(map(len, parts)):
            break
    return [Member(replace(summary, name=name), run) for name, (summary, run) in zip(names, read, strict=True)]


def _workload(name: str, members: Sequence[Member]) -> Workload:
    settings = _settings([member.run for member in members])
    by_configuration: defaultdict[Configuration, list[Member]] = defaultdict(list)
    for member, own in zip(members, settings, strict=True):
        by_configuration[_configuration(member.summary, own)].append(member)
    ordered = sorted(by_configuration.items(), key=lambda item: _order(item[0]))
    return Workload(
        name=name,
        configurations=tuple(ConfigurationRuns(key=own, members=tuple(runs)) for own, runs in ordered),
    )


def _settings(runs: Sequence[Run]) -> list[tuple[Fact, ...]]:
    """Return for each run the facts in which the runs of its job differ."""
    facts = [(*recipe_facts(run), *_images(run), *_nodes(run), *_sharing(run)) for run in runs]
    values: defaultdict[str, set[Fact]] = defaultdict(set)
    for fact in (fact for own in facts for fact in own):
        values[fact.id].add(fact)
    # Sharing is kept where all runs share, too: without it a label would promise each process a GPU of its own.
    return [tuple(fact for fact in own if len(values[fact.id]) > 1 or fact.id == _SHARING) for own in facts]


_SHARING = "sharing"


def _sharing(run: Run) -> Iterable[Fact]:
    """Processes on one GPU are no GPUs of their own: their times stand for themselves."""
    if shared := shared_gpu(run.machine, _SHARING):
        yield shared


def _nodes(run: Run) -> Iterable[Fact]:
    """A training on the processors of a node for t4 is not one on those of a node for v100; a program may not say."""
    slurm = run.status.job
    if slurm and slurm.gpu and run.machine.get("device") in ("cpu", None):
        yield Fact(id="node", value=slurm.gpu, matters_for="time")


def _images(run: Run) -> Iterable[Fact]:
    """The images themselves, where the split does not follow from the seed: a hold-out gives each seed its own."""
    facts = {fact.id: fact.value for fact in result_facts(run)}
    if facts.get("split") == "folders" and "fingerprint" in facts:
        yield Fact(id="images", value=facts["fingerprint"], matters_for="both")


def _configuration(summary: RunSummary, settings: tuple[Fact, ...]) -> Configuration:
    return Configuration(
        workers=summary.workers,
        gpu=summary.gpu,
        hosts=summary.hosts,
        processes=summary.processes,
        global_batch=summary.global_batch,
        is_rehearsal=summary.is_rehearsal,
        settings=settings,
    )


def _order(c: Configuration) -> tuple[object, ...]:
    # Settings last, each as text: of one fact some runs have a number and others a word.
    settings = tuple((fact.id, str(fact.value)) for fact in c.settings)
    return c.gpu, c.is_rehearsal, c.workers, c.hosts, c.processes, c.global_batch or 0, settings


# --- what a person names: folders, of which some hold no run, and a word of a job's name


def survey_of(directories: Sequence[Path]) -> Survey:
    """Return all runs at or below the directories. What holds none is left out, unless nothing else is there."""
    # By name: a folder may be given beside the one that it lies in.
    without = list({item.directory: item for directory in directories for item in _without_runs(directory)}.values())
    names = {item.directory for item in without}
    holding = [directory for directory in directories if str(directory) not in names]
    if not holding:
        raise RunDirectoryError(f"{without[0].error} {TO_GET_RUNS}")
    found = survey(holding)
    found = replace(found, left_out=(*found.left_out, *without))
    if not found.workloads:
        reasons = " ".join(str(item.error) for item in found.left_out)
        raise RunDirectoryError(f"No run can be read. {reasons} {TO_GET_RUNS}")
    return found


def _without_runs(directory: Path) -> Iterator[LeftOut]:
    """Return the directory itself when no run is in it, else those of its folders in which none is."""
    if find_runs(directory) == [directory]:  # raises when there is no such directory
        return
    try:
        folders = sorted(path for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:  # not ours to look into
        folders = []
    with_runs = [folder for folder in folders if find_runs(folder)]
    for path in folders if with_runs else [directory]:
        if path not in with_runs:
            try:
                RunDirectory.open(path)
            except RunDirectoryError as error:
                yield LeftOut(directory=str(path), error=error.with_traceback(None))


def filter_jobs(found: Survey, wanted: str) -> Survey:
    """Return the jobs of exactly this name; else those whose name contains it, in any case."""
    jobs = [job for job in found.workloads if job.name == wanted]
    jobs = jobs or [job for job in found.workloads if wanted.casefold() in job.name.casefold()]
    if not jobs:
        names = ", ".join(repr(job.name) for job in found.workloads)
        raise InputError(f"No job of these runs is called {wanted!r}. They are: {names}.")
    runs = {summary.name for job in jobs for summary, _ in job.members}
    return replace(found, workloads=tuple(jobs), running=tuple(name for name in found.running if name in runs))
