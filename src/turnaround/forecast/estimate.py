"""An answer from zero runs: a few seconds of measurement on this machine -> time, memory and money on others.

    this machine has a GPU   its own step, carried over to other kinds by data sheets (forecast/hardware.py)
    it has none              the law of counted bytes and FLOPs (forecast/prior.py); a processor's speed says nothing of
                             a GPU's
    this machine itself      as measured
    more workers             the law of published series from one count (forecast/scaling.py)
    epochs                   a share of those planned, and the law of the global batch (forecast/epochs.py)

Enters: a `TrialFacts` measurement and an `EstimateQuestion`. Leaves: an `Estimate` for each kind and count, and the
choices among them; narrowing.py has the one run that would narrow them most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from turnaround.analysis.energy import EnergyRates
from turnaround.analysis.gpu_kinds import data_sheet, kind_of
from turnaround.analysis.prices import Price, PriceTable
from turnaround.errors import InputError
from turnaround.forecast import prior
from turnaround.forecast.energy import START_POWER, board_watts, electricity_cost, emissions_kg, energy_wh
from turnaround.forecast.hardware import sheet_of, speed_ratio
from turnaround.forecast.interval import Interval
from turnaround.forecast.prior import MemoryNeed, NetworkCount
from turnaround.forecast.question import Prediction
from turnaround.forecast.step_time import StepObservation, StepTime
from turnaround.forecast.time_law import Deployment
from turnaround.forecast.turnaround import (
    NEAR_FASTEST,
    TurnaroundParts,
    gpu_hours,
    job_time,
    price_interval,
)

CPU = "CPU"
GPUS_PER_HOST = 8
HERE_HALF_WIDTH = 0.25
"""80 % half-width of the logarithm of an epoch's time on the GPU that was measured, besides the spread of the
measurement's own rounds. A judgement; five runs on an H200 lay within 0.18 (docs/LOG.md, 2026-11-18)."""
START_UP_HALF_WIDTH = 0.4
"""The same of a start-up: files are read from memory the second time, and from a busy disk at others. A judgement."""
SHARED_HALF_WIDTH = 1.0
"""The same on processors. Three trials and runs on two cores shared with others (a load of 25) were apart by factors of
3.0, 2.5 and 1.1: other work comes and goes between a trial and a run (docs/LOG.md)."""
MORE_PROCESSES_HALF_WIDTH = 0.25
"""The same for several processes on the cores where one was measured."""


@dataclass(frozen=True, kw_only=True)
class TrialFacts:
    """What a few seconds on this machine have told of a training."""

    job: str
    network: NetworkCount
    num_train: int
    num_validation: int
    batch: int
    """Images of a worker in each step."""
    trial_batch: int | None = None
    """Those of the trial, where this machine has not the memory for as many; None: as many."""
    epochs: int
    gradient_bytes: float
    device: str
    """The kind of GPU that was measured; CPU for processors."""
    precision: str
    """The precision that was measured."""
    gpu_precision: str
    """The precision that GPUs would compute in."""
    images_per_s: Interval
    """Training on one process: the median over rounds, and its extremes."""
    decode_images_per_s: float
    backbone_images_per_s: Interval | None = None
    """The one pass of a frozen backbone whose features are kept; None for other networks."""
    cores: int
    half_width: float | None = None
    """80 % half-width of the logarithm of that rate, besides its extremes; None: that of a trial."""
    training_watts: float | None = None
    """Power of the GPU that was measured, while it trained; None where it has no counter, and for processors."""
    start_up_s: float | None = None
    """From the command to the first step, without the images; None where nobody has measured it."""

    @property
    def is_smaller(self) -> bool:
        """True where the trial had fewer images in a step than are asked about."""
        return self.trial_batch is not None and self.trial_batch < self.batch


@dataclass(frozen=True, kw_only=True)
class EstimateQuestion:
    """Kinds and counts to estimate. Checked against the images by `estimate_all`."""

    gpus: tuple[str, ...]
    workers: tuple[int, ...]
    prices: PriceTable = field(default_factory=PriceTable)
    rates: EnergyRates = field(default_factory=EnergyRates)
    """What was said of the electricity."""
    gpus_per_host: int = GPUS_PER_HOST
    network: float | None = None
    """GB/s that an all-reduce gets between hosts; None: not known."""
    cluster_gpus_per_host: Mapping[str, int] = field(default_factory=dict)
    """By kind, of those that a cluster was asked about: they go before `gpus_per_host`."""
    queued_gpus: tuple[str, ...] = ()
    """The kinds whose queue is asked for."""

    def hosts(self, kind: str, workers: int) -> int:
        """Return the hosts of so many workers; processors are those of this machine."""
        return 1 if kind == CPU else math.ceil(workers / self.cluster_gpus_per_host.get(kind, self.gpus_per_host))

    def __post_init__(self) -> None:
        for gpu in self.gpus:
            if kind_of(gpu) != CPU:
                sheet_of(gpu)  # raises for a kind that nobody has described
        if self.gpus_per_host < 1:
            raise InputError(f"--gpus-per-host must be 1 or more, received {self.gpus_per_host}.")
        if self.network is not None and not (self.network > 0 and math.isfinite(self.network)):
            raise InputError(f"--network must be above 0 (GB/s between hosts), received {self.network:g}.")


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One kind of GPU with one number of workers."""

    prediction: Prediction
    memory: MemoryNeed
    price: Price | None = None

    @property
    def paid(self) -> float | None:
        """What is paid to a stable accuracy: money where the price is known, else GPU-hours."""
        p = self.prediction
        if p.time_to_stable_s is None:
            return None
        return gpu_hours(p.time_to_stable_s.value, p.workers) if p.cost_to_stable is None else p.cost_to_stable.value


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The best among the estimates whose step fits, by their values."""

    fastest: Estimate
    cheapest: Estimate | None
    """None for several kinds whose prices are not all known: they cannot be compared."""
    near_fastest: Estimate
    """The cheapest within a tenth of the fastest; of its own kind where not all prices are known."""
    is_priced: bool


def most_workers(*, num_train: int, batch: int) -> int:
    """Return the most workers that the images allow: an epoch has one full step of all of them at least."""
    return max(num_train // batch, 1)


def counts_allowed(workers: Sequence[int], *, num_train: int, batch: int) -> list[int]:
    """Return the numbers of workers that the images allow; InputError where they allow none."""
    most = most_workers(num_train=num_train, batch=batch)
    counts = [n for n in workers if n <= most]
    if not counts:
        raise InputError(
            f"{workers[0]:,} workers of {batch} images a step are more than the {num_train:,} training images: an "
            f"epoch would not have a single step. Ask for at most {most:,}, or for fewer images a step (--batch)."
        )
    return counts


def estimate_all(measured: TrialFacts, question: EstimateQuestion) -> list[Estimate]:
    """Return an estimate for each kind and count that the images allow; InputError where they allow none."""
    counts = counts_allowed(question.workers, num_train=measured.num_train, batch=measured.batch)
    return [
        estimate_one(measured, question, kind, n)
        for kind in dict.fromkeys(map(kind_of, question.gpus))
        for n in counts
        if kind != CPU or n <= measured.cores  # more would share the cores
    ]


def estimate_one(measured: TrialFacts, question: EstimateQuestion, kind: str, workers: int) -> Estimate:
    sheet = None if kind == CPU else sheet_of(kind)
    hosts = question.hosts(kind, workers)
    batch, planned = measured.batch, Interval.exact(float(measured.epochs))
    global_batch = batch * workers
    epochs = prior.epochs_to_stable(planned=measured.epochs, batch=batch, global_batch=global_batch)
    # More workers shorten an epoch and need more of them, for their larger global batch: both meet in `job_time`.
    parts = parts_of(measured, question, kind, workers, hosts)
    price = question.prices.of(kind)
    to_stable_s, job_s = job_time(parts, epochs), job_time(parts, planned)
    prediction = Prediction(
        job=measured.job,
        workers=workers,
        gpu=kind,
        processes=workers,
        hosts=hosts,
        global_batch=global_batch,
        epochs_planned=measured.epochs,
        images_per_s=parts.epoch_s.into(measured.num_train),
        epoch_time_s=parts.epoch_s,
        epochs_to_stable=epochs,
        time_to_stable_s=to_stable_s,
        job_time_s=job_s,
        cost=price_interval(job_s, price, workers=workers),
        cost_to_stable=price_interval(to_stable_s, price, workers=workers),
        currency=price.currency if price else None,
        reaches_stable=epochs.value <= measured.epochs,
        kind="forecast" if kind == measured.device else "estimate from data sheets",
    )
    precision = measured.precision if kind == CPU else measured.gpu_precision
    memory = prior.memory_need(measured.network, sheet, batch=batch, precision=precision)
    if kind == CPU and measured.is_smaller:  # it was tried
        memory = replace(memory, fits="no", largest_batch=measured.trial_batch)
    return Estimate(prediction=_with_energy(prediction, measured, question), memory=memory, price=price)


def _with_energy(p: Prediction, measured: TrialFacts, question: EstimateQuestion) -> Prediction:
    """Return the prediction with the energy of its GPUs, its price and its emissions; as it is for processors, whose
    energy nobody measures."""
    if p.gpu == CPU or p.epochs_to_stable is None:
        return p
    # Other kinds are not told by the GPU that is here: what leaves half of a large one idle fills a small one.
    drawn = measured.training_watts if p.gpu == measured.device else None
    watts = board_watts(sheet_of(p.gpu), while_training=drawn)
    # The start counts for less than its time: the GPU waits.
    parts = parts_of(measured, question, p.gpu, p.workers, p.hosts, start_power=START_POWER)
    epochs = Interval.exact(float(measured.epochs)), p.epochs_to_stable
    job, stable = (energy_wh(job_time(parts, each), watts, workers=p.workers) for each in epochs)
    return replace(
        p,
        energy_wh=job,
        energy_to_stable_wh=stable,
        electricity_cost=electricity_cost(job, question.rates),
        emissions_kg=emissions_kg(job, question.rates),
    )


def parts_of(
    measured: TrialFacts,
    question: EstimateQuestion,
    kind: str,
    workers: int,
    hosts: int,
    *,
    start_power: Interval | None = None,
) -> TurnaroundParts:
    """Return the parts of the turnaround; start-up and decoding are those of a first run.

    With `start_power`, the power of a start over that of training, they are the seconds at the power of training.
    """
    steps = math.ceil(measured.num_train / (measured.batch * workers))
    image_s = _image_s(measured, kind)
    alone = _step_alone_s(measured, kind, image_s)
    step_s = _on_more(measured, question, alone, workers, hosts) if kind != CPU else alone.scaled(workers)
    if kind == CPU and workers > 1:  # the cores are shared: a step of N workers takes N times as long
        step_s = prior.joined(step_s, MORE_PROCESSES_HALF_WIDTH)
    seen = prior.evaluation_time_s(measured.network, image_s).scaled(measured.num_validation)
    # GPUs share the validation images; on processors one process has used all cores for them already.
    per_epoch = seen.scaled(1.0 if kind == CPU else 1 / workers)
    fixed = _start_up_s(measured, kind)
    num_images = measured.num_train + measured.num_validation
    # Decoded once, by all cores, behind the start-up; never again where the cache has them. So the lower end has none
    # of it, the value half, and the upper end twice the time at the measured rate.
    decode_s = num_images / measured.decode_images_per_s
    fixed = Interval(value=fixed.value + decode_s / 2, low=fixed.low, high=fixed.high + 2 * decode_s)
    fixed = fixed if start_power is None else fixed.multiplied_by(start_power)
    if measured.network.keeps_features:
        # Training and validation images alike pass the backbone once; after that an epoch is the last layer alone.
        once = _pass_s(measured, kind, image_s).scaled(num_images / (1 if kind == CPU else workers))
        fixed = Interval(value=fixed.value + once.value, low=fixed.low + once.low, high=fixed.high + once.high)
        per_epoch = Interval(value=0.0, low=0.0, high=0.0)  # validation images are in that pass
    checkpoint = prior.CHECKPOINT_S
    return TurnaroundParts(
        epoch_s=step_s.scaled(steps),
        per_epoch_overhead_s=Interval(
            value=per_epoch.value + checkpoint.value,
            low=per_epoch.low + checkpoint.low,
            high=per_epoch.high + checkpoint.high,
        ),
        fixed_overhead_s=fixed,
    )


def _start_up_s(measured: TrialFacts, kind: str) -> Interval:
    """Return the time from the command to the first step: as the trial's own on this machine, else that of others."""
    if kind != measured.device or measured.start_up_s is None:
        return prior.START_UP_S["CPU" if kind == CPU else "GPU"]
    half_width = SHARED_HALF_WIDTH if kind == CPU else START_UP_HALF_WIDTH
    return prior.joined(Interval.exact(measured.start_up_s), half_width)


def _image_s(measured: TrialFacts, kind: str) -> Interval:
    """Return the time of one training image on one device of the kind."""
    here = prior.joined(measured.images_per_s.into(1.0), _here_half_width(measured))
    if kind == measured.device:
        return here
    source = None if measured.device == CPU else data_sheet(measured.device)
    # A processor's speed says nothing of a GPU's, and a GPU without a sheet cannot be compared: then the network's
    # counted bytes and FLOPs decide.
    if source is None:
        return prior.image_time_s(measured.network, sheet_of(kind), precision=measured.gpu_precision)
    # Not from `here`: the ratio brings a half-width of its own, 0.37 of the logarithm (hardware.py), which joins the
    # spread of the rounds in quadrature.
    ratio = speed_ratio(source, sheet_of(kind), precision=measured.precision, target_precision=measured.gpu_precision)
    return measured.images_per_s.into(1.0).divided_by(ratio)


def _pass_s(measured: TrialFacts, kind: str, image_s: Interval) -> Interval:
    """Return the time of one image in the one pass of a backbone whose features are kept: as measured, here."""
    rate = measured.backbone_images_per_s
    if kind == measured.device and rate is not None:
        return prior.joined(rate.into(1.0), _here_half_width(measured))
    return prior.evaluation_time_s(measured.network, image_s)


def _here_half_width(measured: TrialFacts) -> float:
    if measured.half_width is not None:
        return measured.half_width
    return SHARED_HALF_WIDTH if measured.device == CPU else HERE_HALF_WIDTH


def _step_alone_s(measured: TrialFacts, kind: str, image_s: Interval) -> Interval:
    """Return the time of a step of one worker; launches are in what was measured on a GPU already."""
    if kind == measured.device or measured.device != CPU:
        return image_s.scaled(measured.batch)
    return prior.step_time_s(measured.network, image_s, batch=measured.batch)


def _on_more(measured: TrialFacts, question: EstimateQuestion, alone: Interval, workers: int, hosts: int) -> Interval:
    """Return the step of so many GPUs: the typical loss of published series, and between hosts an all-reduce."""
    if workers == 1:
        return alone
    # Fitted to the value alone: its interval is then that of the scaling, and the step's own joins it below.
    law = StepTime().fit([StepObservation(processes=1, time_s=alone.value, images_per_step=measured.batch)])
    deployment = Deployment(
        processes=workers,
        hosts=hosts,
        gradient_bytes=max(measured.gradient_bytes, 1.0),  # a Deployment takes no 0
        inter_host_bytes_per_s=None if question.network is None else question.network * 1e9,
    )
    return prior.times(alone, law.predict(deployment).scaled(1 / alone.value))


# --- choices


def choices(estimates: Sequence[Estimate]) -> Choices | None:
    """Return the fastest, the cheapest, and the cheapest within a tenth of the fastest; None where nothing fits."""
    # Processors are a choice only where no GPU is asked about: nobody who asks for GPUs waits for days on this machine.
    gpus = [e for e in estimates if e.prediction.gpu != CPU] or estimates
    gpus = [e for e in gpus if e.memory.fits != "no" and e.prediction.time_to_stable_s is not None]
    if not gpus:
        return None
    fastest = min(gpus, key=lambda e: (_time_s(e), e.prediction.workers))
    # Hours of one kind can be compared without a price, those of two kinds cannot: then the cheapest near the fastest
    # is sought among its own kind, and nobody is called the cheapest of all.
    is_priced = all(e.price is not None for e in gpus)
    comparable = gpus if is_priced else [e for e in gpus if e.prediction.gpu == fastest.prediction.gpu]
    near = [e for e in comparable if _time_s(e) <= NEAR_FASTEST * _time_s(fastest)]
    return Choices(
        fastest=fastest,
        cheapest=min(gpus, key=_price_key) if is_priced or len(comparable) == len(gpus) else None,
        near_fastest=min(near, key=_price_key),
        is_priced=is_priced,
    )


def _time_s(one: Estimate) -> float:
    time_s = one.prediction.time_to_stable_s
    return math.inf if time_s is None else time_s.value


def _price_key(one: Estimate) -> tuple[float, float]:
    return (math.inf if one.paid is None else one.paid), _time_s(one)
