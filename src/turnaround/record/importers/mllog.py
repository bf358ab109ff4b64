"""The :::MLLOG lines of an MLPerf training log: one run. Each is a JSON object: key, value, time_ms and metadata.

The time from the first line to run_stop is taken for the job's; MLPerf's own score begins at run_start.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from turnaround.errors import InputError
from turnaround.record.importers.cells import AccuracyScale, shown
from turnaround.record.importers.sheet import SourceFile, as_text, is_binary
from turnaround.record.importers.values import (
    MAX_EPOCHS,
    MAX_WORKERS,
    ImportedRun,
    ImportOptions,
    Reading,
    SkippedRow,
    assumed_workers,
    epoch_record,
    given_name,
)
from turnaround.record.schema import EpochRecord, State

# Launchers put the rank before each line. The object need not be whole: a line that was cut off is named.
LINE = re.compile(r"(?m)^[^\n]{0,200}?:::MLLOG[ \t]+(\{[^\n]*)")
# Where a log says how many replicas there were; the later ones count accelerators of one node.
WORKER_KEYS = ("number_of_ranks", "num_accelerators", "number_of_accelerators", "num_gpus", "world_size")
NODE_KEYS = ("number_of_nodes", "num_nodes", "submission_number_of_nodes")


@dataclass(frozen=True, kw_only=True)
class Event:
    """One line."""

    line: int
    key: str
    value: Any
    time_s: float
    metadata: dict[str, Any]


@dataclass
class Log:
    """The lines of one log."""

    events: list[Event] = field(default_factory=list)
    left_out: list[SkippedRow] = field(default_factory=list)

    def all(self, *keys: str) -> list[Event]:
        return [event for event in self.events if event.key in keys]

    def text(self, *keys: str) -> str | None:
        """Return the last value that is a text, in one line."""
        texts = (shown(e.value) for e in reversed(self.all(*keys)) if isinstance(e.value, str))
        return next((text for text in texts if text), None)

    def count(self, *keys: str, high: int = 2**53) -> int | None:
        """Return the last value that is a whole number from 1."""
        values = (whole(event.value) for event in reversed(self.all(*keys)))
        return next((value for value in values if value is not None and 1 <= value <= high), None)

    def time_s(self, key: str) -> float | None:
        events = self.all(key)
        return events[-1].time_s if events else None


def whole(value: Any) -> int | None:
    """Return a whole number, as 4 or 4.0; None for everything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= 2**53:
        return None
    return int(value) if value == int(value) else None


def is_mllog(source: SourceFile) -> bool:
    """Tell whether the file is text with at least one :::MLLOG line."""
    content = source.content or b""
    # The search in bytes is quick and spares CSV files of 256 MiB the decoding. Binary files may hold the word too.
    if b":::MLLOG" not in content or is_binary(content):
        return False
    return LINE.search(as_text(source.path, content)) is not None


def read_mllog(source: SourceFile, options: ImportOptions, *, is_percent: bool = False) -> Reading:
    """Read the run in the log; what the log does not hold, the flags give."""
    path = source.path
    log = _parse(as_text(path, source.content or b""))
    if not log.events:
        return Reading(runs=(), left_out=tuple(log.left_out))
    starts = log.all("run_start")
    if len(starts) > 1:
        lines = ", ".join(str(event.line) for event in starts[:5])
        raise InputError(
            f"{path} has {len(starts)} runs in it (run_start in lines {lines}). Give each a file of its own."
        )
    shares = AccuracyScale(is_percent=is_percent, is_curve=True)
    shares.check_column("eval_accuracy", [_number(event.value) for event in log.all("eval_accuracy")], path.name)
    workers, notes = assumed_workers(options, log.count(*WORKER_KEYS, high=MAX_WORKERS))
    platform = log.text("submission_platform")
    if options.gpu is None and platform is not None:
        notes.append(f"The log names no GPU: its platform, {platform[:60]!r}, stands for it. Give --gpu NAME.")
    run = _run(log, options, workers=workers, curve=_curve(log, shares, options))
    run = replace(run, name=given_name(options, path), source=path.name)
    return Reading(runs=(run,), left_out=tuple(log.left_out), notes=tuple(notes))


def _parse(text: str) -> Log:
    log = Log()
    for number, line in enumerate(text.splitlines(), start=1):
        match = LINE.match(line)
        if match is None:
            continue
        try:
            content = json.loads(match[1])
            metadata = content.get("metadata")
            event = Event(
                line=number,
                key=str(content["key"]),
                value=content.get("value"),
                time_s=float(content["time_ms"]) / 1000,
                metadata=metadata if isinstance(metadata, dict) else {},
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
            log.left_out.append(SkippedRow(where=f"line {number}", name="", reason="not a whole MLLOG line"))
        else:
            log.events.append(event)
    return log


def _number(value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= 1e300
    return float(value) if is_number else math.nan


def _curve(log: Log, shares: AccuracyScale, options: ImportOptions) -> tuple[EpochRecord, ...]:
    """Return the evaluations by epoch, from 1; of an epoch that was evaluated twice the last, as MLPerf counts."""
    images = options.images_per_epoch or log.count("train_samples")
    accuracies: dict[int, float] = {}
    for event in log.all("eval_accuracy"):
        epoch, value = _number(event.metadata.get("epoch_num")), _number(event.value)
        problem = shares.problem("eval_accuracy", value)
        if math.isnan(epoch) or not 0 <= epoch <= MAX_EPOCHS:
            problem = f"eval_accuracy needs an epoch_num from 0, received {event.metadata.get('epoch_num')!r}"
        if problem or math.isnan(value):
            reason = problem or f"eval_accuracy must be a number, received {event.value!r}"
            log.left_out.append(SkippedRow(where=f"line {event.line}", name="", reason=reason[:200]))
        else:
            accuracies[round(epoch)] = shares.fraction(value) or 0.0
    times = _epoch_times(log)
    first = 1 if 0 in accuracies else 0  # counted from 0: one more
    return tuple(
        epoch_record(
            epoch + first,
            accuracy=(math.nan, accuracies[epoch]),
            time_s=times.get(epoch, math.nan),
            images=images,
        )
        for epoch in sorted(accuracies)
    )


def _epoch_times(log: Log) -> dict[int, float]:
    """Return seconds by epoch number, from epoch_start and epoch_stop, or evenly over the epochs of a block."""
    times: dict[int, float] = {}
    begun: dict[str, Event] = {}
    for event in log.all("epoch_start", "epoch_stop", "block_start", "block_stop"):
        kind, what = event.key.split("_")
        if what == "start":
            begun[kind] = event
        elif kind in begun:
            start = begun.pop(kind)
            first = whole(start.metadata.get("epoch_num", start.metadata.get("first_epoch_num")))
            num_epochs = whole(start.metadata.get("epoch_count", 1)) or 1
            time_s = (event.time_s - start.time_s) / num_epochs
            if first is not None and time_s > 0 and 1 <= num_epochs <= MAX_EPOCHS:
                times |= {epoch: time_s for epoch in range(first, first + num_epochs) if epoch not in times}
    return times


def _state(log: Log) -> tuple[State, str | None]:
    """Return how it ended, as run_stop says."""
    stops = log.all("run_stop")
    if not stops:
        return "running", "The log has no run_stop: it was still running, or was cut off."
    status = str(stops[-1].metadata.get("status", "success"))
    return ("finished", None) if status == "success" else ("failed", f"The log's run_stop says: {status[:100]}.")


def _run(log: Log, options: ImportOptions, *, workers: int, curve: tuple[EpochRecord, ...]) -> ImportedRun:
    state, cause = _state(log)
    begun_s, stopped_s = log.events[0].time_s, log.time_s("run_stop")
    started_s, times = log.time_s("run_start"), list(_epoch_times(log).values())
    batch_total = log.count("global_batch_size")
    # A global batch that does not divide evenly has no batch per worker: it is kept as the whole.
    is_shared = options.batch_per_worker is None and batch_total is not None and batch_total % workers == 0
    batch_per_worker = batch_total // workers if batch_total is not None and is_shared else options.batch_per_worker
    return ImportedRun(
        name="",
        source="",
        format="mllog",
        workers=workers,
        dataset=options.dataset,
        network=log.text("submission_benchmark"),
        gpu=options.gpu or log.text("submission_platform"),
        nodes=options.nodes or log.count(*NODE_KEYS, high=workers),
        batch_per_worker=batch_per_worker,
        batch_total=None if batch_per_worker is not None else batch_total,
        images_per_epoch=options.images_per_epoch or log.count("train_samples"),
        num_validation=log.count("eval_samples"),
        epochs=max((record.epoch for record in curve), default=None),
        seed=log.count("seed"),
        job_time_s=_between(begun_s, stopped_s),
        start_up_s=_between(begun_s, started_s),
        epoch_time_s=median(times) if times else None,
        val_accuracy=curve[-1].val_accuracy if curve else None,
        state=state,
        cause=cause,
        curve=curve,
    )


def _between(earlier_s: float | None, later_s: float | None) -> float | None:
    if earlier_s is None or later_s is None or later_s <= earlier_s:
        return None
    return round(later_s - earlier_s, 3)
