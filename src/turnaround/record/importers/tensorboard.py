"""A folder of TensorBoard event files. Enters: the folder. Leaves: the runs below it, read by TensorBoard's own reader.

Keras writes `epoch_accuracy` into two sub-folders, train and validation; others write `Accuracy/val`, `val_acc` or
`train/loss` into one. A series is recognised by the words in its tag, and by the sub-folder's name where the tag says
nothing. Times are differences of the instants at which the validation accuracy was written.
"""

from __future__ import annotations

import math
import os
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from turnaround.errors import InputError, MissingPartError
from turnaround.record import metric_names
from turnaround.record.importers.cells import AccuracyScale, CellError
from turnaround.record.importers.curves import CurvePoint, run_of
from turnaround.record.importers.sheet import SourceFile, listed
from turnaround.record.importers.values import (
    MAX_EPOCHS,
    ImportedRun,
    ImportOptions,
    Reading,
    SkippedRow,
    assumed_workers,
    given_name,
)
from turnaround.record.layout import safe_name

EVENT_FILE = re.compile(r".*\.tfevents\..*")
EVENT_FILE_HEAD = b"brain.Event:"  # in the first record of every event file, which holds the version
MAX_DEPTH = 6
LEADING = ("val_accuracy", "train_accuracy", "val_loss", "train_loss")
ACCURACIES = {"val_accuracy", "train_accuracy"}


@dataclass(frozen=True, kw_only=True)
class ScalarSeries:
    """One tag of one folder."""

    tag: str
    values: dict[int, float]
    """By step; of a repeated step the last."""
    instants_s: dict[int, float]


def is_tensorboard(source: SourceFile) -> bool:
    """Tell whether it is an event file, whatever its name, or a folder with event files in or below it."""
    if source.content is None:
        return next(event_folders(source.path), None) is not None
    # Before it stand the record's length with its checksum (12 bytes) and a few bytes of the protocol buffer.
    return EVENT_FILE_HEAD in source.content[8:64]


def read_tensorboard(source: SourceFile, options: ImportOptions, *, is_percent: bool = False) -> Reading:
    """Read the runs in the folder (or in one event file), with the configuration that the flags give."""
    path = source.path
    if path.is_file() and "tfevents" not in path.name:
        raise InputError(
            f"{path} is an event file, which TensorBoard reads only with 'tfevents' in its name. Rename it."
        )
    parts = _runs(path)
    # An event file's own name is a date and a host: its folder's says more.
    folder = path.resolve().parent if path.is_file() else path.resolve()
    if len(parts) > 1 and options.name is not None:
        raise InputError(f"--name is for one run; {path} has {len(parts)}: they get the names of their folders.")
    workers, notes = assumed_workers(options)
    shares = AccuracyScale(is_percent=is_percent, is_curve=True)
    found: dict[str, ImportedRun] = {}
    left_out: list[SkippedRow] = []
    for top, folders in parts.items():
        inside = "" if top == path else safe_name(str(top.relative_to(path)))
        name = inside if inside and len(parts) > 1 else given_name(options, folder)
        try:
            if name in found:
                raise CellError(f"the name {name[:60]!r} is that of another folder already")
            points, said = _points(_by_metric(folders), shares, str(top))
        except CellError as error:
            left_out.append(SkippedRow(where=str(top), name=name[:60], reason=str(error)))
            continue
        notes += [f"{name}: {sentence}" for sentence in said]
        found[name] = run_of(
            points, name=name, source=path.resolve().name, format_="tensorboard", options=options, workers=workers
        )
    return Reading(runs=tuple(found.values()), left_out=tuple(left_out), notes=tuple(notes))


def _runs(path: Path) -> dict[Path, list[Path]]:
    """Return the folders with event files by run: train and validation beside each other are one."""
    folders = [path] if path.is_file() else sorted(event_folders(path))
    runs: dict[Path, list[Path]] = {}
    for folder in folders:
        is_part = folder != path and folder.name.casefold() in metric_names.PARTS
        runs.setdefault(folder.parent if is_part else folder, []).append(folder)
    return runs


def event_folders(path: Path, depth: int = MAX_DEPTH) -> Iterator[Path]:
    """Yield the folders at and below `path` that hold event files; links are not followed."""
    try:
        with os.scandir(path) as listed:
            entries = list(listed)
    except OSError:
        return
    if any(EVENT_FILE.fullmatch(entry.name) and entry.is_file() for entry in entries):
        yield path
    for entry in entries:
        if depth > 1 and entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            yield from event_folders(path / entry.name, depth - 1)


def _by_metric(folders: list[Path]) -> dict[str, list[ScalarSeries]]:
    """Return the series of a run by what they are, that with the shortest tag first."""
    found: dict[str, list[ScalarSeries]] = {}
    tags: list[str] = []
    for folder in folders:
        for series in _scalars(folder):
            tags.append(series.tag)
            metric = metric_names.metric_of(series.tag, folder.name)
            if metric is not None:
                found.setdefault(metric, []).append(series)
    if not found:
        raise CellError(f"no accuracy and no loss among its scalars: {listed(tags)}" if tags else "no scalars in it")
    return {metric: sorted(several, key=lambda one: (len(one.tag), one.tag)) for metric, several in found.items()}


def _scalars(folder: Path) -> Iterator[ScalarSeries]:
    """Yield all scalars of one folder. Since version 2, TensorFlow writes them as tensors with a single number."""
    accumulator, as_array = _reader(folder)
    tags = accumulator.Tags()
    for tag in sorted(tags["scalars"]):
        events = accumulator.Scalars(tag)
        yield _series(tag, [(event.step, event.wall_time, float(event.value)) for event in events])
    for tag in sorted(tags["tensors"]):
        arrays = [(event.step, event.wall_time, as_array(event.tensor_proto)) for event in accumulator.Tensors(tag)]
        if arrays and all(array.size == 1 and array.dtype.kind in "fiu" for _, _, array in arrays):
            yield _series(tag, [(step, at_s, float(array.reshape(()))) for step, at_s, array in arrays])


def _series(tag: str, events: list[tuple[int, float, float]]) -> ScalarSeries:
    # Event files hold 32-bit floats: seven digits are what was measured, 0.10000000149 is not.
    values = {step: float(f"{value:.7g}") for step, _, value in events}
    return ScalarSeries(tag=tag, values=values, instants_s={step: at_s for step, at_s, _ in events})


def _reader(folder: Path) -> tuple[Any, Any]:
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError as error:
        raise MissingPartError(
            f"{folder} holds TensorBoard event files, which TensorBoard itself must read: "
            f"pip install 'turnaround[tensorboard]' ({error})."
        ) from error
    # 0: keep all, instead of a sample.
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    try:
        accumulator.Reload()
    except Exception as error:  # whatever a damaged file makes TensorBoard raise
        raise InputError(f"{folder}: TensorBoard cannot read its event files ({error}).") from error
    return accumulator, make_ndarray


def _points(
    found: dict[str, list[ScalarSeries]], shares: AccuracyScale, source: str
) -> tuple[tuple[CurvePoint, ...], list[str]]:
    """Return one point for each time that the leading series was written; the others as they stood then."""
    series = {metric: several[0] for metric, several in found.items()}
    notes = [
        f"of several series for {metric}, {several[0].tag!r} was taken, not {listed([one.tag for one in several[1:]])}."
        for metric, several in found.items()
        if len(several) > 1
    ]
    for metric in sorted(ACCURACIES & set(series)):
        tag, values = series[metric].tag, series[metric].values
        shares.check_column(tag, values.values(), source)
        fractions = {step: shares.fraction(value) for step, value in values.items() if not shares.problem(tag, value)}
        if len(fractions) < len(values):
            notes.append(f"{len(values) - len(fractions)} values of {tag!r} are no accuracies and were left out.")
        series[metric] = replace(series[metric], values={s: v for s, v in fractions.items() if v is not None})
    leading = next(series[metric] for metric in LEADING if metric in series)
    steps = sorted(leading.values)
    if not steps or len(steps) > MAX_EPOCHS:
        raise CellError(f"{leading.tag!r} has {len(steps):,} values; a curve has from 1 to {MAX_EPOCHS:,}")
    if steps[0] not in (0, 1) or steps[-1] - steps[0] != len(steps) - 1:
        notes.append(f"the steps of {leading.tag!r} are no epochs: its values were counted as epochs, in their order.")
    columns = {metric: _at_steps(one.values, steps) for metric, one in series.items()}
    instants_s = [leading.instants_s[step] for step in steps]
    times_s = [math.nan, *(later - earlier for earlier, later in pairwise(instants_s))]
    points = [
        CurvePoint(
            line=0,
            epoch=number + 1,
            time_s=time_s if time_s > 0 else math.nan,  # a clock that was set back
            **{metric: column[number] for metric, column in columns.items()},
        )
        for number, time_s in enumerate(times_s)
    ]
    return tuple(points), notes


def _at_steps(values: dict[int, float], steps: list[int]) -> list[float]:
    """At each step the newest value since the step before: the training loss may be written more often."""
    known = sorted(values)
    column = []
    for before, step in pairwise([-1, *steps]):
        newest = bisect_right(known, step) - 1
        column.append(values[known[newest]] if newest >= 0 and known[newest] > before else math.nan)
    return column
