"""One start of a bench on one process: connect, agree, try the batch where that is asked for, build, measure.

Enters: an `Assignment`, as a training gets it. Leaves: bench.json, from process 0.
"""

from __future__ import annotations

import time
from dataclasses import asdict

import torch

from turnaround.choice import recorded
from turnaround.data.pixels import open_pixels
from turnaround.recipe import Recipe
from turnaround.record.energy import OwnGpuEnergy
from turnaround.record.files import read_json
from turnaround.record.places import with_passed_paths
from turnaround.record.recipe_changes import BATCH_TO_FIT
from turnaround.record.writer import write_json
from turnaround.training.assembly import build_core, warm_up
from turnaround.training.bench import TrainingPower, count_footprint, measure
from turnaround.training.choices import choose_device
from turnaround.training.energy import gpu_of
from turnaround.training.fitting import TrialSite, fitting_batch
from turnaround.training.neighbours import watched_neighbours
from turnaround.training.run import Assignment, agree, connected
from turnaround.workers.environment import RankInfo

NOT_OF_A_START = ("wait for images", "try the batch")
"""Parts of the start-up that a training of this batch does not have, or that a bench has several times."""


def bench(assignment: Assignment, rank_info: RankInfo, *, part_s: float) -> None:
    """Measure the parts of this training on this machine; process 0 leaves the rates in bench.json."""
    record, start_up = with_passed_paths(read_json(assignment.directory.recipe)), assignment.start_up
    recipe, device = Recipe.from_record(record), choose_device(assignment.device, rank_info)
    workers, pixels = connected(recipe, rank_info, device.value), open_pixels(assignment.pixels_dir)
    agree(workers, recipe, pixels)
    if BATCH_TO_FIT in record:
        start_up.ended("connect")
        batch = fitting_batch(
            recipe, TrialSite(workers=workers, pixels=pixels, rank_info=rank_info, device=device)
        ).value
        recipe = recipe.replace("training", batch_per_worker=batch, batch_total=None)
        start_up.ended("try the batch")
    core = build_core(recipe, workers, pixels, rank_info=rank_info, device=device)
    footprint = count_footprint(core.network.module, size_px=recipe.size_px)  # before anything is compiled or captured
    begun_s = time.perf_counter()
    start_up.ended("build network and optimizer")
    assembly = warm_up(core, start_up=start_up)
    warm_up_s = time.perf_counter() - begun_s
    power = TrainingPower(OwnGpuEnergy(gpu_of(workers.device) or "").used_energy_j)
    with watched_neighbours():
        rates = {name: asdict(rate) for name, rate in measure(assembly, part_s=part_s, power=power).items()}
    if workers.rank == 0:
        choices = recorded(assembly.choices())
        facts = {"rates": rates, "warm_up_s": warm_up_s, "choices": choices, "cost": core.cost}
        facts |= {"footprint": asdict(footprint), "device": _device_name(workers.device)}
        facts |= {"batch_per_worker": recipe.batch_per_worker, "training_watts": power.watts}  # of this process's GPU
        facts["start_up_s"] = sum(s for part, s in start_up.parts_s.items() if part not in NOT_OF_A_START)
        write_json(assignment.directory.bench, facts)
    workers.close()


def _device_name(device: torch.device) -> str:
    """Return the GPU's name, or the kind of device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
