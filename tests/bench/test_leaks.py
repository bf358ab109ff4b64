"""The copies that the benchmark of `turnaround check` makes are what their kinds say, and they are counted right."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

_SPEC = importlib.util.spec_from_file_location("leaks", Path(__file__).parents[2] / "bench" / "leaks.py")
assert _SPEC is not None
assert _SPEC.loader is not None
leaks = importlib.util.module_from_spec(_SPEC)
sys.modules["leaks"] = leaks
_SPEC.loader.exec_module(leaks)


def photo(number: int) -> Image.Image:
    rng = np.random.default_rng(number)
    layers = (Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)) for side in (6, 20))
    return Image.blend(*(layer.resize((200, 180), Image.Resampling.BICUBIC) for layer in layers), 0.45)


@pytest.mark.parametrize("kind", leaks.KINDS)
def test_every_kind_alters_and_follows_from_its_seed(kind: str) -> None:
    one, again = (leaks.KINDS[kind](photo(0), np.random.default_rng(1)) for _ in range(2))
    assert one.mode == "RGB"
    assert one.tobytes() == again.tobytes()
    assert one.size != photo(0).size or one.tobytes() != photo(0).tobytes()


def test_a_round_counts_copies_and_strangers(tmp_path: Path) -> None:
    for number in range(26):
        photo(number).save(tmp_path / f"{number:02d}.png")
    photos = leaks.photos_below(tmp_path)
    ((_, counts),) = leaks.rounds(photos, num_rounds=1, seed=0, keep=None)
    made = {kind: counts[f"made {kind}"] for kind in leaks.KINDS}
    assert made == dict.fromkeys(leaks.KINDS, 1)
    assert sum(counts[f"found {kind}"] for kind in leaks.KINDS) >= 12
    assert counts["unrelated"] == 13
    assert counts["with another photo"] == counts["with a copy of another photo only"] == 0
