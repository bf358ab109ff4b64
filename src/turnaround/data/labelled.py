"""Images with known labels, to evaluate a network on: class folders, or a table of files and labels.

    FOLDER/CLASS/**    the folder's name is the label of every image below it
    TABLE.csv          a line of headings, one column of files and one of labels; .tsv with tabs

The files of a table lie where it says, seen from the table's own folder. Only names are read here, no image.
"""

from __future__ import annotations

import csv
import re
import shlex
import stat
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from turnaround.data.folder import IMAGE_EXTENSIONS, VALIDATION_NAMES, class_files
from turnaround.errors import DataError, one_of
from turnaround.words import counted, listed

FILE_COLUMNS = ("file", "filename", "file_name", "filepath", "path", "image", "image_path", "name")
LABEL_COLUMNS = ("label", "class", "class_name", "target", "category")
PARTS = ("train", *VALIDATION_NAMES)
MAX_TABLE_BYTES = 256 * 2**20  # two million lines of 128 bytes; more is no table that somebody wrote down
MAX_NAMED = 3
MAX_CLASSES_NAMED = 20
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


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
    if _is_there(source, Path.is_dir):
        return _from_folder(source, run)
    if not _is_there(source, Path.exists):
        raise DataError(f"There is no folder and no table {str(source)!r}. Give a folder of class folders, or a CSV.")
    if source.suffix.lower().lstrip(".") in IMAGE_EXTENSIONS:
        raise DataError(f"{str(source)!r} is one image, and nothing says what it shows. {_to_classify(run, source)}")
    return _from_table(source)


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


# --- a table


def _from_table(path: Path) -> LabelledImages:
    rows = _rows(path)
    number, heading = next(rows, (1, []))
    plain = [name.strip().lower().replace(" ", "_") for name in heading]
    places = [_column(path, heading, plain, known) for known in (FILE_COLUMNS, LABEL_COLUMNS)]
    seen: dict[str, int] = {}
    labels: list[str] = []
    for number, row in rows:
        if len(row) <= max(places) or not all(row[place].strip() for place in places):
            raise DataError(
                f"{path}, line {number}: the file or the label is missing. Received: {','.join(row)[:80]!r}"
            )
        file, label = (row[place].strip() for place in places)
        if _ADDRESS.match(file):
            raise DataError(
                f"{path}, line {number}: {file[:80]!r} is an address, and nothing is fetched. Download the images, and "
                "name the files."
            )
        if file in seen:
            raise DataError(f"{path}, line {number}: {file!r} is there already, in line {seen[file]}. Name it once.")
        seen[file] = number
        labels.append(unicodedata.normalize("NFC", label))
    if not seen:
        raise DataError(f"{path} names no image: there is nothing below its headings.")
    _refuse_missing(path, seen)
    return LabelledImages(source=path, root=path.parent, files=tuple(seen), labels=tuple(labels))


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines that hold something, with their numbers."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_TABLE_BYTES:
        raise DataError(f"{path} is no table: it must be a plain file of at most {MAX_TABLE_BYTES // 2**20} MB.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not text in UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise DataError(
            f"{path} cannot be read as a table: {reason}. Give a folder of class folders, or a CSV with the columns "
            "file and label."
        ) from error
    first = text.partition("\n")[0]
    # The separator that stands in the headings: names and labels below them may hold any of these.
    separator = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=first.count)
    reader = csv.reader(StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    try:
        yield from ((reader.line_num, row) for row in reader if any(cell.strip() for cell in row))
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: no CSV ({error}). Save the table again.") from error


def _column(path: Path, heading: Sequence[str], plain: Sequence[str], known: Sequence[str]) -> int:
    """Return the place of the first known heading."""
    found = next((plain.index(name) for name in known if name in plain), None)
    if found is None:
        received = ", ".join(name.strip() for name in heading)[:120] or "no line at all"
        raise DataError(
            f"{path} has no column for the {'files' if known is FILE_COLUMNS else 'labels'}. Known headings: "
            f"{', '.join(known)}. Received: {received}."
        )
    return found


def _refuse_missing(path: Path, seen: dict[str, int]) -> None:
    missing = [(file, number) for file, number in seen.items() if not _is_there(path.parent / file, Path.is_file)]
    if missing:
        named = "; ".join(f"{file!r} (line {number})" for file, number in missing[:MAX_NAMED])
        more = f" and {len(missing) - MAX_NAMED:,} more" if len(missing) > MAX_NAMED else ""
        raise DataError(
            f"{len(missing):,} of the {len(seen):,} files of {path} are not there: {named}{more}. Their names are seen "
            f"from the table's folder, {str(path.parent.absolute())!r}."
        )
