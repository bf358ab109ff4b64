"""Image files in, thumbnails as data URIs out: JPEGs encoded anew from the pixels, without the files' metadata."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

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
            data = BytesIO()
            Image.fromarray(pixels).save(data, "JPEG", quality=_QUALITY)
            found[name] = "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode("ascii")
    return found
