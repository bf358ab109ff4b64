"""Remarks on a forecast, as kinds with their figures.

Forecasts make no sentences: turnaround.findings.forecasts has the words for each of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from turnaround.analysis.bottleneck import Bottleneck
from turnaround.analysis.compare import Fact
from turnaround.analysis.configurations import ConfigurationRuns
from turnaround.analysis.gpu_kinds import GpuKind
from turnaround.analysis.times_in_doubt import ImpossibleSpeed, RunsTogether

Unit = Literal["step", "epoch"]
"""Unit that a law of time was measured in."""

# --- what the laws say of themselves


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """The reason why a parameter was not identified by the data."""

    reason: Literal[
        "one count",
        "two counts",
        "one count of epochs",
        "no overhead",
        "noise scale",
        "typical critical batch",
        "typical fall",
    ]
    counts: tuple[int, ...] = ()
    """The different numbers of processes that were measured."""
    noise_scale: float | None = None
    """Gradient noise scale in images; with its factor either way."""
    factor: float | None = None
    fall: float | None = None
    """Accuracy lost for each doubling of the batch."""


@dataclass(frozen=True, kw_only=True)
class Exclusion:
    """A time that was not learnt from: it and another one are more than linear apart."""

    processes: int
    time_s: float
    against_processes: int
    against_time_s: float
    efficiency: float
    """Efficiency of the larger count against the smaller: above 1."""
    unit: Unit


DoubtKind = Literal["same time", "slower than fewer", "too slow", "lost at once"]


@dataclass(frozen=True, kw_only=True)
class DoubtfulTime:
    """A time that hardly can be what it is called."""

    kind: DoubtKind
    processes: int
    against_processes: int
    factor: float
    """Throughput against that of the other count; for "too slow", the time against what the smaller counts say."""


@dataclass(frozen=True, kw_only=True)
class RepeatsApart:
    """Runs of one configuration whose times differ by far more than noise."""

    configuration: ConfigurationRuns
    least_s: float
    most_s: float


@dataclass(frozen=True, kw_only=True)
class TooFast:
    """A configuration that is more than linearly faster than a smaller one, and both were learnt from."""

    smaller: ConfigurationRuns
    larger: ConfigurationRuns
    speedup: float


@dataclass(frozen=True, kw_only=True)
class SharedHosts:
    """Runs learnt from that were on one host at the same time."""

    pairs: tuple[RunsTogether, ...]


@dataclass(frozen=True, kw_only=True)
class ImpossibleTimes:
    """Runs learnt from that would be faster than any training."""

    found: tuple[ImpossibleSpeed, ...]


@dataclass(frozen=True, kw_only=True)
class JobTooShort:
    """The epochs of a run are longer together than the job that they are in, so one of the two is wrong."""

    configuration: ConfigurationRuns
    run: str
    epochs_s: float
    job_s: float


@dataclass(frozen=True, kw_only=True)
class FarFromMeasured:
    """The count lies beyond what the law was tested on."""

    processes: int
    factor: float
    counts: tuple[int, ...]
    tested_factor: float


@dataclass(frozen=True, kw_only=True)
class FirstHosts:
    """Several hosts, where only single hosts were measured."""

    hosts: int
    extra_s: float | None
    """An all-reduce between them, in seconds a step; None where the gradients' size is not known."""
    bytes_per_s: float
    """Bandwidth of the network between them: what was told, else that of a slow one."""
    is_network_known: bool = False


@dataclass(frozen=True, kw_only=True)
class BatchFarFromRun:
    """The global batch lies beyond what the law was tested on."""

    batch: int
    largest: int
    tested_factor: float


@dataclass(frozen=True, kw_only=True)
class BatchesClose:
    """The batches that were run are too near one another to tell a slope."""

    smallest: int
    largest: int


Caution = FarFromMeasured | FirstHosts | BatchFarFromRun | BatchesClose

# --- what the observations say


@dataclass(frozen=True, kw_only=True)
class SetAside:
    """Configurations that cannot be compared with the rest."""

    configurations: tuple[ConfigurationRuns, ...]
    reason: Literal["shared GPU", "mixed devices", "time settings", "accuracy settings"]
    facts: tuple[Fact, ...] = ()
    """The settings they differ in."""


@dataclass(frozen=True, kw_only=True)
class FasterGpuNoFaster:
    """A kind of GPU with more bandwidth took as long as one with less: the input was the limit of both."""

    fast: ConfigurationRuns
    slow: ConfigurationRuns
    bandwidth_ratio: float
    images_per_s: float | None
    grown: ConfigurationRuns | None = None
    """A configuration of more workers that had more images/s all the same: the limit is one of each worker."""
    is_capped: bool = False
    """True where what a host can give is told or was measured, so that the forecast lets it grow no further."""


@dataclass(frozen=True, kw_only=True)
class WaitsForInput:
    """The bottleneck verdict of a run names its input path."""

    bottleneck: Bottleneck


InputBound = FasterGpuNoFaster | WaitsForInput

# --- what a prediction adds


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Something that no run tells, so that a figure is missing or incomplete."""

    what: Literal["times", "fixed overhead", "images", "batch", "accuracy", "energy"]


@dataclass(frozen=True, kw_only=True)
class NotPriced:
    """The user's table has prices, and none of the kind that was asked for."""

    gpu: str
    priced: tuple[str, ...]


InputLimitSource = Literal["measured", "told", "seen"]
"""Measured alone, told by somebody, or seen in runs that more workers did not make faster."""


@dataclass(frozen=True, kw_only=True)
class InputLimitReached:
    """The measured limit of a host's input path decides the time."""

    images_per_s: float
    source: InputLimitSource = "measured"


@dataclass(frozen=True, kw_only=True)
class InputLimitBeaten:
    """A run read more images/s on each host than the limit that was told, or measured alone, allows."""

    limit: float
    source: InputLimitSource
    configuration: ConfigurationRuns
    images_per_s: float


@dataclass(frozen=True, kw_only=True)
class MoreProcessesThanCores:
    """Processes on CPUs would share cores."""

    cores: int


@dataclass(frozen=True, kw_only=True)
class CoresInUse:
    """Processes on CPUs would share the cores that the threads of the measured ones have used."""

    cores: int
    measured: int
    """Processes of the runs."""
    workers: int


@dataclass(frozen=True, kw_only=True)
class OneCountTimed:
    """The growth of times comes from published series alone (the prior)."""

    workers: int


@dataclass(frozen=True, kw_only=True)
class NotMeasuredGpu:
    """The time was carried over from another kind of GPU, or another precision."""

    gpu: str | None
    """None: the kind was measured."""
    precision: str | None = None
    """None: the precision was measured."""


@dataclass(frozen=True, kw_only=True)
class NoStableEpoch:
    """No run says when its accuracy became stable."""

    at_least: float | None
    """The epochs that the longest run has not been enough for; None where no run tells even that."""


@dataclass(frozen=True, kw_only=True)
class TargetNotSeen:
    """No curve reaches the accuracy that was asked for."""

    target: float


Warning_ = (
    SetAside
    | Exclusion
    | DoubtfulTime
    | RepeatsApart
    | Caution
    | InputBound
    | InputLimitReached
    | InputLimitBeaten
    | ImpossibleTimes
    | JobTooShort
    | TooFast
    | SharedHosts
    | Missing
    | NotPriced
    | MoreProcessesThanCores
    | CoresInUse
    | OneCountTimed
    | NotMeasuredGpu
    | NoStableEpoch
    | TargetNotSeen
)


@dataclass(frozen=True, kw_only=True)
class TimesBasis:
    """The configurations whose times were learnt from."""

    unit: Unit
    configurations: tuple[ConfigurationRuns, ...]


@dataclass(frozen=True, kw_only=True)
class DataSheetBasis:
    """Two data sheets."""

    source: GpuKind
    destination: GpuKind
    precision: str
    target_precision: str
    speed_ratio: float


@dataclass(frozen=True, kw_only=True)
class BatchesBasis:
    """The global batches that a law of the batch was learnt from."""

    what: Literal["epochs to stable", "final accuracies"]
    batches: tuple[int, ...]
    rehearsed: int
    """Number of them that were run on fewer devices than workers only."""


Basis = TimesBasis | DataSheetBasis | BatchesBasis


@dataclass(frozen=True, kw_only=True)
class MostMeasuredKind:
    """No kind of GPU was asked for: the one with most counts was taken."""

    gpu: str
    others: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SettingsKept:
    """Several settings were run: those of the runs learnt from were taken."""

    facts: tuple[Fact, ...]


@dataclass(frozen=True, kw_only=True)
class HostsAsInRuns:
    """A host is taken to hold as many workers as the runs had at most."""

    hosts: int
    workers_each: int


@dataclass(frozen=True, kw_only=True)
class HostsAsTold:
    """A host holds as many workers as somebody has said."""

    hosts: int
    workers_each: int
    source: str | None
    """The cluster that was asked, in words; "record" for GPUs that runs saw on their host; None: the user."""


@dataclass(frozen=True, kw_only=True)
class OneHost:
    """More workers than any run had, taken as standing on one host."""

    most_workers: int


@dataclass(frozen=True, kw_only=True)
class HostsOfUsualSize:
    """More workers than any run had on one host, taken as standing on hosts of the usual size."""

    hosts: int
    workers_each: int


@dataclass(frozen=True, kw_only=True)
class OtherBatch:
    """A batch per worker that no run had."""

    batch: int
    measured: int | None


Assumption = OtherBatch | MostMeasuredKind | SettingsKept | HostsAsInRuns | HostsAsTold | HostsOfUsualSize | OneHost


@dataclass(frozen=True, kw_only=True)
class Remarks:
    """All of them for one prediction."""

    basis: tuple[Basis, ...] = ()
    warnings: tuple[Warning_, ...] = ()
    assumed: tuple[Assumption, ...] = ()
    pinned: tuple[tuple[str, str, Pinned], ...] = ()
    """(law, parameter, what stands in for it): ("time", "c1", ...) and the like."""
