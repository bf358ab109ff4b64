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

Where the noise scale is far above the batch, |G|^2 drowns in the scatter of a few dozen measurements, and only a lower
bound is known. Batch norm adds a bias that would matter there: with a quarter of the images it makes S a few per cent
larger, which the formulas above take off |G|^2. So one worker with batch norm is probed by two halves of its step,
normalised alike: |G|^2 = g1 g2 and S = |g1 - g2|^2 / (1/B1 + 1/B2).

    NoiseMeasurement   takes the two sizes from gradients that a step computes anyway: of passes, or of processes
    NoiseMeter         collects the measurements, and estimates
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from turnaround.data.mixing import Labels
from turnaround.model.network import Network
from turnaround.workers.contract import Workers

MEASURE_EVERY_STEPS = 8
"""A measured step takes its workers in two passes instead of one."""
RARELY_EVERY_STEPS = 32
"""Where it costs more: two passes that are not compiled instead of one that is."""
PROBE_EVERY_STEPS = 64
"""Where all images of a step are computed once more, in two halves (one worker whose images cannot be taken apart):
1.6 % of the passes."""
MIN_IN_WINDOW = 20
"""Measurements that a window holds at least: single ones scatter by orders of magnitude."""
BLOCKS = 10
"""Blocks of the jackknife: consecutive measurements are not independent, so they are left out together."""
MIN_MEASUREMENTS = 4
"""Fewer leave a jackknife of three blocks at most."""
MAX_FACTOR = 10.0
"""An interval whose ends are further than this from the value says nothing by its value: only a lower bound is told."""
Z90 = 1.645
"""Quantile of the normal distribution for a 90 % interval."""


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """An estimate in images, with its 90 % interval, and what is in the way of a better one."""

    value: float | None
    """None when the measurements cannot tell |G|^2 from 0: then there is a lower end at best."""
    low: float | None
    high: float | None
    """None when the measurements do not bound it."""
    reason: str = ""
    """Why there is no value, or no upper end; empty where there are both."""


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
        self.add(global_step=global_step, noise=noise, signal=signal)

    def add(self, *, global_step: int, noise: Tensor, signal: Tensor) -> None:
        """Note one measurement: S, and |G|^2."""
        self._waiting.append((global_step, torch.stack([noise, signal])))

    def estimate(self, *, global_step: int) -> NoiseScale:
        """Return the estimate over the last window, or why there is none."""
        self._read(global_step)
        found = ratio_of_means([(noise, signal) for _, noise, signal in self._measured])
        if len(self._measured) < MIN_MEASUREMENTS:
            return replace(found, reason=f"{found.reason}: one step in {self.every_steps} is measured")
        return found

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


def ratio_of_means(pairs: list[tuple[float, float]]) -> NoiseScale:
    """Return mean noise over mean signal with a jackknife interval over blocks of consecutive measurements."""
    count = len(pairs)
    if count < MIN_MEASUREMENTS:
        return NoiseScale(
            value=None, low=None, high=None, reason=f"{count} of at least {MIN_MEASUREMENTS} measurements"
        )
    # Sums instead of means: their ratio is the same. A mean of ratios is biased, since single signals come close to 0.
    noise, signal = sum(n for n, _ in pairs), sum(s for _, s in pairs)
    if noise <= 0:
        reason = f"over {count} measurements the parts of a step do not differ as images do"
        return NoiseScale(value=None, low=None, high=None, reason=reason)
    blocks = min(BLOCKS, count)
    # Sums without one block.
    rest = []
    for b in range(blocks):
        block = pairs[b * count // blocks : (b + 1) * count // blocks]
        rest.append((noise - sum(n for n, _ in block), signal - sum(s for _, s in block)))
    # Nothing, or one block alone, may carry the signal: then there is no logarithm, and no upper end.
    is_told = signal > 0 and all(n > 0 and s > 0 for n, s in rest)
    # Of the ratio without one block: a logarithm is closer to normal, and keeps the interval positive.
    half_width = Z90 * _jackknife_error([math.log(n / s) for n, s in rest]) if is_told else math.inf
    if half_width > math.log(MAX_FACTOR):
        value, low = noise / signal if signal > 0 else None, _lower_bound(noise, signal, rest)
        reason = (
            f"the {count} measurements cannot tell the mean gradient from none: it drowns in the differences of images"
        )
        return NoiseScale(
            value=value, low=low if value is None or low is None else min(low, value), high=None, reason=reason
        )
    value, factor = noise / signal, math.exp(half_width)
    return NoiseScale(value=value, low=value / factor, high=value * factor)


def _lower_bound(noise: float, signal: float, rest: list[tuple[float, float]]) -> float | None:
    """Return noise / (the largest signal that the blocks allow); None where they allow none."""
    # The signal is a mean and near normal, the noise is known far better than it. A squared length is not negative: a
    # signal that came out below 0 did so by chance.
    blocks = len(rest)
    largest = max(signal, 0.0) + Z90 * _jackknife_error([s * blocks / (blocks - 1) for _, s in rest])
    return noise / largest if largest > 0 else None


def _jackknife_error(values: list[float]) -> float:
    """Return the standard error from the values without one block each."""
    # Jackknife variance (b - 1)/b sum (x_i - mean)^2, not 1/(b (b - 1)): leave-one-out values share most of their data,
    # so they lie b - 1 times closer together than the blocks themselves.
    blocks, mean = len(values), sum(values) / len(values)
    return math.sqrt((blocks - 1) / blocks * sum((x - mean) ** 2 for x in values))


class NoiseMeasurement:
    """Measures the noise scale in some steps; a collaborator of `Step`, which calls it in the order of its methods.

    Several passes or processes: the small size is that of a pass, the big one that of the step, and neither costs a
    gradient more. One worker whose images a batch norm or dropout couples: its pass cannot be taken apart, so all of
    them are computed once more, in two halves (a probe). Parts must share no image: mixing stays within a half of a
    worker's slice (data/mixing.py).
    """

    def __init__(self, meter: NoiseMeter, network: Network, workers: Workers, *, learning: list[nn.Parameter]) -> None:
        self.meter, self.workers, self.learning = meter, workers, learning
        self.needs_probe = needs_probe(network, workers)
        # Two different sizes, or the formulas divide by 0; a batch norm needs two images in each.
        self._min_images = 4 if self.needs_probe else 2
        self._lengths = PassLengths(learning)
        self._passes: list[tuple[Tensor, int]] = []  # (squared length, images) of the passes of this step
        self._probed: Tensor | None = None  # (2,): noise and signal of the probe

    def is_due(self, global_step: int, *, global_size: int) -> bool:
        """Tell whether a step of so many images is measured; the same on every process."""
        return self.meter.is_due(global_step) and global_size >= self._min_images

    def probe(self, loss_of: Callable[[Tensor, Labels], Tensor], images: Tensor, labels: Labels) -> Tensor:
        """Compute the gradients of both halves of the images once more, and return (2,): noise and signal.

        Nothing is learnt from them. Whoever calls this hands the result to `add_probe`: a CUDA graph may stand between.
        """
        half = len(labels) // 2
        first, rest = (
            self._mean_gradient(loss_of, images[part], labels[part]) for part in (slice(half), slice(half, None))
        )
        # Independent halves: E[g1 g2] = |G|^2, and E|g1 - g2|^2 = S (1/B1 + 1/B2).
        signal = torch.stack([(a * b).sum() for a, b in zip(first, rest, strict=True)]).float().sum()
        apart = squared_length([a - b for a, b in zip(first, rest, strict=True)])
        return torch.stack([apart / (1 / half + 1 / (len(labels) - half)), signal])

    def add_probe(self, noise_and_signal: Tensor) -> None:
        """Keep what a probe of this step has returned, for `end_step`."""
        self._probed = noise_and_signal

    def _mean_gradient(
        self, loss_of: Callable[[Tensor, Labels], Tensor], images: Tensor, labels: Labels
    ) -> list[Tensor]:
        # autograd.grad and not backward: `.grad` must hold the step's own gradients only. Not scaled either, so
        # `end_step` does not divide it by the loss scale.
        gradients = torch.autograd.grad(loss_of(images, labels) / len(labels), self.learning, allow_unused=True)
        return [g for g in gradients if g is not None]

    def begin_backward(self) -> None:
        """Start to note the gradients of a pass, before any engine averages them."""
        self._lengths.begin()

    def end_backward(self) -> Tensor:
        """Return the squared length of the gradient that was noted."""
        return self._lengths.take()

    def add_pass(self, squared_length: Tensor, *, num_images: int) -> None:
        """Count a pass over so many images, with the squared length of its gradient."""
        self._passes.append((squared_length, num_images))

    def end_step(self, global_step: int, *, global_size: int, loss_scale: float | Tensor) -> None:
        """Turn the squared lengths of this step into one measurement over all processes: one message of 3 numbers."""
        passes, self._passes = self._passes, []
        probed, self._probed = self._probed, None
        if probed is not None:  # one worker: there is nobody to sum over
            noise, signal = probed
            self.meter.add(global_step=global_step, noise=noise, signal=signal)
            return
        # A pass's gradient is that of its sum of losses x processes / global size x loss scale (step.py): back to the
        # mean over its n images. Squared lengths take the square of the factor.
        to_mean = global_size / self.workers.size / loss_scale
        # Sums over passes of (squared length of the mean gradient, 1 / images, 1).
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
