"""The comparability guard: what differs between two runs besides what was meant to vary.

A fact is one thing about a run that can change its time or its accuracy. What is not known (a table says little) is no
difference. The facts of the recipe also tell repeats from runs of other settings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from turnaround.analysis.gpu_kinds import is_cuda, kind_of
from turnaround.analysis.summary import device_name, steady_epochs
from turnaround.record.reader import Run

if TYPE_CHECKING:
    from turnaround.analysis.configurations import ConfigurationRuns

Matters = Literal["time", "accuracy", "both"]

MEANT = frozenset({"workers", "gpu", "hosts", "processes"})
"""Ids of the facts that the configurations of a job are meant to vary."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that is not the same on both sides."""

    id: str
    """Id of the fact."""
    left: tuple[Fact, ...]
    """The fact of the runs on this side, once for each value that it has."""
    right: tuple[Fact, ...]
    matters_for: Matters


Scalar = bool | int | float | str
SettingValue = Scalar | tuple[tuple[str, Scalar], ...]
"""A number, a word, or named values of one setting: the kinds of augmentation that are on."""
FactUnit = Literal["", "px", "in all", "per worker"]


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One thing about a run, as a value with its unit."""

    id: str
    """Key of the recipe where it is one, "training.optimizer"; what people call it is in findings/labels.py."""
    value: SettingValue
    unit: FactUnit = ""
    matters_for: Matters


_UNITS: dict[str, FactUnit] = {"data.size_px": "px"}

# Whatever changes the images, the network or the arithmetic of a step matters for both. An optimizer's update is taken
# to be small beside the passes; evaluations are timed apart, so the validation images change no epoch's time. Engine
# and compilation reach the same result by other means.
_RECIPE_KEYS: tuple[tuple[str, str, Matters], ...] = (
    ("data", "size_px", "both"),
    ("data", "holdout", "accuracy"),
    ("data", "images", "both"),
    ("data", "split_by_photo", "accuracy"),
    ("model", "name", "both"),
    ("model", "fine_tune", "both"),
    ("training", "epochs", "accuracy"),
    ("training", "optimizer", "accuracy"),
    ("training", "learning_rate", "accuracy"),
    ("training", "scaling", "accuracy"),
    ("training", "schedule", "accuracy"),
    ("training", "warmup_epochs", "accuracy"),
    ("training", "weight_decay", "accuracy"),
    ("training", "label_smoothing", "accuracy"),
    ("training", "loss", "accuracy"),
    ("training", "precision", "both"),
    ("training", "compile", "time"),
    ("workers", "engine", "time"),
    ("images", "num_train", "both"),
    ("images", "num_validation", "accuracy"),
)


def recipe_facts(run: Run) -> tuple[Fact, ...]:
    """Return what was asked for, without the seed and the number of workers: runs that agree in it are repeats."""
    recipe = run.recipe
    known = [(f"{section}.{key}", value_at(recipe, section, key), m) for section, key, m in _RECIPE_KEYS]
    if {"/", "\\"} & {*str(value_at(recipe, "data", "source"))}:
        # A path, not the name of a set: how many images are drawn says and does nothing there.
        known = [fact for fact in known if fact[0] != "data.images"]
    return (
        *(_fact(id_, value, m) for id_, value, m in known if value is not None),
        *_batch(recipe),
        *_augmentation(recipe),
        *_cache(recipe),
        *_weights(recipe),
        *_off_by_default(recipe),
    )


def machine_facts(run: Run) -> tuple[Fact, ...]:
    """Return what it ran on and with, and what the run itself chose."""
    machine = run.machine
    chosen = ((f"choices.{key}", value_at(machine, "choices", key, "value"), m) for key, m in _CHOICES)
    found: list[tuple[str, object, Matters]] = [
        ("gpu", kind_of(device_name(machine)), "time"),
        ("rehearsal", run.is_rehearsal, "time"),
        ("share", machine.get("share"), "time"),
        *chosen,
        ("cpu", machine.get("cpu"), "time"),
        ("code_version", _code_version(machine), "both"),
        ("torch_version", value_at(machine, "versions", "torch"), "both"),
        ("cold_cache", _is_cold(run), "time"),
    ]
    counts = [(key, value_at(machine, key)) for key in ("workers", "processes", "hosts")]
    found += [(id_, value, "time" if id_ != "workers" else "both") for id_, value in counts]
    shared = shared_gpu(machine)
    known = tuple(_fact(id_, value, m) for id_, value, m in found if value is not None)
    return known if shared is None else (*known, shared)


# What the run chose where the recipe says `auto`: two runs of one recipe may have computed otherwise.
_CHOICES: tuple[tuple[str, Matters], ...] = (("precision", "both"), ("backbone", "both"), ("pixels", "time"))


def result_facts(run: Run) -> tuple[Fact, ...]:
    """Return what follows from the recipe and decides the result: seed, images, split, global batch."""
    recipe = run.recipe
    total, each, count = (value_at(recipe, *keys) for keys in _BATCH_KEYS)
    batch = total or (each * count if isinstance(each, int) and isinstance(count, int) else None)
    found = (
        ("global_batch", batch),
        ("seed", value_at(recipe, "training", "seed")),
        ("split", value_at(recipe, "images", "split")),
        ("fingerprint", _short(value_at(recipe, "images", "fingerprint"))),
    )
    return tuple(_fact(id_, value, "accuracy") for id_, value in found if value is not None)


_BATCH_KEYS = (("training", "batch_total"), ("training", "batch_per_worker"), ("workers", "count"))


# One that was repeated more often than the other has more of these; that alone is not unfair.
_VARIES_OVER_REPEATS = frozenset({"seed", "split", "fingerprint"})


def differences(a: Run, b: Run, *, meant: frozenset[str] = MEANT) -> tuple[Difference, ...]:
    """Return what differs between two runs besides what was meant to."""
    return _between([a], [b], meant)


def unintended_differences(
    configuration_a: ConfigurationRuns, configuration_b: ConfigurationRuns, *, meant: frozenset[str] = MEANT
) -> tuple[Difference, ...]:
    """Return the differences of two configurations over their repeats: with a seed in common, seeds are none."""
    return _between([run for _, run in configuration_a.members], [run for _, run in configuration_b.members], meant)


def _between(left: Sequence[Run], right: Sequence[Run], meant: frozenset[str]) -> tuple[Difference, ...]:
    ours, theirs = _values(left), _values(right)
    found = []
    for id_, (values, matters_for) in ours.items():
        # What the other side says nothing about is no difference: its record may be older, or a table.
        others = theirs.get(id_, (values, matters_for))[0]
        is_other = values.isdisjoint(others) if id_ in _VARIES_OVER_REPEATS else values != others
        if id_ not in meant and is_other:
            found.append(Difference(id=id_, left=_sorted(values), right=_sorted(others), matters_for=matters_for))
    has_other_split = any(difference.id == "split" for difference in found)
    # The fingerprint says which image is in which part: with another split it differs for the same images.
    return tuple(d for d in found if d.id != "fingerprint" or not has_other_split)


def _values(runs: Iterable[Run]) -> dict[str, tuple[frozenset[Fact], Matters]]:
    """Return for each fact all its values over the runs."""
    found: dict[str, tuple[frozenset[Fact], Matters]] = {}
    for run in runs:
        for fact in (*recipe_facts(run), *result_facts(run), *machine_facts(run)):
            before = found.get(fact.id, (frozenset[Fact](), fact.matters_for))[0]
            found[fact.id] = (before | {fact}, fact.matters_for)
    return found


def _fact(id_: str, value: object, matters_for: Matters) -> Fact:
    return Fact(id=id_, value=_scalar(value), unit=_UNITS.get(id_, ""), matters_for=matters_for)


def _scalar(value: object) -> Scalar:
    """Return a value of a record as one that can be compared: not a number is not even equal to itself."""
    is_plain = isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    # Null, lists and sections of records of others become text too: a fact must be hashable.
    return value if is_plain else str(value)  # type: ignore[return-value]


def _sorted(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    # As text: of one fact some runs may have a number and others a word. Sets have no order of their own.
    return tuple(sorted(facts, key=lambda fact: str(fact.value)))


def value_at(content: Any, *keys: str) -> Any:
    """Return what stands under the keys of a file of a run; None where the way ends before."""
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content


def shared_gpu(machine: dict[str, Any], id_: str = "shared_gpu") -> Fact | None:
    """Return the fact that several processes computed on one GPU; None when each had its own, or nobody says."""
    ranks = machine.get("ranks")
    if not isinstance(ranks, list) or not is_cuda(machine.get("device")):
        return None
    # By host: cuda:0 of two hosts are two GPUs. By number where the record has it (from 2026-11-19 on): processes that
    # are each shown one GPU alone all have cuda:0.
    places = [(value_at(rank, "host"), value_at(rank, "device"), value_at(rank, "gpu")) for rank in ranks]
    count = len({str(place) for place in places})
    if count == len(places):
        return None
    return Fact(id=id_, value=(("processes", len(places)), ("gpus", count)), matters_for="time")


def mixes_devices(machine: dict[str, Any]) -> bool:
    """Tell whether the processes had devices of several kinds (`--device cuda,cpu`): their times are of no kind."""
    ranks = machine.get("ranks")
    kinds = {str(value_at(rank, "device")).partition(":")[0] for rank in ranks} if isinstance(ranks, list) else set()
    return {"cpu", "cuda"} <= kinds


def _batch(recipe: dict[str, Any]) -> Iterable[Fact]:
    total, each, _ = (value_at(recipe, *keys) for keys in _BATCH_KEYS)
    if total is not None:
        yield Fact(id="batch", value=_scalar(total), unit="in all", matters_for="both")
    elif each is not None:
        yield Fact(id="batch", value=_scalar(each), unit="per worker", matters_for="both")


def _augmentation(recipe: dict[str, Any]) -> Iterable[Fact]:
    augment = recipe.get("augment")
    if isinstance(augment, dict) and augment:
        given = augment.get("given")
        # A preset is not a difference: it stands for values, and the record has them all.
        used = tuple((key, _scalar(v)) for key, v in augment.items() if v and key not in ("given", "preset"))
        value: SettingValue = given if isinstance(given, bool) else used
        yield Fact(id="augment", value=value, matters_for="both")


def _cache(recipe: dict[str, Any]) -> Iterable[Fact]:
    cache = value_at(recipe, "data", "cache")
    if cache is not None:  # where it is kept decides nothing
        yield Fact(id="data.cache", value="none" if cache == "none" else "kept", matters_for="time")


def _weights(recipe: dict[str, Any]) -> Iterable[Fact]:
    weights = value_at(recipe, "model", "weights")
    if weights is not None:
        # The file's name alone: the same weights lie elsewhere on another machine.
        yield Fact(id="model.weights", value=str(weights).replace("\\", "/").rpartition("/")[2], matters_for="accuracy")


_OFF_BY_DEFAULT: tuple[tuple[str, str], ...] = (("training", "class_weights"),)
"""Keys that older records do not have: off, they say the same as a record without them."""


def _off_by_default(recipe: dict[str, Any]) -> Iterable[Fact]:
    for section, key in _OFF_BY_DEFAULT:
        value = value_at(recipe, section, key)
        if value not in (None, "none"):
            yield _fact(f"{section}.{key}", value, "accuracy")


def _code_version(machine: dict[str, Any]) -> str | None:
    # The commit where there is one: in a clone that is worked on, many commits have one version.
    commit = value_at(machine, "turnaround_git", "commit")
    dirty = " with changes" if value_at(machine, "turnaround_git", "dirty") else ""
    version = value_at(machine, "versions", "turnaround")
    return f"{_short(commit)}{dirty}" if commit else str(version) if version else None


def _is_cold(run: Run) -> bool | None:
    """Tell whether all that is known of its speed is the first epoch after a start."""
    return not steady_epochs(run.epochs) if run.epochs and run.imported is None else None


def _short(value: object) -> str | None:
    return str(value)[:8] if value else None
