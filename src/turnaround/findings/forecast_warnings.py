"""The words for what to mind in a forecast: one sentence or two for each kind of warning.

Enters: the kinds of turnaround.forecast.remarks with their figures. Leaves: sentences.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import singledispatch

from turnaround.analysis.compare import Fact
from turnaround.findings.bottlenecks import why
from turnaround.findings.finding import epochs
from turnaround.findings.labels import facts_label, hardware_label, hardware_labels, label_of
from turnaround.findings.runs import together_text
from turnaround.findings.times import impossible_speed_text
from turnaround.forecast import remarks as r
from turnaround.words import counted, duration, durations, factor, hardware, percent

MAX_CASES, MAX_FACTS = 4, 3
"""Number of configurations set aside that are named, and of settings they differ in: more would bury the reason."""


def facts_text(facts: Sequence[Fact]) -> str:
    """Return the first few settings."""
    shown = facts_label(facts[:MAX_FACTS])
    return f"{shown}, ..." if len(facts) > MAX_FACTS else shown


_MISSING = {
    "times": (
        "No run has times on GPUs of its own, so there is no forecast of time or cost: a rehearsal's times are not "
        "those of its workers. Run one configuration for real."
    ),
    "fixed overhead": "No run tells the time outside its epochs: start-up is missing from the job time.",
    "images": "The runs do not say how many images an epoch has, so there are no images/s.",
    "batch": "The runs do not say their batch, so epochs and accuracy cannot be forecast.",
    "accuracy": "No run has a validation accuracy, so there is no forecast of it.",
    "energy": (
        "The energy is not known: no run on GPUs of this kind, one worker on each, has recorded their energy or power. "
        "So there is no price of electricity and no emission."
    ),
}


@singledispatch
def warning_text(warning: r.Warning_) -> str:
    """Return one sentence or two; each kind has its own below."""
    raise AssertionError(f"no words for {type(warning).__name__}")


@warning_text.register
def _(warning: r.Missing) -> str:
    return _MISSING[warning.what]


@warning_text.register
def _(warning: r.NotPriced) -> str:
    return (
        f"No cost: the price table has no {warning.gpu}, only {', '.join(warning.priced)}. "
        f"Set it: turnaround prices set {shlex.quote(warning.gpu)} PRICE; or give --price."
    )


@warning_text.register
def _(warning: r.SetAside) -> str:
    labels = hardware_labels(warning.configurations)
    rest = f" and {len(labels) - MAX_CASES} more" if len(labels) > MAX_CASES else ""
    reason = {
        "shared GPU": "the processes share a GPU, none has its own",
        "mixed devices": "their processes have devices of several kinds",
        "time settings": f"their times are those of other settings ({facts_text(warning.facts)})",
        "accuracy settings": f"their epochs and accuracies are those of other settings ({facts_text(warning.facts)})",
    }[warning.reason]
    return f"Set aside: {', '.join(labels[:MAX_CASES])}{rest}: {reason}."


@warning_text.register
def _(warning: r.Exclusion) -> str:
    article = "an" if warning.unit == "epoch" else "a"
    time, against_time = durations(warning.time_s, warning.against_time_s)
    return (
        f"{counted(warning.processes, 'process')} ({time} {article} {warning.unit}) set aside: against "
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
def _(warning: r.TooFast) -> str:
    ratio, smaller = warning.larger.workers / warning.smaller.workers, hardware_label(warning.smaller)
    return (
        f"{hardware_label(warning.larger)} are {warning.speedup:.2f} times as fast as {smaller} "
        f"on {factor(ratio)} times the workers: more than linear, so one of the two is not comparable, and the "
        f"forecast rests on both. Run {smaller} again on a quiet machine with warm caches."
    )


@warning_text.register
def _(warning: r.SharedHosts) -> str:
    return f"{together_text(warning.pairs)} The forecast rests on them: repeat them one after the other."


@warning_text.register
def _(warning: r.ImpossibleTimes) -> str:
    return f"{impossible_speed_text(warning.found)} The forecast is in the same wrong unit: import the table again."


@warning_text.register
def _(warning: r.JobTooShort) -> str:
    return (
        f"{warning.run} ({hardware_label(warning.configuration)}) contradicts itself: its epochs are "
        f"{warning.epochs_s:,.0f} s together, more than its whole job of {warning.job_s:,.0f} s. "
        "Take the epoch time from its log again."
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
    workers = warning.fast.workers
    rate = (
        f", about {warning.images_per_s:.0f} images/s for {counted(workers, 'worker')}" if warning.images_per_s else ""
    )
    times = " and ".join(epochs(warning.fast, warning.slow))
    text = (
        f"{label_of(warning.fast)} were no faster than {label_of(warning.slow)} ({times} an epoch), though they have "
        f"{warning.bandwidth_ratio:.1f} times the memory bandwidth: the input path was the limit{rate}, not the GPUs. "
        "The interval is wider for it."
    )
    if warning.grown is None or warning.grown.images_per_s is None:
        return text
    more = f"{label_of(warning.grown)} had {warning.grown.images_per_s.value:.0f} images/s"
    grows = f"{text} {more}: the limit grows with the workers, each of which reads for itself"
    if warning.is_capped:
        return f"{grows}, up to what a host can give."
    return (
        f"{grows}, and the forecast takes it as growing on; if the host can give no more than that, more workers gain "
        "nothing."
    )


@warning_text.register
def _(warning: r.WaitsForInput) -> str:
    return f"The input path holds these runs up: {why(warning.bottleneck)} The interval is wider for it."


@warning_text.register
def _(warning: r.InputLimitReached) -> str:
    text = f"The input path is the limit: {warning.images_per_s:,.0f} images/s on each host were {warning.source}; "
    if warning.source == "seen":
        return text + "the lower end of the time has room for the configuration that each worker reads for itself."
    return text + "more GPUs wait for it."


@warning_text.register
def _(warning: r.InputLimitBeaten) -> str:
    taken = f"{warning.images_per_s:,.0f} images/s on each host"
    return (
        f"An input limit of {warning.limit:,.0f} images/s, as {warning.source}, contradicts "
        f"{hardware_label(warning.configuration)}, which read {taken}: the limit must lie above. "
        "The forecast takes what was read as the limit, and leaves measured times as they are."
    )


@warning_text.register
def _(warning: r.MoreProcessesThanCores) -> str:
    return (
        f"The host that was measured has {counted(warning.cores, 'core')}: more processes than cores "
        "share them and are slower than this forecast."
    )


@warning_text.register
def _(warning: r.CoresInUse) -> str:
    timed, asked = hardware(warning.measured, "CPU"), hardware(warning.workers, "CPU")
    cores = counted(warning.cores, "core")
    return (
        f"Only {timed} {'was' if warning.measured == 1 else 'were'} timed, with threads on all {cores} of the host: "
        f"{asked} would share them, so an epoch is forecast to take about as long. The interval has room for less."
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
