"""Measures of a loop at the end of an epoch. Enters: numbers under the names of many frameworks. Leaves: ours.

What has no place among ours is kept in the line under `extra`; what is no number is left out, and said.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from turnaround.record import metric_names
from turnaround.record.schema import METRICS, EpochRecord


class Measures(TypedDict, total=False):
    """The arguments of `Recorder.epoch`. Accuracies are fractions; whatever else is given is kept as `extra`."""

    epoch: int
    """Counted from 1; without it, one more than the last."""
    train_loss: Any
    train_accuracy: Any
    val_loss: Any
    val_accuracy: Any
    learning_rate: Any
    train_eval_loss: Any
    train_eval_accuracy: Any
    val_top5_accuracy: Any
    noise_scale: Any
    epoch_time_s: float
    """Seconds of training, where the loop knows better."""
    evaluation_time_s: float
    images: int
    """Training images of this epoch over all workers, where that is not num_train."""


OURS = tuple(Measures.__annotations__)
# By the unit of each metric. The throughput is computed from the time and the images of an epoch, never said.
ACCURACIES = tuple(name for name, metric in METRICS.items() if metric.unit == "share")
TIMES = tuple(name for name, metric in METRICS.items() if metric.unit == "s")
NUMBERS = tuple(name for name in METRICS if name not in (*TIMES, "images_per_s"))
WHOLE = ("epoch", "images")

# Loops join words by "_", "/", "-" or nothing: names are compared without punctuation.
_ACCURACY = metric_names.squeezed(metric_names.ACCURACY)
_TOP5 = metric_names.squeezed(metric_names.TOP5_ACCURACY)
_LEARNING_RATE = metric_names.squeezed(metric_names.LEARNING_RATE)
_VALIDATION = re.compile(rf"^({'|'.join(metric_names.VALIDATION)})[_/ .-]?(?=.)")
_TRAIN = re.compile(rf"^({'|'.join(metric_names.TRAIN)})[_/ .-]?(?=.)")


def our_name(name: str) -> str | None:
    """Return our name of a framework's "val_acc", "eval_accuracy" or "lr"; None where we have none."""
    if name in OURS:
        return name
    word = name.lower()
    word, is_validation = _VALIDATION.subn("", word)
    plain = re.sub(r"[^a-z0-9]", "", _TRAIN.sub("", re.sub(r"_(epoch|\d+)$", "", word)))
    part = "val" if is_validation else "train"
    if plain == metric_names.LOSS:
        return f"{part}_loss"
    if plain in _ACCURACY:
        return f"{part}_accuracy"
    if plain in _TOP5 and is_validation:
        return "val_top5_accuracy"
    return "learning_rate" if plain in _LEARNING_RATE and not is_validation else None


def in_our_names(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a framework's logs under our names. Unknown ones keep their own; the first of two with one name counts."""
    found: dict[str, Any] = {}
    for name, value in logs.items():
        own = our_name(name)
        found.setdefault(own if own is not None and own not in found else name, value)
    return found


@dataclass
class Reader:
    """Makes sense of what is given, epoch after epoch."""

    global_batch: int | None = None
    num_train: int | None = None
    is_percent: bool = False
    """Once an accuracy above 1 was seen."""
    remarks: list[str] = field(default_factory=list)
    """Sentences for the user."""

    def read(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the measures under our names as plain numbers, and the others."""
        named, numbers = in_our_names(given), {}
        for name in [name for name in named if name in OURS]:
            value = self._number(name, named.pop(name))
            if value is not None:
                numbers[name] = int(value) if name in WHOLE else value
        for name in ACCURACIES:
            if name in numbers:
                numbers[name] = self._fraction(name, numbers[name])
        return numbers, {name: _shown(value) for name, value in named.items() if value is not None}

    def _number(self, name: str, value: Any) -> float | None:
        if value is None:
            return None
        try:
            number = float(value)
        except Exception:  # a tensor of several values, or anything else
            self.remarks.append(f"{name}={str(value)[:40]!r} is no number and is left out.")
            return None
        if name in (*TIMES, *WHOLE) and not (math.isfinite(number) and number >= 0):
            self.remarks.append(f"{name}={number} cannot be and is left out.")
            return None
        return number

    def _fraction(self, name: str, value: float) -> float:
        if value > 1.0 and not self.is_percent:
            self.is_percent = True
            self.remarks.append(f"{name}={value:g} is taken for percent, and so are all from here on: give fractions.")
        return value / 100 if self.is_percent else value

    def images(self, steps: int) -> int | None:
        """Training images of an epoch of so many steps; the last batch may have been smaller."""
        if not steps or self.global_batch is None:
            return self.num_train
        seen = steps * self.global_batch
        if self.num_train is not None and self.num_train <= seen < self.num_train + self.global_batch:
            return self.num_train
        return seen


def record_of(numbers: Mapping[str, Any], *, epoch: int, steps: int, images: int | None, **times: Any) -> EpochRecord:
    """Return the line of an epoch; what nobody said is "there was no number"."""
    time_s: float = times["epoch_time_s"]
    named = {name: numbers[name] for name in NUMBERS if name in numbers}
    required = ("train_loss", "train_accuracy", "val_loss", "val_accuracy", "learning_rate")
    return EpochRecord(
        **{**dict.fromkeys(required, math.nan), **named},
        epoch=epoch,
        epoch_time_s=time_s,
        images_per_s=images / time_s if images is not None and time_s > 0 else math.nan,
        steps=steps or None,
        images=images,
        evaluation_time_s=times["evaluation_time_s"],
    )


def _shown(value: Any) -> Any:
    """Return a number where it is one, else a text that is not endless."""
    try:
        return float(value)
    except Exception:
        return str(value)[:200]
