"""Is a run resumed with the images, the code and the epochs that it began with? If not: refused, or written down."""

from __future__ import annotations

from typing import Any

from turnaround.data.changes import changes_since
from turnaround.errors import InputError
from turnaround.launch.prepare import Prepared
from turnaround.recipe import Recipe
from turnaround.record.layout import RunDirectory
from turnaround.record.machine import other_code
from turnaround.record.reader import Run
from turnaround.record.recipe_changes import CHANGES, recorded_change

FINGERPRINT = "images.fingerprint"


def changed_images(run: Run, prepared: Prepared, recipe: Recipe, *, is_accepted: bool) -> dict[str, Any] | None:
    """Return the entry of `changes` for images that are not those of before; None where they are the same.

    InputError where they differ and nobody has accepted that, or where no training can go on with them.
    """
    facts = run.recipe.get("images")
    images: dict[str, Any] = facts if isinstance(facts, dict) else {}
    before, now = str(images.get("fingerprint")), prepared.pixels.fingerprint
    if before == now:
        return None
    what = changes_since(before, prepared.pixels) or "files were added, removed or changed"
    told = f"The images are not those that the run began with (fingerprint {before[:12]} then, {now[:12]} now): {what}."
    if not is_accepted:
        raise InputError(
            f"{told} Put them back, start a new run, or go on with them all the same: --accept-data-change, which the "
            "record keeps."
        )
    if images.get("classes") != list(prepared.pixels.classes):
        raise InputError(f"{told} The classes are others, so the network does not fit them: start a new run.")
    newest = max((files.name for files in run.directory.checkpoints() if files.name is not None), default=None)
    if newest is not None and newest.step * recipe.global_batch >= prepared.pixels.num_train:
        raise InputError(
            f"{told} The last checkpoint lies behind {newest.step} steps of an epoch, and with the images of now an "
            f"epoch has no more ({prepared.pixels.num_train} images, {recipe.global_batch} a step): start a new run."
        )
    change = recorded_change(
        {FINGERPRINT: (before, now)}, segment=run.status.segments + 1, after_epoch=run.status.epochs_done
    )
    return {**change, "images": what}


def refuse_other_code(directory: RunDirectory) -> None:
    """InputError where turnaround or a library is not the one of the start before: `resume --strict`."""
    changed = other_code(directory.machine)
    if changed:
        raise InputError(
            f"--strict: the code is not that of the last start ({'; '.join(changed)}). Install what it was, or leave "
            "--strict out: the training stays the same, its last bits may not, and the record says what changed."
        )


def with_epochs(recipe: Recipe, run: Run, epochs: int | None) -> tuple[Recipe, list[Any]]:
    """Return the recipe with the epochs that a resume asks for, and every change on record with this one."""
    recorded, training, done = run.recipe.get(CHANGES), recipe.training, run.status.epochs_done
    changes = list(recorded) if isinstance(recorded, list) else []
    if epochs is None:
        return recipe, changes
    if epochs <= done:
        raise InputError(
            f"--epochs {epochs}, but {run.path} has {done} epochs behind it already. Ask for more than {done}."
        )
    if epochs == training.epochs and run.status.state == "finished":
        reason = run.status.stopped_early or "It has finished."
        raise InputError(
            f"--epochs {epochs} is what {run.path} was asked for before. {reason} Ask for more than {epochs} to go on."
        )
    if epochs == training.epochs:
        return recipe, changes
    # More epochs were asked for by name: a limit that has run out would end them at once.
    wanted = {"epochs": epochs, "time_limit_s": None}
    keys = {f"training.{key}": (getattr(training, key), value) for key, value in wanted.items()}
    keys = {key: pair for key, pair in keys.items() if pair[0] != pair[1]}
    change = recorded_change(keys, segment=run.status.segments + 1, after_epoch=done)
    return recipe.replace("training", **wanted), [*changes, change]
