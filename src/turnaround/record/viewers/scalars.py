"""What other viewers show of a run: numbers by epoch, and settings."""

from __future__ import annotations

import math
from typing import Any

from turnaround.record.schema import EpochRecord

SHOWN = (
    *("train_loss", "train_accuracy", "val_loss", "val_accuracy", "val_top5_accuracy"),
    *("train_eval_loss", "train_eval_accuracy", "learning_rate", "epoch_time_s", "evaluation_time_s", "images_per_s"),
    "noise_scale",
)
SECTIONS = ("name", "data", "model", "training", "augment", "workers", "images")
MAX_SETTING = 250


def scalars_of(record: EpochRecord) -> dict[str, float]:
    """The numbers of an epoch that were measured."""
    values = {name: getattr(record, name) for name in SHOWN}
    return {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}


def settings_of(recipe: dict[str, Any]) -> dict[str, str]:
    """The recipe, flat: training.learning_rate = 0.1. Lists and what is not set are left out."""
    found: dict[str, str] = {}
    for section in SECTIONS:
        content = recipe.get(section)
        for key, value in content.items() if isinstance(content, dict) else [("", content)]:
            if isinstance(value, str | int | float | bool):
                found[f"{section}.{key}".rstrip(".")] = str(value)[:MAX_SETTING]
    return found
