"""The stable epoch: the first epoch of the plateau of validation accuracy, by a stated rule and with an interval.

1. A unimodal fit gives the noise: what is left over, or the binomial noise of the validation set if that is larger.
2. Where a smooth growth law fits as well as that noise allows, it is the curve; else the unimodal fit is.
3. The stable epoch is the first that is within `band` of the best level seen. Nothing is extrapolated. The band is at
   least the noise of the last third: the first epochs are rougher than a plateau.
4. A curve that still rises, ends above or below its plateau, or has reached it only just now, is not yet stable: its
   epoch is a lower bound. Where the noise is above two points there is no verdict.
5. The interval is the middle 80 % of the same estimate over 200 curves simulated from the fit and its noise.

One run of thirty epochs fixes the stable epoch to about two epochs, so compare configurations over several seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, mode, variance
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from turnaround.analysis.curves import (
    Array,
    cached_by_curve,
    growth_fit,
    moving_means,
    num_blocks,
    robust_growth_fit,
    simulated,
    unimodal_fit,
)

Status = Literal["stable", "not yet stable", "reached", "not reached", "too short", "too noisy", "unknown"]
NO_VERDICT: tuple[Status, ...] = ("too short", "too noisy", "unknown")
Method = Literal["smooth", "isotonic", "stated", "none"]

# The estimator was chosen on simulated curves of 30 epochs, 2,500 validation images and 0.6 points of noise. Error in
# epochs, mean +- sd: argmax of the raw curve +9.6 +- 4.7, unimodal fit +1.8 +- 3.3, growth law -0.3 +- 1.9. The growth
# law breaks on learning-rate steps (+6), the unimodal fit on no shape; so the growth law only where it fits.
BAND = 0.01  # one percentage point
MAX_BAND = 0.02  # with a wider band, most of a curve is its own plateau
MIN_EPOCHS = 6  # the unimodal fit of fewer points leaves hardly a residual
MIN_EPOCHS_FOR_GROWTH = 11  # the growth law has four parameters
NUM_SIMULATED = 200  # bootstrap curves: each end of an 80 % interval rests on 20
# One-sided 95 % of the normal distribution. In simulated runs a flat curve is called stable in 90-94 % of cases, one
# that gains 2-3 points in its last third in 1-14 %.
RISING_Z = 1.65
MIN_FREEDOM = 3  # of the residuals in the last third: with fewer their spread is mostly luck
LAST_EPOCHS = 3  # their mean tells whether a curve has left its plateau downwards
# A growth law that misses by a twentieth of the band is good enough, however quiet the curve.
EXACT_SHARE_OF_BAND = 0.05
_Z_80 = 1.2816  # half-width of an 80 % interval in standard deviations


@dataclass(frozen=True, kw_only=True)
class EpochEstimate:
    """Epoch at which the validation accuracy of a configuration became stable, or reached a target."""

    status: Status
    """`stable` and `not yet stable` are answers of stable_epoch, `reached` and `not reached` of epochs_to_target."""
    epoch: float | None
    """The estimate; a lower bound (right-censored) where the status is `not yet stable`."""
    low: float | None
    """Lower end of the 80 % interval; None when the noise is not known."""
    high: float | None
    """Upper end; None also where there is none: not yet stable, or a target that many simulated curves never reach."""
    level: float | None
    """The best level of validation accuracy that was seen, without its noise."""
    band: float
    """The width actually used: what was asked for, or the noise if that is larger."""
    noise: float | None
    """Standard deviation of one epoch's accuracy; None when the curve and the size of the set do not tell."""
    method: Method
    """`stated`: somebody's table says so."""
    repeats: int = 1
    """Number of runs it rests on."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CurveFit:
    """One curve without its noise, at the epochs where it is known; for a given curve always the same object."""

    epochs: tuple[int, ...]
    values: Array  # (epochs,), as the two fits below
    unimodal: Array
    fitted: Array
    noise: float | None
    late_noise: float | None
    """Noise of the last third, where its epochs tell it."""
    method: Literal["smooth", "isotonic"]

    def band(self, wanted: float) -> float:
        """Return the band that is used: one thinner than the noise means nothing."""
        return max(wanted, self.late_noise or 0.0)

    def refitted(self, curves: Array) -> Array:
        """Fit other curves by the method that was chosen for this one."""
        return growth_fit(self.epochs, curves) if self.method == "smooth" else unimodal_fit(curves)


def known_values(values: Sequence[float]) -> tuple[tuple[int, ...], Array]:
    """Return epochs, counted from 1, and values where they are numbers."""
    everything = np.asarray(values, dtype=np.float64).reshape(-1)
    is_known = np.isfinite(everything)
    return tuple(int(epoch) for epoch in np.flatnonzero(is_known) + 1), everything[is_known]


@cached_by_curve
def fit_curve(accuracy: Sequence[float], *, num_images: int | None, band: float) -> CurveFit | None:
    """Fit one curve: by the growth law where its noise allows that, else unimodal; None below six known epochs."""
    epochs, values = known_values(accuracy)
    if len(epochs) < MIN_EPOCHS:
        return None
    unimodal = unimodal_fit(values[None])[0]
    noise, late_noise = curve_noise(values, unimodal, num_images), _late_noise(values, unimodal, num_images)
    fitted: Array = unimodal
    method: Literal["smooth", "isotonic"] = "isotonic"
    if len(epochs) >= MIN_EPOCHS_FOR_GROWTH:
        growth = robust_growth_fit(epochs, values, noise or 0.0)
        # Residual variance with four parameters against that of the unimodal fit. 2: at eleven epochs (7 degrees of
        # freedom) the true law stays below it in 95 % of curves of known noise (chi-square 14.1 / 7).
        variance = float(np.sum((values - growth) ** 2)) / (len(epochs) - 4)
        if variance <= max(2.0 * (noise or 0.0) ** 2, (EXACT_SHARE_OF_BAND * band) ** 2):
            fitted, method = growth, "smooth"
    return CurveFit(
        epochs=epochs,
        values=values,
        unimodal=unimodal,
        fitted=fitted,
        noise=noise,
        late_noise=late_noise,
        method=method,
    )


def curve_noise(values: Array, unimodal: Array, num_images: int | None) -> float | None:
    """Return the residual standard deviation, or the binomial one of `num_images` if larger; None without either."""
    # s = max( sqrt(SSE / (E - blocks)), sqrt(p (1 - p) / n_val) at p = max accuracy )
    freedom = len(values) - int(num_blocks(unimodal[None])[0])
    left_over = math.sqrt(float(np.sum((values - unimodal) ** 2)) / freedom) if freedom > 0 else None
    if not num_images:
        return left_over
    share = min(max(float(values.max()), 0.0), 1.0)
    return max(math.sqrt(share * (1.0 - share) / num_images), left_over or 0.0)


def _late_noise(values: Array, unimodal: Array, num_images: int | None) -> float | None:
    """Return the noise of the last third: about the unimodal fit; where that follows every epoch, about a line or that
    of the whole curve, whichever is less.

    Counting images counts up to MAX_BAND only: between epochs the same images are counted.
    """
    count = max(math.ceil(len(values) / 3), MIN_FREEDOM + 2)
    late = values[-count:]
    scatter = curve_noise(late, unimodal[-count:], None)
    if count - int(num_blocks(unimodal[None, -count:])[0]) < MIN_FREEDOM:
        x = np.arange(count, dtype=np.float64)
        left_over = late - np.polyval(np.polyfit(x, late, 1), x)
        whole = curve_noise(values, unimodal, None)
        scatter = None if whole is None else min(whole, math.sqrt(float(np.sum(left_over**2)) / (count - 2)))
    if not num_images:
        return scatter
    share = min(max(float(values.max()), 0.0), 1.0)
    return max(min(math.sqrt(share * (1.0 - share) / num_images), MAX_BAND), scatter or 0.0)


def is_still_rising(epochs: Sequence[int], values: Array, *, noise: float, band: float) -> bool:
    """Test by linear regression whether the last third climbs by more than its noise explains and half the band."""
    # slope = sum(x y) / sum(x^2), se = noise / sqrt(sum(x^2)), x centred. Half the band: a significant rise that is
    # too small to move the stable epoch does not count.
    count = math.ceil(len(values) / 3)
    x, y = np.asarray(epochs[-count:], dtype=np.float64), values[-count:]
    x = x - x.mean()
    slope = float(x @ y / (x @ x))
    se = noise / math.sqrt(float(x @ x))
    return slope > RISING_Z * se and slope * float(x[-1] - x[0]) > band / 2


@cached_by_curve
def stable_epoch(
    val_accuracy: Sequence[float], *, num_validation: int | None, band: float = BAND, seed: int = 0
) -> EpochEstimate:
    """Return a run's stable epoch; `val_accuracy` has a value for each epoch from 1, NaN where it is not known."""
    fit = fit_curve(val_accuracy, num_images=num_validation, band=band)
    if fit is None:
        return _no_answer(val_accuracy, band)
    width = fit.band(band)
    if width > max(MAX_BAND, band):
        return replace(_no_answer(val_accuracy, width), status="too noisy", noise=fit.noise)
    first, level = plateau_epoch(fit, width)
    epoch, has_settled = float(first), _is_on_plateau(fit, first, level, width)
    low, high = _plateau_interval(fit, width, seed)
    return EpochEstimate(
        status="stable" if has_settled else "not yet stable",
        epoch=epoch,
        low=None if low is None else min(low, epoch),
        high=None if high is None or not has_settled else max(high, epoch),
        level=level,
        band=width,
        noise=fit.noise,
        method=fit.method,
    )


def is_stable(val_accuracy: Sequence[float], *, num_validation: int | None, band: float = BAND) -> bool:
    """Tell whether `stable_epoch` would call this curve stable, without the cost of its interval."""
    fit = fit_curve(val_accuracy, num_images=num_validation, band=band)
    if fit is None:
        return False
    width = fit.band(band)
    return width <= max(MAX_BAND, band) and _is_on_plateau(fit, *plateau_epoch(fit, width), width)


def _is_on_plateau(fit: CurveFit, first: int, level: float, band: float) -> bool:
    """Tell whether the plateau that begins with epoch `first` is one, or has ended, or may end with the next epoch."""
    count, noise = len(fit.epochs), fit.late_noise or 0.0
    num_on_plateau = count - fit.epochs.index(first)
    # A plateau of fewer than three epochs, or of less than a seventh of the run, may end with the next epoch.
    if num_on_plateau < max(3.0, 0.15 * count):
        return False
    # One last value above the band, or the mean of the last three below it, by more than noise.
    has_risen = float(fit.values[-1]) > level + max(band, RISING_Z * noise)
    mean_noise = noise / math.sqrt(LAST_EPOCHS)
    has_fallen = float(fit.values[-LAST_EPOCHS:].mean()) < level - band - RISING_Z * mean_noise
    return not (has_risen or has_fallen or is_still_rising(fit.epochs, fit.values, noise=noise, band=band))


@cached_by_curve
def epochs_to_target(
    val_accuracy: Sequence[float], target: float, *, num_validation: int | None, seed: int = 0
) -> EpochEstimate:
    """Return the first epoch at which the fitted curve is at `target`; the status is `reached` or `not reached`."""
    fit = fit_curve(val_accuracy, num_images=num_validation, band=BAND)
    if fit is None:
        return _no_answer(val_accuracy, 0.0)
    epoch = float(_first_at(fit.fitted[None], target, fit.epochs)[0])
    low, high = None, None
    if fit.noise is not None:
        curves = fit.refitted(simulated(fit.fitted, fit.noise, NUM_SIMULATED, seed))
        low, high = _middle_80(_first_at(curves, target, fit.epochs))
    has_reached = math.isfinite(epoch)
    return EpochEstimate(
        status="reached" if has_reached else "not reached",
        epoch=epoch if has_reached else None,
        low=_finite(None if low is None else min(low, epoch)),
        high=_finite(None if high is None else max(high, epoch)),
        level=float(fit.fitted.max()),
        band=0.0,
        noise=fit.noise,
        method=fit.method,
    )


def plateau_epoch(fit: CurveFit, band: float) -> tuple[int, float]:
    """Return the first epoch within `band` of the best level seen, and that level."""
    levels, positions = _plateaus(fit.fitted[None], fit.values[None], band, fit.method)
    return fit.epochs[int(positions[0])], float(levels[0])


def _plateaus(fitted: Array, curves: Array, band: float, method: Method) -> tuple[Array, NDArray[np.intp]]:
    """Return for each row the best level seen, and the position of the first value within `band` of it."""
    levels = fitted.max(axis=1)
    if method == "isotonic":  # the top of an isotonic fit is one lucky epoch; a plateau holds for a while
        levels = np.minimum(levels, moving_means(curves, max(3, curves.shape[1] // 5)).max(axis=1))
    levels = np.minimum(levels, curves.max(axis=1))  # a level that nobody has seen is no level
    return levels, np.argmax(fitted >= (levels - band)[:, None], axis=1)


def _plateau_interval(fit: CurveFit, band: float, seed: int) -> tuple[float | None, float | None]:
    if fit.noise is None:
        return None, None
    # Parametric bootstrap: each simulated curve is fitted anew, by the method chosen for the measured one. Over five
    # shapes the interval held the true epoch in 72-100 % (10 to 30 epochs, docs/LOG.md).
    curves = simulated(fit.fitted, fit.noise, NUM_SIMULATED, seed)  # (NUM_SIMULATED, epochs)
    _, positions = _plateaus(fit.refitted(curves), curves, band, fit.method)
    return _middle_80(np.asarray(fit.epochs, dtype=np.float64)[positions])


def _first_at(fitted: Array, target: float, epochs: Sequence[int]) -> Array:
    """Return the first epoch at which each row is at the target; infinity where it never is."""
    is_there = fitted >= target
    return np.where(is_there.any(axis=1), np.asarray(epochs, dtype=np.float64)[np.argmax(is_there, axis=1)], np.inf)


def _middle_80(found: Array) -> tuple[float, float]:
    """Return the 10 % and 90 % quantiles, as order statistics."""
    ordered = np.sort(found)  # no interpolation: it would make NaN of two infinities
    return float(ordered[len(ordered) // 10]), float(ordered[-1 - len(ordered) // 10])


def stable_over_repeats(each: Sequence[EpochEstimate]) -> EpochEstimate:
    """Combine repeats of one configuration: the median, with an interval for the mean.

    Runs that say nothing (too short, unknown) are left out, which `repeats` shows. Where half or more of the others
    have not got there yet, neither has the configuration; where fewer have not, the interval has no upper end.
    """
    known = [one for one in each if one.status not in NO_VERDICT]
    if len(known) < 2:
        return known[0] if known else _nothing_known(each)
    # What has not got there is as late as anything can be; a lower bound is at least that late.
    values = [math.inf if one.epoch is None else one.epoch for one in known]
    num_open = sum(one.status in ("not yet stable", "not reached") for one in known)
    is_target = any(one.status in ("reached", "not reached") for one in known)
    is_open = 2 * num_open >= len(known)
    epoch = _finite(median(values))
    low, high = _interval_over_repeats(known)
    return EpochEstimate(
        status=_STATUS_OVER_REPEATS[is_target, is_open],
        epoch=None if is_target and is_open else epoch,
        low=low if low is None or epoch is None else max(1.0, min(low, epoch)),
        high=None if num_open or high is None or epoch is None else max(high, epoch),
        level=_median_of(one.level for one in known),
        band=max(one.band for one in known),
        noise=_median_of(one.noise for one in known),
        method=mode(one.method for one in known),
        repeats=sum(one.repeats for one in known),
    )


_STATUS_OVER_REPEATS: dict[tuple[bool, bool], Status] = {
    (False, False): "stable",
    (False, True): "not yet stable",
    (True, False): "reached",
    (True, True): "not reached",
}


def _interval_over_repeats(known: Sequence[EpochEstimate]) -> tuple[float | None, float | None]:
    """Return the 80 % interval: Student's t for three or more repeats; for two, their own intervals and distance."""
    values = [one.epoch for one in known if one.epoch is not None]
    if len(values) >= 3:
        from scipy.special import stdtrit

        # mean +- t(n - 1, 0.9) sqrt((s^2 + 1/12) / n)
        rounding = 1.0 / 12.0  # variance of a whole number of epochs: equal estimates are not exact ones
        half = float(stdtrit(len(values) - 1, 0.9)) * math.sqrt((variance(values) + rounding) / len(values))
        return fmean(values) - half, fmean(values) + half
    if len(values) < 2:
        return None, None
    # Two values: the standard error of their mean is half their distance; each bootstrap half-width halves as well.
    between = _Z_80 * abs(values[0] - values[1]) / 2
    below = [one.epoch - one.low for one in known if one.epoch is not None and one.low is not None]
    above = [one.high - one.epoch for one in known if one.epoch is not None and one.high is not None]
    low = fmean(values) - math.hypot(between, *(d / 2 for d in below)) if len(below) == 2 else None
    high = fmean(values) + math.hypot(between, *(d / 2 for d in above)) if len(above) == 2 else None
    return low, high


def _median_of(values: Iterable[float | None]) -> float | None:
    return median(known) if (known := [value for value in values if value is not None]) else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _no_answer(values: Sequence[float], band: float) -> EpochEstimate:
    known = known_values(values)[1]
    return EpochEstimate(
        status="too short" if known.size else "unknown",
        epoch=None,
        low=None,
        high=None,
        level=float(known.max()) if known.size else None,
        band=band,
        noise=None,
        method="none",
    )


def _nothing_known(each: Sequence[EpochEstimate]) -> EpochEstimate:
    """Return the estimate that says why nothing is known."""
    unknown = EpochEstimate(
        status="unknown", epoch=None, low=None, high=None, level=None, band=BAND, noise=None, method="none", repeats=0
    )
    return next((one for one in each if one.status in ("too short", "too noisy")), next(iter(each), unknown))
