"""What the functions of api.py return: a run with its network, an evaluation, a comparison of runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from turnaround.errors import InputError

if TYPE_CHECKING:
    from turnaround.analysis.summary import RunSummary
    from turnaround.analysis.workloads import Survey
    from turnaround.findings import Finding
    from turnaround.record.reader import Run
    from turnaround.use.evaluate import EvaluatedImage, EvaluatedRun
    from turnaround.use.export import Exported
    from turnaround.use.images import Picture
    from turnaround.use.predictor import Guess, Predictor

AnyPath = str | PathLike[str]


class TrainedRun:
    """One run: its record, and the network that was trained in it. The network is loaded when it is first asked."""

    def __init__(self, record: Run, *, device: str = "auto", weights: str = "best") -> None:
        self.record, self._device, self._weights = record, device, weights

    def __repr__(self) -> str:
        return f"TrainedRun({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from turnaround.reporting.notebook import runs_html

        return runs_html([self.summary])

    def table(self) -> Any:
        """Return a row for each epoch: a pandas DataFrame where pandas is installed, else a list of dicts."""
        from turnaround.reporting.notebook import as_table, epoch_rows

        return as_table(epoch_rows(self.record.epochs))

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.record.path

    @cached_property
    def summary(self) -> RunSummary:
        """The run in a few dozen numbers, as `turnaround train --json` prints them."""
        from turnaround.analysis.summary import summarise

        return summarise(self.record)

    @property
    def accuracy(self) -> float | None:
        """The validation accuracy of the last epoch, 0 to 1; None before the first."""
        return self.record.final

    @property
    def weights(self) -> str:
        """Whose weights classify and export use, in words: those of the best epoch, or the last."""
        return self._predictor.trained.which

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, in the network's order."""
        return self._predictor.trained.classes

    @cached_property
    def _predictor(self) -> Predictor:
        from turnaround.use.predictor import Predictor

        return Predictor.load(self.path, device=self._device, weights=self._weights)

    @overload
    def classify(self, picture: Picture, *, top: int = 5) -> list[Guess]: ...
    @overload
    def classify(self, picture: list[Picture] | tuple[Picture, ...], *, top: int = 5) -> list[list[Guess]]: ...
    def classify(
        self, picture: Picture | list[Picture] | tuple[Picture, ...], *, top: int = 5
    ) -> list[Guess] | list[list[Guess]]:
        """Return the classes of a picture, the most probable first; of a list of pictures, a list for each.

        A picture is a path, the bytes of an image file, a Pillow image, or an array: uint8, (height, width, 3), RGB.
        """
        if isinstance(picture, list | tuple):
            return self.classify_all(picture, top=top)
        if isinstance(picture, set | frozenset):
            raise InputError(f"A set of {len(picture)} pictures has no order to answer in. Give a list.")
        return list(self._predictor.classify([picture], top=top)[0])

    def classify_all(self, pictures: Iterable[Picture], *, top: int = 5) -> list[list[Guess]]:
        """Return the classes of many pictures, in batches; see `classify`."""
        return [list(guesses) for guesses in self._predictor.classify(pictures, top=top)]

    def export(self, to: str, out: AnyPath | None = None) -> Exported:
        """Write the network as one file: onnx, torchscript, torch-export or safetensors; checked, with a model card."""
        from turnaround.use.export import export_run

        target = Path(out) if out is not None else None
        return export_run(self._predictor.trained, to=to, out=target, show=lambda *_: None)


@dataclass(frozen=True, kw_only=True)
class EvaluationReport:
    """A run's network on other images with known labels, and another run on the same images where one was named."""

    source: Path
    run: EvaluatedRun
    against: EvaluatedRun | None = None

    @property
    def accuracy(self) -> float:
        """The share of the images that were recognised, 0 to 1."""
        return self.run.evaluation.top1

    @property
    def images(self) -> tuple[EvaluatedImage, ...]:
        """Every image with its label, what it was taken for, and the probabilities of both."""
        return self.run.images

    @property
    def mistakes(self) -> list[EvaluatedImage]:
        """The wrong answers, the surest first."""
        return self.run.mistakes()

    def as_json(self) -> dict[str, Any]:
        """Return what `turnaround evaluate --json` prints."""
        from turnaround.reporting.evaluate_report import compared, evaluation_payload

        other = None if self.against is None else (self.against, compared(self.run, self.against))
        return evaluation_payload(self.run, str(self.source), other)

    def text(self, width: int = 100) -> str:
        """Return what `turnaround evaluate` prints."""
        from turnaround.reporting.evaluate_report import compared, evaluation_lines

        other = None if self.against is None else (self.against, compared(self.run, self.against))
        return "\n".join(line.plain for line in evaluation_lines(self.run, other, width=width))


@dataclass(frozen=True, kw_only=True)
class Report:
    """A comparison of recorded runs."""

    survey: Survey
    """Jobs, their configurations and their runs; what was left out, and why."""
    findings: tuple[Finding, ...]

    def as_json(self) -> dict[str, Any]:
        """Return what `turnaround report --json` prints."""
        from turnaround.reporting.survey_json import survey_payload

        return survey_payload(self.survey, self.findings)

    def text(self, width: int = 100) -> str:
        """Return what `turnaround report` prints."""
        from turnaround.reporting.survey_text import Screen, survey_lines

        lines = survey_lines(self.survey, self.findings, Screen(width=width))
        return "\n".join(line.plain for line in lines)

    def table(self) -> Any:
        """Return a row for each run: a pandas DataFrame where pandas is installed, else a list of dicts."""
        from turnaround.reporting.notebook import as_table, run_rows

        return as_table(run_rows(self._summaries))

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from turnaround.reporting.notebook import report_html

        return report_html(self._summaries, self.findings)

    @property
    def _summaries(self) -> list[RunSummary]:
        return [run for job in self.survey.workloads for each in job.configurations for run in each.summaries]
