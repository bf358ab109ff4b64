"""Pictures on pages: thumbnails of image files, and the page of `turnaround train --show-batch`.

Enters: image files, or training images before and after their variation, with their labels. Leaves: data URIs of JPEGs
that are encoded anew from the pixels, without the files' metadata, and html. Names of files and classes come from
others: each is text, and the page runs no script at all.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from turnaround.data.decode import UnreadableImage, read_file
from turnaround.data.decoders import GuardedDecoder
from turnaround.reporting.page.templates import asset, environment
from turnaround.web.pages import base_css, content_hash
from turnaround.words import percent

if TYPE_CHECKING:
    from turnaround.recipe import Recipe
    from turnaround.training.preview import VariedImage

THUMBNAIL_PX = 112
_QUALITY = 80


def thumbnails(root: Path, files: Iterable[str], *, size_px: int = THUMBNAIL_PX) -> dict[str, str]:
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


def data_uri(pixels: NDArray[np.uint8], *, most_px: int = THUMBNAIL_PX) -> str:
    """Return an image (H, W, 3) as a data URI, made smaller where it is larger than a thumbnail."""
    image, data = Image.fromarray(pixels), BytesIO()
    image.thumbnail((most_px, most_px))
    image.save(data, "JPEG", quality=_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode("ascii")


def preview_page(recipe: Recipe, images: Iterable[VariedImage]) -> str:
    """Return the page of a resolved recipe as html text."""
    css = base_css() + asset("check.css")
    used = {key: value for key, value in vars(recipe.augment).items() if value and key != "preset"}
    template = environment().get_template("preview.html.j2")
    return template.render(
        name=recipe.name,
        preset=recipe.augment.preset,
        used=", ".join(key if value is True else f"{key} {value:g}" for key, value in used.items()),
        size_px=recipe.size_px,
        images=[_figure(image) for image in images],
        css=css,
        style_hash=content_hash(css),
    )


def _figure(image: VariedImage) -> dict[str, Any]:
    # A weight of 0.4 % is not 0 %, and a label that is not there at all is not named.
    labels = [(name, weight) for name, weight in image.labels if weight > 0]
    words = [f"{percent(weight, 1)} {name}" if len(labels) > 1 else name for name, weight in labels]
    return {
        "file": image.file,
        "labels": " + ".join(words),
        "before": data_uri(image.before),
        "after": data_uri(image.after),
    }
