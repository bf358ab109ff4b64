"""The page of --show-batch: every image twice, labels with weights, names as text, small."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from reporting.page.browsing import check_access, opened
from turnaround.recipe import Recipe
from turnaround.reporting.pictures import preview_page
from turnaround.training.preview import VariedImage

HOSTILE = "<img src=x onerror=alert(1)>"


def page(**augment: object) -> str:
    recipe = Recipe.from_dict({"name": HOSTILE, "data": {"size_px": 224}, "augment": augment}).resolved()
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (24, 2, 7, 7, 3), dtype=np.uint8)
    pictures = coarse.repeat(32, axis=2).repeat(32, axis=3)  # (images, before and after, 224, 224, 3)
    labels = ((("cat", 1.0),), (("cat", 0.713), (HOSTILE, 0.287)), (("cat", 1.0), ("dog", 0.0)))
    images = [
        VariedImage(file=f"{HOSTILE}/{i}.png", before=before, after=after, labels=labels[i % 3])
        for i, (before, after) in enumerate(pictures)
    ]
    return preview_page(recipe, images)


def test_every_image_stands_there_before_and_after() -> None:
    text = page(preset="light")
    found = re.findall(r'<img src="data:image/jpeg;base64,([^"]+)" alt="(\w+)">', text)
    assert [alt for _, alt in found] == ["before", "after"] * 24
    assert all(Image.open(io.BytesIO(base64.b64decode(data))).size == (112, 112) for data, _ in found)
    assert len(text) < 400_000


def test_labels_and_names_are_text() -> None:
    text = page(preset="light")
    assert "<img src=x" not in text
    captions = re.findall(r"<figcaption><b>(.*?)</b><br>(.*?)</figcaption>", text)
    hostile = "&lt;img src=x onerror=alert(1)&gt;"
    assert captions[0] == ("cat", f"{hostile}/0.png")
    assert captions[1][0] == f"71.3 % cat + 28.7 % {hostile}"
    assert captions[2][0] == "cat"
    assert "<script" not in text


def test_what_varies_is_named() -> None:
    text = page(preset="none", flip=True, crop=0.35, mixup=0.2)
    assert "<code>none</code>: flip, crop 0.35, mixup 0.2." in text
    assert "<code>strong</code>" in page(preset="strong")
    assert "<code>none</code>: nothing varies" in page(preset="none")


@pytest.mark.browser
def test_everybody_can_read_it(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page(preset="strong"))
    with opened(browser, tmp_path / "page.html") as shown:
        check_access(shown, name="preview")
