"""Image files in, thumbnails as data URIs out: JPEGs encoded anew from the pixels, without the files' metadata."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from turnaround.data.decode import UnreadableImage, read_file
from turnaround.data.decoders import GuardedDecoder

SIZE_PX = 112
_QUALITY = 80


def thumbnails(root: Path, files: Iterable[str], *, size_px: int = SIZE_PX) -> dict[str, str]:
    """Return the thumbnail of each file as a data URI; unreadable files have none."""
    found = {}
    with GuardedDecoder() as decoder:
        for name in dict.fromkeys(files):
            try:
                pixels = decoder.decode(read_file(root / name), size_px=size_px, path=root / name)
            except UnreadableImage:
                continue
            found[name] = data_uri(pixels)
    return found


def data_uri(pixels: NDArray[np.uint8], *, most_px: int = SIZE_PX) -> str:
    """Return an image (H, W, 3) as a data URI, made smaller where it is larger than a thumbnail."""
    image, data = Image.fromarray(pixels), BytesIO()
    image.thumbnail((most_px, most_px))
    image.save(data, "JPEG", quality=_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode("ascii")
