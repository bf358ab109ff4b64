"""The page of `turnaround train --show-batch`: training images before and after their variation, with their labels.

Names of files and classes come from others: each is text, and the page runs no script at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from turnaround.check.thumbnails import data_uri
from turnaround.reporting.page.templates import asset, environment
from turnaround.web.pages import base_css, content_hash
from turnaround.words import percent

if TYPE_CHECKING:
    from turnaround.recipe import Recipe
    from turnaround.training.preview import VariedImage


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
