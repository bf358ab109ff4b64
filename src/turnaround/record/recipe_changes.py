"""Is a run resumed with the recipe that it began with?

recipe.json can be edited, and a training that goes on with another learning rate is neither run. So every checkpoint
keeps the keys that decide what is learnt, and a resume that finds others names them.
"""

import reprlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from turnaround.errors import RunDirectoryError
from turnaround.record.coding import plain
from turnaround.record.files import own_digest, read_json
from turnaround.record.layout import CheckpointFiles, RunDirectory

DECIDING = {
    "data": ("size_px", "holdout", "images"),
    "model": ("name", "fine_tune"),
    "training": None,
    "augment": None,
    "workers": ("count",),
}
"""Keys by section, None: all. The images are known by their fingerprint, and the weights are in the checkpoint."""
HARMLESS = {
    *("training.checkpoint_every_s", "training.checkpoint_every_steps", "training.stop_on_full_disk"),
    "training.compile",
}


def deciding_keys(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """SECTION.KEY: value, of everything in a whole recipe's sections that decides what is learnt."""
    sections = plain(recipe)
    keys = ((section, key) for section, some in DECIDING.items() for key in (some or sections[section]))
    found = {f"{section}.{key}": sections[section][key] for section, key in keys}
    return {key: value for key, value in found.items() if key not in HARMLESS}


def began_with(checkpoints: Path) -> dict[str, Any]:
    """Return what the checkpoints of a run say; nothing where there are none that say it."""
    for files in CheckpointFiles.all_in(checkpoints):
        with suppress(RunDirectoryError):  # damaged: whoever needs this checkpoint says so
            manifest = read_json(files.manifest, below=checkpoints.parent)
            recipe = manifest.get("recipe")
            if isinstance(recipe, dict) and manifest.get("digest") == own_digest(manifest):
                return recipe
    return {}


def refuse_changes(before: Mapping[str, Any], recipe: Mapping[str, Any], run: Path) -> None:
    """RunDirectoryError with every key that is not what it was. A key that was not known then has not changed."""
    now, shown = deciding_keys(recipe), reprlib.repr
    changed = [key for key in now if key in before and before[key] != now[key]]
    if changed:
        each = "; ".join(f"{key} was {shown(before[key])}, is {shown(now[key])}" for key in changed)
        raise RunDirectoryError(
            f"{RunDirectory(run).recipe} was changed after the run began: {each}. Put it back to go on, or start a new "
            "run with the other values (--set)."
        )
