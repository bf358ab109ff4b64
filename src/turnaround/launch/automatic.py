"""The choices that a recipe leaves to us, made from the images and from the weights that are at hand.

Enters: a recipe that says `auto`. Leaves: the recipe with the network, its weights, size, batch, optimizer and
augmentation filled in, and a reason for each; of a network that was named, the augmentation alone. The choice depends
on the images, on the weights, and on whether there is a GPU, never on the workers or the processes: every run of a
study trains the same network. No torch.

| images                     | trained weights at hand | network, size                                   |
|----------------------------|-------------------------|-------------------------------------------------|
| generated                  |                         | small, 64 px: what the demo is made for         |
| of 96 px or more           | yes                     | that network at 224 px; frozen for few or no GPU|
| up to 48, 96 px; many, GPU |                         | resnet11 at 32, 64 px, with Muon                |
| larger; many, GPU          | no                      | resnet18 at 128 px, from scratch                |
| few, or no GPU             | no                      | small, 64 px, 10 to 60 epochs                   |

The batch of `training.batch_per_worker = auto` is the largest that pays (batch_limit.py); the processes try whether it
fits and never go beyond it (training/fitting.py).
"""

from __future__ import annotations

import functools
import math
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from turnaround.check.headers import read_header
from turnaround.data.folder import ImageTable
from turnaround.data.formats import scan
from turnaround.data.source import folder_here
from turnaround.launch.batch_limit import paying_batch
from turnaround.optimizers import OPTIMIZERS
from turnaround.recipe import (
    AUTO,
    GENERATED,
    RESNET11,
    SMALL_NETWORK,
    USUAL_EPOCHS,
    Recipe,
)
from turnaround.record.gpus import describe_gpus

HEADERS_READ = 60
"""Files whose size is looked at, from all over the set: their median is known to a few percent, in some 10 ms."""
MIN_PHOTO_PX = 96
"""Shorter side from which an image has the detail that networks trained on photos of 224 px look for."""
MANY_IMAGES = 5_000
"""Training images from which a network of ten million weights is taken instead of one of 300,000, for 40 times the
arithmetic: with ten classes, 500 of each. Chosen, not measured."""
FROZEN_BELOW = 1_000
"""Training images below which only the last layer learns. Chosen, not measured."""
LARGE_BATCH, LARGE_BATCH_FROM = 512, 20_000
"""Images of a worker's step, from so many training images on: ten epochs are then 400 updates or more."""
EPOCHS_FROM_SCRATCH = 30
"""Epochs of resnet11, unless asked for. CIFAR-10 as JPEGs of quality 75, 5,000 training images held out, batch 512,
H200, 2026-11-16: 10 epochs with light augmentation 90.5 %, 30 with it 90.4, 30 with strong 91.5 (and 91.9 with an
average of the weights), 50 with strong 91.8, in 28 s (10 epochs) and 44 s (30) with start-up."""
MAX_EPOCHS_SMALL, IMAGES_SEEN_SMALL = 60, 40_000
"""Of `small` from scratch, unless asked for: as many epochs as it takes to see so many images, some 40 s of two cores,
between the usual number and this one. 614 photos of fruit: 10 epochs 82.1 %, 30 89.7, 60 91.0, 100 92.3; 480 of twenty
classes of Caltech-101: 30.0, 40.8, 50.8, 52.5 (a fifth held out, one seed, 2026-11-20)."""
STRONG_FROM_EPOCHS = 20
"""Between the 10 epochs at which light augmentation is enough and the 30 at which strong was measured to be better."""
AVERAGE_OF_WEIGHTS = 0.995  # over the last 1 / (1 - 0.995) = 200 updates
SIZES_PX = {48: 32, MIN_PHOTO_PX: 64}
"""Side of the images up to which resnet11 takes them at so many pixels."""
TRAINED_NETWORKS = (
    "mobilenetv3_large_100",
    "efficientnet_b0",
    "mobilenetv2_100",
    "tf_efficientnet_lite0",
    "resnet50",
    "resnet34",
    "resnet18",
    "convnext_tiny",
)
"""Networks whose downloaded weights are used, by preference: a few million weights, quick without a GPU too."""
FROZEN_PRESET = "the features of unchanged images are computed once and kept"  # training/frozen.py
TRAINED_PRESET = "every layer goes on from trained weights"
GAIN_OF_WEIGHTS = "288 photos of fruit gave 92 % instead of 80 %, and 300 photos of ten objects 100 % instead of 71 %"
"""Measured with this command, with a frozen MobileNetV2 (docs/LOG.md, 2026-11-16, the first result) and from scratch
(three seeds, 2026-11-20)."""
HUB_PREFIX = "models--timm--"
BATCH_KEY = "training.batch_per_worker"
EPOCHS_KEY = "training.epochs"
PRESET_KEY = "augment.preset"


@dataclass(frozen=True, kw_only=True)
class AutomaticChoice:
    """A recipe without `auto`, and why."""

    recipe: Recipe
    reasons: dict[str, str] = field(default_factory=dict)
    """Sentences by key, such as `model.name`; the record keeps them."""
    hint: str | None = None
    """What would give a better model, where something is missing here."""
    tries_memory: bool = False
    """The batch is the largest that pays; the processes take less where it does not fit (training/fitting.py)."""

    def notes(self) -> tuple[str, ...]:
        """Return what the user is told before a resolved recipe is trained."""
        chosen = (f"{key} = {_value(self.recipe, key)} was chosen: {reason}." for key, reason in self.reasons.items())
        return tuple(filter(None, (*chosen, self.hint, scale_warning(self.recipe), rate_warning(self.recipe))))


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """What the choice is made from."""

    num_train: int
    side_px: float
    """Median of the shorter sides."""

    def __str__(self) -> str:
        return f"{self.num_train:,} training images of about {self.side_px:.0f} px"


def decide(
    recipe: Recipe, *, cache: Path, device: str, runs: Path | None = None, has_gpu: bool | None = None
) -> AutomaticChoice:
    """Fill in what the recipe leaves to us. Everything that it says stays.

    `runs` is the folder with earlier runs, whose noise scale says how large a batch pays. `has_gpu` chooses for a
    machine with a GPU or without one; None: for this machine, on the device.
    """

    @functools.cache
    def facts() -> ImageFacts | None:  # looked at where something depends on them
        return _image_facts(recipe, cache=cache)

    is_asked = recipe.training.batch_per_worker == AUTO
    # The network first: how many images pay depends on the epochs that are chosen with it.
    plain = recipe.replace("training", batch_per_worker=None) if is_asked else recipe
    on_gpu = sees_gpu(device) if has_gpu is None else has_gpu
    if recipe.model.name == AUTO:
        decision = _with_network(plain, facts(), has_gpu=on_gpu)
    else:
        decision = _with_preset(plain, facts, has_gpu=on_gpu)
    return _with_batch(decision, facts(), runs=runs) if is_asked else decision


def _with_batch(decision: AutomaticChoice, facts: ImageFacts | None, *, runs: Path | None) -> AutomaticChoice:
    """Return the decision with the largest batch that pays, for the processes to try."""
    batch = paying_batch(decision.recipe.resolved(), num_train=facts.num_train if facts else None, runs=runs)
    recipe = decision.recipe.replace("training", batch_per_worker=batch.value)
    reasons = {**decision.reasons, BATCH_KEY: batch.reason}
    return replace(decision, recipe=recipe, reasons=reasons, tries_memory=True)


def sees_gpu(device: str) -> bool:
    """Tell whether a training on this device of this machine is one on a GPU."""
    # By NVML, since nothing here loads torch; an Apple GPU has to be asked for by its name.
    return device != "cpu" and (device == "mps" or bool(describe_gpus()))


def _with_preset(recipe: Recipe, facts: Callable[[], ImageFacts | None], *, has_gpu: bool) -> AutomaticChoice:
    """Return the decision for a network that was named, where its images are not drawn for it."""
    if recipe.augment.preset != AUTO or recipe.data.source in GENERATED:
        return AutomaticChoice(recipe=recipe)
    if recipe.model.fine_tune is False:
        preset, reason = "none", FROZEN_PRESET
    elif recipe.model.weights not in (AUTO, "none"):
        preset, reason = "light", TRAINED_PRESET
    else:
        epochs = recipe.training.num_epochs
        seen = facts() if epochs >= STRONG_FROM_EPOCHS else None
        preset, reason = _preset_from_scratch(seen, epochs=epochs, has_gpu=has_gpu)
    return _decision(recipe, {PRESET_KEY: preset}, {PRESET_KEY: reason})


def _preset_from_scratch(facts: ImageFacts | None, *, epochs: int, has_gpu: bool) -> tuple[str, str]:
    """Return the preset for a network that starts from nothing, and why: strong only for what it was tried on."""
    if epochs < STRONG_FROM_EPOCHS:
        return "light", f"{epochs} epochs from scratch; strong is taken from {STRONG_FROM_EPOCHS} on"
    if facts is None:
        return "light", "the images are not here yet"
    if facts.num_train < MANY_IMAGES or facts.side_px > max(SIZES_PX):
        return "light", f"{facts}: strong was tried on many small ones"
    if not has_gpu:
        return "light", "strong was tried in trainings that take hours without a GPU"
    return "strong", "from scratch on many small images it was better than light (30 epochs of CIFAR-10)"


def _with_network(recipe: Recipe, facts: ImageFacts | None, *, has_gpu: bool) -> AutomaticChoice:
    if facts is None:
        reason = "the images are drawn for it, or not here yet"
        return AutomaticChoice(recipe=_filled(recipe, {"model.name": SMALL_NETWORK}), reasons={"model.name": reason})
    if recipe.model.weights not in (AUTO, "none"):
        name, reason = _network_of(recipe.model.weights), "the network of the weights given"
        return _trained(recipe, facts, name=name, reason=reason, has_gpu=has_gpu)
    found = downloaded_networks() if recipe.model.weights == AUTO else []
    if found and facts.side_px >= MIN_PHOTO_PX:
        reason = f"{facts}, and ImageNet weights of it were downloaded before"
        return _trained(recipe, facts, name=found[0], reason=reason, has_gpu=has_gpu)
    return _from_scratch(recipe, facts, has_gpu=has_gpu)


def _trained(recipe: Recipe, facts: ImageFacts, *, name: str, reason: str, has_gpu: bool) -> AutomaticChoice:
    mixes = recipe.augment.is_mixed  # which a frozen backbone does not take
    is_few = facts.num_train < FROZEN_BELOW
    is_frozen = (is_few or not has_gpu) and not mixes
    values: dict[str, Any] = {
        "model.name": name,
        "model.fine_tune": not is_frozen,
        PRESET_KEY: "none" if is_frozen else "light",
    }
    reasons = {
        "model.name": reason,
        "model.fine_tune": _why_frozen(facts, mixes=mixes, has_gpu=has_gpu),
        PRESET_KEY: FROZEN_PRESET if is_frozen else TRAINED_PRESET,
    }
    if recipe.model.weights == AUTO:
        values["model.weights"] = "imagenet"
    return _decision(recipe, values, reasons)


def _why_frozen(facts: ImageFacts, *, mixes: bool, has_gpu: bool) -> str:
    if mixes:
        return "a frozen backbone takes no mixed images"
    if has_gpu or facts.num_train < FROZEN_BELOW:
        few_or_enough = "few" if facts.num_train < FROZEN_BELOW else "enough"
        return f"{facts.num_train:,} training images are {few_or_enough} (from {FROZEN_BELOW:,} on every layer learns)"
    # Every layer: each image forward and backward in 10 epochs, 25 images/s. Frozen: forward once, 109 images/s
    # (mobilenet_v2, 224 px, 2 cores, 2026-11-15).
    return (
        "without a GPU the last layer alone learns, which needs each image once; every layer "
        "(--set model.fine_tune=true) would take some 40 times as long in 10 epochs"
    )


def _from_scratch(recipe: Recipe, facts: ImageFacts, *, has_gpu: bool) -> AutomaticChoice:
    is_photo = facts.side_px > max(SIZES_PX)
    values: dict[str, Any]
    hint = None
    if facts.side_px >= MIN_PHOTO_PX and recipe.model.weights == AUTO:
        hint = (
            "No ImageNet weights are on this machine, so the network is trained from scratch. With them, "
            f"{GAIN_OF_WEIGHTS}. Add --pretrained, which downloads those of {TRAINED_NETWORKS[0]}, or "
            "--set model.weights=FILE with a file of your own."
        )
    epochs = EPOCHS_FROM_SCRATCH if recipe.training.epochs is None else recipe.training.epochs
    preset, why_preset = _preset_from_scratch(facts, epochs=epochs, has_gpu=has_gpu)
    if facts.num_train < MANY_IMAGES or not has_gpu:
        # Without a GPU an epoch of 50,000 images would take resnet11 half an hour and more; `small` takes minutes.
        few = f"too few for a large network from scratch (from {MANY_IMAGES:,} on)"
        reason = (
            f"{facts}: {few if facts.num_train < MANY_IMAGES else 'a larger network would take hours without a GPU'}"
        )
        values = {"model.name": SMALL_NETWORK, PRESET_KEY: preset}
        epochs = min(max(USUAL_EPOCHS, math.ceil(IMAGES_SEEN_SMALL / max(1, facts.num_train))), MAX_EPOCHS_SMALL)
        if epochs > USUAL_EPOCHS:
            values[EPOCHS_KEY] = epochs
        why_epochs = (
            f"{facts.num_train:,} training images from scratch: {USUAL_EPOCHS} epochs left 480 and 614 photos 21 and 9 "
            f"points behind {MAX_EPOCHS_SMALL}"
        )
        reasons = {"model.name": reason, EPOCHS_KEY: why_epochs, PRESET_KEY: why_preset}
        return _decision(recipe, values, reasons, hint=hint)
    if is_photo:
        reason = f"{facts}, and no trained weights at hand"
        values = {"model.name": "resnet18", "data.size_px": 128, PRESET_KEY: preset}
        return _decision(recipe, values, {"model.name": reason, PRESET_KEY: why_preset}, hint=hint)
    size_px = next(size for limit, size in SIZES_PX.items() if facts.side_px <= limit)
    values = {
        "model.name": RESNET11,
        "data.size_px": size_px,
        EPOCHS_KEY: EPOCHS_FROM_SCRATCH,
        PRESET_KEY: preset,
        "training.optimizer": "muon",
        "training.label_smoothing": 0.1,
    }
    if epochs >= STRONG_FROM_EPOCHS:
        values["training.ema"] = AVERAGE_OF_WEIGHTS
    if facts.num_train >= LARGE_BATCH_FROM:
        values[BATCH_KEY] = LARGE_BATCH
    reasons = {
        "model.name": f"{facts}: a first layer that keeps every pixel",
        "data.size_px": f"the images are of about {facts.side_px:.0f} px",
        EPOCHS_KEY: f"from scratch, {EPOCHS_FROM_SCRATCH} were a point better than {USUAL_EPOCHS}",
        PRESET_KEY: why_preset,
        "training.ema": "the weights averaged over the last 200 updates, which is better in so long a training",
        "training.optimizer": "of the optimizers tried on networks like it the best, at one worker and at 16",
        "training.label_smoothing": "tried on this network",
        BATCH_KEY: f"{facts.num_train:,} training images: enough updates in an epoch",
    }
    return _decision(recipe, values, reasons, hint=hint)


def _decision(
    recipe: Recipe, values: dict[str, Any], reasons: dict[str, str], *, hint: str | None = None
) -> AutomaticChoice:
    filled = _filled(recipe, values)
    # What the recipe says itself has its value from the user, and no reason of ours.
    made = {key: reason for key, reason in reasons.items() if key in values and _value(recipe, key) in (None, AUTO)}
    return AutomaticChoice(recipe=filled, reasons=made, hint=hint)


def _value(recipe: Recipe, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(recipe, section), name)


def _filled(recipe: Recipe, values: dict[str, Any]) -> Recipe:
    """Return the recipe with the values where it says nothing, or `auto`."""
    sections: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        if _value(recipe, key) in (None, AUTO):
            section, _, name = key.partition(".")
            sections.setdefault(section, {})[name] = value
    for section, content in sections.items():  # a section at once: its keys are checked together
        recipe = recipe.replace(section, **content)
    return recipe


def _image_facts(recipe: Recipe, *, cache: Path) -> ImageFacts | None:
    """Look at the names and at some headers; None for images that are generated, or still to be fetched."""
    if recipe.data.source in GENERATED:
        return None
    folder = folder_here(recipe.data, size_px=0, cache=cache)
    if folder is None:
        return None  # whatever is wrong with it is said when it is prepared
    table = scan(folder, holdout=recipe.data.holdout, seed=recipe.training.seed)
    return ImageFacts(num_train=table.num_train, side_px=_median_side_px(table))


def _median_side_px(table: ImageTable) -> float:
    every = max(1, len(table.files) // HEADERS_READ)
    headers = [read_header(table.root / name) for name in table.files[::every]]
    # A header that cannot be read says 0; decoding tells which file it is.
    return statistics.median([min(h.width_px, h.height_px) for h in headers if h.width_px] or [MIN_PHOTO_PX])


def downloaded_networks() -> list[str]:
    """Return the timm names whose ImageNet weights a hub client has downloaded before, the preferred ones first."""
    home = Path(os.environ.get("HF_HOME") or Path("~/.cache/huggingface").expanduser())
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    try:
        found = sorted(entry.name.removeprefix(HUB_PREFIX) for entry in hub.glob(f"{HUB_PREFIX}*") if _is_whole(entry))
    except OSError:
        return []
    # The tag behind the dot says what the weights learnt last: those of ImageNet's 1,000 classes have in1k in it.
    ours = [name for name in found if name.partition(".")[0] in TRAINED_NETWORKS and "in1k" in name]
    return sorted(ours, key=lambda name: TRAINED_NETWORKS.index(name.partition(".")[0]))


def _is_whole(entry: Path) -> bool:
    """Tell whether a weights file is there: an interrupted download leaves a folder without one."""
    return any(any(entry.glob(f"snapshots/*/{name}")) for name in ("model.safetensors", "pytorch_model.bin"))


def _network_of(weights: str) -> str:
    """Return the network that a weights file is named after, as timm and its hub name their files."""
    if weights == "imagenet":
        return TRAINED_NETWORKS[0]
    path = Path(weights)
    folders = [part.removeprefix(HUB_PREFIX) for part in path.parts if part.startswith(HUB_PREFIX)]
    return (folders[-1] if folders else path.stem).partition(".")[0]


def scale_warning(recipe: Recipe) -> str | None:
    """Return a sentence where a resolved recipe has more images a step than its optimizer is known to stand."""
    optimizer, images = recipe.training.optimizer, recipe.global_batch
    mixes = bool(recipe.augment.mixup or recipe.augment.cutmix)
    limit = OPTIMIZERS[optimizer].known_batch(mixes=mixes)
    if recipe.model.weights != "none" or images <= limit:
        return None
    mixed = " of mixed images" if limit < OPTIMIZERS[optimizer].max_batch_from_scratch else ""
    return (
        f"{optimizer} from scratch is not known to keep its accuracy with {images:,} images a step (known{mixed}: up "
        f"to {limit:,}). {_known_instead(images, mixes=mixes)}"
    )


def _known_instead(images: int, *, mixes: bool) -> str:
    """Say which optimizer is known to stand so many images a step, if need be without mixing them."""
    for name, row in OPTIMIZERS.items():
        if row.known_batch(mixes=mixes) >= images:
            return f"--set training.optimizer={name} is."
    for name, row in OPTIMIZERS.items():
        if row.known_batch(mixes=False) >= images:
            return f"--set training.optimizer={name} is, without mixed images (--set augment.preset=light)."
    return "None of those offered is."


def rate_warning(recipe: Recipe) -> str | None:
    """Return a sentence where a rate of interruptions is given and nothing follows it."""
    training = recipe.training
    if training.interruptions_per_h is None or training.checkpoint_every_s == AUTO:
        return None
    every = f"every {training.checkpoint_every_s:g} s" if training.checkpoint_every_s else "after each epoch"
    return (
        f"training.interruptions_per_h={training.interruptions_per_h:g} has no effect: checkpoints are saved {every}, "
        "as training.checkpoint_every_s says. To save as often as such a rate asks for, add --set "
        "training.checkpoint_every_s=auto."
    )
