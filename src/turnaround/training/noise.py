"""The gradient noise scale: beyond how many images a step do more images say little new?

The squared length of a gradient over B images is |G|^2 + S/B on average: |G|^2 from the true gradient, S from the
differences between images. Measured at two sizes, small and big, of the same step:

    S     = (small - big) / (1/B_small - 1/B_big)
    |G|^2 = (B_big big - B_small small) / (B_big - B_small)

    noise scale = mean S / mean |G|^2      in images; a ratio of means, never a mean of ratios

McCandlish et al. 2018, appendix A. With the noise scale as global batch a step makes half the progress of the true
gradient; it is an order of magnitude, and it grows as the loss falls. The interval is a delete-block jackknife.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor, nn

MEASURE_EVERY_STEPS = 8
"""A measured step takes its workers in two passes instead of one."""
RARELY_EVERY_STEPS = 32
"""Where it costs more: an additional pass over a quarter of the images (one worker whose images cannot be taken apart),
which is 0.8 % of the passes, or two passes that are not compiled instead of one that is."""
MIN_IN_WINDOW = 20
BLOCKS = 10
MIN_MEASUREMENTS = 4
Z90 = 1.645


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """An estimate in images, with its 90 % interval; `high` is infinite when the data cannot bound it."""

    value: float
    low: float
    high: float


class NoiseMeter:
    """Collects measurements on the device, so that no step waits for the host; reads them once an epoch or save."""

    def __init__(self, *, window_updates: int, every_updates: int = MEASURE_EVERY_STEPS) -> None:
        self.every_updates = every_updates
        self.window_updates = max(window_updates, MIN_IN_WINDOW * every_updates)
        """How far back an estimate looks: the noise scale changes during training."""
        self._waiting: list[tuple[int, Tensor]] = []
        self._measured: deque[tuple[int, float, float]] = deque()

    def is_due(self, update: int) -> bool:
        """Whether this step is measured: decided by its number, so all processes and every resume agree."""
        return update % self.every_updates == 0

    def observe(self, *, update: int, small: Tensor, big: Tensor, small_size: float | Tensor, big_size: int) -> None:
        """Squared lengths of the mean gradients over `small_size` and over all `big_size` images of a step.

        Of parts of different sizes, `small` is the mean of the squares and `small_size` the harmonic mean of the sizes.
        """
        noise = (small - big) / (1 / small_size - 1 / big_size)
        signal = (big_size * big - small_size * small) / (big_size - small_size)
        self._waiting.append((update, torch.stack([noise, signal])))

    def estimate(self, *, update: int) -> NoiseScale | None:
        """Over the last window; None as long as too little was measured."""
        self._read(update)
        return ratio_of_means([(noise, signal) for _, noise, signal in self._measured])

    def window(self, *, update: int) -> list[list[float]]:
        """What a checkpoint keeps: update, noise and signal of every measurement in the last window."""
        self._read(update)
        return [list(measured) for measured in self._measured]

    def restore(self, window: list[list[float]]) -> None:
        """Goes on from what `window` has left in a checkpoint."""
        self._measured = deque((int(at), noise, signal) for at, noise, signal in window)

    def _read(self, update: int) -> None:
        for at, pair in self._waiting:
            noise, signal = pair.tolist()
            if math.isfinite(noise) and math.isfinite(signal):
                self._measured.append((at, noise, signal))
        self._waiting.clear()
        while self._measured and self._measured[0][0] <= update - self.window_updates:
            self._measured.popleft()


def ratio_of_means(pairs: list[tuple[float, float]]) -> NoiseScale | None:
    """Mean noise over mean signal with a jackknife interval over blocks of consecutive measurements."""
    if len(pairs) < MIN_MEASUREMENTS:
        return None
    noise, signal = sum(n for n, _ in pairs), sum(s for _, s in pairs)
    if noise <= 0 or signal <= 0:
        return None  # the measurement is all noise: nothing can be said yet
    blocks = min(BLOCKS, len(pairs))
    logs = []
    for b in range(blocks):
        block = pairs[b * len(pairs) // blocks : (b + 1) * len(pairs) // blocks]
        rest_noise, rest_signal = noise - sum(n for n, _ in block), signal - sum(s for _, s in block)
        if rest_noise <= 0 or rest_signal <= 0:
            return NoiseScale(value=noise / signal, low=0.0, high=math.inf)
        logs.append(math.log(rest_noise / rest_signal))
    mean = sum(logs) / blocks
    error = math.sqrt((blocks - 1) / blocks * sum((x - mean) ** 2 for x in logs))
    value = noise / signal
    return NoiseScale(value=value, low=value * math.exp(-Z90 * error), high=value * math.exp(Z90 * error))


class PassLengths:
    """Squared lengths of the gradients that each pass of a step computes, before any engine averages them.

    Hooks of the parameters see them whatever engine is used; no gradient is kept.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._lengths: list[Tensor] | None = None
        for parameter in parameters:
            parameter.register_hook(self._note)  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """The next pass is to be measured."""
        self._lengths = []

    def take(self) -> Tensor:
        """Of the pass since `begin`, as one squared length."""
        lengths, self._lengths = self._lengths, None
        assert lengths, "begin was not called, or no gradient was computed"
        return torch.stack(lengths).square().sum()

    def _note(self, gradient: Tensor) -> None:
        if self._lengths is not None:
            self._lengths.append(torch.linalg.vector_norm(gradient.detach()).float())


def squared_length(gradients: list[Tensor]) -> Tensor:
    """Of all gradients as one vector, in float32, on their device."""
    return torch.stack(torch._foreach_norm(gradients)).float().square().sum()
