"""Pictures as people have them -> squares of pixels, by the rules that training decoded with (data/decode.py).

A file, all images below a folder, standard input; from Python also bytes, a Pillow image, an array. What cannot be read
raises UnreadableImage with its reason; the others are not affected.
"""

from __future__ import annotations

import os
import stat
import sys
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from turnaround.data.decode import MAX_FILE_BYTES, UnreadableImage, decode_bytes, read_file
from turnaround.data.decoders import GuardedDecoder
from turnaround.data.folder import IMAGE_EXTENSIONS
from turnaround.errors import DataError

Square: TypeAlias = NDArray[np.uint8]
"""(size, size, 3), RGB."""
Picture: TypeAlias = str | os.PathLike[str] | bytes | Image.Image | NDArray[np.uint8]

STANDARD_INPUT = Path("-")
MAX_DECODERS = 8  # threads; each may hold a decoded picture of up to 0.7 GB (data/decode.py)


@dataclass(frozen=True, kw_only=True)
class DecodedImage:
    """One picture as a square, or why there is none."""

    name: str
    square: Square | None
    problem: str | None


def find_images(paths: Iterable[Path]) -> list[Path]:
    """Return the files to classify, in order: a folder stands for all images below it. Nothing is opened here."""
    found: list[Path] = []
    for path in paths:
        if path == STANDARD_INPUT or not path.is_dir():
            found.append(path)
            continue
        below = sorted(_images_below(path))
        if not below:
            raise DataError(f"{path} holds no image. Looked for: {', '.join(sorted(IMAGE_EXTENSIONS))}.")
        found += below
    return found


def _images_below(folder: Path) -> Iterator[Path]:
    """Yield the images below a folder. Links to folders are not followed: they may form a loop."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith(".") and name.rpartition(".")[2].lower() in IMAGE_EXTENSIONS:
                yield Path(place, name)


def decode_all(paths: list[Path], *, size_px: int) -> list[DecodedImage]:
    """Decode several files at once, in threads: Pillow releases the GIL while it decodes."""
    num_threads = min(MAX_DECODERS, os.cpu_count() or 1)
    with without_warnings(), GuardedDecoder() as decoder, ThreadPoolExecutor(num_threads) as pool:
        try:
            return list(pool.map(lambda path: _decoded(path, size_px, decoder), paths))
        except BaseException:  # Ctrl-C: no picture is worth waiting for
            decoder.close()
            pool.shutdown(cancel_futures=True)
            raise


@contextmanager
def without_warnings() -> Iterator[None]:
    """Silence Pillow around threads that decode: one that ends would let warnings in for the others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _decoded(path: Path, size_px: int, decoder: GuardedDecoder) -> DecodedImage:
    name = "standard input" if path == STANDARD_INPUT else str(path)
    try:
        # One byte more than allowed: then the decoder sees that it is too large.
        data: Picture = sys.stdin.buffer.read(MAX_FILE_BYTES + 1) if path == STANDARD_INPUT else path
        square = square_of(data, size_px=size_px, name=name, decoder=decoder)
        return DecodedImage(name=name, square=square, problem=None)
    except UnreadableImage as error:
        return DecodedImage(name=name, square=None, problem=error.reason)


def square_of(
    picture: Picture, *, size_px: int, name: str = "the image", decoder: GuardedDecoder | None = None
) -> Square:
    """Return the pixels of one picture, whatever it comes in; `decoder` keeps its processes for the next one."""
    if decoder is None:
        with GuardedDecoder() as decoder:
            return square_of(picture, size_px=size_px, name=name, decoder=decoder)
    if isinstance(picture, np.ndarray):
        picture = _from_array(picture, name)
    if isinstance(picture, Image.Image):
        # It is in memory already, decoded by whoever made it: there is nothing to guard against.
        return decode_bytes(_carried(picture), size_px=size_px, path=Path(name))
    if isinstance(picture, bytes):
        return decoder.decode(picture, size_px=size_px, path=Path(name))
    path = Path(picture)
    _refuse_special(path)
    return decoder.decode(read_file(path), size_px=size_px, path=path)


def _refuse_special(path: Path) -> None:
    """Refuse devices and pipes: they have no end, or none that we may wait for."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return  # the decoder says what is wrong
    if not stat.S_ISREG(mode):
        raise UnreadableImage(path, "a folder" if stat.S_ISDIR(mode) else "not a plain file")


def _from_array(values: NDArray[np.uint8], name: str) -> Image.Image:
    is_grey, is_colour = values.ndim == 2, values.ndim == 3 and values.shape[-1] in (3, 4)
    if values.dtype != np.uint8 or not (is_grey or is_colour) or not values.size:
        raise DataError(
            f"{name}: an array must be uint8 of shape (height, width, 3), (height, width, 4) or (height, width). "
            f"Received: {values.dtype} {values.shape}. Floats from 0 to 1: (255 * array).round().astype('uint8')."
        )
    return Image.fromarray(values)


def _carried(image: Image.Image) -> bytes:
    """Return the image without loss as bytes that the decoder knows.

    TIFF holds every mode, but neither the orientation nor palettes with transparency.
    """
    upright = ImageOps.exif_transpose(image)
    if upright.has_transparency_data:
        upright = upright.convert("RGBA")
    carrier = BytesIO()
    upright.save(carrier, "TIFF")
    return carrier.getvalue()
