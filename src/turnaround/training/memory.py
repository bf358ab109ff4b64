"""A device that is out of memory: what was tried, and what would probably fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from turnaround.errors import TrainingError
from turnaround.recipe import Recipe
from turnaround.record.heartbeat import Heartbeat
from turnaround.workers.contract import Workers

GIB = 2**30


@contextmanager
def explained(recipe: Recipe, workers: Workers, heartbeat: Heartbeat) -> Iterator[None]:
    """Inside it a device that is out of memory is an error of ours, with advice."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise too_large(recipe, workers.device, hosted=len(workers.hosted), step=heartbeat.step) from error


def too_large(recipe: Recipe, device: torch.device, *, hosted: int, step: int) -> TrainingError:
    """The message for a CUDA out-of-memory error of a process that hosts so many workers."""
    batch = recipe.training.batch_per_worker
    smaller = max(1, 2 ** ((batch - 1).bit_length() - 1))
    when = f"at step {step}" if step else "before the first step"
    tried = f"batch_per_worker = {batch}, {hosted} worker{'s' * (hosted > 1)} on this process, {recipe.size_px} px"
    advice = [f"`--set training.batch_per_worker={smaller}`"] if batch > 1 else []
    if recipe.training.precision == "fp32":
        advice.append("`--set training.precision=auto`")
    if hosted > 1:
        advice.append("more processes, each with a GPU of its own")
    advice.append("smaller images (`--set data.size_px=...`)")
    return TrainingError(
        f"{device} is out of memory {when} ({tried}{_in_use(device)}). Start a new run with {', or '.join(advice)}."
    )


def _in_use(device: torch.device) -> str:
    if device.type != "cuda" or not torch.cuda.is_available():
        return ""
    free, total = torch.cuda.mem_get_info(device)
    peak = torch.cuda.max_memory_allocated(device)
    return f"; {(total - free) / GIB:.1f} of {total / GIB:.1f} GiB in use, {peak / GIB:.1f} at most by this process"
