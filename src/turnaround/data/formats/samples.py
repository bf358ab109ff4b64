"""The contract of every source format: a list of samples, each with a name, a label and, where it is told, a part.

A name is a path below `root`, with '/' between its parts, and it is also how the bytes are found: `decode.read_file`
opens `root / name`, and where that leads into a container ('shards/0001.tar/cat7.jpg') asks members.py. So names alone
decide the order, the split, the fingerprint and what a message says, as they do for a folder of images.

Columns, not objects: a million samples take their names and 21 bytes each.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from turnaround.data.folder import File, ImageTable, Part, hold_out, make_table
from turnaround.data.split_file import deal
from turnaround.errors import DataError
from turnaround.words import counted, listed

TRAIN, VALIDATION, TEST, UNTOLD = "train", "validation", "test", ""
PART_WORDS = {
    **dict.fromkeys(("train", "training"), TRAIN),
    **dict.fromkeys(("val", "valid", "validation", "dev"), VALIDATION),
    **dict.fromkeys(("test", "testing", "eval"), TEST),
}
FILE_COLUMNS = ("file", "filename", "file_name", "filepath", "file_path", "path", "image", "image_path", "name")
LABEL_COLUMNS = ("label", "class", "class_name", "target", "category", "labels", "cls")
SPLIT_COLUMNS = ("split", "part", "subset", "fold_name")
_PARTS = (UNTOLD, TRAIN, VALIDATION, TEST)


@dataclass(kw_only=True)
class Samples:
    """Samples as they were read, in any order; `add` is how a format fills them."""

    source: Path
    root: Path
    files: list[str] = field(default_factory=list)
    split: str = ""
    """Where the parts are told, in words; empty where they are not."""
    notes: list[str] = field(default_factory=list)
    sizes_bytes: array[int] = field(default_factory=lambda: array("q"))
    mtimes_ns: array[int] = field(default_factory=lambda: array("q"))
    _labels: array[int] = field(default_factory=lambda: array("i"))
    _parts: array[int] = field(default_factory=lambda: array("b"))
    _number_of: dict[str, int] = field(default_factory=dict)
    _first: list[str] = field(default_factory=list)  # where each label was met first: for a message

    def add(self, name: str, label: str, *, part: str = UNTOLD, size_bytes: int, mtime_ns: int, where: str) -> None:
        """Add one sample; `where` is the line or the member that tells its label."""
        label = unicodedata.normalize("NFC", label)
        number = self._number_of.get(label)
        if number is None:
            number = self._number_of[label] = len(self._number_of)
            self._first.append(where)
        self.files.append(name)
        self._labels.append(number)
        self._parts.append(_PARTS.index(part))
        self.sizes_bytes.append(size_bytes)
        self.mtimes_ns.append(mtime_ns)

    def extend(self, other: Samples) -> None:
        """Add all samples of another list, with their notes."""
        self._first += [
            where for name, where in zip(other._number_of, other._first, strict=True) if name not in self._number_of
        ]
        numbers = [self._number_of.setdefault(name, len(self._number_of)) for name in other._number_of]
        self.files += other.files
        self._labels.extend(numbers[label] for label in other._labels)
        self._parts.extend(other._parts)
        self.sizes_bytes.extend(other.sizes_bytes)
        self.mtimes_ns.extend(other.mtimes_ns)
        self.notes += other.notes

    def rename_classes(self, names: Mapping[str, str]) -> None:
        """Give classes other names, such as those of a list for numbers."""
        self._number_of = {names.get(label, label): number for label, number in self._number_of.items()}

    def tell_parts(self, parts: list[str]) -> None:
        """Give every sample its part."""
        self._parts = array("b", [_PARTS.index(part) for part in parts])

    def labels(self) -> list[str]:
        """Return the label of each sample."""
        names = list(self._number_of)
        return [names[number] for number in self._labels]

    def parts(self) -> Iterator[str]:
        return (_PARTS[number] for number in self._parts)

    def classes(self) -> list[str]:
        """Return the labels: numbers by their value, anything else by name."""
        names = list(self._number_of)
        values = [_number(name) for name in names]
        if any(value is None for value in values):
            return sorted(names)
        for name, value, where in zip(names, values, self._first, strict=True):
            if value is not None and not value.is_integer():
                raise DataError(
                    f"{where}: the label {name!r} is a number with a fraction. Classes are learnt here, not values: "
                    "write the name of a class, or its number."
                )
        return sorted(names, key=lambda name: (_number(name), name))


def _number(label: str) -> float | None:
    return float(label) if re.fullmatch(r"[+-]?\d+(\.\d+)?([eE][+-]?\d{1,2})?", label) else None


def part_of(word: str, *, where: str) -> str:
    """Return the part that a cell of a split column names."""
    part = PART_WORDS.get(word.strip().lower())
    if part is None:
        raise DataError(
            f"{where}: {word.strip()[:80]!r} is no part of a split. Known: {', '.join(PART_WORDS)}. Correct it, or "
            "remove the column: then a share of every class is held out."
        )
    return part


def part_in_name(name: str) -> str:
    """Return the part that the name of a file or of its folder tells: data/train-00000-of-00002.parquet."""
    words = re.split(r"[^a-z]+", name.lower())
    return next((PART_WORDS[word] for word in words if word in PART_WORDS), UNTOLD)


def table_of(samples: Samples, *, holdout: float, seed: int, given: Mapping[str, str] | None) -> ImageTable:
    """Return the samples as the table that a folder of the same names would give."""
    names = samples.classes()
    by_part = _by_part(samples, names)
    warnings = list(samples.notes)
    if all(_number(name) is not None for name in names):
        warnings.append(
            f"The labels are numbers ({listed(names[:3])}{', ...' if len(names) > 3 else ''}), so the classes are "
            "called so in every report. Names can be read better."
        )
    train, val, split = _two_parts(samples, by_part, warnings)
    if len(train) < 2:
        raise DataError(
            f"{samples.source}: only one class, {next(iter(train))!r}, has training images; two are needed. Check the "
            "labels."
        )
    if val is None and given is None:
        train, val = hold_out(train, holdout=holdout, seed=seed)
        split = f"holdout {holdout:g}, seed {seed}"
    elif val is not None and (unknown := [name for name in names if name in val and name not in train]):
        raise DataError(
            f"{samples.source}: {counted(len(unknown), 'label')} of the validation part without a training image: "
            f"{', '.join(map(repr, unknown[:5]))}. Correct the labels, or move images of them to the training part."
        )
    if given is not None:
        (train, val), split = deal([train] if val is None else [train, val], given), "by photo"
    assert val is not None
    # deal() sorts by name: numbers keep the order of their values.
    train = {name: train[name] for name in names if name in train}
    return make_table(samples.root, train, val, split=split, ignored=[], warnings=warnings)


def _by_part(samples: Samples, names: list[str]) -> dict[str, Part]:
    """Return the files of each class, by name, in each part that is told."""
    parts: dict[str, Part] = {}
    rows = zip(samples.files, samples.sizes_bytes, samples.mtimes_ns, strict=True)
    labels = list(samples._number_of)
    for file, number, part in zip(rows, samples._labels, samples.parts(), strict=True):
        parts.setdefault(part, {}).setdefault(labels[number], []).append(file)
    return {part: {name: sorted(files[name]) for name in names if name in files} for part, files in parts.items()}


def _two_parts(samples: Samples, parts: dict[str, Part], warnings: list[str]) -> tuple[Part, Part | None, str]:
    """Return the training part, and the validation part where one is told: a test part is kept for last."""
    if set(parts) == {UNTOLD}:
        return parts[UNTOLD], None, ""
    if UNTOLD in parts:
        file = _first_file(parts[UNTOLD])
        raise DataError(
            f"{samples.source}: {file[0]!r} belongs to no part, while others do ({samples.split}). Name the part of "
            "all, or of none."
        )
    if TRAIN not in parts:
        raise DataError(
            f"{samples.source}: no image is to train on ({samples.split} tells: {listed(sorted(parts))}). Call the "
            "part of the training images 'train'."
        )
    validation = parts.get(VALIDATION) or parts.get(TEST)
    if VALIDATION in parts and TEST in parts:
        num_test = sum(map(len, parts[TEST].values()))
        warnings.append(f"Left alone: {counted(num_test, 'image')} of the part 'test'; only the other two are used.")
    return parts[TRAIN], validation, samples.split


def _first_file(part: Part) -> File:
    return next(iter(part.values()))[0]
