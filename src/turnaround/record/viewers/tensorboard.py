"""TensorBoard: event files in the run directory. `tensorboard --logdir runs/` shows all runs beside each other."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from turnaround.record.files import make_folder
from turnaround.record.reader import Run
from turnaround.record.schema import METRICS, EpochRecord
from turnaround.record.viewers.follow import scalars_of


class TensorBoard:
    """One event file, which grows by an epoch at a time."""

    def __init__(self) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary, self._make_writer = event_pb2.Event, summary_pb2.Summary, EventFileWriter
        self._writer: Any = None

    def begin(self, run: Run) -> set[int]:
        folder = run.directory.tensorboard
        make_folder(folder, run.path)  # refuses a link: TensorBoard's own reader and writer would follow it
        known = _epochs_in(folder)
        self._writer = self._make_writer(str(folder))
        return known

    def epoch(self, record: EpochRecord) -> None:
        """Written through at once: whoever looks sees the last epoch."""
        scalars = scalars_of(record).items()
        values = [self._summary.Value(tag=METRICS[name].tag, simple_value=value) for name, value in scalars]
        event = self._event(step=record.epoch, wall_time=time.time(), summary=self._summary(value=values))
        self._writer.add_event(event)
        self._writer.flush()

    def end(self, run: Run) -> None:
        self._writer.close()


def _epochs_in(folder: Path) -> set[int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {event.step for tag in events.Tags()["scalars"] for event in events.Scalars(tag)}
