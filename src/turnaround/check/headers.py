"""Image files in, what their headers say out: size, mode, format, orientation, frames. No pixel is decoded.

Oddities are listed too: none of them stops a training, decode.py states what becomes of each.
"""

from __future__ import annotations

import os
import warnings
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from turnaround.children import in_children
from turnaround.data.decode import FORMATS, MAX_PIXELS, read_file
from turnaround.data.decoders import Progress
from turnaround.data.formats.members import is_member

_FILES_PER_TASK = 512
_ORIENTATION_TAG = 0x0112
_EXTENSIONS = {
    "JPEG": ("jpg", "jpeg", "jpe", "jfif"),
    "MPO": ("jpg", "jpeg", "jpe", "jfif"),
    "PNG": ("png",),
    "WEBP": ("webp",),
    "BMP": ("bmp",),
    "GIF": ("gif",),
    "TIFF": ("tif", "tiff"),
}
SMALL_PX, ELONGATED = 32, 3.0
ODDITIES = {
    "wrong extension": "the content decides, not the name",
    "turned by EXIF": "read upright, as a viewer shows them",
    "several frames": "only the first frame is used",
    "transparent": "put on white",
    "palette": "converted to RGB",
    "CMYK": "converted to RGB",
    "16 bits or more": "reduced to 8 bits",
    f"smaller than {SMALL_PX} px": "enlarged: they carry little detail",
    f"longer than {ELONGATED:g} : 1": "squeezed to a square, their shape is lost",
    "grey among colour": "used as they are; the network may learn the grey",
    "constant": "one colour only: nothing can be learned from them",
}
"""Each oddity, and what becomes of such an image."""


class Header(NamedTuple):
    """The header of one file; width and height are 0 when it cannot be read."""

    width_px: int = 0
    height_px: int = 0
    odd: tuple[str, ...] = ()


def read_headers(root: Path, files: tuple[str, ...], on_progress: Progress | None = None) -> list[Header]:
    """Return the headers in the order of the files, read by child processes."""
    root = root.absolute()
    # By name: rows of Parquet can only be read in their order.
    order = sorted(range(len(files)), key=files.__getitem__)
    files = tuple(files[place] for place in order)
    tasks = [(start, root, files[start : start + _FILES_PER_TASK]) for start in range(0, len(files), _FILES_PER_TASK)]
    headers: dict[int, list[Header]] = {}
    for done, (start, some) in enumerate(in_children(_read_some, tasks, purpose="reads images"), 1):
        headers[start] = some
        if on_progress is not None:
            on_progress(min(done * _FILES_PER_TASK, len(files)), len(files))
    in_order = [header for start in sorted(headers) for header in headers[start]]
    by_place = dict(zip(order, in_order, strict=True))
    return [by_place[place] for place in range(len(files))]


def sizes_of(headers: list[Header]) -> NDArray[np.int64]:
    """Return width and height, (N, 2); square where unknown."""
    return np.array([(max(h.width_px, 1), max(h.height_px, 1)) for h in headers], np.int64).reshape(-1, 2)


def _read_some(task: tuple[int, Path, tuple[str, ...]]) -> tuple[int, list[Header]]:
    start, root, files = task
    with warnings.catch_warnings():  # Pillow warns of damaged metadata and of large pictures
        warnings.simplefilter("ignore")
        return start, [read_header(root / name) for name in files]


def read_header(path: Path) -> Header:
    """Return the header of one file."""
    try:
        with Image.open(_content(path), formats=FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:  # decoding refuses it: no more of it is read
                return Header(width, height)
            orientation = _orientation(image)
            if 5 <= orientation <= 8:  # EXIF: these four transpose the picture
                width, height = height, width
            return Header(width, height, tuple(_odd(image, path, orientation)))
    except Exception:
        return Header()  # decoding tells why


def _content(path: Path) -> Path | BytesIO:
    """Return what Pillow opens: the file, of which it reads what it needs, or the bytes of a container's member."""
    return BytesIO(read_file(path)) if is_member(path) else path


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:
        return 1


def _odd(image: Image.Image, path: Path, orientation: int) -> list[str]:
    extension = os.path.splitext(path.name)[1][1:].lower()  # rows of Parquet have none
    width, height = image.size
    found = {
        "wrong extension": bool(extension) and extension not in _EXTENSIONS.get(image.format or "", (extension,)),
        "turned by EXIF": 2 <= orientation <= 8,
        # MPO is what cameras write as JPEG with further views: its first frame is the photo.
        "several frames": getattr(image, "is_animated", False) and image.format != "MPO",
        "transparent": image.has_transparency_data,
        "palette": image.mode in ("P", "PA"),
        "CMYK": image.mode in ("CMYK", "YCCK"),
        "16 bits or more": image.mode.startswith("I") or image.mode == "F",
        f"smaller than {SMALL_PX} px": min(width, height) < SMALL_PX,
        f"longer than {ELONGATED:g} : 1": max(width, height) > ELONGATED * min(width, height),
    }
    return [name for name, is_so in found.items() if is_so]
