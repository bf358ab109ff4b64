"""What is refused before any process computes: a start that could not train, a resume that is not the run's own.

Enters: a resolved recipe and a kind of device. Leaves: nothing, or the error that the processes would raise minutes
later. Without torch and timm, so only what is certain is refused: what cannot be judged here, training judges.

A resume must have the images, the code and the epochs that the run began with; what is accepted all the same is
written down.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from turnaround.data.changes import changes_since
from turnaround.errors import InputError, MissingPartError, ModelError
from turnaround.launch.prepare import Prepared
from turnaround.recipe import AUTO, OWN_SIZES_PX, Recipe
from turnaround.record.gpus import describe_gpus
from turnaround.record.layout import RunDirectory
from turnaround.record.machine import other_code
from turnaround.record.reader import Run
from turnaround.record.recipe_changes import CHANGES, recorded_change
from turnaround.words import few

OWN_NETWORKS = tuple(OWN_SIZES_PX)
GPU_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")
"""Device files of which one is there on Linux wherever torch can have a CUDA device: NVIDIA's driver, WSL's, AMD's."""
PYTORCH_BEGINNINGS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04")
"""A PyTorch file is a zip archive, or an old one a pickle, which begins with its protocol."""
MAX_HEADER_BYTES = 100_000_000
"""Largest header that the safetensors library itself accepts."""
FINGERPRINT = "images.fingerprint"


def refuse_early(recipe: Recipe, *, device: str, tries_memory: bool = False) -> None:
    """Refuse a device that is not here, a weights file that is none, and a network that nobody knows."""
    for kind in device.split(","):
        _refuse_device(kind)
    if "," in device and recipe.workers.engine != "torch":
        raise InputError(
            f"--device {device}: the engine {recipe.workers.engine} needs the same kind of device on every process. "
            "Leave --engine out."
        )
    if "," in device and tries_memory:
        raise InputError(
            f"--device {device}: which batch fits is tried on all processes at once, and they would try in different "
            "ways. Give the images of a worker in a step: --batch 32."
        )
    _refuse_weights(recipe.model.weights)
    _refuse_network(recipe.model.name, weights=recipe.model.weights)


# --- the device


def _refuse_device(device: str) -> None:
    if device == "cuda" and not may_have_cuda(os.environ):
        raise MissingPartError(
            "--device cuda: this process sees no CUDA device here (no driver, or CUDA_VISIBLE_DEVICES hides it). Use "
            "--device cpu or auto."
        )
    if device == "mps" and sys.platform != "darwin":
        raise MissingPartError("--device mps: there is no Apple GPU here. Use --device cpu or auto.")


def may_have_cuda(environment: Mapping[str, str]) -> bool:
    """Tell whether torch might find a CUDA device; True where only it can know."""
    if environment.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return False
    if sys.platform != "linux":
        return sys.platform != "darwin"
    return bool(describe_gpus()) or any(map(os.path.exists, GPU_FILES))


# --- the weights file


def _refuse_weights(weights: str) -> None:
    """Read the first bytes: whether the tensors fit, only the network can tell."""
    if weights in ("none", "imagenet", AUTO):
        return
    path = Path(weights)
    if not path.is_file():
        raise ModelError(f"There is no weights file {str(path)!r}. model.weights takes a file, imagenet, or none.")
    try:
        with path.open("rb") as file:
            begin = file.read(9)
    except OSError as error:
        raise ModelError(f"The weights file {str(path)!r} cannot be opened: {error.strerror}.") from None
    size = int.from_bytes(begin[:8], "little")
    is_safetensors = len(begin) == 9 and begin[8:] == b"{" and 2 <= size <= MAX_HEADER_BYTES
    is_fine = is_safetensors if path.suffix == ".safetensors" else begin.startswith(PYTORCH_BEGINNINGS)
    if not is_fine:
        hint = " It is a safetensors file: let its name end in .safetensors." if is_safetensors else ""
        raise ModelError(
            f"{str(path)!r} cannot be read as weights: it does not begin as such a file does.{hint} Give a "
            ".safetensors file, or a PyTorch file that holds tensors only (a state dict)."
        )


# --- the network


def _refuse_network(name: str, *, weights: str) -> None:
    """Refuse a name that stands nowhere in timm's own files; without timm, training says what is missing."""
    names = timm_names()
    architecture = name.partition(".")[0]  # resnet50.a1_in1k: a network, and which of its weights
    if name in (*OWN_NETWORKS, AUTO) or not names or architecture in names or _is_old_name(architecture):
        return
    if Path(weights).name.partition(".")[0] == name:  # what auto makes of a weights file (automatic.py)
        raise ModelError(
            f"{weights!r} does not say by its name of which network the weights are. Add --model NAME; turnaround "
            "models WORD lists the names."
        )
    near = difflib.get_close_matches(architecture, (*OWN_NETWORKS, *names), n=5)
    hint = f" Did you mean {', '.join(near)}?" if near else ""
    raise ModelError(
        f"Unknown model.name {name!r}.{hint} Valid: {', '.join(OWN_NETWORKS)}, or one of timm's {len(names):,} names "
        "(turnaround models WORD lists those with a word in them)."
    )


@cache
def timm_names() -> tuple[str, ...]:
    """Return the networks that timm registers, by their names in its source; none where timm is not installed."""
    found = re.findall(r"(?m)^@register_model\n(?:@.*\n)*def (\w+)\(", _timm_source())
    return tuple(sorted(set(found)))


def _is_old_name(architecture: str) -> bool:
    """Tell whether timm's tables of deprecated names have it: it still takes them. A family's name (resnet) is none."""
    return re.search(rf"""['"]{re.escape(architecture)}['"]\s*:\s*['"]""", _timm_source()) is not None


@cache
def _timm_source() -> str:
    """Return the text of timm's models: 4 MB, some 20 ms, where importing timm takes seconds."""
    try:
        spec = importlib.util.find_spec("timm")
    except (ImportError, ValueError):
        spec = None
    folders = spec.submodule_search_locations if spec is not None else None
    if not folders:
        return ""
    files = sorted(Path(folders[0]).glob("models/*.py"))
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


# --- a resume


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


def code_notes(directory: RunDirectory) -> tuple[str, ...]:
    """Return one sentence where a resume goes on with other code than the last start; nothing where it is the same."""
    changed = other_code(directory.machine, with_uncommitted=False)
    if not changed:
        return ()
    return (
        f"The code is not that of the last start ({few(changed)}): the training stays the same, its last bits may not. "
        "--strict refuses this.",
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
