"""The words for forecasts: what their figures rest on, what was assumed, what to mind, and what to run next.

Enters: predictions with their remarks (turnaround.forecast). Leaves: sentences, and the JSON of `turnaround predict`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from turnaround.findings.forecast_warnings import facts_text, warning_text
from turnaround.findings.labels import hardware_labels
from turnaround.forecast import remarks as r
from turnaround.forecast.interval import Interval
from turnaround.forecast.question import NextRun, Prediction
from turnaround.forecast.score import Score, track_record
from turnaround.words import counted, interval, percent


def interval_text(time_s: Interval) -> str:
    """Return a forecast time with its interval: "14 min (11-17)"."""
    return interval(time_s.value, time_s.low, time_s.high)


@dataclass(frozen=True, kw_only=True)
class Answer(Prediction):
    """A prediction whose remarks can be read: what Python users get, and what `predict --json` prints."""

    @classmethod
    def of(cls, prediction: Prediction) -> Answer:
        return cls(**{field.name: getattr(prediction, field.name) for field in fields(Prediction)})

    @property
    def basis(self) -> tuple[str, ...]:
        """Return the basis of the figures."""
        return tuple(basis_text(basis) for basis in self.remarks.basis)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return the warnings."""
        return tuple(warning_text(warning) for warning in self.remarks.warnings)

    @property
    def assumed(self) -> tuple[str, ...]:
        return tuple(assumption_text(assumption) for assumption in self.remarks.assumed)

    @property
    def pinned(self) -> dict[str, str]:
        """Return the parameters that the runs could not identify, by law, and what stands in for them."""
        return {f"{law}: {parameter}": pinned_text(pin) for law, parameter, pin in self.remarks.pinned}

    @property
    def left_open(self) -> list[str]:
        """Return the pinned parameters for reading: each reason once, with the law it is about."""
        law_by_reason: dict[str, str] = {}
        for law, _, pin in self.remarks.pinned:
            law_by_reason.setdefault(pinned_text(pin), law)
        return [f"{law}: {reason}" for reason, law in law_by_reason.items()]

    @property
    def rests_on(self) -> list[str]:
        """Return the basis, and the leave-one-out error of each measured time."""
        if not self.leave_one_out:
            return list(self.basis)
        errors = ", ".join(f"{count}: {100 * error:+.1f} %" for count, error in sorted(self.leave_one_out.items()))
        return [*self.basis, f"each measured time forecast from the others, error by workers: {errors}"]

    def as_json(self) -> dict[str, Any]:
        """Return what `predict --json` prints."""
        figures = asdict(replace(self, remarks=r.Remarks(), next_run=None))
        del figures["remarks"], figures["next_run"]
        sentences = {
            "basis": self.basis,
            "warnings": self.warnings,
            "pinned": self.pinned,
            "assumed": self.assumed,
            "leave_one_out": figures.pop("leave_one_out"),
            "next_run": None if self.next_run is None else _next_run_json(self.next_run),
        }
        return figures | sentences


def _next_run_json(run: NextRun) -> dict[str, Any]:
    return {("why" if key == "reason" else key): value for key, value in asdict(run).items()} | {
        "why": next_run_text(run)
    }


def next_run_text(run: NextRun) -> str:
    """Return why this run helps."""
    if run.reason == "no times":
        return "No run has times yet: a real one, on any number of GPUs, gives the first."
    if run.reason == "no stable epoch":
        return "It tells when the accuracy becomes stable, which no run here does."
    what = (
        f"it measures the accuracy curve of {run.workers} workers" if run.is_rehearsal else "its times pin the law down"
    )
    assert run.width_before is not None, "a run that makes an interval narrower has both widths"
    assert run.width_after is not None, "a run that makes an interval narrower has both widths"
    return f"{what}: the interval would be {percent(1 - run.width_after / run.width_before)} narrower."


def track_record_text(scores: Sequence[Score]) -> str | None:
    """Return how good saved forecasts have been; None when none can be scored yet."""
    known = track_record(scores)
    if known is None:
        return None
    return (
        f"saved forecasts against later runs: {known.figures} figures, median error {percent(known.median_error)}, "
        f"{known.inside} of {known.figures} inside the 80 % interval"
    )


# --- what the figures rest on


def basis_text(basis: r.Basis) -> str:
    match basis:
        case r.TimesBasis():
            labels = hardware_labels(basis.configurations)
            listed = " and ".join(labels) if len(labels) < 3 else ", ".join(labels)
            runs = sum(len(configuration.summaries) for configuration in basis.configurations)
            return f"{basis.unit} times of {listed} ({counted(runs, 'run')})"
        case r.DataSheetBasis(source=source, destination=destination):
            sheets = dict.fromkeys((destination.source, source.source))
            return (
                f"{destination.name} in {basis.target_precision} is taken as {basis.speed_ratio:.2f} times as fast as "
                f"{source.name} in {basis.precision}, by memory bandwidth and arithmetic ({'; '.join(sheets)})"
            )
        case r.BatchesBasis():
            rehearsed = f", {basis.rehearsed} of them rehearsed" if basis.rehearsed else ""
            return f"{basis.what} at global batches of {', '.join(map(str, basis.batches))}{rehearsed}"


# --- what was assumed


def assumption_text(assumption: r.Assumption, *, flags: bool = True) -> str:
    """`flags`: with the option of the command line that says otherwise."""
    match assumption:
        case r.MostMeasuredKind():
            others = f" ({', '.join(assumption.others)} too: --gpu chooses)" if flags else ""
            return f"{assumption.gpu}: most was measured on it{others}"
        case r.SettingsKept():
            return f"the settings {facts_text(assumption.facts)}; others were set aside"
        case r.HostsAsInRuns(hosts=hosts):
            return f"{counted(hosts, 'host')}, up to {assumption.workers_each} workers each, as in the runs"
        case r.HostsAsTold(hosts=hosts, source=source):
            on = "the hosts of the runs have" if source == "record" else f"{source} has" if source else "as you said,"
            return f"{counted(hosts, 'host')}: {on} {counted(assumption.workers_each, 'GPU')} on each host"
        case r.OtherBatch(batch=batch, measured=measured):
            return (
                f"{batch} images a worker and step, where the runs had {measured or 'an unknown number'}: an image "
                "takes as long, and what is lost in each step is lost as often as there are steps"
            )
        case r.HostsOfUsualSize(hosts=hosts):
            option = " (--hosts says otherwise)" if flags else ""
            return (
                f"{hosts} hosts, up to {assumption.workers_each} workers each: no run says how many fit on one{option}"
            )
        case r.OneHost(most_workers=most):
            option = " (--hosts for more)" if flags else ""
            return f"one host; the runs had at most {counted(most, 'worker')} on one{option}"


def pinned_text(pin: r.Pinned) -> str:
    """Return why a parameter is not the data's own, and what stands in for it."""
    second = "what the second one costs (c1) from what every doubling costs (c2)"
    only = f"only {_processes_were(pin.counts)} learnt from" if len(pin.counts) == 1 else ""
    match pin.reason:
        case "one count":
            return f"{only}: typical of published series"
        case "two counts":
            few, many = pin.counts
            return f"{few} and {many} processes cannot tell {second}: their ratio is that of published series"
        case "one count of epochs":
            return (
                f"{only}: nothing in an epoch is taken as never shrinking, and steps as getting slower like those of "
                "published series"
            )
        case "no overhead":
            return (
                "these epochs cannot tell what never shrinks (evaluation, the start of an epoch) from steps that get "
                "slower: it is taken as nothing"
            )
        case "noise scale":
            return (
                f"one global batch only: the measured noise scale, {pin.noise_scale:.0f} images, within a factor of "
                f"{pin.factor:g}"
            )
        case "typical critical batch":
            return (
                "one global batch only and no noise scale: a typical value, which may be far off; rehearse a second "
                "batch"
            )
        case "typical fall":
            assert pin.fall is not None, "a pinned fall has its size"
            return f"one global batch only: {100 * pin.fall:g} points for each doubling"


def _processes_were(counts: Sequence[int]) -> str:
    return f"{counts[0]} processes were" if counts[0] > 1 else "1 process was"
