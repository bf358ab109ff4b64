"""The runs of one job -> what the laws learn from.

Times come from real runs only, those of one kind of GPU together; epochs to stable and accuracies from rehearsals as
well: they depend on the workers, not on the hardware. What is left out is named.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from turnaround.analysis.compare import Fact, mixes_devices, shared_gpu, value_at
from turnaround.analysis.configurations import ConfigurationRuns, Spread, Workload
from turnaround.analysis.speed import comparable_in_time, gpu_without_gain
from turnaround.analysis.stable import EpochEstimate
from turnaround.analysis.summary import RunSummary
from turnaround.errors import InputError
from turnaround.forecast.epoch_time import EpochTimeObservation
from turnaround.forecast.epochs import AccuracyObservation, EpochsObservation
from turnaround.forecast.hardware import precision_of
from turnaround.forecast.interval import Z_80
from turnaround.forecast.remarks import FasterGpuNoFaster, InputBound, SetAside, Unit, WaitsForInput
from turnaround.forecast.scaling import Scaling
from turnaround.forecast.step_time import StepObservation
from turnaround.forecast.time_law import TimeObservation
from turnaround.record.reader import Run

# Judgements: no published series has an input-bound run.
MORE_INPUT, MORE_WORKERS = 1.1, 1.5
"""An input path that gives hardly more to so many more workers of a host is shared by them."""


@dataclass(frozen=True, kw_only=True)
class Overheads:
    """Time of one configuration besides the steps, or besides the epochs where a table has only those."""

    processes: int
    evaluation_s: float = 0.0
    """Seconds after each epoch."""
    checkpoint_s: float = 0.0
    """Seconds for each epoch."""
    fixed_s: float | None = None
    """Start-up, decoding, the cold epoch's extra, and the rest; without the queue. None where it is not known."""
    fixed_runs_s: tuple[float, ...] = ()
    """The same of each run, of which `fixed_s` is the median."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """Times of real runs on one kind of GPU: step times where our own runs have them, else those of whole epochs."""

    gpu: str
    configurations: tuple[ConfigurationRuns, ...]
    scaling: Scaling
    observed: tuple[TimeObservation, ...]
    """All of one kind: the law that TIME_LAWS has for it is fitted to them."""
    overheads: tuple[Overheads, ...] = ()
    input_images_per_s: float | None = None
    """Measured limit of one host's input path."""
    gradient_bytes: float | None = None
    precision: str = "amp"
    input_bound: InputBound | None = None
    """The reason why these times may be those of the input and not of the GPUs."""
    seen_input_images_per_s: float | None = None
    """Images/s of one host that more workers did not raise."""

    @property
    def unit(self) -> Unit:
        return self.observed[0].unit

    @property
    def counts(self) -> list[int]:
        return sorted({configuration.workers for configuration in self.configurations})


@dataclass(frozen=True, kw_only=True)
class Observations:
    """Everything that the runs of one job say to the laws."""

    job: str
    times: dict[str, Times]
    """Times by kind of GPU."""
    epochs: tuple[EpochsObservation, ...] = ()
    not_yet: tuple[EpochsObservation, ...] = ()
    """Lower bounds: configurations that had not become stable by the end of their runs."""
    accuracies: tuple[AccuracyObservation, ...] = ()
    to_target: tuple[EpochsObservation, ...] = ()
    learned_from: tuple[ConfigurationRuns, ...] = ()
    """The configurations behind epochs and accuracies."""
    noise_scale: float | None = None
    images_per_epoch: int | None = None
    batch_per_worker: int | None = None
    batch_total: int | None = None
    """The global batch, where the recipe fixes it."""
    epochs_planned: int | None = None
    set_aside: tuple[SetAside, ...] = ()
    """Cases that cannot be compared with the rest, each with its reason."""
    settings: tuple[Fact, ...] = ()
    """Settings of the runs learnt from, where others were set aside."""

    def global_batch(self, workers: int) -> int | None:
        if self.batch_total is not None:
            return self.batch_total
        return None if self.batch_per_worker is None else workers * self.batch_per_worker


def observe(job: Workload, *, target: float | None = None, gpu: str | None = None) -> Observations:
    """Collect the observations of a job; with a target, also the epochs to that validation accuracy."""
    times, aside_in_time = _times(job)
    same, aside, settings = _same_recipe(job, times, gpu)
    runs = [run for c in same for run in c.summaries]
    batches = [(configuration, configuration.global_batch) for configuration in same]
    known = [(configuration, batch) for configuration, batch in batches if batch]
    return Observations(
        job=job.name,
        times=times,
        epochs=tuple(o for c, batch in known for o in _epochs(c.stable, batch, ("stable",))),
        not_yet=tuple(o for c, batch in known for o in _epochs(c.stable, batch, ("not yet stable",))),
        accuracies=tuple(o for configuration, batch in known for o in _accuracy(configuration, batch)),
        to_target=tuple(o for c, batch in known if target for o in _epochs(c.to_target(target), batch, ("reached",))),
        learned_from=tuple(configuration for configuration, _ in known),
        # An order of magnitude (it grows as the loss falls), so no run's own is better than the middle one.
        noise_scale=_median(run.noise_scale for run in runs),
        # What most runs had, not a mean: a batch or a number of epochs between two is one that nobody has run.
        images_per_epoch=_commonest(run.images_per_epoch for run in runs),
        batch_per_worker=_commonest(run.batch_per_worker for run in runs),
        batch_total=_commonest(_batch_total(configuration) for configuration in same),
        epochs_planned=_commonest(run.epochs_planned or run.epochs for run in runs),
        set_aside=(*aside_in_time, *aside),
        settings=settings,
    )


def times_by_kind(job: Workload) -> dict[str, Times]:
    """Return the times that the laws of a job learn from, by kind of GPU."""
    return _times(job)[0]


def _times(job: Workload) -> tuple[dict[str, Times], list[SetAside]]:
    """Return by kind of GPU the largest group that can be compared in time; the other groups are named."""
    chosen: dict[str, list[ConfigurationRuns]] = {}
    aside: list[SetAside] = []
    # The largest group first, then the one with most workers: of each kind of GPU the first is learnt from.
    groups = sorted(comparable_in_time(job), key=lambda g: (-len(g), -max(c.workers for c in g)))
    for group in groups:
        gpu = group[0].gpu
        # A GPU in step with a processor waits for it, and one that is shared does the work of two: neither time is that
        # of a GPU of its own.
        mixed = tuple(c for c in group if any(mixes_devices(run.machine) for _, run in c.members))
        if mixed:
            aside.append(SetAside(configurations=mixed, reason="mixed devices"))
            group = [configuration for configuration in group if configuration not in mixed]
        alone = [c for c in group if not any(shared_gpu(run.machine) for _, run in c.members)]
        if len(alone) < len(group):
            shared = tuple(configuration for configuration in group if configuration not in alone)
            aside.append(SetAside(configurations=shared, reason="shared GPU"))
        if alone and gpu not in chosen:
            chosen[gpu] = alone
        elif alone:
            kept = chosen[gpu][0].key.settings_for("time")
            others = tuple(fact for fact in alone[0].key.settings_for("time") if fact not in kept)
            aside.append(SetAside(configurations=tuple(alone), reason="time settings", facts=others))
    return {gpu: _times_of(gpu, configurations, job) for gpu, configurations in sorted(chosen.items())}, aside


def _times_of(gpu: str, configurations: Sequence[ConfigurationRuns], job: Workload) -> Times:
    records = [run for configuration in configurations for _, run in configuration.members]
    # One run without step times, from a table or a plain log, makes all of them whole epochs: one law, one unit.
    whole_epochs = any(run.is_imported or c.step_time_s is None for c in configurations for run in c.summaries)
    probes = [value_at(run.machine, "probes", "input_images_per_s") for run in records]
    gradient_bytes = [value_at(run.machine, "cost", "gradient_bytes") for run in records]
    precisions = [_precision(run) for run in records]
    bound = _input_bound(configurations, job)
    return Times(
        gpu=gpu,
        configurations=tuple(configurations),
        # The law of whole epochs knows a fixed batch per process only.
        scaling="strong" if not whole_epochs and any(_batch_total(c) for c in configurations) else "weak",
        observed=tuple(_epoch_times(configurations)) if whole_epochs else tuple(_step(c) for c in configurations),
        overheads=tuple(_overheads(c, whole_epochs=whole_epochs) for c in configurations),
        # Records without a probe, or with one that failed, say nothing; a limit of 0 would be divided by.
        input_images_per_s=_median(p for p in probes if _is_positive(p)),
        gradient_bytes=_median(b for b in gradient_bytes if _is_positive(b)),
        precision=precisions[0],  # a setting that matters for time: a group has one
        input_bound=bound,
        seen_input_images_per_s=_seen_input_limit(configurations, bound),
    )


def _precision(run: Run) -> str:
    """Return the precision of a run; amp where it says none, fp32 for one that no data sheet compares (fp64)."""
    told = str(value_at(run.machine, "choices", "precision", "value") or "amp")
    try:
        precision_of(told)
    except InputError:
        return "fp32"
    return told


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _step(configuration: ConfigurationRuns) -> StepObservation:
    time_s = configuration.step_time_s
    assert time_s is not None, "a configuration with steps has their times"
    return StepObservation(
        processes=configuration.workers,
        hosts=configuration.hosts,
        time_s=time_s.value,
        images_per_step=configuration.global_batch or configuration.workers,  # no batch known: all alike
        repeats=time_s.count,
        spread=_relative(time_s),
    )


def _epoch_times(configurations: Sequence[ConfigurationRuns]) -> Iterator[EpochTimeObservation]:
    # What one row of a table does not say is no difference: these configurations agree in all that is known.
    runs = [run for configuration in configurations for run in configuration.summaries]
    # Without a batch there are no steps either, whatever the images: those of an epoch then go as 1 / N.
    batch, images = _commonest(run.batch_per_worker for run in runs), _commonest(run.images_per_epoch for run in runs)
    for configuration in configurations:
        time_s = configuration.epoch_time_s
        assert time_s is not None, "a configuration that can be compared in time has times"
        yield EpochTimeObservation(
            processes=configuration.workers,
            hosts=configuration.hosts,
            time_s=time_s.value,
            batch_per_process=batch or 1,
            images_per_epoch=images if batch else None,
            repeats=time_s.count,
            spread=_relative(time_s),
        )


def _overheads(configuration: ConfigurationRuns, *, whole_epochs: bool) -> Overheads:
    # The parts are sums over a run, and become times of one epoch: a run without any has none to tell.
    each = [_overheads_of(run, whole_epochs=whole_epochs) for run in configuration.summaries if run.epochs > 0]
    processes = configuration.workers
    return Overheads(
        processes=processes,
        evaluation_s=_median(one.evaluation_s for one in each) or 0.0,
        checkpoint_s=_median(one.checkpoint_s for one in each) or 0.0,
        fixed_s=_median(one.fixed_s for one in each),
        fixed_runs_s=tuple(one.fixed_s for one in each if one.fixed_s is not None),
    )


def _overheads_of(run: RunSummary, *, whole_epochs: bool) -> Overheads:
    parts, epoch_s = run.turnaround_parts_s, run.epoch_time_s or 0.0
    if whole_epochs:
        # An epoch of a table has its evaluation in it, so what is left of a job is start-up and the like; below 0 the
        # table contradicts itself.
        rest_s = run.outside_epochs_s if run.state == "finished" else None
        return Overheads(processes=run.workers, fixed_s=rest_s if rest_s is not None and rest_s >= 0 else None)
    # fixed = start-up (of a run alone) + decoding + the rest + (cold epoch - steady epoch); the queue is not forecast.
    cold_s = max(parts.get("training_cold", epoch_s) - epoch_s, 0.0)
    fixed_s = sum(parts.get(part, 0.0) for part in ("start_up", "preloaded", "decode", "other")) + cold_s
    return Overheads(
        processes=run.workers,
        evaluation_s=parts.get("evaluation", 0.0) / run.epochs,
        checkpoint_s=parts.get("checkpoint", 0.0) / run.epochs,
        fixed_s=fixed_s,
    )


def _input_bound(configurations: Sequence[ConfigurationRuns], job: Workload) -> InputBound | None:
    """Return the slower kind of GPU that was as fast, or the bottleneck verdict that says so."""
    for configuration in configurations:
        for other in job.configurations:
            # Before the spans, whose waits can mislead where work is queued on a GPU (analysis/bottleneck.py).
            if (found := gpu_without_gain(configuration, other) or gpu_without_gain(other, configuration)) is not None:
                rate = configuration.images_per_s.value if configuration.images_per_s else None
                # Did more workers of this kind read more? Then each of them reads for itself, up to what a host gives.
                more = [c for c in configurations if _rate(c) > MORE_INPUT * (rate or math.inf)]
                return FasterGpuNoFaster(
                    fast=found.fast,
                    slow=found.slow,
                    bandwidth_ratio=found.bandwidth_ratio,
                    images_per_s=rate,
                    grown=max(more, key=_rate, default=None),
                )
    verdicts = [configuration.bottleneck for configuration in configurations]
    # The strongest verdict, and only a strong one: it widens the interval of every time.
    worst = max((v for v in verdicts if v is not None and v.kind == "input"), key=lambda v: v.share or 0, default=None)
    return WaitsForInput(bottleneck=worst) if worst is not None and worst.is_strong else None


def input_rate(configuration: ConfigurationRuns) -> float:
    """Return the images/s that each host of a configuration has read; 0 where they are not known."""
    return _rate(configuration) / configuration.hosts


def _rate(configuration: ConfigurationRuns) -> float:
    return configuration.images_per_s.value if configuration.images_per_s else 0.0


def _seen_input_limit(configurations: Sequence[ConfigurationRuns], bound: InputBound | None) -> float | None:
    """Return the images/s of one host that an input path gave at most; None unless more workers did not raise it."""
    if bound is None:
        return None
    ordered = sorted(configurations, key=lambda c: c.workers / c.hosts)
    rates = [input_rate(configuration) for configuration in ordered]
    few, many = (each.workers / each.hosts for each in (ordered[0], ordered[-1]))
    # Of the fewest and the most workers on a host: where the second read as much in all, they share one path.
    is_flat = many >= MORE_WORKERS * few and 0 < rates[-1] <= MORE_INPUT * rates[0]
    return max(rates) if is_flat else None


def kinds_by_counts(times: dict[str, Times]) -> list[str]:
    """Return the kinds of GPU, the one with the most counts first."""
    # Counts, not runs: repeats of one count say nothing of what more processes cost.
    return sorted(times, key=lambda gpu: (-len(times[gpu].counts), -max(times[gpu].counts), gpu))


def _same_recipe(
    job: Workload, times: dict[str, Times], gpu: str | None
) -> tuple[list[ConfigurationRuns], list[SetAside], tuple[Fact, ...]]:
    """Return the configurations whose accuracies can be compared, what was set aside, and the settings if chosen.

    The settings chosen are those of most configurations whose times are learnt from (the batch must be theirs), then of
    most timed configurations, then of most configurations, then those of the best accuracy.
    """
    groups: defaultdict[tuple[Fact, ...], list[ConfigurationRuns]] = defaultdict(list)
    for configuration in job.configurations:
        groups[configuration.key.settings_for("accuracy")].append(configuration)
    timed = Counter(c.key.settings_for("accuracy") for each in times.values() for c in each.configurations)
    kind = gpu if gpu in times else next(iter(kinds_by_counts(times)), None)
    learnt = Counter(c.key.settings_for("accuracy") for c in (times[kind].configurations if kind else ()))
    best = max(groups, key=lambda s: (learnt[s], timed[s], len(groups[s]), _best_accuracy(groups[s])), default=())
    aside = [
        SetAside(
            configurations=tuple(configurations),
            reason="accuracy settings",
            facts=tuple(fact for fact in settings if fact not in best),
        )
        for settings, configurations in groups.items()
        if settings != best
    ]
    return groups[best], aside, best if aside else ()


def _best_accuracy(configurations: Sequence[ConfigurationRuns]) -> float:
    return max((c.final_val_accuracy.value for c in configurations if c.final_val_accuracy), default=0.0)


def _epochs(stable: EpochEstimate | None, batch: int, statuses: tuple[str, ...]) -> Iterator[EpochsObservation]:
    if stable is None or stable.status not in statuses or not stable.epoch:
        return
    # The 80 % interval as a standard deviation: its wider side / 1.2816. A lower bound has no upper end.
    ends = [abs(end - stable.epoch) for end in (stable.low, stable.high) if end is not None]
    yield EpochsObservation(global_batch=batch, epochs=stable.epoch, sd=max(ends) / Z_80 if ends else None)


def _accuracy(configuration: ConfigurationRuns, batch: int) -> Iterator[AccuracyObservation]:
    final = configuration.final_val_accuracy
    # A record of others may hold anything; one point of 67 would bend the law for all batches.
    if final is not None and 0 <= final.value <= 1:
        yield AccuracyObservation(global_batch=batch, accuracy=final.value, sd=final.sd)


def _batch_total(configuration: ConfigurationRuns) -> int | None:
    value = value_at(configuration.members[0].run.recipe, "training", "batch_total")
    return value if isinstance(value, int) and value > 0 else None


def _relative(spread: Spread) -> float:
    # 0 for a single run: how far a second one would be away is in the law's own width.
    return spread.sd / spread.value if spread.sd is not None else 0.0


def _median(values: Iterable[float | None]) -> float | None:
    return median(known) if (known := [v for v in values if v is not None]) else None


def _commonest(values: Iterable[int | None]) -> int | None:
    known = Counter(v for v in values if v)
    return known.most_common(1)[0][0] if known else None
