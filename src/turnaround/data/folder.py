"""A folder of class folders in, a table of image files with labels and a train/validation split out.

Two layouts are understood, and the names of the parts in any case:

    ROOT/train/CLASS/**  +  ROOT/{val,valid,validation,test}/CLASS/**
    ROOT/CLASS/**           (or ROOT/train/CLASS/** alone): a share of every class is held out for validation
A split that was decided beforehand (see split_file.py) overrules both: the images of both parts are dealt out anew.

Only names, sizes and times are read here, no image: a million files take seconds. The order of the table and
the split depend on names and the seed alone: every machine and every copy of the folder gives the same table.
"""

import difflib
import hashlib
import math
import os
import stat
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from turnaround.data.split_file import deal
from turnaround.errors import DataError, RecipeError
from turnaround.words import counted

IMAGE_EXTENSIONS = frozenset(["jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff"])
_OTHER_IMAGES = frozenset(["heic", "heif", "avif", "jp2", "jxl", "svg", "psd", "dng", "cr2", "cr3", "nef", "arw"])
"""Extensions of pictures that we do not decode: what phones and cameras write besides JPEG."""
VALIDATION_NAMES = ("val", "valid", "validation", "test")  # by preference: a test part is kept for last
_JUNK_NAMES = frozenset(("__macosx", "thumbs.db", "desktop.ini"))
_FEW_TRAINING_IMAGES = 10  # in all: fewer are a test of the program, not of a network
_IMBALANCE_RATIO = 10  # of the largest to the smallest class: above, a warning
_FEW_VALIDATION_IMAGES = 400  # below it, the standard error at 80 % accuracy is more than 2 points
_MAX_INT64 = np.iinfo(np.int64).max

_LAYOUTS = """
    FOLDER/train/apple/1.jpg     or     FOLDER/apple/1.jpg
    FOLDER/train/pear/2.jpg             FOLDER/apple/2.jpg
    FOLDER/val/apple/3.jpg              FOLDER/pear/3.jpg
    FOLDER/val/pear/4.jpg               (a part is held out for validation)"""

File = tuple[str, int, int]  # relative path, size in bytes, modification time in ns; a plain tuple for speed
Part = dict[str, list[File]]  # class name -> its files, by path


@dataclass(frozen=True, kw_only=True)
class ImageTable:
    """The images of a folder, training part first, each part by class and then by path."""

    root: Path
    classes: tuple[str, ...]  # names in Unicode's composed form (NFC), sorted, taken from the training part
    files: tuple[str, ...]  # relative to root, with '/' between the parts
    labels: NDArray[np.int64]  # index into classes
    num_train: int  # files[:num_train] is the training part, the rest is the validation part
    split: str  # 'folders', 'by photo', or for example 'holdout 0.2, seed 7'
    ignored: tuple[str, ...]  # hidden and junk entries, other extensions, loops, folders beside the parts
    warnings: tuple[str, ...]  # sentences
    sizes_bytes: NDArray[np.int64]
    mtimes_ns: NDArray[np.int64]


def scan(root: Path, *, holdout: float, seed: int, given: Mapping[str, str] | None = None) -> ImageTable:
    """Find the images under root. The hold-out applies only where no validation folder and no split is given."""
    try:
        _check_is_folder(root)
        return _scan(_Walk(root), holdout=holdout, seed=seed, given=given)
    except PermissionError as error:
        raise DataError(
            f"No permission to read {error.filename!r}. Ask its owner, or run: chmod -R u+rX {str(root)!r}"
        ) from error
    except OSError as error:
        raise DataError(f"{error.filename!r} cannot be read: {error.strerror}. Check the disk.") from error


def _scan(walk: "_Walk", *, holdout: float, seed: int, given: Mapping[str, str] | None) -> ImageTable:
    folders, loose = walk.listing("")
    train_folder, val_folder, warnings = _layout(walk, folders)
    if part := train_folder or "":
        folders, loose = walk.listing(part)
    train = _read_part(walk, part, folders, warnings)
    _check_train(walk, train, part, num_loose=len(loose))
    if val_folder is not None:
        val_folders, val_loose = walk.listing(val_folder)
        loose += val_loose
        val = _read_part(walk, val_folder, val_folders, warnings)
        _check_validation(train, val, val_folder)
        split = "folders"
    elif given is None:
        train, val = hold_out(train, holdout=holdout, seed=seed)
        split = f"holdout {holdout:g}, seed {seed}"
    if given is not None:
        (train, val), split = deal([train, val] if val_folder is not None else [train], given), "by photo"
    if loose:
        walk.ignored += loose
        warnings.append(f"Not used, outside any class folder: {counted(len(loose), 'image')}, e.g. {loose[0]!r}.")
    if other := [name for name in walk.ignored if name.rpartition(".")[2].lower() in _OTHER_IMAGES]:
        warnings.append(
            f"Not used: {counted(len(other), 'image')} of a format that is not read, such as {other[0]!r}. Convert "
            "them to JPEG or PNG to train on them."
        )
    if walk.num_links_out:
        warnings.append(f"Followed out of the folder: {counted(walk.num_links_out, 'link')}.")
    return make_table(walk.root, train, val, split=split, ignored=walk.ignored, warnings=warnings)


@dataclass
class _Walk:
    """Lists folders below root by name, and remembers what it passed over."""

    root: Path
    ignored: list[str] = field(default_factory=list)
    num_links_out: int = 0

    def __post_init__(self) -> None:
        real = self.root.resolve()
        self._inside = (os.path.join(real, ""), os.path.join(self.root.absolute(), ""))
        # A link to the root or above it would bring in every other class: visited from the start.
        self._above = frozenset(_identity(str(folder)) for folder in (real, *real.parents))
        self._resolved = ("", "")  # the folder of the last link, and where it really is

    def listing(self, relative: str) -> tuple[list[str], list[str]]:
        """Return the relative paths of the folders and of the image files in one folder, sorted by name."""
        folders: list[str] = []
        images: list[str] = []
        prefix = f"{relative}/" if relative else ""
        with os.scandir(os.path.join(self.root, relative)) as unsorted:
            entries = sorted(unsorted, key=lambda entry: entry.name)
        for entry in entries:
            name = entry.name
            if name[0] == "." or name.lower() in _JUNK_NAMES:
                self.ignored.append(prefix + name)
                continue
            if self._is_folder(entry):
                folders.append(prefix + name)
            elif name.rpartition(".")[2].lower() in IMAGE_EXTENSIONS:
                images.append(prefix + name)
            else:
                self.ignored.append(prefix + name)
        return folders, images

    def images_below(self, class_folder: str) -> list[File]:
        """Return all image files in a class folder, at any depth. Every real folder is visited once: loops end."""
        files: list[File] = []
        visited = set(self._above)
        waiting = [class_folder]
        base = os.path.join(self.root, "")
        while waiting:
            relative = waiting.pop()
            if (identity := _identity(base + relative)) in visited:
                self.ignored.append(relative)
                continue
            visited.add(identity)
            folders, images = self.listing(relative)
            waiting += reversed(folders)  # a stack: depth first, in the order of names
            for image in images:
                status = _status(base + image)
                if status is None:
                    self.ignored.append(image)
                else:
                    files.append((image, status.st_size, min(status.st_mtime_ns, _MAX_INT64)))
        return files

    def _is_folder(self, entry: os.DirEntry[str]) -> bool:
        """Return true for a folder or a link to one; links out of the root are counted on the way."""
        if not entry.is_symlink():
            return entry.is_dir()
        # One readlink instead of a full resolution, which costs a dozen calls for each of a million links.
        folder = os.path.dirname(entry.path)
        if folder != self._resolved[0]:
            self._resolved = (folder, os.path.realpath(folder))
        target = os.path.normpath(os.path.join(self._resolved[1], os.readlink(entry.path)))
        is_folder = os.path.isdir(entry.path)  # False for a link to itself, where entry.is_dir() raises
        if not target.startswith(self._inside) and not (is_folder and _identity(entry.path) in self._above):
            self.num_links_out += 1
        return is_folder


def _identity(folder: str) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _status(path: str) -> os.stat_result | None:
    """Return None for a broken link, a file that has gone, and a pipe or device, which would block its reader."""
    try:
        status = os.stat(path)
    except PermissionError:
        raise
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _layout(walk: _Walk, folders: list[str]) -> tuple[str | None, str | None, list[str]]:
    """Return the training folder, the validation folder (None: hold out), and warnings of what was left alone."""
    by_lower = {name.lower(): name for name in folders}
    train = by_lower.get("train")
    validations = [by_lower[name] for name in VALIDATION_NAMES if name in by_lower]
    if train is None:
        if parts := [name for name in validations if _peek(walk.root / name)[0]]:
            raise DataError(
                f"{str(walk.root)!r} has a validation folder {parts[0]!r} but no folder 'train' beside it. "
                f"Found: {_some(folders)}. Rename the folder of the training images to 'train'."
            )
        return None, None, []
    has_folders, has_images = _peek(walk.root / train)
    if not validations and len(folders) > 1 and (has_images or not has_folders):
        return None, None, []  # cars, planes and trains: a class that is called 'train'
    val = validations[0] if validations else None
    others = [name for name in folders if name not in (train, val)]
    walk.ignored += others
    kept = f"{train!r} and {val!r} are" if val else f"{train!r} is"
    return train, val, [f"Left alone: {_some(others)}; only {kept} used."] if others else []


def _peek(folder: Path) -> tuple[bool, bool]:
    """Return two truths: the folder holds folders; it holds images."""
    with os.scandir(folder) as entries:
        shown = [entry for entry in entries if not entry.name.startswith(".")]
    images = (entry.name.rpartition(".")[2].lower() in IMAGE_EXTENSIONS for entry in shown)
    return any(entry.is_dir() for entry in shown), any(images)


def _read_part(walk: _Walk, part: str, class_folders: list[str], warnings: list[str]) -> Part:
    """Return the files of each class, by path. A class folder without images is a warning, not a class."""
    part_files: defaultdict[str, list[File]] = defaultdict(list)
    empty: list[str] = []
    for folder in class_folders:
        files = walk.images_below(folder)
        # macOS stores decomposed names: the same class copied by two systems would otherwise be two classes.
        name = unicodedata.normalize("NFC", folder[len(part) + 1 :] if part else folder)
        if files:
            part_files[name] += files
        else:
            empty.append(folder)
    if empty:
        walk.ignored += empty
        warnings.append(f"{counted(len(empty), 'class folder')} without images: ignored ({_some(empty)}).")
    warnings += _nested(part_files, part)
    return {name: sorted(part_files[name]) for name in sorted(part_files)}


def _nested(part_files: Mapping[str, list[File]], part: str) -> list[str]:
    """Return a warning where the images of a class lie in folders below it: those may be the classes."""
    inner: dict[str, set[str]] = {}  # class name -> folders below it that hold images; "" for the class folder itself
    for name, files in part_files.items():
        depth = f"{part}/{name}".count("/") if part else 0
        inner[name] = {path[depth + 1] if len(path) > depth + 2 else "" for path in (f[0].split("/") for f in files)}
    several = [name for name, below in inner.items() if len(below - {""}) > 1]
    # One folder of the same name in every class (cats/images, dogs/images) is only a way to keep files.
    is_one_each = all(len(below) == 1 and below != {""} for below in inner.values())
    if is_one_each and len(set().union(*inner.values())) > 1:
        several = list(inner)
    if not several:
        return []
    name = several[0]
    return [
        f"The images of {name!r} lie in folders below it ({_some(sorted(inner[name] - {''}))}), and all are taken for "
        f"{name!r}. If those folders are the classes, move them up by one."
    ]


def hold_out(files: Part, *, holdout: float, seed: int) -> tuple[Part, Part]:
    """Split every class by a hash of (seed, path): the file system's order and other classes have no say."""
    if not 0 < holdout < 1:
        raise RecipeError(f"data.holdout is {holdout!r}, not between 0 and 1. Try --set data.holdout=0.2")

    def rank(file: File) -> bytes:
        keyed = f"{seed}\0{file[0]}".encode("utf-8", "surrogateescape")
        return hashlib.blake2b(keyed, digest_size=16).digest()

    train: Part = {}
    val: Part = {}
    for name, members in files.items():
        # Rounded half up (round() would go to the even number); one image of each class stays to train on.
        num_val = min(max(1, math.floor(holdout * len(members) + 0.5)), len(members) - 1)
        held_out = {file[0] for file in sorted(members, key=rank)[:num_val]}
        val[name] = [file for file in members if file[0] in held_out]  # members are sorted, and stay so
        train[name] = [file for file in members if file[0] not in held_out]
    if not any(val.values()):
        raise DataError(
            f"Each of the {counted(len(files), 'class')} has a single image, so none can be held out for validation. "
            "Add images: some 20 of each class, better 100."
        )
    return train, val


def make_table(
    root: Path, train: Part, val: Part, *, split: str, ignored: list[str], warnings: list[str]
) -> ImageTable:
    """Return the table of both parts, with the warnings that follow from their counts."""
    classes = tuple(train)
    num_train_by_class = [len(train[name]) for name in classes]
    num_val_by_class = [len(val.get(name, ())) for name in classes]
    files = [file for part in (train, val) for name in classes for file in part.get(name, ())]
    index = np.arange(len(classes), dtype=np.int64)
    return ImageTable(
        root=root,
        classes=classes,
        files=tuple(file[0] for file in files),
        labels=np.concatenate([np.repeat(index, num_train_by_class), np.repeat(index, num_val_by_class)]),
        num_train=sum(num_train_by_class),
        split=split,
        ignored=tuple(ignored),
        warnings=(*warnings, *_warnings_on_counts(classes, num_train_by_class, num_val_by_class)),
        sizes_bytes=np.array([file[1] for file in files], dtype=np.int64),
        mtimes_ns=np.array([file[2] for file in files], dtype=np.int64),
    )


def _warnings_on_counts(classes: tuple[str, ...], num_train: list[int], num_val: list[int]) -> list[str]:
    """Return warnings that follow from the counts alone: imbalance, classes without images, a large standard error."""
    found = []
    if single := [name for name, count in zip(classes, num_train, strict=True) if count == 1]:
        found.append(
            f"{counted(len(single), 'class')} with a single training image: {_some(single)}. Add images, or leave the "
            "class out: it cannot be learnt from one."
        )
    if unseen := [name for name, count in zip(classes, num_val, strict=True) if count == 0]:
        found.append(f"{counted(len(unseen), 'class')} without a validation image, so no accuracy: {_some(unseen)}.")
    most, least = max(num_train), min(num_train)
    if most > _IMBALANCE_RATIO * least:
        large, small = classes[num_train.index(most)], classes[num_train.index(least)]
        found.append(
            f"Strong imbalance: {most} training images of {large!r}, {least} of {small!r}. "
            "`--set training.class_weights=balanced` makes the loss weigh all classes alike."
        )
    folded = Counter(name.casefold() for name in classes)
    if twins := [name for name in classes if folded[name.casefold()] > 1]:
        found.append(
            f"Class names that differ only in upper and lower case: {_some(twins)}. They are learnt as different "
            "classes; move the images into one folder if they are the same."
        )
    total = sum(num_val)
    if 0 < total < _FEW_VALIDATION_IMAGES:
        error = f"a standard error of {100 * math.sqrt(0.8 * 0.2 / total):.1f} points (binomial)"
        found.append(f"Only {counted(total, 'validation image')}: an accuracy of 80 % has {error}.")
    if sum(num_train) < _FEW_TRAINING_IMAGES:
        found.append(
            f"Only {counted(sum(num_train), 'training image')} in all: nothing can be learnt from so few. Bring some "
            "20 of each class, better 100."
        )
    return found


def _check_is_folder(root: Path) -> None:
    if root.is_dir():
        return
    if root.exists():
        raise DataError(f"{str(root)!r} is a file. Give the folder that holds the class folders.")
    beside = root.parent.iterdir() if root.parent.is_dir() else ()
    neighbours = sorted(entry.name for entry in beside if entry.is_dir())
    near = difflib.get_close_matches(root.name, neighbours, n=3)
    hint = f"Did you mean {' or '.join(repr(str(root.parent / name)) for name in near)}?" if near else ""
    raise DataError(f"There is no folder {str(root)!r}. {hint or 'Check the path for a typing error.'}")


def _check_train(walk: _Walk, train: Part, part: str, *, num_loose: int) -> None:
    """Require two classes at least; the error says what was found instead."""
    where = str(walk.root / part)
    if not train and num_loose:
        raise DataError(
            f"{counted(num_loose, 'image')} directly in {where!r}, which has no class folders: the folder's name is "
            f"the class. Move the images into one folder for each class:{_LAYOUTS}"
        )
    if not train:
        kinds = Counter(
            "empty folder" if (walk.root / path).is_dir() else os.path.splitext(path)[1].lower() or path
            for path in walk.ignored
        )
        found = ", ".join(f"{count} x {name}" for name, count in kinds.most_common(5)) or "nothing"
        raise DataError(
            f"No images in {where!r} (found: {found}). Images end in {', '.join(sorted(IMAGE_EXTENSIONS))}. "
            f"One of these two layouts is expected:{_LAYOUTS}"
        )
    if len(train) == 1:
        below = walk.root / part / next(iter(train))
        deeper = below.is_dir() and _peek(below)[0]  # the usual cause: an archive unpacked into its own folder
        hint = f"It holds folders: did you mean {str(below)!r}?" if deeper else "Add a folder for each class:"
        raise DataError(f"Only one class, {below.name!r}, has images in {where!r}; two are needed. {hint}{_LAYOUTS}")


def _check_validation(train: Part, val: Part, folder: str) -> None:
    if unknown := sorted(set(val) - set(train)):
        raise DataError(
            f"{counted(len(unknown), 'class')} with images in {folder!r} but no training image, so without a label to "
            f"learn: {_some(unknown)}. Training classes: {_some(list(train))}. "
            "Rename the folders alike, add training images, or remove these validation folders."
        )
    if not val:
        raise DataError(
            f"The validation folder {folder!r} holds no image in a class folder. Add some, or remove the "
            "folder: then a part of the training images is held out."
        )


def _some(names: list[str], limit: int = 5) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(repr(name) for name in names[:limit]) + more


def class_files(root: Path) -> tuple[dict[str, list[str]], list[str]]:
    """Return the image files by class folder, without any split, and the images outside; all relative to root."""
    try:
        _check_is_folder(root)
        walk = _Walk(root)
        folders, loose = walk.listing("")
        part = _read_part(walk, "", folders, [])
    except PermissionError as error:
        raise DataError(
            f"No permission to read {error.filename!r}. Ask its owner, or run: chmod -R u+rX {str(root)!r}"
        ) from error
    except OSError as error:
        raise DataError(f"{error.filename!r} cannot be read: {error.strerror}. Check the disk.") from error
    return {name: [file[0] for file in files] for name, files in part.items()}, loose
