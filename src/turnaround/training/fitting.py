"""The largest batch that fits into the memory is found before the first epoch.

Enters: a recipe whose batch is the largest that pays (launch/automatic.py). Leaves: that batch or, where it does not
fit, a half of it, a quarter and so on, the same on every process, and why.

On a CUDA device a whole step is tried: the real network, precision and placement of the pixels, on all processes at the
same time, so that those that share a GPU feel each other. A device refuses and can be asked again. A machine that is
out of memory kills: there, what a step needs is computed from what a small one keeps for its backward pass.

A training that runs out of memory all the same ends with an error that names a batch that would fit.
"""

from __future__ import annotations

import gc
import json
import shlex
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil
import torch
from torch import Tensor

from turnaround.choice import Choice
from turnaround.data.pixels import Pixels
from turnaround.errors import TrainingError, TurnaroundError
from turnaround.recipe import Recipe
from turnaround.record.heartbeat import Heartbeat
from turnaround.training.assembly import TrainingCore, build_core, open_batches
from turnaround.training.choices import ProcessDevice
from turnaround.training.clock import synchronize
from turnaround.training.step import MAX_IMAGES_PER_FUSED_PASS
from turnaround.workers.contract import Workers
from turnaround.workers.environment import RankInfo
from turnaround.workers.shares import even_shares
from turnaround.workers.single import Single

GIB = 2**30
SPARE_SHARE = 0.1
"""Share of a GPU's memory that is left free by the step that was tried: the copies that a CUDA graph replays from, the
buffers of NCCL, a step that is measured in other passes, whatever else the GPU is used for."""
HOST_SHARE = 0.7
"""Share of the free host memory, for all processes of this run together: decoders, pages of pixels and checkpoints
need some too."""
TRIAL_BATCH = 8
BACKWARD_FACTOR = 2.0
"""The need of a step at its peak, as a multiple of what its forward pass keeps: gradients of activations and the
scratch memory of convolutions are about as large again."""
COPIES_OF_WEIGHTS = 4
"""Gradients, two moments of the optimizer, a moving average."""


@dataclass(frozen=True, kw_only=True)
class TrialSite:
    """The processes, the images and the device on which a step is tried."""

    workers: Workers
    pixels: Pixels
    rank_info: RankInfo
    device: Choice[ProcessDevice]


def fitting_batch(recipe: Recipe, site: TrialSite) -> Choice[int]:
    """Return the recipe's batch, or the largest half, quarter, ... of it that fits on every process."""
    return _tried(recipe, site) if site.workers.device.type == "cuda" else _estimated(recipe, site)


def fitting_alone(recipe: Recipe, site: TrialSite) -> int:
    """Return the largest batch below the recipe's that fits on this process, whatever became of the others."""
    _give_back()  # what the step that failed has left
    hosted = len(site.workers.hosted)
    below = 1 << max(0, (recipe.batch_per_worker - 1).bit_length() - 1)  # the next smaller power of two
    recipe = recipe.replace("workers", count=hosted)
    alone = replace(site, workers=Single(count=hosted, device=site.workers.device))
    return fitting_batch(_with_batch(recipe, below), alone).value


def _with_batch(recipe: Recipe, batch: int) -> Recipe:
    # Not compiled: a trial of one step would wait a minute for it, and eager passes need no less memory.
    return recipe.replace("training", batch_per_worker=batch, batch_total=None, compile="off")


def _halves(most: int) -> Iterator[int]:
    while most > 1:
        yield most
        most //= 2
    yield 1


# --- a CUDA device, which can be asked


def _tried(recipe: Recipe, site: TrialSite) -> Choice[int]:
    refused: list[int] = []
    for batch in _halves(recipe.batch_per_worker):
        used_bytes = _try(_with_batch(recipe, batch), site)
        if used_bytes is not None:
            _, total = torch.cuda.mem_get_info(site.workers.device)
            fits = f"a step of it was tried, with {used_bytes / GIB:.1f} of {total / GIB:.1f} GiB in use"
            return Choice(batch, f"{fits}; {refused[-1]} did not fit" if refused else fits)
        refused.append(batch)
    raise TrainingError(
        f"{site.workers.device} has no room for a step of {recipe.model.name}, not even with one image of "
        f"{recipe.size_px} px a worker. Use smaller images (`--set data.size_px=...`) or a smaller network."
    )


def _try(recipe: Recipe, site: TrialSite) -> int | None:
    """Try a step on all processes at once; return the memory in use on this device, or None when one was refused."""
    workers = site.workers
    core = build_core(recipe, workers, site.pixels, rank_info=site.rank_info, device=site.device)
    refused = torch.zeros(1, device=workers.device)
    try:
        _step(core)
    except torch.OutOfMemoryError:
        refused += 1
    # Everybody keeps in its allocator's cache what its step took until all have tried: only then is what a shared GPU
    # has left the truth.
    workers.barrier()
    free, total = torch.cuda.mem_get_info(workers.device)
    if free < SPARE_SHARE * total:
        refused += 1
    workers.sum(refused)
    was_refused = bool(refused.item())
    del core, refused
    _give_back()
    workers.barrier()  # nobody tries again beside memory that is still to be given back
    return None if was_refused else total - free


def _give_back() -> None:
    gc.collect()  # wrappers and hooks refer to each other
    torch.cuda.empty_cache()  # does nothing where there is no GPU


def _step(core: TrainingCore) -> None:
    batches, slicing = open_batches(core)
    core.network.train_mode()
    with closing(batches):
        batch = next(batches.steps(slicing, epoch=1))
        if core.learner.backbone is not None:
            batch = replace(batch, features=core.learner.backbone(core.inputs.varied(batch, epoch=1)))
        core.step.try_memory(batch)
        synchronize(core.workers.device)


# --- host memory, which cannot


class KeptForBackward:
    """Counts the bytes that a forward pass keeps, each storage once, weights not."""

    def __init__(self, weights: Iterator[Tensor]) -> None:
        self._seen = {weight.untyped_storage().data_ptr() for weight in weights}
        self.num_bytes = self.num_tensors = self.largest_bytes = 0

    def pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.num_bytes += storage.nbytes()
            self.num_tensors += 1
            self.largest_bytes = max(self.largest_bytes, storage.nbytes())
        return tensor


def _estimated(recipe: Recipe, site: TrialSite) -> Choice[int]:
    workers = site.workers
    small = min(TRIAL_BATCH, recipe.batch_per_worker)
    # One worker, on its own: one pass, and no word to the others.
    alone = Single(count=1, device=workers.device)
    trial = _with_batch(recipe.replace("workers", count=1), small)
    core = build_core(trial, alone, site.pixels, rank_info=site.rank_info, device=site.device)
    kept = KeptForBackward(core.network.module.parameters())
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda tensor: tensor):
        _step(core)
    weights = sum(weight.nbytes for weight in core.network.module.parameters())
    free = free_host_bytes()
    budget = HOST_SHARE * free / site.rank_info.local_size
    per_image = BACKWARD_FACTOR * kept.num_bytes / small
    hosted = len(workers.hosted)

    def need(batch: int) -> float:
        in_a_pass = batch * min(hosted, max(1, MAX_IMAGES_PER_FUSED_PASS // batch))
        inputs = 4 * 3 * recipe.size_px**2 * batch * hosted  # float32, of the whole step
        return COPIES_OF_WEIGHTS * weights + inputs + per_image * in_a_pass

    mine = next((batch for batch in _halves(recipe.batch_per_worker) if need(batch) <= budget), 1)
    told = [json.loads(text) for text in workers.gather(json.dumps([mine, need(mine), free]))]
    batch, needed, left = min(told)
    fits = f"a step of it needs about {needed / GIB:.2f} GiB in each process, and {left / GIB:.1f} GiB are free"
    is_less = batch < recipe.batch_per_worker
    return Choice(batch, f"{fits}; {2 * batch} would not fit" if is_less else fits)


def free_host_bytes(cgroups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Return the memory that this process may still take: of the machine, and of every control group that it is in."""
    return min([psutil.virtual_memory().available, *_free_in_groups(cgroups, own)])


def _free_in_groups(cgroups: Path, own: Path) -> Iterator[int]:
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return  # not Linux
    names = [name for line in lines for number, _, name in [line.split(":", 2)] if number == "0"]
    for name in names:
        group = cgroups / name.strip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(cgroups):
                break
            try:
                limit, used = ((folder / file).read_text().strip() for file in ("memory.max", "memory.current"))
                cached = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            except (OSError, ValueError):
                continue  # the root has no limit; a container shows only some of its groups
            if limit.isdecimal():
                # Pages of files that nobody uses are given back before anything is refused.
                yield max(0, int(limit) - int(used) + int(cached.get("inactive_file", 0)))


# --- a device that is out of memory


@contextmanager
def out_of_memory_explained(
    recipe: Recipe, workers: Workers, heartbeat: Heartbeat, site: TrialSite | None = None, *, run: Path | None = None
) -> Iterator[None]:
    """Turn running out of a device's memory into an error of ours: what was tried, and what would fit."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        message = partial(too_large, recipe, workers.device, hosted=len(workers.hosted), step=heartbeat.step)
        in_use = _in_use(workers.device)  # before anything is given back
        # The frames that have ended hold the activations of the step that failed.
        traceback.clear_frames(error.__traceback__)
        fits = None if site is None else _found_to_fit(recipe, site)
        raise message(fits=fits, in_use=in_use, shares=_with_equal_shares(workers, run)) from error


def _found_to_fit(recipe: Recipe, site: TrialSite) -> int | None:
    """Return a smaller batch that was tried beside what the failed step leaves; None where that cannot be told."""
    with suppress(torch.OutOfMemoryError, RuntimeError, TurnaroundError):
        return fitting_alone(recipe, site) if recipe.batch_per_worker > 1 else None
    return None


def too_large(
    recipe: Recipe,
    device: torch.device,
    *,
    hosted: int,
    step: int,
    fits: int | None = None,
    in_use: str = "",
    shares: str = "",
) -> TrainingError:
    """Return the message for a process that hosts so many workers; `fits` is a batch that was tried, `shares` what else
    is to be said of them."""
    batch = recipe.batch_per_worker
    # The next smaller power of two, where nothing was tried.
    smaller = fits or max(1, 2 ** ((batch - 1).bit_length() - 1))
    when = f"at step {step}" if step else "before the first step"
    tried = f"batch_per_worker = {batch}, {hosted} worker{'s' * (hosted > 1)} on this process, {recipe.size_px} px"
    was_tried = " (tried: it fits)" if fits else ""
    advice = [f"`--set training.batch_per_worker={smaller}`{was_tried}"] if batch > 1 else []
    if recipe.training.precision == "fp32":
        advice.append("`--set training.precision=auto`")
    if hosted > 1:
        advice.append("more processes, each with a GPU of its own")
    advice.append("smaller images (`--set data.size_px=...`)")
    return TrainingError(
        f"{device} is out of memory {when} ({tried}{in_use}). Start a new run with {', or '.join(advice)}.{shares}"
    )


def _with_equal_shares(workers: Workers, run: Path | None) -> str:
    """Return the sentence for a process that hosts more workers than it would with equal shares; the batch was tried
    with no more than these, and a checkpoint keeps the shares."""
    even = even_shares(workers=workers.count, processes=workers.size)[workers.rank]
    if len(workers.hosted) <= even:
        return ""
    path, hosted = "RUN" if run is None else shlex.quote(str(run)), len(workers.hosted)
    return (
        f" Or go on with equal shares, {even} worker{'s' * (even > 1)} on this process instead of {hosted}: "
        f"`turnaround resume {path} --share even`."
    )


def _in_use(device: torch.device) -> str:
    if device.type != "cuda" or not torch.cuda.is_available():
        return ""
    free, total = torch.cuda.mem_get_info(device)
    peak = torch.cuda.max_memory_allocated(device)
    return f"; {(total - free) / GIB:.1f} of {total / GIB:.1f} GiB in use, {peak / GIB:.1f} at most by this process"
