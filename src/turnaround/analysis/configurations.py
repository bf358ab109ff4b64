"""A workload, and each of its configurations with all repeats. Enters: runs of one work. Leaves: figures over them.

What costs time to find out (stable epoch, overfitting, bottleneck) is worked out when first asked for, and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median, mode, stdev
from typing import NamedTuple, TypeVar

from turnaround.analysis.bottleneck import Bottleneck, bottleneck
from turnaround.analysis.compare import Fact
from turnaround.analysis.energy import RunEnergy, energy_to_epoch_wh, epoch_energy_wh, run_energy
from turnaround.analysis.overfit import Overfitting, overfitting
from turnaround.analysis.stable import (
    BAND,
    NO_VERDICT,
    EpochEstimate,
    epochs_to_target,
    stable_epoch,
    stable_over_repeats,
)
from turnaround.analysis.summary import RunSummary
from turnaround.record.reader import Run

Verdict = TypeVar("Verdict", Overfitting, Bottleneck)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """One figure over the repeats of a configuration."""

    value: float
    """The median."""
    low: float
    high: float
    sd: float | None
    """None for a single run."""
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Return median, extremes and standard deviation of the known values; None when none is."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        # The median, which one disturbed repeat does not move; the standard deviation does show it.
        sd = stdev(known) if len(known) > 1 else None
        return cls(value=median(known), low=min(known), high=max(known), sd=sd, count=len(known))


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One combination of what varies within a workload."""

    workers: int
    gpu: str
    """The kind: T4, CPU, or unknown."""
    hosts: int
    processes: int
    global_batch: int | None
    is_rehearsal: bool
    settings: tuple[Fact, ...] = ()
    """The recipe's settings in which the runs of the workload differ, with this configuration's values: mostly none."""

    def settings_for(self, what: str) -> tuple[Fact, ...]:
        """Return the settings that matter for "time" or "accuracy": only configurations that agree in them compare."""
        return tuple(fact for fact in self.settings if fact.matters_for in (what, "both"))


class Member(NamedTuple):
    """One run of a configuration: its figures, and the record they were taken from."""

    summary: RunSummary
    run: Run


@dataclass(frozen=True, kw_only=True)
class ConfigurationRuns:
    """The repeats of one configuration, finished or not.

    Accuracies and job times are those of the finished runs. Times of a rehearsal are never those of its workers, so it
    has none.
    """

    key: Configuration
    """What tells it from the other configurations of the workload."""
    members: tuple[Member, ...] = field(repr=False)

    @property
    def workers(self) -> int:
        return self.key.workers

    @property
    def gpu(self) -> str:
        return self.key.gpu

    @property
    def hosts(self) -> int:
        return self.key.hosts

    @property
    def processes(self) -> int:
        return self.key.processes

    @property
    def global_batch(self) -> int | None:
        return self.key.global_batch

    @property
    def is_rehearsal(self) -> bool:
        return self.key.is_rehearsal

    @property
    def settings(self) -> tuple[Fact, ...]:
        return self.key.settings

    @cached_property
    def summaries(self) -> tuple[RunSummary, ...]:
        return tuple(member.summary for member in self.members)

    @cached_property
    def finished(self) -> tuple[RunSummary, ...]:
        """Return the finished runs."""
        return tuple(summary for summary in self.summaries if summary.state == "finished")

    @cached_property
    def curves(self) -> tuple[Member, ...]:
        """Return the runs whose curve counts: the finished ones; without any, those that have not diverged."""
        finished = tuple(member for member in self.members if member.summary.state == "finished")
        return finished or tuple(member for member in self.members if member.summary.state != "diverged")

    # Times of epochs come from all runs, finished or not: an epoch of a run that was stopped is as long as any other.

    @cached_property
    def epoch_time_s(self) -> Spread | None:
        return self._time(self.summaries, lambda run: run.epoch_time_s)

    @cached_property
    def images_per_s(self) -> Spread | None:
        return self._time(self.summaries, lambda run: run.images_per_s)

    @cached_property
    def job_time_s(self) -> Spread | None:
        return self._time(self.finished, lambda run: run.job_time_s)

    @cached_property
    def step_time_s(self) -> Spread | None:
        """Return epoch time / steps of an epoch: those that were counted, else images / global batch."""
        return Spread.of(None if self.is_rehearsal else _step_time_s(*member) for member in self.members)

    @cached_property
    def final_val_accuracy(self) -> Spread | None:
        return Spread.of(run.final_val_accuracy for run in self.finished)

    @cached_property
    def guessing_accuracy(self) -> float | None:
        """Return the accuracy of always answering the largest class; None where no evaluation counts the classes."""
        return next((run.guessing_accuracy for run in self.finished if run.guessing_accuracy is not None), None)

    @cached_property
    def is_at_chance(self) -> bool:
        """Tell whether every finished run that was held against guessing is no better."""
        held = [run.is_better_than_guessing for run in self.finished if run.is_better_than_guessing is not None]
        return bool(held) and not any(held)

    @cached_property
    def final_train_accuracy(self) -> Spread | None:
        return Spread.of(run.final_train_accuracy for run in self.finished)

    @cached_property
    def num_validation(self) -> int | None:
        return next((run.num_validation for run in self.summaries if run.num_validation), None)

    @cached_property
    def stable(self) -> EpochEstimate:
        """Return the stable epoch over the repeats; as the table states it where there is no curve."""
        return stable_over_repeats([_stable(summary, run) for summary, run in self.curves])

    def to_target(self, target: float | None) -> EpochEstimate | None:
        """Return the epochs to an accuracy, over the repeats; None without a target, or where there is no curve."""
        if target is None:
            return None
        each = [
            epochs_to_target(s.curve.filled().val_accuracy, target, num_validation=s.num_validation)
            for s, _ in self.curves
        ]
        # A curve too short for a verdict says nothing; one that did not get there says at least how many it takes.
        known = [one for one in each if one.status in ("reached", "not reached")]
        return stable_over_repeats(known) if known else None

    @cached_property
    def overfitting(self) -> Overfitting:
        """Return the commonest verdict over the repeats."""
        each = [overfitting(summary.curve, num_validation=summary.num_validation) for summary, _ in self.curves]
        nothing = Overfitting(
            kind="unknown", drop=None, since_epoch=None, p=None, loss_rise_percent=None, gap=None, gap_se=None
        )
        return _commonest(each) or nothing

    @cached_property
    def bottleneck(self) -> Bottleneck | None:
        """Return the commonest verdict over the repeats; None for rehearsals, imports, and where nothing was timed."""
        if self.is_rehearsal:
            return None
        # A table or a log of others has neither spans nor telemetry, so nothing tells what its steps waited for.
        own = (run for summary, run in self.members if not summary.is_imported)
        return _commonest([bottleneck(run) for run in own])

    @cached_property
    def energies(self) -> tuple[RunEnergy, ...]:
        """Return the energy of each run, of a rehearsal too: it is that of this machine, not of its workers."""
        return tuple(run_energy(run) for _, run in self.members)

    @cached_property
    def energy_wh(self) -> Spread | None:
        """Return the watt-hours of the finished runs."""
        return self._energy(lambda member, energy: energy.wh if member.summary.state == "finished" else None)

    @cached_property
    def energy_epoch_wh(self) -> Spread | None:
        """Return the watt-hours of an epoch with its evaluation: the median over a run's epochs."""
        return self._energy(lambda member, energy: epoch_energy_wh(member.run.epochs))

    @cached_property
    def energy_to_stable_wh(self) -> Spread | None:
        """Return the watt-hours from the start to the first epoch of the plateau."""
        epoch = self.stable.epoch if self.stable.status == "stable" else None
        if epoch is None:
            return None
        # Of the runs that the stable epoch was taken from: another one may never have got there.
        return self._energy(
            lambda member, energy: (
                energy_to_epoch_wh(energy, member.run.epochs, epoch) if member in self.curves else None
            )
        )

    @cached_property
    def gpu_watts(self) -> Spread | None:
        """Return the mean power of one GPU over a run."""
        return self._energy(lambda member, energy: energy.watts)

    def _energy(self, read: Callable[[Member, RunEnergy], float | None]) -> Spread | None:
        each = (read(member, energy) for member, energy in zip(self.members, self.energies, strict=True))
        return None if self.is_rehearsal else Spread.of(each)

    def _time(self, runs: Sequence[RunSummary], read: Callable[[RunSummary], float | None]) -> Spread | None:
        known = (value for run in runs if (value := read(run)))  # without 0: a clock that stood still is no time
        return None if self.is_rehearsal else Spread.of(known)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One work, done in several configurations."""

    name: str
    configurations: tuple[ConfigurationRuns, ...]
    """Ordered by kind of GPU and by workers; rehearsals after the real ones."""

    @cached_property
    def target(self) -> float | None:
        """Return the accuracy that every finished configuration has reached: the lowest plateau, less its band.

        Only the epochs to one common accuracy may be multiplied by seconds an epoch to compare configurations: epochs
        to its own plateau reward the one that comes to rest early at a worse level. None when fewer than two
        configurations have curves.
        """
        # T = min over configurations of (level - band); MLPerf compares by epochs to one target as well. A stated
        # stable epoch has no fitted level.
        # One that ended at chance has no plateau that anybody wants to reach.
        plateaus = [each.stable for each in self.configurations if each.finished and not each.is_at_chance]
        known = [s.level - s.band for s in plateaus if s.level is not None and s.method in ("smooth", "isotonic")]
        return min(known) if len(known) > 1 else None

    @property
    def members(self) -> Iterator[Member]:
        """Return every run, in the order of the configurations."""
        return (member for each in self.configurations for member in each.members)


def _step_time_s(summary: RunSummary, run: Run) -> float | None:
    # As the last epoch counted them; else by the batch, with the smaller step at the end of an epoch.
    steps = next((e.steps for e in reversed(run.epochs) if e.steps), None)
    if steps is None and summary.images_per_epoch and summary.global_batch:
        steps = -(-summary.images_per_epoch // summary.global_batch)
    return summary.epoch_time_s / steps if summary.epoch_time_s is not None and steps else None


def _stable(summary: RunSummary, run: Run) -> EpochEstimate:
    measured = stable_epoch(summary.curve.filled().val_accuracy, num_validation=summary.num_validation)
    told = run.imported.epochs_to_stable if run.imported else None
    # A curve goes before what somebody has read off it.
    if told is None or measured.status not in NO_VERDICT:
        return measured
    return EpochEstimate(
        status="stable",
        epoch=told,
        low=None,
        high=None,
        level=summary.final_val_accuracy,
        band=BAND,
        noise=None,
        method="stated",
    )


def _commonest(verdicts: Sequence[Verdict]) -> Verdict | None:
    """Return the first verdict of the commonest kind; "unknown" counts only where there is no other."""
    known = [verdict for verdict in verdicts if verdict.kind != "unknown"]
    if not known:
        return verdicts[0] if verdicts else None
    # One run's verdict as a whole: figures of several runs would not belong together.
    kind = mode(verdict.kind for verdict in known)
    return next(verdict for verdict in known if verdict.kind == kind)
