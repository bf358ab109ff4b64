"""Images with known labels, to evaluate a network on: class folders, or any of the formats that can be trained on.

    FOLDER/CLASS/**    the folder's name is the label of every image below it
    TABLE.csv, shards of tar, Parquet ...    formats/

Where a source tells its parts, those that are not to train on are taken. Only names are read here, no image.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from turnaround.data import formats
from turnaround.data.folder import IMAGE_EXTENSIONS, VALIDATION_NAMES, class_files
from turnaround.data.formats.samples import TRAIN, Samples
from turnaround.errors import DataError, one_of
from turnaround.words import counted, listed

PARTS = ("train", *VALIDATION_NAMES)
MAX_CLASSES_NAMED = 20


@dataclass(frozen=True, kw_only=True)
class LabelledImages:
    """Image files, each with the name of its class."""

    source: Path
    """The folder or the table."""
    root: Path
    """What `files` are relative to."""
    files: tuple[str, ...]
    labels: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """What was left out, in sentences."""

    @property
    def paths(self) -> list[Path]:
        return [self.root / file for file in self.files]


def labelled_images(source: Path, *, run: Path) -> LabelledImages:
    """Find the images and their labels. `run` is named in the command for images without labels."""
    if not _is_there(source, formats.is_source):
        raise DataError(f"There is no folder and no table {str(source)!r}. Give a folder of class folders, or a CSV.")
    if source.suffix.lower().lstrip(".") in IMAGE_EXTENSIONS and source.is_file():
        raise DataError(f"{str(source)!r} is one image, and nothing says what it shows. {_to_classify(run, source)}")
    samples = formats.samples_of(source, to_evaluate=True)
    return _from_folder(source, run) if samples is None else _from_samples(samples)


def _from_samples(samples: Samples) -> LabelledImages:
    samples.classes()  # refuses values that are no classes
    rows = list(zip(samples.files, samples.labels(), samples.parts(), strict=True))
    kept = [row for row in rows if row[2] != TRAIN] or rows
    notes = list(samples.notes)
    if len(kept) < len(rows):
        notes.append(f"Left out: {counted(len(rows) - len(kept), 'image')} of the part 'train' ({samples.split}).")
    return LabelledImages(
        source=samples.source,
        root=samples.root,
        files=tuple(file for file, _, _ in kept),
        labels=tuple(label for _, label, _ in kept),
        notes=tuple(notes),
    )


def _is_there(path: Path, ask: Callable[[Path], bool]) -> bool:
    """Ask the file system; a name that it cannot even look up, such as one that is too long, is not there."""
    try:
        return ask(path)
    except (OSError, ValueError):
        return False


def refuse_unknown_labels(images: LabelledImages, classes: Sequence[str], *, run: Path) -> None:
    """Refuse labels that the network of a run has no class for: their images could only be wrong."""
    unknown = sorted(set(images.labels) - set(classes))
    if not unknown:
        return
    count = sum(label in set(unknown) for label in images.labels)
    told = (*sorted(classes)[:MAX_CLASSES_NAMED], "...") if len(classes) > MAX_CLASSES_NAMED else tuple(classes)
    others = f" ({counted(len(unknown) - 1, 'other label')} besides)" if len(unknown) > 1 else ""
    numbers = (
        " The labels are numbers: a run knows its classes by name, so write the names into the table."
        if all(label.isdigit() for label in unknown)
        else ""
    )
    raise DataError(
        f"{counted(count, 'image')} of {str(images.source)!r} have a label that {run} does not know.{numbers} "
        f"{one_of('class', unknown[0], told)}{others} Rename the folder or the label, or leave these images out."
    )


def _to_classify(run: Path, source: Path) -> str:
    command = f"turnaround classify {shlex.quote(str(run))} {shlex.quote(str(source))}"
    return f"What the network makes of images without labels: {command}"


# --- class folders


def _from_folder(folder: Path, run: Path) -> LabelledImages:
    by_class, loose = class_files(folder)
    parts = [name for name in by_class if name.lower() in PARTS]
    if parts and len(parts) == len(by_class) and all(_has_class_folders(by_class[part]) for part in parts):
        part = next((part for part in parts if part.lower() != "train"), parts[0])
        raise DataError(
            f"{str(folder)!r} holds the parts {listed(parts)} of a set, not class folders. Name one of them, best one "
            f"that was not trained on: {str(folder / part)!r}"
        )
    if not by_class:
        if loose:
            raise DataError(
                f"{str(folder)!r} holds {counted(len(loose), 'image')} and no class folders, so nothing says what they "
                f"show. {_to_classify(run, folder)} With labels: one folder for each class, or a table (CSV) with the "
                "columns file and label."
            )
        raise DataError(
            f"{str(folder)!r} holds no image. Looked for class folders with {', '.join(sorted(IMAGE_EXTENSIONS))}."
        )
    pairs = [(file, name) for name, files in by_class.items() for file in files]
    notes = [f"{counted(len(loose), 'image')} outside any class folder left out, e.g. {loose[0]!r}."] if loose else []
    files, labels = zip(*pairs, strict=True)
    return LabelledImages(source=folder, root=folder, files=files, labels=labels, notes=tuple(notes))


def _has_class_folders(files: Sequence[str]) -> bool:
    return all(file.count("/") > 1 for file in files)
