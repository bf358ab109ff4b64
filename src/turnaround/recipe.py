"""WHAT to train: five frozen sections of plain values.

Enters: keyword values (from a TOML file, from `--set section.key=value`, or from Python).
Leaves: a `Recipe` that is valid as a whole, or one `RecipeError` that lists every problem at once.

Every key, its type, its default, its range and its meaning stand in one place below; validation, the messages,
`turnaround recipes show` and the documentation all read that one place.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Self, get_type_hints

from turnaround.errors import RecipeError, one_of
from turnaround.interruptions import MAX_PER_H, USUAL_EVERY_S
from turnaround.optimizers import OPTIMIZERS
from turnaround.workers.engines import ENGINES

SCHEDULES = ("constant", "cosine", "one_cycle", "step")
SCALINGS = ("none", "linear", "sqrt", "auto")
LOSSES = ("cross_entropy", "mse")
CLASS_WEIGHTS = ("none", "balanced")
PRECISIONS = ("auto", "fp32", "bf16", "fp16", "fp64")
CACHES = ("on", "off", "none")
"""Any other value is a directory."""
COMPILES = ("auto", "on", "off")
STOPS = ("end", "stable")
PRESETS: dict[str, dict[str, float | bool]] = {
    "none": {},
    # Mirrored and moved by up to 4 of 32 px: He et al. 2016, on CIFAR-10. In whole pixels: ten epochs of resnet11, with
    # 5,000 of CIFAR-10's training images held out, gave 91.4 %, with shifts between pixels 90.8. A hidden square of
    # 12 px changed nothing in so short a training (91.3 against 91.2 %).
    "light": {"flip": True, "shift": 0.125, "whole_pixels": True},
    # For longer trainings: a part of the image is another image's (Yun et al. 2019, alpha as there). Thirty epochs of
    # resnet11, 5,000 of CIFAR-10's training images held out: cutmix with an average of the weights (ema 0.995) 91.9 %;
    # a hidden square of 12 px 91.3; one of 8 px and colours by 0.2 91.3.
    "strong": {"flip": True, "shift": 0.125, "whole_pixels": True, "cutmix": 1.0},
}
"""What a preset of [augment] gives the keys that are not given; those that it does not name are off."""
MIXING = ("mixup", "cutmix")
GENERATED = ("fruitbowl",)
DOWNLOADABLE = ("caltech256", "cifar10", "fruit")

AUTO = "auto"
"""Chosen by the images and by the weights that are at hand (launch/automatic.py)."""
SMALL_NETWORK = "small"
"""Our own network for the demo and for few images (model/small.py)."""
RESNET11 = "resnet11"
"""Our own network for small images (model/resnet11.py). Every other name is looked up in timm."""
OWN_SIZES_PX = {SMALL_NETWORK: 64, RESNET11: 32}
"""The image sizes that our own networks are made for; timm's get 224 px."""
USUAL_EPOCHS = 10
"""Unless something else is asked for or chosen."""
USUAL_BATCH = 32
"""Images of one worker at a step, unless something else is asked for or chosen."""
USUAL_OPTIMIZER = "adamw"
MAX_PER_WORKER = 65_536
"""Images of one worker at a step: far beyond what fits into a device."""


def key(
    default: Any, doc: str, *, low: float = -math.inf, high: float = math.inf, choices: tuple[str, ...] = ()
) -> Any:
    """Define a recipe key: its default, its meaning, and what is allowed."""
    return dataclasses.field(default=default, metadata={"doc": doc, "low": low, "high": high, "choices": choices})


@dataclass(frozen=True, kw_only=True)
class DataRecipe:
    """Says which images are taken, at which size, and how they are split."""

    source: str = key("fruitbowl", "a folder of images, or a known set: fruitbowl (drawn), caltech256, cifar10, fruit")
    size_px: int | None = key(
        None, "side of the square images; none = 64 for `small`, 32 for `resnet11`, else 224", low=16, high=1024
    )
    holdout: float = key(0.2, "share of each class held out when the folder has no split", low=0.01, high=0.9)
    split_by_photo: str | None = key(
        None, "keeps pictures of one photo on one side: auto (compares all images), or a file of `turnaround check`"
    )
    images: int = key(1800, "how many images to draw (generated sets only)", low=12, high=10_000_000)
    cache: str = key("on", "decoded pixels are kept: on, off (for this run), in a directory, or none (decoded anew)")
    skip_bad: bool = key(False, "leave unreadable images out instead of stopping; the record lists them")


@dataclass(frozen=True, kw_only=True)
class ModelRecipe:
    """Says which network is trained, from which weights, and how much of it learns."""

    name: str = key(
        AUTO,
        "`small` or `resnet11` (our own, good at 64 and at 32 px), any name that timm knows, or auto: by the images "
        "and the weights at hand",
    )
    weights: str = key(
        AUTO,
        "imagenet (downloaded through timm), a .safetensors or PyTorch file, none, or auto: with model.name = auto "
        "what was downloaded before, else none",
    )
    fine_tune: bool | None = key(
        None,
        "true: every layer learns; false: frozen backbone, only the new last layer learns; none: by the number of "
        "images where the network is chosen too, else true",
    )


_RATES = ", ".join(f"{name} {row.learning_rates.from_scratch:g}" for name, row in OPTIMIZERS.items())
_DECAYS = ", ".join(f"{name} {row.weight_decay:g}" for name, row in OPTIMIZERS.items() if name in ("adamw", "muon"))


@dataclass(frozen=True, kw_only=True)
class TrainingRecipe:
    """Says how the weights move."""

    epochs: int | None = key(
        None, f"passes over the training images; none = {USUAL_EPOCHS}, or more where auto says so", low=1, high=100_000
    )
    batch_per_worker: int | str | None = key(
        None,
        "images a worker takes at each step; auto = as many as pay, and fit into the memory, which is tried; none = by "
        f"the images where the network is chosen too, else {USUAL_BATCH}",
        low=1,
        high=MAX_PER_WORKER,
        choices=(AUTO,),
    )
    batch_total: int | None = key(
        None, "fixes the global batch instead: without batch norm, workers then change nothing", low=1, high=2**22
    )
    optimizer: str = key(
        AUTO,
        f"the update rule; auto = by the network where that is chosen too, else {USUAL_OPTIMIZER}",
        choices=(AUTO, *OPTIMIZERS),
    )
    learning_rate: float | None = key(
        None, f"for one worker; none = by optimiser, from scratch {_RATES}", low=0.0, high=1e4
    )
    scaling: str = key("auto", "how the learning rate grows with the workers", choices=SCALINGS)
    schedule: str = key("cosine", "how the learning rate falls, update by update", choices=SCHEDULES)
    warmup_epochs: float = key(
        1.0, "the learning rate rises linearly over these; one_cycle has its own", low=0.0, high=1000.0
    )
    weight_decay: float | None = key(
        None, f"not applied to biases and normalisation; none = by optimiser: {_DECAYS}", low=0.0, high=10.0
    )
    label_smoothing: float | None = key(
        None,
        "share of the label spread over all classes; none = by the network where that is chosen too, else 0",
        low=0.0,
        high=0.9,
    )
    ema: float | None = key(
        None,
        "decay of a moving average of the weights, which is evaluated instead; e.g. 0.999; 0 = off; none = off, or "
        "what model.name = auto chooses",
        low=0.0,
        high=0.999999,
    )
    class_weights: str = key(
        "none",
        "balanced: images of rare classes weigh more, images / (classes x images of the class); the mean is 1",
        choices=CLASS_WEIGHTS,
    )
    loss: str = key("cross_entropy", "what is minimised; mse is on softmax against one-hot labels", choices=LOSSES)
    precision: str = key("auto", "arithmetic of the passes; auto chooses for the device", choices=PRECISIONS)
    compile: str = key("auto", "torch.compile what takes the time; auto: on GPUs when it pays", choices=COMPILES)
    seed: int = key(0, "order, augmentation, new layers and hold-out follow from it", low=0, high=2**31 - 1)
    patience: int | None = key(
        None, "epochs without a better validation accuracy that end the training; none = never", low=1, high=100_000
    )
    stop: str = key("end", "end: after all epochs; stable: when the validation accuracy is", choices=STOPS)
    time_limit_s: float | None = key(
        None, "seconds of the whole run, start included: as many epochs as fit, at most `epochs`", low=1.0, high=1e9
    )
    checkpoint_every_s: float | str = key(
        USUAL_EVERY_S,
        "saved this often, within a long epoch too; 0 = after every epoch; auto = by interruptions_per_h, else 60",
        low=0.0,
        high=1e9,
        choices=(AUTO,),
    )
    interruptions_per_h: float | None = key(None, "of the run, expected: spot machines", low=0.0, high=MAX_PER_H)
    checkpoint_every_steps: int | None = key(None, "saved also after every so many updates", low=1, high=10**9)
    stop_on_full_disk: bool = key(False, "no room for a checkpoint ends the training; else it goes on and tries again")

    @property
    def num_epochs(self) -> int:
        """Passes over the training images."""
        return USUAL_EPOCHS if self.epochs is None else self.epochs


@dataclass(frozen=True, kw_only=True)
class AugmentRecipe:
    """Says how training images vary; each sample's variation is a pure function of (seed, epoch, sample)."""

    preset: str = key(
        "auto", "gives the keys below that are not given; auto: by images and weights", choices=(*PRESETS, "auto")
    )
    rotation_degrees: float | None = key(None, "rotated by up to this much either way", low=0.0, high=180.0)
    zoom: float | None = key(None, "scaled by 1-zoom .. 1+zoom", low=0.0, high=0.9)
    shift: float | None = key(None, "moved by up to this share of the side, both axes", low=0.0, high=0.9)
    whole_pixels: bool | None = key(None, "moved by whole pixels only: small images are not blurred by it")
    flip: bool | None = key(None, "mirrored left to right, half of the time; false where sides matter, as in text")
    brightness: float | None = key(None, "multiplied by 1-brightness .. 1+brightness", low=0.0, high=0.9)
    crop: float | None = key(
        None, "a part of at least this share of the area, sides 3:4 to 4:3, fills the image; 0 = off", low=0.0, high=1.0
    )
    colour: float | None = key(None, "contrast and saturation by 1-colour .. 1+colour", low=0.0, high=0.9)
    cutout: float | None = key(
        None, "side of a square that is hidden, as a share of the image's side; 0 = off", low=0.0, high=1.0
    )
    mixup: float | None = key(
        None, "blended with another image, labels too, by Beta(mixup, mixup); 0 = off", low=0.0, high=100.0
    )
    cutmix: float | None = key(
        None, "a square is another image's, labels by area, by Beta(cutmix, cutmix); 0 = off", low=0.0, high=100.0
    )

    @property
    def is_mixed(self) -> bool:
        """Tell whether two images become one, as far as the keys say it."""
        return any(getattr(self, name) for name in MIXING)

    def filled(self, *, is_frozen: bool = False) -> AugmentRecipe:
        """Return every key with its value: what is given, else what the preset says. An `auto` that nobody has decided
        is `none`. Images of a frozen backbone are not mixed."""
        preset = "none" if self.preset == "auto" else self.preset
        given = {name: value for name, value in vars(self).items() if value is not None}
        off = {name: False if name in ("flip", "whole_pixels") else 0.0 for name in vars(self)}
        by_preset = {name: value for name, value in PRESETS[preset].items() if not (is_frozen and name in MIXING)}
        return AugmentRecipe(**{**off, **by_preset, **given, "preset": preset})


@dataclass(frozen=True, kw_only=True)
class WorkersRecipe:
    """Says how many replicas share a step: mathematics, not hardware (see docs/architecture.md)."""

    count: int = key(1, "data-parallel workers", low=1, high=65_536)
    engine: str = key("torch", "communication backend of the processes", choices=tuple(ENGINES))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Five sections and a name. Made by `Recipe.from_dict`, which checks everything."""

    name: str = "recipe"
    data: DataRecipe = dataclasses.field(default_factory=DataRecipe)
    model: ModelRecipe = dataclasses.field(default_factory=ModelRecipe)
    training: TrainingRecipe = dataclasses.field(default_factory=TrainingRecipe)
    augment: AugmentRecipe = dataclasses.field(default_factory=AugmentRecipe)
    workers: WorkersRecipe = dataclasses.field(default_factory=WorkersRecipe)

    def __post_init__(self) -> None:
        problems = [p for name in SECTIONS for p in _section_problems(name, getattr(self, name))]
        # Rules across keys make sense only when each key does.
        if problems := problems or _joint_problems(self):
            raise RecipeError(_listed(problems))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Nested plain values, as TOML and JSON give them; unknown names are refused with the valid ones."""
        sections, problems = {}, []
        for section, content in values.items():
            if section == "name":
                continue
            if section not in SECTIONS:
                problems.append(one_of("section", section, tuple(SECTIONS)))
            elif not isinstance(content, dict):
                problems.append(f"[{section}] must be a section of keys. Received: {content!r}.")
            else:
                known = tuple(f.name for f in dataclasses.fields(SECTIONS[section]))
                problems += [one_of(f"key in [{section}]", k, known) for k in content if k not in known]
                sections[section] = {k: v for k, v in content.items() if k in known}
        problems += [p for s, content in sections.items() for p in _type_problems(s, content)]
        if problems:
            raise RecipeError(_listed(problems))
        built = {s: SECTIONS[s](**_coerced(s, content)) for s, content in sections.items()}
        return cls(name=str(values.get("name", "recipe")), **built)

    @classmethod
    def from_record(cls, values: dict[str, Any]) -> Self:
        """Return the recipe in a run's recipe.json, which also holds facts about the images it found."""
        sections = {k: v for k, v in values.items() if k in ("name", *SECTIONS)}
        if isinstance(augment := sections.get("augment", {}), dict):  # a run from before presets had none
            sections["augment"] = {"preset": "none", **augment}
        return cls.from_dict(sections)

    def to_dict(self) -> dict[str, Any]:
        """Plain nested values, ready for JSON or TOML."""
        return dataclasses.asdict(self)

    def replace(self, section: str, **values: Any) -> Self:
        """Return a copy with some keys of one section changed, checked again."""
        changed: Any = {section: dataclasses.replace(getattr(self, section), **values)}
        return dataclasses.replace(self, **changed)

    def resolved(self) -> Self:
        """Replace every `none` that means "choose for me" by its value: what is trained, saved and compared."""
        model, training = self.model, self.training
        recipe = self.replace(
            "model",
            name=SMALL_NETWORK if model.name == AUTO else model.name,
            weights="none" if model.weights == AUTO else model.weights,
            fine_tune=True if model.fine_tune is None else model.fine_tune,
        )
        if recipe.data.size_px is None:
            recipe = recipe.replace("data", size_px=OWN_SIZES_PX.get(recipe.model.name, 224))
        optimizer = USUAL_OPTIMIZER if training.optimizer == AUTO else training.optimizer
        each = training.batch_total // recipe.workers.count if training.batch_total else self.batch_per_worker
        given = training.learning_rate
        decay = OPTIMIZERS[optimizer].weight_decay if training.weight_decay is None else training.weight_decay
        recipe = recipe.replace(
            "training",
            epochs=training.num_epochs,
            optimizer=optimizer,
            batch_per_worker=each,
            weight_decay=decay,
            ema=training.ema or 0.0,
            label_smoothing=0.0 if training.label_smoothing is None else training.label_smoothing,
            learning_rate=recipe._usual_rate(optimizer, each) if given is None else given,
        )
        return dataclasses.replace(recipe, augment=recipe.augment.filled(is_frozen=not recipe.model.fine_tune))

    def _usual_rate(self, optimizer: str, batch_per_worker: int) -> float:
        """Return the learning rate to try first for one worker of a recipe whose network is known."""
        row = OPTIMIZERS[optimizer]
        rates = row.learning_rates
        trained = rates.fine_tuned if self.model.fine_tune else rates.last_layer
        rate = rates.from_scratch if self.model.weights == "none" else trained
        return rate * math.sqrt(batch_per_worker / USUAL_BATCH) if row.rate_grows_with_batch else rate

    @property
    def size_px(self) -> int:
        """The side of the images of a resolved recipe."""
        assert self.data.size_px is not None, "resolve the recipe first"
        return self.data.size_px

    @property
    def global_batch(self) -> int:
        """Images a step, over all workers."""
        return self.training.batch_total or self.workers.count * self.batch_per_worker

    @property
    def batch_per_worker(self) -> int:
        """Images a step of each worker; of a resolved recipe, or of one that says it."""
        each = self.training.batch_per_worker
        return each if isinstance(each, int) else USUAL_BATCH


SECTIONS: dict[str, Any] = {
    "data": DataRecipe,
    "model": ModelRecipe,
    "training": TrainingRecipe,
    "augment": AugmentRecipe,
    "workers": WorkersRecipe,
}


def _joint_problems(recipe: Recipe) -> list[str]:
    """Rules that join several keys."""
    training, count = recipe.training, recipe.workers.count
    problems = []
    if training.batch_per_worker == AUTO and training.batch_total is not None:
        both = f"training.batch_per_worker = {AUTO!r} chooses the batch, training.batch_total = {training.batch_total}"
        problems.append(f"{both} fixes it. Leave one of them out.")
    if training.batch_total is not None and training.batch_total % count:
        lower = training.batch_total // count * count
        near = [str(n) for n in (lower, lower + count) if n]
        problems.append(
            f"training.batch_total = {training.batch_total} cannot be shared evenly by {count} workers. "
            f"Use {' or '.join(near)}, or another number of workers."
        )
    elif training.batch_total is not None and training.batch_total // count > MAX_PER_WORKER:
        problems.append(
            f"training.batch_total = {training.batch_total} is more than {MAX_PER_WORKER} images a worker with "
            f"workers.count = {count}. Use a smaller batch_total, or more workers."
        )
    is_random = recipe.model.weights == "none" or (recipe.model.weights == AUTO and recipe.model.name != AUTO)
    if recipe.model.fine_tune is False and is_random:
        problems.append(
            "model.fine_tune = false freezes the network, but model.weights = 'none' leaves it random: it would learn "
            "almost nothing. Give model.weights a file or 'imagenet', or set model.fine_tune = true."
        )
    for name in MIXING if recipe.model.fine_tune is False else ():
        if value := getattr(recipe.augment, name):
            problems.append(
                f"augment.{name} = {value:g} mixes the images of a step, but model.fine_tune = false computes the "
                f"features of many steps at once. Set augment.{name} = 0, or model.fine_tune = true."
            )
    if training.loss == "mse" and training.label_smoothing:
        problems.append(
            "training.label_smoothing works with loss 'cross_entropy' only. Set it to 0, or change the loss."
        )
    if training.warmup_epochs > training.num_epochs and training.schedule != "one_cycle":
        problems.append(
            f"training.warmup_epochs = {training.warmup_epochs:g} is longer than training.epochs = "
            f"{training.num_epochs}: the full learning rate would never be reached. Lower warmup_epochs."
        )
    return problems


def _section_problems(section: str, content: Any) -> list[str]:
    """Range and choice problems of the values of one section, in words."""
    problems = []
    for field in dataclasses.fields(content):
        value, rule = getattr(content, field.name), field.metadata
        name, is_number = f"{section}.{field.name}", isinstance(value, int | float) and not isinstance(value, bool)
        if isinstance(value, str) and rule["choices"] and value not in rule["choices"]:
            problems.append(one_of(name, value, (*rule["choices"], *(["a number"] if rule["high"] < math.inf else []))))
        elif is_number and not rule["low"] <= value <= rule["high"]:
            problems.append(f"{name} must be from {rule['low']:g} to {rule['high']:g}. Received: {value!r}.")
        elif isinstance(value, str) and not value.strip():
            problems.append(f"{name} must not be empty: {rule['doc']}.")
    return problems


def _type_problems(section: str, content: dict[str, Any]) -> list[str]:
    """Values of the wrong type, in words."""
    hints = get_type_hints(SECTIONS[section])
    problems = []
    for name, value in content.items():
        if not _fits(value, hints[name]):
            kind = getattr(hints[name], "__name__", str(hints[name])).replace("None", "none")
            problems.append(f"{section}.{name} must be of type {kind}. Received: {value!r}.")
    return problems


def _fits(value: Any, hint: Any) -> bool:
    """Tell whether a TOML or JSON value can stand for the annotated type; an int may stand for a float."""
    allowed = getattr(hint, "__args__", (hint,))
    if isinstance(value, bool):
        return bool in allowed
    if isinstance(value, int) and float in allowed:
        return abs(value) < 2**1023  # larger ones have no float
    return isinstance(value, allowed)


def _coerced(section: str, content: dict[str, Any]) -> dict[str, Any]:
    """Ints given for float keys become floats, so that 1 and 1.0 make the same recipe."""
    hints = get_type_hints(SECTIONS[section])
    return {
        name: float(v) if isinstance(v, int) and float in getattr(hints[name], "__args__", (hints[name],)) else v
        for name, v in content.items()
    }


def _listed(problems: list[str]) -> str:
    several = ["The recipe has several problems:", *(f"- {problem}" for problem in problems)]
    return problems[0] if len(problems) == 1 else "\n".join(several)
