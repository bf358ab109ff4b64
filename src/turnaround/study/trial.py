"""The trial of an estimate: what would be trained, and some seconds of it on this machine. Nothing is kept.

Enters: a recipe of one worker. Leaves: the choices that were left to us, as a machine with a GPU makes them where GPUs
are asked about, and a `TrialFacts`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from turnaround.analysis.gpu_kinds import kind_of
from turnaround.analysis.summary import job_of_recipe
from turnaround.cores import usable_cores
from turnaround.errors import ProcessFailedError
from turnaround.forecast.estimate import CPU, EstimateQuestion, TrialFacts, counts_allowed
from turnaround.forecast.hardware import sheet_of
from turnaround.forecast.interval import Interval
from turnaround.forecast.prior import NetworkCount
from turnaround.launch.automatic import decide, sees_gpu
from turnaround.launch.contract import checked_device
from turnaround.launch.lifecycle import Request, measure
from turnaround.launch.prepare import Prepared, Show, cache_root, image_facts
from turnaround.recipe import AUTO, Recipe
from turnaround.recipes import overrides_of
from turnaround.record.files import remove_folder
from turnaround.record.gpus import UNKNOWN_GPU, describe_gpus

OUT_OF_MEMORY = (
    "alloc_cpu",
    "not enough memory",
    "Cannot allocate memory",
    "bad_alloc",
    "MemoryError",
    "CUDA out of memory",
    "(signal 9)",
)
"""Words of torch, C++, Python and the system when memory has run out, and of the launcher for a process that the kernel
has killed for it."""


@dataclass(frozen=True, kw_only=True)
class TrainingChosen:
    """What an estimate is about: a recipe that leaves nothing to the machine where it is trained."""

    recipe: Recipe
    pinned: tuple[str, ...] = ()
    """Keys that were chosen here, each as SECTION.KEY=VALUE: another machine might choose others."""
    notes: tuple[str, ...] = ()
    """What was chosen and why, as `turnaround train` says it."""


def choose(recipe: Recipe, question: EstimateQuestion, *, device: str, runs: Path | None) -> TrainingChosen:
    """Return what would be trained on the kinds that are asked about."""
    asks_for_gpus = any(kind_of(gpu) != CPU for gpu in question.gpus)
    cache = cache_root(recipe, temporary=Path(tempfile.gettempdir()))
    decision = decide(recipe, cache=cache, device=device, runs=runs, has_gpu=True if asks_for_gpus else None)
    notes = replace(decision, recipe=decision.recipe.resolved()).notes()
    if recipe.model.name == AUTO and asks_for_gpus and not sees_gpu(device):
        notes = (*notes, "That is what a machine with a GPU chooses; without one, train may choose otherwise.")
    return TrainingChosen(recipe=decision.recipe, pinned=tuple(_changed(recipe, decision.recipe)), notes=notes)


def _changed(before: Recipe, after: Recipe) -> list[str]:
    """Return the keys that differ, as the command line sets them."""
    old, new = before.to_dict(), after.to_dict()
    return overrides_of(
        {
            f"{section}.{key}": value
            for section, keys in new.items()
            if isinstance(keys, dict)
            for key, value in keys.items()
            if value != old[section][key]
        }
    )


def try_here(recipe: Recipe, *, workers: Sequence[int], device: str, trial_s: float, show: Show) -> TrialFacts:
    """Measure each part of the training for some seconds, on one process of this machine; nothing is kept.

    At the batch of the recipe, or at the largest half, quarter, ... of it that this machine has the memory for. The
    numbers of workers that are asked about are refused before it where there are too few images for all of them.
    """
    found: dict[str, Any] = {}

    # `measure` returns figures alone; the recipe with all that was chosen, and the images, it only announces.
    def note(tried: Recipe, prepared: Prepared, processes: int) -> None:
        found.setdefault("recipe", tried)  # the first one has the batch that is asked about
        found.update(images=image_facts(prepared))
        num_train = found["images"]["num_train"]
        counts_allowed(workers, num_train=num_train, batch=found["recipe"].batch_per_worker)

    _refuse_unknown_gpu(device)
    request = Request(
        out=Path(), show=show, processes=1, device=checked_device(device), shows_progress=False, announce=note
    )
    tried = recipe.resolved()
    while True:
        try:
            with _folder() as folder:
                facts = measure(tried, replace(request, out=folder / "trial"), part_s=trial_s, fits_batch=True)
            return trial_facts(found["recipe"], found["images"], facts)
        except ProcessFailedError as error:
            if tried.batch_per_worker == 1 or not _is_out_of_memory(error):
                raise
            # A limit that no file of the system tells of: what is free was judged too well.
            tried = tried.replace("training", batch_per_worker=tried.batch_per_worker // 2, batch_total=None)


def _refuse_unknown_gpu(device: str) -> None:
    """Raise InputError for a GPU of this machine without a data sheet, which says how to add one."""
    if device in ("cpu", "mps"):
        return
    # Before the trial, not after it: what is measured on such a GPU cannot be carried over to another kind. Of several
    # the trial takes the first.
    for name in [gpu["name"] for gpu in describe_gpus()][:1]:
        if name != UNKNOWN_GPU:  # torch may know its name
            sheet_of(name)


@contextmanager
def _folder() -> Iterator[Path]:
    """Yield a folder for the time being; after a failure that is told it stays, since the error names its log."""
    folder = Path(tempfile.mkdtemp(prefix="turnaround-estimate-"))
    is_named = False
    try:
        yield folder
    except ProcessFailedError as error:
        is_named = not _is_out_of_memory(error)
        raise
    finally:
        if not is_named:
            remove_folder(folder)


def _is_out_of_memory(error: ProcessFailedError) -> bool:
    return any(word in str(error) for word in OUT_OF_MEMORY)


def trial_facts(recipe: Recipe, images: Mapping[str, Any], facts: Mapping[str, Any]) -> TrialFacts:
    """Return what the trial has told, from the resolved recipe, the images and the figures of the bench."""
    rates, counted, precision = facts["rates"], facts["footprint"], recipe.training.precision
    is_frozen = not recipe.model.fine_tune
    device = kind_of(facts["device"])
    network = NetworkCount(
        **counted,
        forward_flops_per_image=facts["cost"]["forward_flops_per_image"],
        is_frozen=is_frozen,
        keeps_features="backbone" in rates,
    )
    return TrialFacts(
        job=job_of_recipe(recipe.to_dict()),
        network=network,
        num_train=images["num_train"],
        num_validation=images["num_validation"],
        batch=recipe.batch_per_worker,
        trial_batch=facts["batch_per_worker"],
        epochs=recipe.training.num_epochs,
        gradient_bytes=facts["cost"]["gradient_bytes"],
        # Not Apple's GPUs: we have no data sheet of theirs to scale from.
        device=CPU if device in ("cpu", "mps") else device,
        precision=_gpu_precision(facts["choices"]["precision"]["value"]),
        gpu_precision=_gpu_precision(precision),
        images_per_s=_rate(rates["training"]),
        backbone_images_per_s=_rate(rates["backbone"]) if "backbone" in rates else None,
        decode_images_per_s=facts["decode"]["images_per_s"],
        start_up_s=facts["start_up_s"],
        training_watts=facts["training_watts"],
        cores=usable_cores(),
    )


def _rate(rate: Mapping[str, float]) -> Interval:
    return Interval(value=rate["images_per_s"], low=rate["low"], high=rate["high"])


def _gpu_precision(name: str) -> str:
    """Return the precision by a name of data sheets: a GPU left to itself computes in half precision; fp64 has no
    figures, and is at least as slow as fp32."""
    return {"auto": "amp", "fp64": "fp32"}.get(name, name)
