"""Quick checksums of pixels: every kind of decay changes them."""

from __future__ import annotations

import numpy as np
import pytest

from turnaround.data.sums import factors, sums_of


def pictures(size_px: int, count: int = 5) -> np.ndarray:
    return np.random.default_rng(size_px).integers(0, 256, (count, size_px, size_px, 3), dtype=np.uint8)


def test_a_flipped_bit_is_always_found() -> None:
    (picture,) = pictures(6, 1)
    flips = np.zeros((picture.size * 8, picture.size), np.uint8)  # every bit of it, one by one
    places = np.arange(picture.size * 8)
    flips[places, places // 8] = 1 << (places % 8)
    sums = sums_of(flips ^ picture.reshape(1, -1))
    assert len(set(sums.tolist()) | set(sums_of(picture[None]).tolist())) == picture.size * 8 + 1


def test_the_highest_bits_of_two_words_do_not_cancel() -> None:
    (picture,) = pictures(8, 1)
    changed = picture.reshape(-1).copy()
    changed[[7, 15]] ^= 0x80
    assert sums_of(changed[None]) != sums_of(picture[None])


def test_words_that_change_places_are_found() -> None:
    (picture,) = pictures(8, 1)
    assert sums_of(np.roll(picture.reshape(1, -1), 8, axis=1)) != sums_of(picture[None])


@pytest.mark.parametrize("size_px", [7, 8, 30])
def test_sums_do_not_depend_on_company(size_px: int) -> None:
    rows = pictures(size_px)
    assert sums_of(rows).tolist() == [int(sums_of(row[None])[0]) for row in rows]


def test_the_sums_stay_what_they_are() -> None:
    """They lie in caches."""
    assert factors(3).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F5, 0x06C45D188009454F]
    assert sums_of(np.arange(24, dtype=np.uint8)[None]).tolist() == [0x3078362FA531AFCC]
