"""A run as it was read at one instant: the same values as `Run` gives, and no file is opened for them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from turnaround.errors import RunDirectoryError
from turnaround.record.files import LineFile
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run
from turnaround.record.schema import EpochRecord, Evaluation, Imported, Span, Status, TelemetrySample, from_json

Small = dict[str, Any] | RunDirectoryError | None
"""A small file's content, or what is wrong with it; None when there is none."""


@dataclass(frozen=True, kw_only=True)
class Content:
    """What the files of a run held."""

    recipe: Small = None
    machine: Small = None
    status: Small = None
    evaluation: Small = None
    imported: Small = None
    epochs: tuple[EpochRecord, ...] = ()
    bad_lines: int = 0
    is_torn: bool = False
    spans: dict[int, tuple[Span, ...]] = field(default_factory=dict)
    telemetry: dict[str, tuple[TelemetrySample, ...]] = field(default_factory=dict)
    notes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    failure: RunDirectoryError | None = None
    """Why its lines must not be believed."""
    cause_of_end: str | None = None
    """Set when it says that it runs and nobody does: then it counts as interrupted, for this reason."""


class RunSnapshot(Run):
    """Read once, told as often as asked; analysis takes it for any other run."""

    def __init__(self, directory: RunDirectory, content: Content) -> None:
        super().__init__(directory)
        self.content = content

    @cached_property
    def recipe(self) -> dict[str, Any]:
        return self._small("recipe")

    @cached_property
    def machine(self) -> dict[str, Any]:
        return self._small("machine")

    @cached_property
    def status(self) -> Status:
        status: Status = self._record(Status, "status")
        if self.content.cause_of_end is not None:
            return replace(status, state="interrupted", cause=self.content.cause_of_end)
        return status

    @cached_property
    def evaluation(self) -> Evaluation | None:
        return None if self.content.evaluation is None else self._record(Evaluation, "evaluation")

    @cached_property
    def imported(self) -> Imported | None:
        return None if self.content.imported is None else self._record(Imported, "imported")

    @property
    def ranks(self) -> list[int]:
        return sorted(self.content.spans)

    def spans(self, rank: int = 0) -> list[Span]:
        by_step = {span.step: span for span in self.content.spans.get(rank, ())}
        return [by_step[step] for step in sorted(by_step)]

    def telemetry(self) -> dict[str, list[TelemetrySample]]:
        return {host: list(samples) for host, samples in self.content.telemetry.items()}

    def telemetry_notes(self) -> dict[str, list[str]]:
        return {host: list(notes) for host, notes in self.content.notes.items()}

    @cached_property
    def _epoch_file(self) -> LineFile:
        return LineFile([], self.content.bad_lines, self.content.is_torn)

    @cached_property
    def _epoch_lines(self) -> tuple[list[EpochRecord], int]:
        if self.content.failure is not None:
            raise self.content.failure
        return list(self.content.epochs), self.content.bad_lines

    def _small(self, part: str) -> dict[str, Any]:
        found: Small = getattr(self.content, part)
        if found is None:
            raise RunDirectoryError(f"{self.path.name}: its {part} is missing: the run has not come that far.")
        if isinstance(found, RunDirectoryError):
            raise RunDirectoryError(f"{self.path.name}: {found}")
        return found

    def _record(self, kind: type[Any], part: str) -> Any:
        try:
            return from_json(kind, self._small(part))
        except RunDirectoryError as error:
            raise RunDirectoryError(f"{self.path.name}, {part}: {error}.") from error
