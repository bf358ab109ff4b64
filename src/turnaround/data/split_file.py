"""A hold-out that was decided beforehand: which image is trained on, which one is kept for validation.

The file is JSON, with paths relative to the folder of images and '/' between their parts:

    {"format_version": 1, "made_by": "turnaround check --split-by-photo", "holdout": 0.2, "seed": 0,
     "files": {"cats/1.jpg": "train", "cats/2.jpg": "validation", ...}}

Only `files` is needed. An image of the folder that is not in it is an error, since either part would be a guess.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from turnaround.children import process_tag
from turnaround.data.plain import parsed_object, read_plain
from turnaround.errors import DataError, StorageError
from turnaround.words import counted

TRAIN, VALIDATION = "train", "validation"
FORMAT_VERSION = 1
MAX_BYTES = 1 << 30  # ten million names; what a record names may be a device
File = TypeVar("File", bound=tuple[str, int, int])
ByClass = dict[str, list[File]]
_HOW_TO_MAKE = "`turnaround check FOLDER --split-by-photo FILE` writes such a file."


def read_split(path: Path) -> dict[str, str]:
    """Return the part of each file."""
    try:
        # Names of files need not be UTF-8: other bytes become surrogates, as in os.listdir.
        content = parsed_object(
            read_plain(path, most_bytes=MAX_BYTES, follows_link=True).decode("utf-8", errors="surrogateescape")
        )
    except OSError as error:
        raise DataError(f"The split {str(path)!r} cannot be read: {error.strerror}. {_HOW_TO_MAKE}") from error
    except ValueError as error:
        raise DataError(f"The split {str(path)!r} is no JSON object ({error}). {_HOW_TO_MAKE}") from error
    files = content.get("files")
    if not isinstance(files, dict) or not files:
        raise DataError(f'The split {str(path)!r} has no "files": {{path: part}}. {_HOW_TO_MAKE}')
    if content.get("format_version", FORMAT_VERSION) != FORMAT_VERSION:
        raise DataError(
            f"The split {str(path)!r} has format version {content['format_version']!r}, not {FORMAT_VERSION}. "
            f"{_HOW_TO_MAKE}"
        )
    wrong = [(name, part) for name, part in files.items() if part not in (TRAIN, VALIDATION)]
    if wrong:
        raise DataError(
            f"The split {str(path)!r} puts {wrong[0][0]!r} into {wrong[0][1]!r}. The parts are {TRAIN!r} and "
            f"{VALIDATION!r}."
        )
    return files


def write_split(path: Path, files: Mapping[str, str], *, holdout: float, seed: int) -> None:
    """Write the file whole or not at all."""
    content = {
        "format_version": FORMAT_VERSION,
        "made_by": "turnaround check --split-by-photo",
        "holdout": holdout,
        "seed": seed,
        "files": dict(files),
    }
    temporary = path.with_name(f".{path.name}.{process_tag()}.unfinished")
    try:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")  # ASCII: any name survives
        temporary.replace(path)
    except OSError as error:
        raise StorageError(f"Cannot write the split {str(path)!r}: {error.strerror}. Choose another place.") from error
    finally:
        temporary.unlink(missing_ok=True)


def deal(parts: Sequence[Mapping[str, list[File]]], given: Mapping[str, str]) -> tuple[ByClass[File], ByClass[File]]:
    """Split the files of all parts, by class, as `given` says; a file is a tuple that begins with its path."""
    every: ByClass[File] = {}
    for name, members in (item for part in parts for item in part.items()):
        every[name] = sorted([*every.get(name, []), *members])
    unknown = [file[0] for members in every.values() for file in members if file[0] not in given]
    if unknown:
        raise DataError(
            f"{counted(len(unknown), 'image')} not in the given split, e.g. {unknown[0]!r}: new since it was made, or "
            f"it is that of another folder. {_HOW_TO_MAKE}"
        )
    train, validation = (
        {name: some for name in sorted(every) if (some := [file for file in every[name] if given[file[0]] == part])}
        for part in (TRAIN, VALIDATION)
    )
    untrained = sorted(set(every) - set(train))
    if untrained or not validation:
        what = f"training image of {untrained[0]!r}" if untrained else "validation image"
        raise DataError(f"The given split leaves no {what}. {_HOW_TO_MAKE}")
    return train, validation
