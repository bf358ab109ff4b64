"""Data as people have it -> the same table that a folder of images gives. One row of FORMATS for each format.

    samples.py    the contract: samples with names, labels and parts; how they become a table
    tables.py     CSV, TSV, JSON lines, and metadata files of Hugging Face image folders
    tar.py        tar shards as WebDataset writes them
    parquet.py    Parquet tables of files, and of images' bytes                              needs pyarrow
    patterns.py   the files that a pattern names
    members.py    the bytes of an image inside a container, by its path

A folder without tables and containers is a folder of class folders (folder.py). Nothing is fetched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from turnaround.data import folder
from turnaround.data.folder import VALIDATION_NAMES, ImageTable
from turnaround.data.formats import parquet, tables, tar
from turnaround.data.formats.patterns import files_of, fixed_folder, is_pattern
from turnaround.data.formats.samples import Samples, table_of
from turnaround.errors import DataError

_PART_FOLDERS = ("train", *VALIDATION_NAMES, "data")


@dataclass(frozen=True, kw_only=True)
class SourceFormat:
    """One way in which images and labels lie on a disk."""

    name: str
    suffixes: tuple[str, ...]
    """Suffixes of the files that a user names, and of those that a folder of them holds."""
    takes_folder: Callable[[Path], bool]
    read: Callable[[Path, Path, list[Path]], Samples]
    """(source, root, files) -> samples; without files, the source is a folder that the format knows itself."""


def _one_table(source: Path, root: Path, files: list[Path]) -> Samples:
    if len(files) > 1:
        raise DataError(f"{source} stands for {len(files)} tables. Name one of them: {str(files[0])!r}.")
    return tables.read_table(files[0])


def _metadata(source: Path, root: Path, files: list[Path]) -> Samples:
    def read(path: Path) -> Samples:
        return parquet.read_parquet(path) if path.suffix.lower() == parquet.SUFFIX else tables.read_table(path)

    return tables.read_image_folder(source, read)


FORMATS = (
    SourceFormat(
        name="Hugging Face image folder",
        suffixes=(),
        takes_folder=lambda path: bool(tables.metadata_files(path)),
        read=_metadata,
    ),
    SourceFormat(name="table", suffixes=tables.TABLE_SUFFIXES, takes_folder=lambda path: False, read=_one_table),
    SourceFormat(
        name="tar shards",
        suffixes=(tar.SUFFIX,),
        takes_folder=lambda path: bool(_files_in(path, (tar.SUFFIX,))),
        read=tar.read_shards,
    ),
    SourceFormat(
        name="Parquet",
        suffixes=(parquet.SUFFIX,),
        takes_folder=lambda path: bool(_files_in(path, (parquet.SUFFIX,))),
        read=parquet.read_files,
    ),
)
SUFFIXES = tuple(suffix for row in FORMATS for suffix in row.suffixes)


def scan(source: Path, *, holdout: float, seed: int, given: Mapping[str, str] | None = None) -> ImageTable:
    """Find the images of a source in any format; see folder.scan for a folder of class folders."""
    samples = samples_of(source)
    if samples is None:
        return folder.scan(source, holdout=holdout, seed=seed, given=given)
    return table_of(samples, holdout=holdout, seed=seed, given=given)


def is_source(source: Path) -> bool:
    """Return whether something that can be scanned is there: a folder, a file, or files that a pattern names."""
    return os.path.exists(source) or (is_pattern(source) and bool(files_of(source)))


def samples_of(source: Path, *, to_evaluate: bool = False) -> Samples | None:
    """Return the samples; None for a folder of class folders. `to_evaluate`: see tables.read_table."""
    try:
        return _samples_of(source, to_evaluate=to_evaluate)
    except PermissionError as error:
        raise DataError(f"No permission to read {error.filename!r}. Ask its owner.") from error
    except OSError as error:
        raise DataError(
            f"{error.filename or str(source)!r} cannot be read: {error.strerror}. Check the disk."
        ) from error


def _samples_of(source: Path, *, to_evaluate: bool) -> Samples | None:
    if os.path.isdir(source):
        row = next((row for row in FORMATS if row.takes_folder(source)), None)
        if row is None and (saved := _files_in(source, (".arrow",))):
            raise DataError(
                f"{saved[0]} is an Arrow file, as `datasets` saves a set to a disk, and is not read here. Write "
                f"Parquet: python -c \"import datasets; datasets.load_from_disk('{saved[0].parent}')"
                ".to_parquet('train.parquet')\""
            )
        return None if row is None else row.read(source, source, _files_in(source, row.suffixes))
    if os.path.isfile(source):
        files, root = [source], source.parent
    else:
        files, root = files_of(source), fixed_folder(source)
        if not files:
            return None  # folder.scan says what is wrong with it
    suffixes = {file.suffix.lower() for file in files}
    row = next((row for row in FORMATS if suffixes <= set(row.suffixes)), None)
    if to_evaluate and (row is None or row.read is _one_table) and len(files) == 1:
        return tables.read_table(files[0], allows_outside=True)  # a file of any other name is taken for CSV
    if row is None:
        raise DataError(
            f"{source} is no source of images: {', '.join(sorted(suffixes))} is none of {', '.join(SUFFIXES)}. Give "
            "one of these, or the folder that holds the class folders."
        )
    return row.read(source, root, files)


def _files_in(place: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Return the files of a folder, or of its parts (train, val, data ...). With class folders beside them: none.

    An archive often lies beside the folders that were unpacked from it.
    """
    if not suffixes:
        return []
    found: list[Path] = []
    waiting = [place]
    while waiting:
        here = waiting.pop()
        with os.scandir(here) as listed:
            entries = sorted(listed, key=lambda entry: entry.name)
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                if here != place or entry.name.lower() not in _PART_FOLDERS:
                    return []
                waiting.append(Path(entry.path))
            elif entry.name.lower().endswith(suffixes):
                found.append(Path(entry.path))
    return sorted(found)
