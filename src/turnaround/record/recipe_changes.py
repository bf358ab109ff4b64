"""Is a run resumed with the recipe that it began with?

recipe.json can be edited, and a training that goes on with another learning rate is neither run. So every checkpoint
keeps the keys that decide what is learnt, and a resume that finds others names them. What a resume changes on purpose
(`resume --epochs`) stands in recipe.json under `changes`, with the start that it belongs to.
"""

import reprlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from turnaround.errors import RunDirectoryError
from turnaround.record.coding import own_digest, plain
from turnaround.record.files import read_json
from turnaround.record.layout import CheckpointFiles, RunDirectory

DECIDING = {
    "data": ("size_px", "holdout", "images"),
    "model": ("name", "fine_tune"),
    "training": None,
    "augment": None,
    "workers": ("count",),
}
"""Keys by section, None: all. The images are known by their fingerprint, and the weights are in the checkpoint."""
CHANGES = "changes"
"""The key of recipe.json under which a resume writes down what it changes."""
BATCH_TO_FIT = "batch_to_fit"
"""The key of recipe.json that says: the batch is the largest that pays, try whether it fits. The training writes the
batch that does and removes the key; below it is the learning rate that was asked for, or null."""
HARMLESS = {
    *("training.checkpoint_every_s", "training.checkpoint_every_steps", "training.stop_on_full_disk"),
    *("training.compile", "training.interruptions_per_h"),
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


def recorded_change(keys: Mapping[str, tuple[Any, Any]], *, segment: int, after_epoch: int) -> dict[str, Any]:
    """Return an entry of `changes`: SECTION.KEY: [before, after], from this start of the run on."""
    return {"segment": segment, "after_epoch": after_epoch, "keys": {key: list(pair) for key, pair in keys.items()}}


def refuse_changes(
    before: Mapping[str, Any], recipe: Mapping[str, Any], run: Path, *, changes: Sequence[Any] = ()
) -> None:
    """RunDirectoryError with every key that is not what it was. A key that was not known then has not changed.

    `changes` are those on record, oldest first: they may lie between the checkpoint that says `before` and now.
    """
    now, before, shown = deciding_keys(recipe), dict(before), reprlib.repr
    for change in changes:
        for key, pair in _keys_of(change).items():
            if key in before and isinstance(pair, list) and len(pair) == 2 and before[key] == pair[0]:
                before[key] = pair[1]
    changed = [key for key in now if key in before and before[key] != now[key]]
    if changed:
        each = "; ".join(f"{key} was {shown(before[key])}, is {shown(now[key])}" for key in changed)
        raise RunDirectoryError(
            f"{RunDirectory(run).recipe} was changed after the run began: {each}. Put it back to go on, or start a new "
            "run with the other values (--set)."
        )


def _keys_of(change: Any) -> dict[str, Any]:
    """Return the keys of an entry, whatever somebody has made of the file."""
    keys = change.get("keys") if isinstance(change, dict) else None
    return keys if isinstance(keys, dict) else {}
