"""Pixels of the cache are compared with their checksums when a process reads them for the first time.

Enters: rows that were read, on any device. Leaves: nothing, or DamagedCacheError, before anything learns from them. An
entry that is found damaged is given up, so that the next start builds it again. Entries of versions without sums
(sums.py) are held to the digests that they do have, which takes ten times longer and is never done on a GPU.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnaround.data.decode import digest_of
from turnaround.data.pixels import Pixels, give_up
from turnaround.data.sums import WORD_BYTES, factors, sums_of
from turnaround.errors import DamagedCacheError

_HALF_BITS, _HALF = 32, 0xFFFFFFFF
_SUMMED_BYTES = 32 << 20  # at a time: the words and their products take three times as much memory


class FirstReads:
    """Knows which rows this process has not compared yet."""

    def __init__(self, pixels: Pixels) -> None:
        self._pixels = pixels
        # (N,); pixels that are decoded on the way have digests of their files instead (reading.py).
        self._is_unread = np.full(len(pixels.labels), pixels.is_of_cache)
        self._num_unread = int(self._is_unread.sum())

    def are_over(self, ids: NDArray[np.int64]) -> bool:
        """Return whether all of these rows have been compared."""
        return not self._num_unread or not self._is_unread[ids].any()

    def check(self, ids: NDArray[np.int64], rows: Tensor) -> None:
        """Compare rows[i], which was read as image ids[i], where nobody has; raise DamagedCacheError."""
        if self.are_over(ids):
            return
        new = np.flatnonzero(self._is_unread[ids])
        if len(new) < len(ids):
            ids, rows = ids[new], rows[torch.from_numpy(new).to(rows.device)]
        step = max(1, _SUMMED_BYTES // max(1, rows[0].nbytes))
        for start in range(0, len(ids), step):
            self._compare(ids[start : start + step], rows[start : start + step])
        self._is_unread[ids] = False
        self._num_unread = int(self._is_unread.sum())

    def _compare(self, ids: NDArray[np.int64], rows: Tensor) -> None:
        sums = self._pixels.pixel_sums
        if sums is None:
            digests = self._pixels.pixel_digests
            pictures = zip(ids.tolist(), rows.cpu().numpy(), strict=True)
            other = np.flatnonzero([digest_of(row.data) != digests[i].tobytes() for i, row in pictures])
        else:
            found = sums_of(rows.numpy()) if rows.device.type == "cpu" else _sums_on_device(rows)
            other = np.flatnonzero(found != sums[ids])
            if len(other) and rows.device.type != "cpu":
                # A cache is given up for good: not for the word of a device whose memory or arithmetic may be at fault.
                other = other[sums_of(rows[torch.from_numpy(other).to(rows.device)].cpu().numpy()) != sums[ids[other]]]
        if len(other):
            raise self._damaged(int(ids[other[0]]), num_damaged=len(other))

    def _damaged(self, number: int, *, num_damaged: int) -> DamagedCacheError:
        pixels = self._pixels
        more = f" and of {num_damaged - 1} more" if num_damaged > 1 else ""
        remedy = "the cache is built again from the images at the next start."
        if not give_up(pixels.cache_dir):
            remedy = "its owner must remove that folder. Until then use another one: --set data.cache=DIR"
        return DamagedCacheError(
            f"The decoded pixels of {pixels.files[number]!r}{more} in {str(pixels.cache_dir)!r} are not those that "
            "were written there: a disk, a network or memory has changed them. Nothing was trained on them; "
            f"{remedy}"
        )


def _sums_on_device(rows: Tensor) -> NDArray[np.uint64]:
    """Return what `sums_of` returns, computed where the pixels are: int64 wraps as uint64 does."""
    flat = rows.reshape(len(rows), -1)
    flat = torch.nn.functional.pad(flat, (0, -flat.shape[1] % WORD_BYTES)).contiguous()
    words = flat.view(torch.int64)  # (N, words)
    weights = torch.from_numpy(factors(words.shape[1]).view(np.int64).copy()).to(rows.device)
    # A shift of a signed number repeats its sign: the mask makes it that of an unsigned one.
    mixed = words ^ ((words >> _HALF_BITS) & _HALF)
    return (mixed * weights).sum(dim=1).cpu().numpy().view(np.uint64)
