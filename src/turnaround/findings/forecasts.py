"""The words for forecasts: what their figures rest on, what was assumed, what to mind, and what to run next.

Enters: predictions with their remarks (turnaround.forecast). Leaves: sentences, and the JSON of `turnaround predict`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import singledispatch
from typing import Any

from turnaround.analysis.compare import Fact
from turnaround.analysis.configurations import ConfigurationRuns
from turnaround.findings.bottlenecks import why
from turnaround.findings.finding import epochs
from turnaround.forecast import remarks as r
from turnaround.forecast.question import NextRun, Prediction
from turnaround.forecast.score import Score, track_record
from turnaround.words import counted, duration, durations, percent

MAX_CASES, MAX_FACTS = 4, 3
"""Number of configurations set aside that are named, and of settings they differ in: more would bury the reason."""


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
        return {what: pinned_text(pin) for what, pin in self.remarks.pinned}

    @property
    def left_open(self) -> list[str]:
        """Return the pinned parameters for reading: each reason once, with the law it is about."""
        law_by_reason: dict[str, str] = {}
        for what, reason in self.pinned.items():
            law_by_reason.setdefault(reason, what.partition(":")[0])
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


def hardware_label(configuration: ConfigurationRuns) -> str:
    """Return a configuration's label without what else the runs of the job differ in."""
    return replace(configuration.key, settings=()).label


def facts_text(facts: Sequence[Fact]) -> str:
    """Return the first few settings."""
    shown = ", ".join(f"{fact.what} {fact.value}" for fact in facts[:MAX_FACTS])
    return f"{shown}, ..." if len(facts) > MAX_FACTS else shown


# --- what the figures rest on


def basis_text(basis: r.Basis) -> str:
    match basis:
        case r.TimesBasis():
            labels = _labels(basis.configurations)
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


def _labels(configurations: Sequence[ConfigurationRuns]) -> list[str]:
    return list(dict.fromkeys(hardware_label(configuration) for configuration in configurations))


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
    only = f"only {_processes_were(pin.counts)} measured" if len(pin.counts) == 1 else ""
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


# --- what to mind

_MISSING = {
    "times": (
        "No run has times on GPUs of its own, so there is no forecast of time or cost: a rehearsal's times are not "
        "those of its workers. Run one configuration for real."
    ),
    "fixed overhead": "No run tells the time outside its epochs: start-up is missing from the job time.",
    "images": "The runs do not say how many images an epoch has, so there are no images/s.",
    "batch": "The runs do not say their batch, so epochs and accuracy cannot be forecast.",
    "accuracy": "No run has a validation accuracy, so there is no forecast of it.",
}


@singledispatch
def warning_text(warning: r.Warning_) -> str:
    """Return one sentence or two; each kind has its own below."""
    raise AssertionError(f"no words for {type(warning).__name__}")


@warning_text.register
def _(warning: r.Missing) -> str:
    return _MISSING[warning.what]


@warning_text.register
def _(warning: r.SetAside) -> str:
    labels = _labels(warning.configurations)
    rest = f" and {len(labels) - MAX_CASES} more" if len(labels) > MAX_CASES else ""
    reason = {
        "shared GPU": "the processes share a GPU, none has its own",
        "time settings": f"their times are those of other settings ({facts_text(warning.facts)})",
        "accuracy settings": f"their epochs and accuracies are those of other settings ({facts_text(warning.facts)})",
    }[warning.reason]
    return f"Set aside: {', '.join(labels[:MAX_CASES])}{rest}: {reason}."


@warning_text.register
def _(warning: r.Exclusion) -> str:
    article = "an" if warning.unit == "epoch" else "a"
    time, against_time = durations(warning.time_s, warning.against_time_s)
    return (
        f"{warning.processes} processes ({time} {article} {warning.unit}) set aside: against "
        f"{warning.against_processes} ({against_time}) the scaling is {percent(warning.efficiency)} "
        "of linear, so the two are not comparable."
    )


@warning_text.register
def _(warning: r.DoubtfulTime) -> str:
    many, few = warning.processes, _counted_processes(warning.against_processes)
    match warning.kind:
        case "same time":
            return (
                f"All counts from {warning.against_processes} to {many} have the same throughput: the work is not "
                "divided among the processes, or something that they share is the limit. More processes gain nothing."
            )
        case "slower than fewer":
            return (
                f"{many} processes are slower than {few}: {percent(warning.factor)} of the throughput. Something "
                "that they share is the limit, or one of the two was disturbed: measure again."
            )
        case "too slow":
            return (
                f"{many} processes take {warning.factor:.1f} times as long as the smaller counts lead to expect: if "
                "that run was disturbed, or its time has another unit, leave it out; the forecast goes on from it."
            )
        case "lost at once":
            gain = f"{warning.factor:.1f} times the throughput of {few}"
            return f"{many} processes have only {gain}: measure a count between them, or look for what they wait for."


def _counted_processes(count: int) -> str:
    return "1 process" if count == 1 else str(count)


@warning_text.register
def _(warning: r.RepeatsApart) -> str:
    least, most = durations(warning.least_s, warning.most_s)
    return (
        f"Runs of {hardware_label(warning.configuration)} took {least} and {most} an epoch: they are not the same "
        "work, or one was disturbed. The interval has room for both; leave out the one that is wrong."
    )


@warning_text.register
def _(warning: r.FarFromMeasured) -> str:
    few, many = min(warning.counts), max(warning.counts)
    return (
        f"{warning.processes} processes are {warning.factor:.0f} times away from what was measured "
        f"({f'{few} to {many}' if few < many else few}); the law was tested up to {warning.tested_factor:.0f} times."
    )


@warning_text.register
def _(warning: r.FirstHosts) -> str:
    network = f"{warning.bytes_per_s / 1e9:.3g} GB/s"
    if not warning.is_network_known:
        network = f"a slow network ({network})"
    if warning.extra_s is None:
        return (
            f"No run was on more than one host, and the gradients' size is not known: what {warning.hosts} hosts cost "
            f"is a guess, and the upper end has room for {network}."
        )
    return (
        f"No run was on more than one host: from no extra cost up to {duration(warning.extra_s)} a step for "
        f"{warning.hosts} hosts on {network}."
    )


@warning_text.register
def _(warning: r.BatchFarFromRun) -> str:
    return (
        f"A global batch of {warning.batch} is {warning.batch / warning.largest:.0f} times the largest that was run "
        f"({warning.largest}); the law was tested up to {warning.tested_factor:.0f} times."
    )


@warning_text.register
def _(warning: r.BatchesClose) -> str:
    return f"The batches that were run ({warning.smallest} to {warning.largest}) are less than a factor of 2 apart."


@warning_text.register
def _(warning: r.FasterGpuNoFaster) -> str:
    rate = f", about {warning.images_per_s:.0f} images/s" if warning.images_per_s else ""
    times = " and ".join(epochs(warning.fast, warning.slow))
    text = (
        f"{warning.fast.label} were no faster than {warning.slow.label} ({times} an epoch), though they have "
        f"{warning.bandwidth_ratio:.1f} times the memory bandwidth: the input path was the limit{rate}, not the GPUs. "
        "The interval is wider for it."
    )
    if warning.grown is None or warning.grown.images_per_s is None:
        return text
    more = f"{warning.grown.label} had {warning.grown.images_per_s.value:.0f} images/s"
    return (
        f"{text} {more}: the limit grows with the workers, each of which reads for itself, and the forecast takes it "
        "as growing on; if the host can give no more than that, more workers gain nothing."
    )


@warning_text.register
def _(warning: r.WaitsForInput) -> str:
    return f"The input path holds these runs up: {why(warning.bottleneck)} The interval is wider for it."


@warning_text.register
def _(warning: r.InputLimitReached) -> str:
    text = f"The input path is the limit: {warning.images_per_s:,.0f} images/s on each host were {warning.source}; "
    if warning.source == "seen":
        return text + "the lower end of the time has room for the case that each worker reads for itself."
    return text + "more GPUs wait for it."


@warning_text.register
def _(warning: r.MoreProcessesThanCores) -> str:
    return (
        f"The host that was measured has {counted(warning.cores, 'core')}: more processes than cores "
        "share them and are slower than this forecast, which gives each its own."
    )


@warning_text.register
def _(warning: r.OneCountTimed) -> str:
    were = f"{warning.workers} worker{'s were' if warning.workers > 1 else ' was'}"
    return f"Only {were} timed: how times grow with more is taken from published series, and the interval is wide."


@warning_text.register
def _(warning: r.NotMeasuredGpu) -> str:
    if warning.gpu is None:
        return f"No run was in {warning.precision}: the estimate is that of data sheets, accuracy may change as well."
    return (
        f"No {warning.gpu} was measured: the input path, the processors and the batch that fits into its memory are "
        "not in this estimate."
    )


@warning_text.register
def _(warning: r.NoStableEpoch) -> str:
    if warning.at_least is None:
        return "No run says when its accuracy became stable, so there is no forecast of that."
    return (
        f"No run has become stable by its end (one takes at least {warning.at_least:.0f} epochs): train longer to "
        "learn when."
    )


@warning_text.register
def _(warning: r.TargetNotSeen) -> str:
    return f"No curve of these runs reaches {100 * warning.target:g} %, so the epochs to it cannot be forecast."
