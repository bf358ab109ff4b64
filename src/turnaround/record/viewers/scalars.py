"""A run in numbers by epoch and in settings, as other viewers show it; schema.EpochRecord says which numbers."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from turnaround.record.schema import TAG, EpochRecord

TAGS: dict[str, str] = {field.name: field.metadata[TAG] for field in fields(EpochRecord) if TAG in field.metadata}
"""The values of an epoch that viewers show, and the name under which TensorBoard draws each."""
SECTIONS = ("name", "data", "model", "training", "augment", "workers", "images")
MAX_SETTING = 250


def scalars_of(record: EpochRecord) -> dict[str, float]:
    """The numbers of an epoch that were measured."""
    values = {name: getattr(record, name) for name in TAGS}
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
