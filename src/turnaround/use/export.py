"""One file of a trained network, held against the trained network on pictures before it gets its name.

The pictures are the run's own validation images where they are still there, else pictures that are drawn. A file that
answers otherwise than the trained network is removed and the error says by how much.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from turnaround.data.decode import UnreadableImage
from turnaround.data.decoders import Show
from turnaround.data.formats import scan
from turnaround.data.pixels import default_cache
from turnaround.data.source import folder_of
from turnaround.errors import InputError, ModelError, StorageError, TurnaroundError, one_of
from turnaround.fruitbowl import generate
from turnaround.recipe import DOWNLOADABLE, GENERATED, DataRecipe
from turnaround.record.files import replace_file, storage_error
from turnaround.use.card import card
from turnaround.use.formats import FORMATS, Network
from turnaround.use.graph import WithPreprocessing
from turnaround.use.images import Square, square_of
from turnaround.use.trained import Trained

TOLERANCE = 1e-4
"""Allowed difference of a logit; relative to the largest logit where that is above 1."""
MAX_CHECKED = 500
DRAWN, MAX_REDRAWN = 48, 5000
BATCH = 32  # the last batch is mostly smaller: a graph with a fixed batch size is found out


@dataclass(frozen=True, kw_only=True)
class ExportAgreement:
    """The answers of an exported file, compared with those of the trained network."""

    num_images: int
    pictures: str
    """The run's validation images, or drawn ones."""
    same_top1: int
    """Images for which both name the same class."""
    largest_difference: float
    """The largest difference between two logits of one image and class, relative as TOLERANCE is."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A file that was written and checked."""

    file: str
    format: str
    num_bytes: int
    card: str
    card_is_new: bool
    """False: one was there already, and was left as it is."""
    agreement: ExportAgreement
    epoch: int
    """The epoch whose weights it has."""
    weights: str
    """best or last."""

    def sentence(self) -> str:
        """Say what was written and how it was checked."""
        checked = self.agreement
        beside = f"Model card: {self.card}" if self.card_is_new else f"{self.card} already existed and was kept"
        return (
            f"{self.file}: {self.num_bytes / 1e6:.1f} MB, {self.format}. It names the same class as the trained "
            f"network for {checked.same_top1} of {checked.num_images} {checked.pictures}; the largest difference of a "
            f"logit is {checked.largest_difference:.1e}. {beside}."
        )


def export_run(trained: Trained, *, to: str, out: Path | None, show: Show, force: bool = False) -> Exported:
    """Write the file, check it on pictures, name it; then write its model card. `force` replaces both."""
    if to not in FORMATS:
        raise InputError(one_of("--to", to, tuple(FORMATS)))
    target = out if out is not None else Path(f"{trained.name}{FORMATS[to].ending}")
    _refuse_taken(target, force=force)
    squares, pictures = pictures_to_check(trained, show)
    agreement = _write_checked(trained, target, to=to, squares=squares, pictures=pictures)
    beside = target.with_name(f"{target.name}.md")
    is_new = force or not beside.exists()
    if is_new:
        replace_file(beside, card(trained, file=target.name, format_=to, agreement=agreement).encode())
    return Exported(
        file=str(target),
        format=to,
        num_bytes=target.stat().st_size,
        card=str(beside),
        card_is_new=is_new,
        agreement=agreement,
        epoch=trained.epoch,
        weights="last" if trained.best is None else "best",
    )


def _refuse_taken(target: Path, *, force: bool) -> None:
    if target.is_dir():
        raise StorageError(f"{target} is a folder. Give the path of a file with --out.")
    if target.exists() and not force:
        raise StorageError(f"{target} already exists. Replace it with --force, or choose another file with --out.")
    if not target.parent.is_dir():
        raise StorageError(f"There is no folder {target.parent}. Make it, or choose another file with --out.")


def _write_checked(
    trained: Trained, target: Path, *, to: str, squares: Sequence[Square], pictures: str
) -> ExportAgreement:
    """Write under a temporary name, and rename when the file answers as the trained network does."""
    format_ = FORMATS[to]
    # The ending stays: torch.export insists on it.
    temporary = target.with_name(f".{target.stem}.{os.getpid()}{format_.ending}")
    try:
        format_.write(trained, temporary)
        agreement = compare(WithPreprocessing(trained), format_.read(trained, temporary), squares, pictures=pictures)
        refuse_disagreement(agreement, to)
        temporary.chmod(0o644)  # safetensors makes files that only their owner may read
        os.replace(temporary, target)
    except TurnaroundError:
        raise
    except (OSError, SafetensorError) as error:
        raise storage_error("export", target, error) from error
    except Exception as error:  # an exporter's own: an operator it does not know, a graph it cannot follow
        first = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        others = ", ".join(name for name in FORMATS if name != to)
        raise ModelError(
            f"{trained.recipe.model.name!r} cannot be exported to {to} ({first}). Other formats: {others}."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return agreement


def compare(ours: Network, theirs: Network, squares: Sequence[Square], *, pictures: str) -> ExportAgreement:
    """Ask both networks about every picture, in batches."""
    same, largest = 0, 0.0
    for first in range(0, len(squares), BATCH):
        images = torch.from_numpy(np.stack(squares[first : first + BATCH]))
        with torch.inference_mode():
            one, other = ours(images), theirs(images)
        largest = max(largest, _difference(one, other))
        same += int((one.argmax(dim=1) == other.argmax(dim=1)).sum())
    return ExportAgreement(num_images=len(squares), pictures=pictures, same_top1=same, largest_difference=largest)


def _difference(one: Tensor, other: Tensor) -> float:
    """Return the largest difference, relative to the largest logit where that is above 1; infinite for NaN."""
    if one.shape != other.shape or not torch.isfinite(other).all():
        return float("inf")
    return float((one - other).abs().max() / one.abs().max().clamp(min=1.0))


def refuse_disagreement(agreement: ExportAgreement, to: str) -> None:
    """Refuse a difference above the tolerance; below it only classes that are as good as equal can change places."""
    if agreement.largest_difference > TOLERANCE:
        raise ModelError(
            f"The {to} file does not answer as the trained network does: logits differ by up to "
            f"{agreement.largest_difference:.1e} (allowed: {TOLERANCE:.0e}), and the class is the same for "
            f"{agreement.same_top1} of {agreement.num_images} {agreement.pictures}. It was not kept: try another."
        )


def pictures_to_check(trained: Trained, show: Show) -> tuple[list[Square], str]:
    """Return validation images of the run, from all over the set; drawn ones where there are none to be had."""
    try:
        # A split by photo is not made again: for this, any of the run's images will do.
        which = "validation images" if trained.recipe.data.split_by_photo is None else "images of the run's folder"
        return _validation_images(trained, show), which
    except (TurnaroundError, OSError):
        cache = default_cache() / f"check-{DRAWN}x64px"
        folder = generate(cache, images=DRAWN, size_px=64, seed=1)
        files = sorted(folder.glob("*/*.*"))
        squares = [square_of(file, size_px=trained.size_px) for file in files]
        return squares, "drawn pictures (the run's own images are not to be had)"


def _refuse_work(data: DataRecipe) -> None:
    """Refuse a download, or hours of drawing: a check is not worth them."""
    if data.source in DOWNLOADABLE or (data.source in GENERATED and data.images > MAX_REDRAWN):
        raise InputError(f"{data.source} would have to be made again")


def _validation_images(trained: Trained, show: Show) -> list[Square]:
    recipe = trained.recipe
    _refuse_work(recipe.data)
    folder = folder_of(
        recipe.data,
        size_px=recipe.size_px,
        cache=default_cache(),
        on_progress=lambda done: show("drawing images", done, recipe.data.images),
    )
    table = scan(folder, holdout=recipe.data.holdout, seed=recipe.training.seed)
    files = table.files[table.num_train :]
    # Every k-th, rounded up, since files are sorted by class: the first 500 would be those of a few classes.
    files = files[:: -(-len(files) // MAX_CHECKED)]
    squares = []
    for number, file in enumerate(files, start=1):
        try:
            squares.append(square_of(table.root / file, size_px=trained.size_px))
        except UnreadableImage:
            continue  # training has left it out too, or it was damaged since: any other will do
        show("reading images for the check", number, len(files))
    if not squares:
        raise InputError("no validation image can be read")
    return squares
