"""A question about a configuration -> a `Prediction`: the figures, what they rest on, and what was assumed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from turnaround.analysis.configurations import ConfigurationRuns, Spread, Workload
from turnaround.analysis.gpu_kinds import kind_of
from turnaround.analysis.prices import Price
from turnaround.analysis.workloads import Survey
from turnaround.errors import InputError
from turnaround.forecast.caveats import Caveats
from turnaround.forecast.energy import electricity_cost, emissions_kg, energy_wh, watts_of_gpu
from turnaround.forecast.hardware import sheet_of, speed_ratio
from turnaround.forecast.interval import Interval
from turnaround.forecast.laws import Asked, Laws, epochs_planned, fit_laws
from turnaround.forecast.observations import Observations, Times, kinds_by_counts, observe
from turnaround.forecast.preemption import with_interruptions
from turnaround.forecast.question import Against, Prediction, Question
from turnaround.forecast.remarks import (
    Assumption,
    Basis,
    BatchesBasis,
    DataSheetBasis,
    HostsAsInRuns,
    HostsAsTold,
    HostsOfUsualSize,
    Missing,
    MostMeasuredKind,
    NotPriced,
    OneHost,
    OtherBatch,
    Remarks,
    SettingsKept,
    TimesBasis,
    Warning_,
)
from turnaround.forecast.turnaround import (
    TurnaroundParts,
    job_time,
    measured_time_to_stable,
    price_interval,
)

GPUS_PER_HOST, MAX_GPUS_PER_HOST = 8, 16
"""GPUs of a usual host, and of the largest (DGX-2, p2.16xlarge): more are never taken as standing on one host."""


@dataclass(frozen=True, kw_only=True)
class Forecaster:
    """The laws of the job that answers a question; asked again for other numbers of workers."""

    job: Workload
    question: Question
    laws: Laws
    assumed: tuple[Assumption, ...]

    def predict(self, workers: int) -> Prediction:
        """Forecast all figures, without the next run to do, which forecast/next_run.py adds."""
        return with_interruptions(self._undisturbed(workers), self.laws, self.question)

    def _undisturbed(self, workers: int) -> Prediction:
        hosts, assumed = self._hosts(workers)
        laws, question = self.laws, self.question
        parts, seen = laws.parts(workers, hosts), laws.observations
        epochs, accuracy = laws.at_batch(laws.epochs, workers), laws.at_batch(laws.accuracy, workers)
        # Three ends of one job: all epochs of the recipe, the plateau, the target. Each has its own number of epochs,
        # which may be unknown while the others are known.
        to_target, all_epochs = laws.at_batch(laws.to_target, workers), epochs_planned(seen)
        job_s = job_time(parts, all_epochs) if parts and all_epochs else None
        measured = self._measured(workers)
        stable_s = job_time(parts, epochs) if parts and epochs else None
        watts, rates, price = self._watts(workers, hosts), question.rates, question.price_of(laws.gpu)
        job_wh = energy_wh(job_s, watts, workers=workers)
        missing: tuple[Warning_, ...] = (Missing(what="energy"),) if rates.is_given and job_wh is None else ()
        # The table is read without being asked for: whoever trains on processors need not hear of GPUs' prices.
        if price is None and question.prices and job_s is not None and laws.gpu != "CPU":
            missing = (*missing, NotPriced(gpu=laws.gpu, priced=tuple(sorted(question.prices))))
        return Prediction(
            job=self.job.name,
            workers=workers,
            gpu=laws.gpu,
            processes=workers,
            hosts=hosts,
            global_batch=laws.global_batch(workers),
            epochs_planned=seen.epochs_planned,
            images_per_s=laws.images_per_s(workers, hosts),
            epoch_time_s=parts.epoch_s if parts else None,
            epochs_to_stable=epochs,
            time_to_stable_s=stable_s,
            job_time_s=job_s,
            cost=price_interval(job_s, price, workers=workers),
            cost_to_stable=price_interval(stable_s, price, workers=workers),
            currency=price.currency if price else None,
            energy_wh=job_wh,
            energy_to_stable_wh=energy_wh(stable_s, watts, workers=workers),
            electricity_cost=electricity_cost(job_wh, rates),
            emissions_kg=emissions_kg(job_wh, rates),
            val_accuracy=accuracy,
            reaches_stable=epochs.value <= all_epochs.value if epochs and all_epochs else None,
            epochs_to_target=to_target,
            time_to_target_s=job_time(parts, to_target) if parts and to_target else None,
            reaches_target=accuracy.value >= question.target if accuracy and question.target else None,
            kind="estimate from data sheets" if laws.is_carried_over else "measured" if measured else "forecast",
            measured=measured,
            remarks=Remarks(
                basis=tuple(_basis(laws)),
                warnings=(*Caveats(job=self.job, laws=laws, target=question.target).of(workers, hosts), *missing),
                assumed=(*self.assumed, *_settings(seen), *assumed),
                pinned=laws.pinned(),
            ),
            leave_one_out=dict(laws.time.leave_one_out_) if laws.time else {},
            against=self._against(workers, parts, epochs),
        )

    def _watts(self, workers: int, hosts: int) -> Interval | None:
        """Return the power of one GPU; None where no run on this kind has measured it."""
        laws = self.laws
        runs = laws.times.configurations if laws.times is not None and not laws.is_carried_over else ()
        pace = laws.images_per_s(workers, hosts)
        return watts_of_gpu(runs, workers=workers, images_per_s=pace.value if pace else None)

    def _against(self, workers: int, parts: TurnaroundParts | None, epochs: Interval | None) -> Against | None:
        """Compare with the most workers that were run on this kind of GPU, where more are asked for."""
        laws, all_epochs = self.laws, epochs_planned(self.laws.observations)
        most = max((c.workers for c in laws.times.configurations), default=0) if laws.times else 0
        if parts is None or laws.is_carried_over or not 0 < most < workers:
            return None
        there, epochs_there = laws.parts(most, self._hosts(most)[0]), laws.at_batch(laws.epochs, most)
        # Both to a stable accuracy or both to the end: times to two goals have no difference.
        here_epochs, there_epochs = (epochs, epochs_there) if epochs and epochs_there else (all_epochs, all_epochs)
        if there is None or here_epochs is None or there_epochs is None:
            return None
        is_to_stable = here_epochs is epochs
        # The smaller side was run, so its measurement goes before the law; the larger one never was.
        seen = self._measured(most).get("time_to_stable_s" if is_to_stable else "job_time_s")
        time_s = seen.value if seen is not None else job_time(there, there_epochs).value
        return Against(
            workers=most,
            time_s=time_s,
            saved_s=time_s - job_time(parts, here_epochs).value,
            is_to_stable=is_to_stable,
            is_measured=seen is not None,
        )

    def _hosts(self, workers: int) -> tuple[int, tuple[Assumption, ...]]:
        """Return the hosts asked for; else by the GPUs on each, as they are told, as runs had them where they were on
        several, or as runs saw more of them than they used; else those of the usual size."""
        question = self.question
        if question.hosts is not None:
            return min(question.hosts, workers), ()
        if question.gpus_per_host is not None:
            return _told_hosts(workers, question.gpus_per_host, question.cluster)
        configurations = self.laws.times.configurations if self.laws.times else ()
        several = [c.key for c in configurations if c.hosts > 1]
        if several:
            # The fullest of them: a run whose last host was not full shows fewer workers a host than there is room for.
            each = max(math.ceil(c.workers / c.hosts) for c in several)
            hosts = math.ceil(workers / each)
            return hosts, (HostsAsInRuns(hosts=hosts, workers_each=each),)
        most = max((c.workers for c in configurations), default=0)
        # From here on every run was on one host: as many workers as any of them had fit on one.
        if not configurations or workers <= most:
            return 1, ()
        # The hosts of another kind of GPU may have another number of them.
        seen = 0 if self.laws.is_carried_over else max(map(gpus_seen, configurations))
        if seen > most:
            return _told_hosts(workers, seen, "record")
        # Too many processes for the cores of one host are a warning (MoreProcessesThanCores), never a second host.
        if self.laws.gpu == "CPU" or workers <= MAX_GPUS_PER_HOST:
            return 1, (OneHost(most_workers=most),)
        # A run with more than eight on one host has shown that its hosts are larger.
        each = max(most, GPUS_PER_HOST)
        hosts = math.ceil(workers / each)
        return hosts, (HostsOfUsualSize(hosts=hosts, workers_each=each),)

    def _measured(self, workers: int) -> dict[str, Spread]:
        # Where nothing was said of hosts, None: a run of so many workers is a measurement on whatever hosts it was.
        hosts = self.question.hosts if self.question.gpus_per_host is None else self._hosts(workers)[0]
        configuration = measured_configuration(self.laws, workers, hosts)
        if configuration is None:
            return {}
        found = measured_figures(configuration, self.question.price_of(self.laws.gpu), self.laws.times)
        # A trial of three epochs has timed the steps of the job that is asked about, and nothing else of it.
        is_other_training = _is_set_aside(configuration, self.laws)
        return {name: found[name] for name in found if name in OF_STEPS or not is_other_training}


def _told_hosts(workers: int, each: int, source: str | None) -> tuple[int, tuple[Assumption, ...]]:
    hosts = math.ceil(workers / each)
    return hosts, (HostsAsTold(hosts=hosts, workers_each=each, source=source),)


def gpus_seen(configuration: ConfigurationRuns) -> int:
    """Return the GPUs that a host of our own runs had, whether they used them or not; 0 where the record has none. A
    table has as many as workers, which says nothing of the host."""
    own = (run for summary, run in configuration.members if not summary.is_imported and summary.hosts == 1)
    counts = [len(gpus) for run in own if isinstance(gpus := run.machine.get("gpus"), list)]
    return max(counts, default=0)


def fit_forecaster(survey: Survey, question: Question) -> Forecaster:
    """Return the job that can answer, with its laws; InputError lists the jobs where that is not one."""
    # The batch first: it decides which runs are observed at all, and with them kinds, laws and assumptions.
    job = _with_batch(_job(survey, question), question.batch_per_worker)
    seen = observe(job, target=question.target, gpu=kind_of(question.gpu) if question.gpu else None)
    measured_on, assumed = _measured_on(seen, question)
    # Without any time the kind is only a name: epochs and accuracies do not depend on it.
    gpu = kind_of(question.gpu) if question.gpu else measured_on or _any_gpu(job)
    asked = Asked(
        precision=question.precision,
        batch_per_worker=question.batch_per_worker,
        input_images_per_s=question.input_limit,
        # GB/s on the command line, bytes/s in the laws.
        inter_host_bytes_per_s=None if question.network is None else question.network * 1e9,
    )
    laws = fit_laws(seen, measured_on=measured_on, gpu=gpu, asked=asked)
    if laws.is_carried_over and measured_on is not None:
        # From processors to processors only a change of precision is carried over, and no sheet has their rates.
        if measured_on == gpu == "CPU":
            raise _no_precision_on_processors(laws)
        for kind in (measured_on, gpu):
            sheet_of(kind)  # raises for a kind without a data sheet
    if laws.time is None and laws.epochs is None and laws.accuracy is None:
        raise InputError(
            f"The runs of {job.name!r} have neither times nor epochs nor accuracies to learn from (the last two need "
            "the batch as well): wait until a run has finished, train one, or complete the table that was imported."
        )
    if question.batch_per_worker not in (None, seen.batch_per_worker) and laws.times is not None:
        batches = OtherBatch(batch=question.batch_per_worker or 0, measured=seen.batch_per_worker)
        assumed = (*assumed, batches)
    return Forecaster(job=job, question=question, laws=laws, assumed=assumed)


def _no_precision_on_processors(laws: Laws) -> InputError:
    assert laws.times is not None, "only a time is carried over"
    return InputError(
        f"These runs computed on processors in {laws.times.precision}, and no data sheet tells how fast "
        f"{laws.asked.precision} is there. Leave --precision out, or train one epoch in it "
        f"(turnaround train SOURCE --set training.precision={laws.asked.precision}) and ask about that run."
    )


def _with_batch(job: Workload, batch_per_worker: int | None) -> Workload:
    """Return the job with the runs of this batch per worker alone, where there are times of such runs."""
    # What runs of this batch have measured needs no law of the batch.
    own = [c for c in job.configurations if c.global_batch == c.workers * (batch_per_worker or 0)]
    return replace(job, configurations=tuple(own)) if any(c.epoch_time_s is not None for c in own) else job


def _job(survey: Survey, question: Question) -> Workload:
    part = (question.job or "").strip().lower()
    named = [(job.name.lower(), job) for job in survey.workloads]
    # The exact name first: it may be the beginning of another's.
    jobs = (
        # Without --job the part is empty, and every name begins with it.
        [job for name, job in named if name == part]
        or [job for name, job in named if name.startswith(part)]
        or [job for name, job in named if part in name]
    )
    # By repr: a name comes from a file of others, and may hold what a terminal obeys.
    listed = "; ".join(f"{job.name!r} ({_kinds_in_words(job)})" for job in survey.workloads)
    if not jobs and survey.workloads:
        raise InputError(f"No job is called {question.job!r}. The jobs here: {listed}.")
    if not jobs:
        damaged = "; ".join(f"{left.directory}: {left.error}" for left in survey.left_out[:3])
        raise InputError(f"No run can be read here, so there is nothing to learn from. {damaged}")
    if len(jobs) > 1 and question.gpu:
        # Only where the name leaves several does the kind choose: a job that was timed on it needs no data sheet.
        timed = [job for job in jobs if kind_of(question.gpu) in _timed_kinds(job)]
        if not timed:
            sheet_of(question.gpu)  # a kind that nobody knows is the first thing to say
        jobs = timed or jobs
    if len(jobs) > 1:
        raise InputError(f"Several jobs could answer: {listed}. Choose one with --job NAME (a part of it is enough).")
    return jobs[0]


def _timed_kinds(job: Workload) -> list[str]:
    return sorted({c.gpu for c in job.configurations if c.epoch_time_s is not None})


def _kinds_in_words(job: Workload) -> str:
    kinds = _timed_kinds(job)
    return f"timed on {' and '.join(kinds)}" if kinds else "no times"


def _measured_on(seen: Observations, question: Question) -> tuple[str | None, tuple[Assumption, ...]]:
    """Return the kind of GPU to learn times from: the one asked for, else the one with most counts."""
    if question.gpu and kind_of(question.gpu) in seen.times:
        return kind_of(question.gpu), ()
    kinds = kinds_by_counts(seen.times)
    if not kinds:
        return None, ()
    # A choice among several kinds is ours, not the user's, so it is told as an assumption.
    is_chosen = question.gpu is None and len(kinds) > 1
    return kinds[0], (MostMeasuredKind(gpu=kinds[0], others=tuple(kinds[1:])),) if is_chosen else ()


def _any_gpu(job: Workload) -> str:
    return job.configurations[0].gpu if job.configurations else "unknown"


OF_STEPS = ("images_per_s", "epoch_time_s")
"""The figures that a training of other epochs, schedule or variations measures as well."""


def measured_configuration(laws: Laws, workers: int, hosts: int | None) -> ConfigurationRuns | None:
    """Return the real runs of this very configuration."""
    is_other_batch = laws.asked.batch_per_worker not in (None, laws.observations.batch_per_worker)
    if laws.times is None or laws.is_carried_over or is_other_batch:
        return None
    same = [c for c in laws.times.configurations if c.workers == workers and hosts in (None, c.hosts)]
    # Of the settings whose epochs and accuracies were learnt from, where there are such runs.
    return min(same, key=lambda configuration: _is_set_aside(configuration, laws), default=None)


def _is_set_aside(configuration: ConfigurationRuns, laws: Laws) -> bool:
    """Tell whether epochs and accuracies of these runs are those of other settings than were learnt from."""
    aside = [each for each in laws.observations.set_aside if each.reason == "accuracy settings"]
    return any(configuration.key == other.key for each in aside for other in each.configurations)


def measured_figures(
    configuration: ConfigurationRuns, price: Price | None = None, times: Times | None = None
) -> dict[str, Spread]:
    """Return the measurements of a configuration, by the names of a prediction's figures; unknown ones are left out.
    `times`: those it is among, for the time to stable."""
    to_stable_s = measured_time_to_stable(times, configuration) if times is not None else None
    stable = configuration.stable
    # Less the queue: how long a job waits is the cluster's, and no forecast of the job has it.
    job_s = Spread.of(
        None if run.job_time_s is None else run.job_time_s - run.turnaround_parts_s.get("queue", 0.0)
        for run in configuration.finished
    )
    # One value: `stable` has joined the repeats already. A lower bound ("not yet stable") is no measurement.
    epochs = Spread.of([stable.epoch] if stable.status == "stable" else [])
    found = {
        "images_per_s": configuration.images_per_s,
        "epoch_time_s": configuration.epoch_time_s,
        "epochs_to_stable": epochs,
        "time_to_stable_s": Spread.of([] if to_stable_s is None else [to_stable_s.value]),
        "job_time_s": job_s,
        "cost": _cost(job_s, configuration, price),
        "cost_to_stable": _cost(to_stable_s, configuration, price),
        "energy_wh": configuration.energy_wh,
        "energy_to_stable_wh": configuration.energy_to_stable_wh,
        "val_accuracy": configuration.final_val_accuracy,
    }
    return {name: spread for name, spread in found.items() if spread is not None}


def _cost(time_s: Spread | Interval | None, configuration: ConfigurationRuns, price: Price | None) -> Spread | None:
    if time_s is None or price is None:
        return None
    return Spread.of([price.cost(time_s.value, devices=configuration.workers)])


def _basis(laws: Laws) -> Iterator[Basis]:
    if laws.time is not None and laws.times is not None:
        # What the law has set aside, as faster than linear scaling allows, taught it nothing: it is no basis.
        aside = {o.processes for o in laws.time.set_aside_}
        kept = tuple(c for c in laws.times.configurations if c.workers not in aside)
        yield TimesBasis(unit=laws.time.unit, configurations=kept)
        if laws.is_carried_over:
            yield _data_sheets(laws, laws.times)
    seen = laws.observations
    if laws.epochs is not None:
        # The law's own observations: lower bounds that its second fit took in (laws.py) are among them.
        yield _batches("epochs to stable", [o.global_batch for o in laws.epochs.observations_], seen)
    if laws.accuracy is not None:
        yield _batches("final accuracies", [o.global_batch for o in seen.accuracies], seen)


def _data_sheets(laws: Laws, times: Times) -> DataSheetBasis:
    source, destination = sheet_of(times.gpu), sheet_of(laws.gpu)
    precision = laws.asked.precision or times.precision
    ratio = speed_ratio(source, destination, precision=times.precision, target_precision=precision)
    return DataSheetBasis(
        source=source,
        destination=destination,
        precision=times.precision,
        target_precision=precision,
        speed_ratio=ratio.value,
    )


def _batches(
    what: Literal["epochs to stable", "final accuracies"], batches: Sequence[int], seen: Observations
) -> BatchesBasis:
    configurations = [c for c in seen.learned_from if c.global_batch in batches]
    real = {configuration.global_batch for configuration in configurations if not configuration.is_rehearsal}
    # A batch that was both rehearsed and really run counts as run.
    rehearsed = len({configuration.global_batch for configuration in configurations} - real)
    return BatchesBasis(what=what, batches=tuple(sorted(batches)), rehearsed=rehearsed)


def _settings(seen: Observations) -> tuple[Assumption, ...]:
    return (SettingsKept(facts=seen.settings),) if seen.settings else ()
