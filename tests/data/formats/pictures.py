"""Small pictures, as bytes and in every format that can be trained on."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("apple", "pear")


def picture(seed: int) -> bytes:
    """A PNG of 8 px; the first channel tells the seed."""
    pixels = np.random.default_rng(seed).integers(0, 255, (8, 8, 3), np.uint8)
    pixels[..., 0] = seed
    data = BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


def class_folders(root: Path, each: int = 4) -> Path:
    for number, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        for k in range(each):
            (root / name / f"{k}.png").write_bytes(picture(10 * number + k))
    return root


def shard(path: Path, members: Mapping[str, bytes] | Sequence[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members.items() if isinstance(members, Mapping) else members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, BytesIO(content))
    return path


def labelled_shard(path: Path, first: int = 0, num: int = 8, *, names: bool = True) -> Path:
    """Samples whose classes alternate."""
    members: dict[str, bytes] = {}
    for k in range(first, first + num):
        members[f"{k:04}.png"] = picture(k)
        members[f"{k:04}.cls"] = (CLASSES[k % 2] if names else str(k % 2)).encode()
    return shard(path, members)
