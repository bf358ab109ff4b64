"""The words for an estimate from zero runs: what it rests on, what fits, what to run, and how it was scored."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from turnaround.findings.forecasts import interval_text
from turnaround.forecast import prior
from turnaround.forecast.energy import BOARD_SHARE
from turnaround.forecast.estimate import CPU, GPUS_PER_HOST, Choices, Estimate, TrialFacts, most_workers
from turnaround.forecast.narrowing import NarrowingRun
from turnaround.forecast.prior import MemoryNeed
from turnaround.forecast.score import OtherWork, Score
from turnaround.words import about, counted, duration, energy, hardware, interval, listed, money, number, percent

FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "epoch_time_s": ("an epoch", about),
    "epochs_to_stable": ("epochs to stable", lambda value: f"{value:.0f}"),
    "time_to_stable_s": ("time to stable", about),
    "job_time_s": ("the job", about),
    "images_per_s": ("images/s", number),
    "cost": ("cost of the job", money),
    "cost_to_stable": ("cost to stable", money),
    "energy_wh": ("energy of the job", energy),
}
"""Figures of an estimate that a run scores, and how each is told."""


def choice_sentences(
    best: Choices | None, estimates: Sequence[Estimate], trial: TrialFacts, *, currency: str | None
) -> list[str]:
    """Return the answer: the fastest, the cheapest, and the cheapest within a tenth of the fastest; without a GPU that
    has the memory for a step, that and the batch that fits."""
    if best is None:
        return list(_too_large(estimates, trial.batch))
    among = "" if best.fastest.prediction.gpu == CPU else " of the GPUs asked for"
    among += "" if not among or trial.device == CPU else " and of this machine's"
    told = [f"Fastest to a stable accuracy{among}: {_priced(best.fastest, currency)}."]
    told += _this_machine(best.fastest, estimates)
    if best.near_fastest is not best.fastest:
        what = "Cheapest" if best.is_priced else "Fewest hours"
        told.append(f"{what} within 10 % of that: {_priced(best.near_fastest, currency)}.")
    if best.cheapest is None:
        told.append("Which kind is the cheapest cannot be told without the prices of all (turnaround prices set).")
    elif best.cheapest not in (best.fastest, best.near_fastest):
        told.append(f"Cheapest: {_priced(best.cheapest, currency)}.")
    return told


def _this_machine(fastest: Estimate, estimates: Sequence[Estimate]) -> Iterator[str]:
    """Say so where the processors that are here are there as soon as the fastest GPUs, as far as can be told."""
    able = [e.prediction for e in estimates if e.prediction.gpu == CPU and e.memory.fits != "no"]
    here = [(p.time_to_stable_s, p.workers) for p in able]
    known = [(time, workers) for time, workers in here if time is not None]
    there = fastest.prediction.time_to_stable_s
    if fastest.prediction.gpu == CPU or not known or there is None:
        return
    time, workers = min(known, key=lambda each: (each[0].value, each[1]))
    told = f"{hardware(workers, CPU)}, {interval(time.value, time.low, time.high)}"
    if time.value <= there.value:
        yield f"This machine is as fast or faster: {told}."
    elif time.value <= there.high:
        yield f"This machine may be as fast, without a GPU: {told}."


def _too_large(estimates: Sequence[Estimate], batch: int) -> Iterator[str]:
    """Say that no GPU has the memory for a step, and the largest batch for which one has."""
    gpus = {e.prediction.gpu: e.memory for e in estimates if e.prediction.gpu != CPU}
    if not gpus:
        most = estimates[0].memory.largest_batch or 1
        yield f"This machine has not the memory for a step of {counted(batch, 'image')}: ask again with --batch {most}."
        return
    least = min((memory.need_bytes.low for memory in gpus.values()), default=0.0)
    yield (
        f"No GPU asked for ({listed(list(gpus), 5)}) has the memory for a step of {counted(batch, 'image')}: it needs "
        f"{_gigabytes(least)} GB or more."
    )
    fitting = {kind: memory.largest_batch for kind, memory in gpus.items() if memory.largest_batch}
    if not fitting:
        yield "Not even one image surely fits: take smaller images (--size) or a smaller network."
        return
    largest = max(fitting.values())
    roomiest = [kind for kind, batch in fitting.items() if batch == largest]
    others = [f"{batch} on {kind}" for kind, batch in fitting.items() if batch != largest]
    beside = f" ({listed(others)})" if others else ""
    yield f"Ask again with --batch {largest}, which surely fits on {listed(roomiest, 5)}{beside}."


def _gigabytes(num_bytes: float) -> str:
    return number(num_bytes / 1e9, 2)


def _priced(one: Estimate, currency: str | None) -> str:
    p = one.prediction
    assert p.time_to_stable_s is not None, "only timed estimates are chosen"
    time = interval_text(p.time_to_stable_s)
    unit = "CPU-hours" if p.gpu == CPU else "GPU-hours"
    cost = p.cost_to_stable
    if cost is None:
        paid = f"{number(one.paid or 0.0, 2)} {unit}"
    else:
        paid = f"{money(cost.value)} ({money(cost.low)} to {money(cost.high)}) {currency or ''}".rstrip()
    return f"{hardware(p.workers, p.gpu, hosts=p.hosts)}, {time}, {paid}"


def trial_sentences(trial: TrialFacts, cluster: str | None = None) -> Iterator[str]:
    """Yield what the figures rest on; `cluster`: who told the queue and the GPUs of a host."""
    rate = number(trial.images_per_s.value)
    start = "" if trial.start_up_s is None else f"; {duration(trial.start_up_s)} from the command to the first step"
    smaller = ""
    if trial.is_smaller:
        smaller = f" (the {trial.batch:,} asked about do not fit into this machine's memory: the rate is that of fewer)"
    what = "training"
    if trial.backbone_images_per_s is not None:  # an epoch is the last layer alone, which says little of the network
        rate = f"{number(trial.backbone_images_per_s.value)} images/s of the backbone's one pass, then {rate}"
        what = "training the last layer on its features"
    yield (
        f"measured here ({trial.device}): {rate} images/s of {what} with "
        f"{counted(trial.trial_batch or trial.batch, 'image')} a step{smaller}; decoding "
        f"{number(trial.decode_images_per_s)} images/s; {trial.num_train:,} training and {trial.num_validation:,} "
        f"validation images, {trial.epochs} epochs{start}"
    )
    if trial.device == CPU:
        yield (
            "GPUs: no speed of a processor tells that of a GPU, so theirs are counted bytes and FLOPs of the network "
            "against data sheets: published figures of V100 and A100 lie within a factor of "
            f"{2.718281828**prior.LAW_HALF_WIDTH:.2f} in 80 % of cases; other kinds have more room"
        )
    else:
        yield f"other kinds: the step measured on {trial.device}, carried over by data sheets"
    each = f"{GPUS_PER_HOST} GPUs a host unless you say otherwise" if cluster is None else f"on hosts as {cluster} has"
    yield (
        f"more GPUs: losses of published series on NVIDIA's DGX machines, {each}; nobody has told the network between "
        "hosts, which may be slow"
    )
    yield (
        f"epochs to stable: {percent(prior.STABLE_SHARE.low)} to {percent(prior.STABLE_SHARE.high)} of those planned, "
        "as in earlier trainings of other data, then the law of the global batch: the widest part of the answer"
    )
    if trial.network.is_frozen:
        yield f"the backbone is frozen: {prior.FROZEN_SPEEDUP.low:g} to {prior.FROZEN_SPEEDUP.high:g} times as fast"
    queue = "" if cluster else "without the queue; "
    yield f"{queue}the input path of another machine is taken as no slower than its GPUs"


def left_out_sentences(workers: Sequence[int], trial: TrialFacts) -> Iterator[str]:
    """Yield the numbers of workers that were asked about and for which there are too few images."""
    most = most_workers(num_train=trial.num_train, batch=trial.batch)
    left = [n for n in workers if n > most]
    if left:
        named = listed(left) if len(left) <= 4 else f"{left[0]:,} to {left[-1]:,}"
        yield (
            f"{named} workers are left out: with {counted(trial.batch, 'image')} a step each, the "
            f"{trial.num_train:,} training images are a full step of {most:,} at most"
        )


def memory_sentences(estimates: Sequence[Estimate], trial: TrialFacts) -> Iterator[str]:
    """Yield what a step needs and which batch surely fits on each kind; then the kinds on which that asked about does
    not surely fit."""
    by_kind = {e.prediction.gpu: e.memory for e in estimates if e.prediction.gpu != CPU}
    told = {kind: memory for kind, memory in by_kind.items() if memory.largest_batch is not None}
    step = f"a step of {counted(trial.batch, 'image')}"
    if told:
        need = next(iter(told.values())).need_bytes  # of the same precision on all kinds
        fitting = [kind for kind, memory in told.items() if memory.fits == "yes"]
        where = "all of them" if fitting == list(by_kind) and len(by_kind) > 1 else listed(fitting, 6)
        fits = f": surely fits on {where}" if fitting else ""
        ends = dict.fromkeys((_gigabytes(need.low), _gigabytes(need.high)))  # of a small one both round to the same
        yield f"memory: {step} needs {' to '.join(ends)} GB{fits}; {_largest(told)}"
    for fits, verb in (("perhaps", "may not fit"), ("no", "does not fit")):
        if kinds := [kind for kind, memory in told.items() if memory.fits == fits]:
            yield f"{step} {verb} on {listed(kinds, 6)}"
    if trial.is_smaller and trial.device == CPU:
        yield f"CPU: {step} does not fit here; {counted(trial.trial_batch or 1, 'image')} do"
    unknown = [kind for kind in by_kind if kind not in told]
    if unknown:
        yield f"the memory of {listed(unknown)} is not known"


def _largest(by_kind: Mapping[str, MemoryNeed]) -> str:
    """Return the largest batch that surely fits, kinds with the same one together."""
    kinds: dict[int, list[str]] = {}
    for kind, memory in by_kind.items():
        kinds.setdefault(memory.largest_batch or 0, []).append(kind)
    sizes = [f"{most:,} on {listed(each, 6)}" for most, each in kinds.items()]
    return f"the most images that surely fit: {', '.join(sizes)}"


def energy_sentence(estimates: Sequence[Estimate], trial: TrialFacts) -> str:
    """Return what the energy rests on, and of which kinds it is not known."""
    found = {e.prediction.gpu: e.prediction.energy_wh is not None for e in estimates}
    known = [kind for kind, is_known in found.items() if is_known]
    drawn = None if trial.device not in known else trial.training_watts
    told = []
    if drawn is not None:
        told.append(f"the {number(drawn)} W that this {trial.device} drew in the trial, by its counter")
    if [kind for kind in known if drawn is None or kind != trial.device]:
        low, high = (percent(end) for end in (BOARD_SHARE.low, BOARD_SHARE.high))
        told.append(
            f"{low} to {high} of the power of its board while a GPU trains, by its data sheet (short trainings on an "
            "H200 drew 30 to 52 %)"
        )
    unknown = ["processors" if kind == CPU else kind for kind, is_known in found.items() if not is_known]
    without = f"not known for {listed(unknown)}" if unknown else ""
    return f"energy: {'; '.join(filter(None, (' and '.join(told), 'of the GPUs alone' if told else '', without)))}"


def narrowing_text(run: NarrowingRun) -> str:
    """Return why this run helps, and what it takes."""
    p = run.about.prediction
    narrower = f"the interval of {hardware(p.workers, p.gpu)} from a factor of {run.width_before:.1f} between its ends "
    narrower += f"to {run.width_after:.1f}"
    time = interval_text(run.time_s)
    if run.kind == "train there":
        where = "here" if run.gpu == CPU else f"on a machine with one {run.gpu}"
        cost = "" if run.cost is None else f", {money(run.cost)} {p.currency or ''}".rstrip()
        return f"a run of one worker {where} ({time}{cost}) measures step and epochs: it narrows {narrower}"
    what = f"a rehearsal of {counted(run.workers, 'worker')}" if run.workers > 1 else "a run of one worker"
    return f"{what} here ({time}) measures the epochs: it narrows {narrower}"


def narrowing_command(run: NarrowingRun, source: str, settings: Sequence[str] = ()) -> str:
    """Return the command of the run, with the settings that the estimate was about."""
    processes = "" if run.kind == "train there" and run.gpu != CPU else " --processes 1"
    keys = "".join(f" --set {shlex.quote(each)}" for each in settings if not each.startswith("workers."))
    return f"turnaround train {shlex.quote(source)} --workers {run.workers}{processes}{keys}"


def score_sentences(scores: Sequence[Score]) -> list[str]:
    """Return, for each figure that was estimated before and measured since, both and whether the interval held it."""
    told = []
    for score in scores:
        name, show = FIGURES.get(score.figure, (None, number))
        if name is None:
            continue
        low, high = show(score.forecast.low), show(score.forecast.high)
        inside = "inside" if score.is_inside else "outside the interval"
        paid_in = f" in {score.currency}" if score.currency else ""
        told.append(
            f"{score.job}, {hardware(score.workers, score.gpu)}, {name}{paid_in}: estimated "
            f"{show(score.forecast.value)} ({low} to {high}), measured {show(score.measured)}: {inside}"
        )
    return told


def unscored_sentence(others: Sequence[OtherWork]) -> str | None:
    """Return that estimates are not scored, and why, by the first of them; None without any."""
    if not others:
        return None
    first = others[0]
    more = f" (and {counted(len(others) - 1, 'other')})" if len(others) > 1 else ""
    apart = []
    if set(first.runs_epochs) != {first.epochs}:
        apart.append(f"{listed(first.runs_epochs) or 'other'} epochs instead of {first.epochs}")
    if first.runs_global_batch != first.global_batch:
        apart.append(f"{first.runs_global_batch or 'other'} images a step instead of {first.global_batch}")
    where = hardware(first.workers, first.gpu)
    return f"not scored: the estimate of {first.job}, {where}{more}: the runs have {listed(apart)}"


def score_headline(scores: Sequence[Score]) -> str | None:
    """Return how many measured figures lay inside the intervals of the estimates; None without any."""
    known = [score for score in scores if score.figure in FIGURES]
    if not known:
        return None
    inside = sum(score.is_inside for score in known)
    jobs = listed(sorted({score.job for score in known}), 2)
    return f"estimated before any run ({jobs}): {inside} of {counted(len(known), 'figure')} inside the 80 % interval"
