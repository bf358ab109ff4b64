"""The gradient noise scale: beyond how many images a step do more images say little new?

The squared length of a gradient over B images is |G|^2 + S/B on average: |G|^2 from the true gradient, S from the
differences between images. Measured at two sizes, small and big, of the same step:

    S     = (small - big) / (1/B_small - 1/B_big)
    |G|^2 = (B_big big - B_small small) / (B_big - B_small)

    noise scale = mean S / mean |G|^2      in images; a ratio of means, never a mean of ratios

This is B_simple of McCandlish et al. 2018, appendix A (S is the trace of the gradient's covariance over images). The
best step over B images makes 1 / (1 + B_simple / B) of the progress of the true gradient, so half of it at
B = B_simple. It is an order of magnitude (docs/LOG.md: good to a factor of about 3), and it grows as the loss falls.
The interval is a delete-block jackknife.

    NoiseMeasurement   takes the two sizes from gradients that a step computes anyway: of passes, or of processes
    NoiseMeter         collects the measurements, and estimates
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from turnaround.model.network import Network
from turnaround.workers.contract import Workers

MEASURE_EVERY_STEPS = 8
"""A measured step takes its workers in two passes instead of one."""
RARELY_EVERY_STEPS = 32
"""Where it costs more: an additional pass over a quarter of the images (one worker whose images cannot be taken apart),
which is 0.8 % of the passes, or two passes that are not compiled instead of one that is."""
PROBED_PART = 4
"""One in this many images of a step is computed once more, where its gradient cannot be taken apart."""
MIN_IN_WINDOW = 20
"""Measurements that a window holds at least: single ones scatter by orders of magnitude."""
BLOCKS = 10
"""Blocks of the jackknife: consecutive measurements are not independent, so they are left out together."""
MIN_MEASUREMENTS = 4
"""Fewer leave a jackknife of three blocks at most."""
Z90 = 1.645
"""Quantile of the normal distribution for a 90 % interval."""


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """An estimate in images, with its 90 % interval; `high` is infinite when the data cannot bound it."""

    value: float
    low: float
    high: float


class NoiseMeter:
    """Collects measurements on the device, so that no step waits for the host; reads them once an epoch or save."""

    def __init__(self, *, window_steps: int, every_steps: int = MEASURE_EVERY_STEPS) -> None:
        self.every_steps = every_steps
        self.window_steps = max(window_steps, MIN_IN_WINDOW * every_steps)
        """Steps that an estimate looks back: the noise scale changes during training."""
        self._waiting: list[tuple[int, Tensor]] = []  # (global step, (2,) on the device: noise and signal)
        self._measured: deque[tuple[int, float, float]] = deque()  # the same, read to the host

    def is_due(self, global_step: int) -> bool:
        """Tell whether this step is measured: decided by its number, so all processes and every resume agree."""
        return global_step % self.every_steps == 0

    def observe(
        self, *, global_step: int, small: Tensor, big: Tensor, small_size: float | Tensor, big_size: int
    ) -> None:
        """Note the squared lengths of the mean gradients over `small_size` and over all `big_size` images of a step.

        Where the parts differ in size, `small` is the mean of the squares and `small_size` the harmonic mean of sizes:
        S/B is linear in 1/B, so the formulas above stay exact.
        """
        # From E[small] = |G|^2 + S/B_small and E[big] = |G|^2 + S/B_big. The difference leaves S (1/B_small - 1/B_big);
        # weighted by the sizes, S cancels: B_big big - B_small small = (B_big - B_small) |G|^2. Both are unbiased, and
        # either may come out negative in a single step: so they are averaged before they are divided.
        noise = (small - big) / (1 / small_size - 1 / big_size)
        signal = (big_size * big - small_size * small) / (big_size - small_size)
        self._waiting.append((global_step, torch.stack([noise, signal])))

    def estimate(self, *, global_step: int) -> NoiseScale | None:
        """Return the estimate over the last window; None as long as too little was measured."""
        self._read(global_step)
        return ratio_of_means([(noise, signal) for _, noise, signal in self._measured])

    def window(self, *, global_step: int) -> list[list[float]]:
        """Return what a checkpoint keeps: step, noise and signal of every measurement in the last window."""
        self._read(global_step)
        return [list(measured) for measured in self._measured]

    def restore(self, window: list[list[float]]) -> None:
        """Go on from what `window` has left in a checkpoint."""
        self._measured = deque((int(at), noise, signal) for at, noise, signal in window)

    def _read(self, global_step: int) -> None:
        """Bring what was measured to the host, which waits for the device here, and forget what has left the window."""
        for at, pair in self._waiting:
            noise, signal = pair.tolist()
            # fp16 gradients that overflowed are infinite; the optimizer skips such a step, and so does the estimate.
            if math.isfinite(noise) and math.isfinite(signal):
                self._measured.append((at, noise, signal))
        self._waiting.clear()
        while self._measured and self._measured[0][0] <= global_step - self.window_steps:
            self._measured.popleft()


def ratio_of_means(pairs: list[tuple[float, float]]) -> NoiseScale | None:
    """Return mean noise over mean signal with a jackknife interval over blocks of consecutive measurements."""
    if len(pairs) < MIN_MEASUREMENTS:
        return None
    # Sums instead of means: their ratio is the same. A mean of ratios is biased, since single signals come close to 0.
    noise, signal = sum(n for n, _ in pairs), sum(s for _, s in pairs)
    if noise <= 0 or signal <= 0:
        return None  # the measurement is all noise: nothing can be said yet
    blocks = min(BLOCKS, len(pairs))
    # Of the ratio without one block: a logarithm is closer to normal, and keeps the interval positive.
    logs = []
    for b in range(blocks):
        block = pairs[b * len(pairs) // blocks : (b + 1) * len(pairs) // blocks]
        rest_noise, rest_signal = noise - sum(n for n, _ in block), signal - sum(s for _, s in block)
        if rest_noise <= 0 or rest_signal <= 0:  # one block carries the whole estimate: the data do not bound it
            return NoiseScale(value=noise / signal, low=0.0, high=math.inf)
        logs.append(math.log(rest_noise / rest_signal))
    mean = sum(logs) / blocks
    # Jackknife variance (b - 1)/b sum (x_i - mean)^2, not 1/(b (b - 1)): leave-one-out values share most of their data,
    # so they lie b - 1 times closer together than the blocks themselves.
    error = math.sqrt((blocks - 1) / blocks * sum((x - mean) ** 2 for x in logs))
    value = noise / signal
    return NoiseScale(value=value, low=value * math.exp(-Z90 * error), high=value * math.exp(Z90 * error))


class NoiseMeasurement:
    """Measures the noise scale in some steps; a collaborator of `Step`, which calls it in the order of its methods.

    Several passes or processes: the small size is that of a pass, the big one that of the step, and neither costs a
    gradient more. One worker whose images a batch norm or dropout couples: its passes cannot be made smaller, so the
    first quarter of the images is computed once more (a probe).
    """

    def __init__(self, meter: NoiseMeter, network: Network, workers: Workers, *, learning: list[nn.Parameter]) -> None:
        self.meter, self.workers, self.learning = meter, workers, learning
        self.needs_probe = needs_probe(network, workers)
        # Two different sizes, or the formulas divide by 0; a batch norm needs two images in each.
        self._min_images = 4 if self.needs_probe else 2
        self._lengths = PassLengths(learning)
        self._passes: list[tuple[Tensor, int]] = []  # (squared length, images) of the passes of this step
        self._probed: tuple[Tensor, int] | None = None  # the same of the probe

    def is_due(self, global_step: int, *, global_size: int) -> bool:
        """Tell whether a step of so many images is measured; the same on every process."""
        return self.meter.is_due(global_step) and global_size >= self._min_images

    def probe(self, loss_of: Callable[[Tensor, Tensor], Tensor], images: Tensor, labels: Tensor) -> None:
        """Compute the gradient of the first images once more; nothing is learnt from it."""
        first = max(2, len(labels) // PROBED_PART)
        loss = loss_of(images[:first], labels[:first])
        # autograd.grad and not backward: `.grad` must hold the step's own gradients only. Not scaled either, so
        # `end_step` does not divide it by the loss scale.
        gradients = torch.autograd.grad(loss / first, self.learning, allow_unused=True)
        self._probed = squared_length([g for g in gradients if g is not None]), first

    def begin_backward(self) -> None:
        """Start to note the gradients of a pass, before any engine averages them."""
        self._lengths.begin()

    def end_backward(self, *, num_images: int) -> None:
        """End a pass over so many images."""
        self._passes.append((self._lengths.take(), num_images))

    def end_step(self, global_step: int, *, global_size: int, loss_scale: float | Tensor) -> None:
        """Turn the squared lengths of this step into one measurement over all processes: one message of 3 numbers."""
        passes, self._passes = self._passes, []
        probed, self._probed = self._probed, None
        # Sums over passes of (squared length of the mean gradient, 1 / images, 1).
        if probed is not None:
            length, num_images = probed
            sums = torch.stack([length, length.new_full((), 1 / num_images), length.new_ones(())])
        else:
            # A pass's gradient is that of its sum of losses x processes / global size x loss scale (step.py): back to
            # the mean over its n images. Squared lengths take the square of the factor.
            to_mean = global_size / self.workers.size / loss_scale
            rows = [torch.stack([s * (to_mean / n) ** 2, s.new_full((), 1 / n), s.new_ones(())]) for s, n in passes]
            sums = torch.stack(rows).sum(dim=0)
        self.workers.sum(sums)  # (3,)
        # Mean of the squares and mean of 1/B: the harmonic mean of the sizes, as `observe` asks for.
        small, inverse_size = sums[0] / sums[2], sums[1] / sums[2]
        # By now `.grad` is the mean gradient of the whole step, on every process.
        big = squared_length([p.grad for p in self.learning if p.grad is not None]) / loss_scale**2
        self.meter.observe(
            global_step=global_step, small=small, big=big, small_size=1 / inverse_size, big_size=global_size
        )


def needs_probe(network: Network, workers: Workers) -> bool:
    """Tell whether measuring takes an additional pass: one worker whose images cannot be taken apart."""
    return workers.count == 1 and network.couples_images()


class PassLengths:
    """Squared lengths of the gradients that each pass of a step computes, before any engine averages them.

    Hooks of the parameters see them whatever engine is used; no gradient is kept.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._lengths: list[Tensor] | None = None
        for parameter in parameters:
            parameter.register_hook(self._note)  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """Start to measure a pass."""
        self._lengths = []

    def take(self) -> Tensor:
        """Return the squared length of the pass since `begin`."""
        lengths, self._lengths = self._lengths, None
        assert lengths, "begin was not called, or no gradient was computed"
        return torch.stack(lengths).square().sum()

    def _note(self, gradient: Tensor) -> None:
        if self._lengths is not None:
            self._lengths.append(torch.linalg.vector_norm(gradient.detach()).float())


def squared_length(gradients: list[Tensor]) -> Tensor:
    """Return the squared length of all gradients as one vector, in float32, on their device."""
    return torch.stack(torch._foreach_norm(gradients)).float().square().sum()
