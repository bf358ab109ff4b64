"""Logged rows -> a curve. Enters: what a logger wrote, row by row, at any step. Leaves: one point for each epoch.

Lightning, the Trainer of Hugging Face, W&B and trackio all keep such rows: numbers under names of the user's choice,
sometimes with an epoch, several rows an epoch. Of an epoch the validation figures are the last ones, the training
figures the mean of those that were logged within it. Also here: what a training's settings tell about the run.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from turnaround.errors import InputError
from turnaround.record.importers.cells import AccuracyScale, CellError, shown
from turnaround.record.importers.curves import ACCURACIES, CurvePoint, in_order, run_of
from turnaround.record.importers.sheet import SourceFile, as_text, listed, read_bytes
from turnaround.record.importers.values import MAX_EPOCHS, MAX_WORKERS, ImportedRun, ImportOptions
from turnaround.record.metric_names import LEARNING_RATE, metric_of

LEADING = ("val_accuracy", "val_loss", "train_accuracy", "train_loss")
STEP_ENDING = re.compile(r"[_/.-]step$")  # Lightning's name of what it logs at a step and again at the epoch's end
RATE = re.compile(r"(^|[^a-z])(lr|learning_?rate)([^a-z]|$)")
# The names under which settings say what our flags say; of several the first one counts.
NETWORK = ("architecture", "arch", "model_name", "model_name_or_path", "model")
DATASET = ("dataset", "dataset_name", "data_dir", "data")
BATCH_PER_WORKER = ("per_device_train_batch_size", "batch_size")
WORKERS = ("world_size", "num_gpus", "n_gpu")
YAML_LINE = re.compile(r"([A-Za-z_][\w.-]*):(?:\s+(.*))?$")


@dataclass(frozen=True, kw_only=True)
class HistoryRow:
    """One call of a logger."""

    line: int
    """The line, or the number of the record, where its source has no lines."""
    values: dict[str, float]
    epoch: float | None = None
    clock_s: float | None = None
    """When it was logged, on any clock that goes on evenly."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What settings beside a log tell; None is "they do not say"."""

    workers: int | None = None
    dataset: str | None = None
    network: str | None = None
    batch_per_worker: int | None = None
    batch_total: int | None = None
    seed: int | None = None
    precision: str | None = None
    gpu: str | None = None


def history_run(
    rows: Sequence[HistoryRow], facts: RunFacts, *, run: ImportedRun, options: ImportOptions, shares: AccuracyScale
) -> tuple[ImportedRun, list[str]]:
    """Return the run with its curve and facts, and what to say about it; `run` has its name, format and workers."""
    points, notes = curve_of(rows, shares, run.source)
    return with_facts(run, points, facts, options), notes


def with_facts(
    run: ImportedRun, points: tuple[CurvePoint, ...], facts: RunFacts, options: ImportOptions
) -> ImportedRun:
    """Return the run with a curve; what the flags say goes before what the settings say."""
    known = run_of(points, name=run.name, source=run.source, format_=run.format, options=options, workers=run.workers)
    is_total = options.batch_per_worker is None and facts.batch_per_worker is None
    return replace(
        known,
        dataset=options.dataset or facts.dataset,
        network=facts.network,
        precision=facts.precision,
        gpu=options.gpu or facts.gpu,
        batch_per_worker=options.batch_per_worker or facts.batch_per_worker,
        batch_total=facts.batch_total if is_total else None,
        seed=facts.seed,
    )


def curve_of(
    rows: Sequence[HistoryRow], shares: AccuracyScale, source: str
) -> tuple[tuple[CurvePoint, ...], list[str]]:
    """Return one point for each epoch, from 1; CellError where no accuracy and no loss was logged."""
    names, notes = _chosen(rows)
    for metric in ACCURACIES:
        if metric in names:
            shares.check_column(names[metric], [row.values.get(names[metric]) for row in rows], source)
    rate = next((name for row in rows for name in row.values if _is_rate(name)), "")
    by_epoch, said = _by_epoch(rows, names)
    points: list[CurvePoint] = []
    for epoch, inside in by_epoch.items():
        values = {
            metric: _value(metric, [row.values[name] for row in inside if name in row.values])
            for metric, name in names.items()
        }
        for metric in ACCURACIES:
            if (problem := shares.problem(names.get(metric, ""), values.get(metric))) is not None:
                notes.append(f"line {inside[-1].line}: {problem}; it was left out.")
                values[metric] = math.nan
            elif metric in values:
                values[metric] = shares.fraction(values[metric]) or 0.0
        rates = [row.values[rate] for row in inside if rate in row.values]
        points.append(
            CurvePoint(line=inside[-1].line, epoch=epoch, learning_rate=rates[-1] if rates else math.nan, **values)
        )
    times = _times(list(by_epoch.values()))
    ordered, _ = in_order([replace(point, time_s=time) for point, time in zip(points, times, strict=True)])
    return ordered, [*notes, *said]


def _chosen(rows: Sequence[HistoryRow]) -> tuple[dict[str, str], list[str]]:
    """Return the logged name for each metric: the shortest, one of an epoch before one of a step."""
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    found: dict[str, list[str]] = {}
    for name in names:
        if (metric := metric_of(STEP_ENDING.sub("", name))) is not None:
            found.setdefault(metric, []).append(name)
    if not found:
        raise CellError(f"no accuracy and no loss among what was logged: {listed(names)}" if names else "nothing in it")
    chosen, notes = {}, []
    for metric, several in found.items():
        best, *others = sorted(several, key=lambda name: (bool(STEP_ENDING.search(name)), len(name), name))
        chosen[metric] = best
        others = [name for name in others if not STEP_ENDING.search(name)]
        if others:
            notes.append(f"of several series for {metric}, {best!r} was taken, not {listed(others)}.")
    return chosen, notes


def is_read(name: str) -> bool:
    """Tell whether a logged name is one that a curve is made of: an accuracy, a loss or a learning rate."""
    return _is_rate(name) or metric_of(STEP_ENDING.sub("", name)) is not None


def _is_rate(name: str) -> bool:
    return name in LEARNING_RATE or RATE.search(name.casefold()) is not None


def _by_epoch(rows: Sequence[HistoryRow], names: dict[str, str]) -> tuple[dict[int, list[HistoryRow]], list[str]]:
    """Return the rows of each epoch. A row without an epoch belongs to the next one that has it.

    Where no row has one, each row with the leading metric ends an epoch.
    """
    epochs = [row.epoch for row in rows if row.epoch is not None]
    leading = names[next(metric for metric in LEADING if metric in names)]
    notes = (
        [] if epochs else [f"no epoch was logged: the values of {leading!r} were counted as epochs, in their order."]
    )
    # Hugging Face counts the finished part: everything up to 1.0 belongs to the first epoch.
    is_finished_part = any(epoch != int(epoch) for epoch in epochs)
    found: dict[int, list[HistoryRow]] = {}
    waiting: list[HistoryRow] = []
    for row in rows:
        waiting.append(row)
        number: int | None = None
        if row.epoch is not None:
            # The margin takes up rounding: 2.0000001 still ends the second epoch.
            number = max(1, math.ceil(row.epoch - 1e-6)) if is_finished_part else int(row.epoch)
        elif not epochs and leading in row.values:
            number = len(found) + 1
        if number is not None:
            found.setdefault(number, []).extend(waiting)
            waiting = []
    # Of an epoch that has only other figures (a rate, a loss of something else) there is no point.
    names_of = set(names.values())
    found = {epoch: inside for epoch, inside in found.items() if any(names_of & row.values.keys() for row in inside)}
    if not found or len(found) > MAX_EPOCHS or max(found) > MAX_EPOCHS:
        raise CellError(f"{len(found):,} epochs in it; a curve has from 1 to {MAX_EPOCHS:,}")
    return dict(sorted(found.items())), notes


def _value(metric: str, values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return math.nan
    return known[-1] if metric.startswith("val") else fmean(known)


def _times(epochs: list[list[HistoryRow]]) -> list[float]:
    """Return seconds by epoch, from the last row of one to the last of the next: of the first it is not known."""
    ends = [next((row.clock_s for row in reversed(inside) if row.clock_s is not None), None) for inside in epochs]
    times = [math.nan]
    for before, after in pairwise(ends):
        # A clock may have been set back.
        times.append(math.nan if before is None or after is None or after <= before else after - before)
    return times


def numbers_in(content: dict[str, Any]) -> dict[str, float]:
    """Return what is a number among logged values, those of nested groups under "group/name"."""
    found: dict[str, float] = {}
    for name, value in content.items():
        # A truth is an int in Python, and no measurement.
        if isinstance(value, bool):
            continue
        # False for NaN and infinities as well; an int beyond would not become a float.
        if isinstance(value, (int, float)) and abs(value) <= 1e300:
            found[str(name)] = float(value)
        elif isinstance(value, dict):
            found |= {f"{name}/{inner}": number for inner, number in numbers_in(value).items()}
    return found


def epoch_in(values: dict[str, float]) -> float | None:
    """Take the epoch out of logged values: W&B's users put groups before it ("train/epoch")."""
    name = next((name for name in values if name.casefold().split("/")[-1] in ("epoch", "current_epoch")), None)
    epoch = None if name is None else values.pop(name)
    return epoch if epoch is not None and 0 <= epoch <= MAX_EPOCHS else None


def parsed_json(source: SourceFile) -> Any:
    """Return the JSON in the file; InputError with its line where it is not whole."""
    try:
        return json.loads(as_text(source.path, source.content or b""))
    except json.JSONDecodeError as error:
        raise InputError(
            f"{source.path}, line {error.lineno}: not whole JSON ({error.msg}). Was the file cut off? Copy it again."
        ) from error
    except (RecursionError, ValueError) as error:
        raise InputError(f"{source.path}: its JSON cannot be read ({type(error).__name__}).") from error


def facts_in(settings: dict[str, Any]) -> RunFacts:
    """Return what the settings of a training say about the run, under the names that people give them."""
    by_name = {str(name).casefold(): value for name, value in settings.items()}
    return RunFacts(
        workers=_count(by_name, WORKERS, high=MAX_WORKERS),
        dataset=_text(by_name, DATASET),
        network=_text(by_name, NETWORK),
        batch_per_worker=_count(by_name, BATCH_PER_WORKER),
        seed=_count(by_name, ("seed",), low=0),
    )


def _text(settings: dict[str, Any], names: Iterable[str]) -> str | None:
    texts = (settings.get(name) for name in names)
    return next((shown(text)[:200] for text in texts if isinstance(text, str) and shown(text)), None)


def _count(settings: dict[str, Any], names: Iterable[str], *, low: int = 1, high: int = 2**53) -> int | None:
    for name in names:
        value = settings.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high:
            return int(value) if value == int(value) else None
    return None


def settings_beside(path: Path, name: str) -> dict[str, Any]:
    """Return the settings in the YAML file of that name beside the log: its top level, scalars and lists of scalars.

    Nothing where there is no such file. Whole YAML needs a package that a log's reader should not ask for, and the
    programs that write these files write them flat.
    """
    file = path.parent / name
    if not os.path.isfile(file):
        return {}
    settings: dict[str, Any] = {}
    key = ""
    for line in as_text(file, read_bytes(file)).splitlines():
        if line.startswith("- ") and isinstance(settings.get(key), list):
            settings[key].append(_scalar(line[2:]))
        elif (match := YAML_LINE.fullmatch(line.rstrip())) is not None:
            key, text = match[1], match[2]
            settings[key] = [] if text is None else _scalar(text)
    return settings


def _scalar(text: str) -> Any:
    """Return a YAML scalar as a number, a truth, None or a text."""
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if (known := {"true": True, "false": False, "null": None, "~": None}.get(text.casefold(), text)) is not text:
        return known
    # int first: a seed or a count stays whole.
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
