"""Bottleneck of a run: the part that holds it back, and the most that could be gained without it.

Every suspect has a share of the step (or of the epoch) that would go away with it. The verdict is the largest share
among those beyond their limit:

    input           waiting for the next batch and moving it to the device      > 5 % (strongly: > 20 %)
    communication   averaging gradients, not hidden behind computing            > 10 %
    straggler       the slowest process takes longer than the median one        > 1.15 times
    host            the GPU has nothing to do, and it is not the input          > 30 %
    evaluation      evaluations and checkpoints, of the epoch                   > 15 %
    compute         none of these: good

The limits of input and communication are those of the profilers of PyTorch and TensorFlow. Spans say where the host
waited, and with work queued on a GPU that can mislead: `turnaround bench` measures each part alone (`ceilings`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, Literal

from turnaround.analysis.balance import balance
from turnaround.analysis.summary import steady_epochs
from turnaround.errors import RunDirectoryError
from turnaround.record.reader import Run
from turnaround.record.schema import Span

Kind = Literal["input", "communication", "straggler", "host", "evaluation", "compute", "unknown"]

# Shares of a step. TensorFlow's profiler: not input-bound below 5 %, highly from 20 %. PyTorch's profiler: input from
# 5 %, communication from 10 %.
INPUT_SHARE = 0.05
STRONG_SHARE = 0.20
COMMUNICATION_SHARE = 0.10
# A judgement: busy for less than 70 % of the time although the input is there.
IDLE_SHARE = 0.30
# A judgement, of an epoch.
EVALUATION_SHARE = 0.15
MIN_SPANS = 3  # the fewest with a median that one outlier does not decide
MIN_SAMPLES = 10  # one a second: less than ten seconds say nothing about a GPU

Reason = Literal[
    "damaged record",
    "imported",
    "few steps",
    "compute spans",
    "input spans",
    "reduce spans",
    "slow process",
    "idle GPUs",
    "evaluation times",
]
"""The measurement that decided the verdict."""


@dataclass(frozen=True, kw_only=True)
class Bottleneck:
    """The verdict on one run."""

    kind: Kind
    share: float | None
    """Share of the step, or of the epoch, that it takes; 0 to 1."""
    most_gain: float | None
    """Upper bound of the speed-up without it, 1 / (1 - share); None where nothing is to gain."""
    reason: Reason
    figures: Mapping[str, float] = field(default_factory=dict)
    """The measured values that the reason rests on, by name."""
    damage: str = ""
    """The error of a damaged record."""

    @property
    def is_strong(self) -> bool:
        return self.share is not None and self.share > STRONG_SHARE


@dataclass(frozen=True, kw_only=True)
class StepPartTimes:
    """The parts of a typical step as shares of it, over the processes."""

    wait: float
    copy: float
    reduce: float
    """The share in the process that waits least for the others: what the exchange itself costs."""
    num_steps: int

    @property
    def input(self) -> float:
        return self.wait + self.copy


def bottleneck(run: Run) -> Bottleneck:
    """Judge a run that was timed here; unknown for one whose steps nobody timed, or whose files are damaged."""
    try:
        parts = step_parts(run)
        suspects = [suspect for find in _SUSPECTS for suspect in find(run, parts)]
    except RunDirectoryError as error:
        return Bottleneck(kind="unknown", share=None, most_gain=None, reason="damaged record", damage=str(error))
    if suspects:
        return max(suspects, key=lambda suspect: suspect.share or 0.0)
    if parts is None:
        reason: Reason = "imported" if run.imported else "few steps"
        return Bottleneck(kind="unknown", share=None, most_gain=None, reason=reason)
    share = 1.0 - parts.input - parts.reduce
    figures = {"share": share, "num_steps": parts.num_steps}
    return Bottleneck(kind="compute", share=share, most_gain=None, reason="compute spans", figures=figures)


def step_parts(run: Run) -> StepPartTimes | None:
    """Return medians over the sampled steps of each process but the first, which is cold; None for fewer than three."""
    by_rank = {rank: run.spans(rank)[1:] for rank in run.ranks}
    shares = [_shares(spans) for spans in by_rank.values() if len(spans) >= MIN_SPANS]
    known = [share for share in shares if share is not None]
    if not known:
        return None
    return StepPartTimes(
        wait=median(share["wait_s"] for share in known),
        copy=median(share["copy_s"] for share in known),
        # An early process waits for the others inside its all-reduce; the last to arrive measures the exchange alone.
        reduce=min(share["reduce_s"] for share in known),
        num_steps=max(map(len, by_rank.values())),
    )


def _shares(spans: list[Span]) -> dict[str, float] | None:
    names = ("wait_s", "copy_s", "compute_s", "reduce_s", "update_s")
    median_part_s = {name: median(_number(getattr(span, name)) for span in spans) for name in names}
    # The sum of the medians, not the median of the sums: shares add up to 1 then.
    step_s = sum(median_part_s.values())
    return {name: value / step_s for name, value in median_part_s.items()} if step_s > 0 else None


def _number(value: float) -> float:
    return value if math.isfinite(value) and value > 0 else 0.0


def _suspect(kind: Kind, share: float, reason: Reason, **figures: float) -> Bottleneck:
    share = min(share, 0.999)  # the gain stays finite
    return Bottleneck(kind=kind, share=share, most_gain=1.0 / (1.0 - share), reason=reason, figures=figures)


def _input(run: Run, parts: StepPartTimes | None) -> Iterator[Bottleneck]:
    if parts is not None and parts.input > INPUT_SHARE:
        yield _suspect("input", parts.input, "input spans", wait=parts.wait, copy=parts.copy, num_steps=parts.num_steps)


def _communication(run: Run, parts: StepPartTimes | None) -> Iterator[Bottleneck]:
    if parts is not None and parts.reduce > COMMUNICATION_SHARE:
        yield _suspect("communication", parts.reduce, "reduce spans", reduce=parts.reduce, num_steps=parts.num_steps)


def _straggler(run: Run, parts: StepPartTimes | None) -> Iterator[Bottleneck]:
    try:
        found = balance(run)
    except (KeyError, TypeError, ZeroDivisionError):  # ranks or spans that are not ours
        return
    # ratio = slowest / median time up to the exchange: all wait for the slowest, so 1 - 1 / ratio would go.
    if found is not None and found.has_straggler:
        yield _suspect("straggler", 1.0 - 1.0 / found.ratio, "slow process", rank=found.slowest_rank, ratio=found.ratio)


def _host(run: Run, parts: StepPartTimes | None) -> Iterator[Bottleneck]:
    """Suspect the host where a GPU is idle though the input is there: small kernels, launched too slowly."""
    busy = gpu_busy(run)
    is_input = any(True for _ in _input(run, parts))
    # A GPU whose images are late is idle as well: that is the input's verdict.
    if busy is not None and not is_input and 1.0 - busy > IDLE_SHARE:
        yield _suspect("host", 1.0 - busy, "idle GPUs", busy=busy)


def _evaluation(run: Run, parts: StepPartTimes | None) -> Iterator[Bottleneck]:
    epochs = steady_epochs(run.epochs) or run.epochs  # without the cold one
    timed = [(e.epoch_time_s, e.evaluation_time_s) for e in epochs if e.evaluation_time_s and e.epoch_time_s > 0]
    if not timed:
        return
    checkpoint_s = _number(run.status.time_s.get("checkpoint", 0.0)) / len(run.epochs)
    outside_s = median(evaluation_s for _, evaluation_s in timed) + checkpoint_s
    share = outside_s / (outside_s + median(epoch_s for epoch_s, _ in timed))
    if share > EVALUATION_SHARE:
        total_s = outside_s * len(run.epochs)
        yield _suspect("evaluation", share, "evaluation times", outside_s=outside_s, total_s=total_s)


_SUSPECTS = (_input, _communication, _straggler, _host, _evaluation)


def gpu_busy(run: Run) -> float | None:
    """Return the mean share of the time in which the GPUs computed, from the first step on; None without telemetry."""
    # Start-up and decoding leave a GPU idle, and no kernel is to blame for that. Times of one format compare as text.
    begun_at = run.status.first_step_at or ""
    means: list[float] = []
    for host, samples in run.telemetry().items():
        by_gpu: dict[int, list[float]] = {}
        for sample in samples:
            if sample.at >= begun_at:
                for gpu in sample.gpus:
                    if gpu.utilisation_percent is not None:
                        by_gpu.setdefault(gpu.index, []).append(gpu.utilisation_percent / 100)
        busy = sorted((fmean(each) for each in by_gpu.values() if len(each) >= MIN_SAMPLES), reverse=True)
        means += busy[: _num_processes(run.machine, host)]  # the others belong to nobody, or to somebody else
    return fmean(means) if means else None


def _num_processes(machine: dict[str, Any], host: str) -> int:
    ranks = machine.get("ranks")
    hosts = [rank.get("host") for rank in ranks if isinstance(rank, dict)] if isinstance(ranks, list) else []
    return hosts.count(host) or 1


# --- the same question for a machine, from the rates of a training's parts, each measured alone by `turnaround bench`

GOOD_SHARE = 0.95
"""Share of the model's own rate that the project asks of itself (docs/architecture.md)."""

Limit = Literal["model", "input", "communication", "host"]


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """The verdict on a machine: which part limits training, which can be no faster than its model alone."""

    share_of_ceiling: float
    """Training / model alone."""
    limit: Limit
    most_gain: float
    """Speed-up of training if its limit were gone; 1 where that is the model."""


def ceilings(images_per_s: Mapping[str, float]) -> Ceilings:
    """Judge from `images_per_s` by part, as training/bench.py names them.

    What training lacks is its input when the input alone is slower than the model, the exchange of gradients when that
    alone is slower, and otherwise what the parts cost each other on one host.
    """
    training, model = images_per_s["training"], images_per_s["model"]
    share = training / model
    if share >= GOOD_SHARE:
        return Ceilings(share_of_ceiling=share, limit="model", most_gain=1.0)
    limit: Limit = "host"
    if images_per_s.get("input", float("inf")) < model:
        limit = "input"
    elif images_per_s.get("all_reduce", float("inf")) < model:
        limit = "communication"
    return Ceilings(share_of_ceiling=share, limit=limit, most_gain=model / training)
