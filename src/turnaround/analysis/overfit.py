"""Does the network learn its training images by heart, and does that do harm?

Three questions, in the order in which they matter:

1. Did validation accuracy fall after its peak, by more than the band and by more than curves that do not fall show by
   chance? That is harmful.
2. Did the validation loss rise, though accuracy did not fall? The network is over-confident.
3. How far is training accuracy, measured like validation accuracy, above it on the plateau? A gap is memorising.

The chance that a curve that never falls shows the drop comes from 400 such curves: the monotone fit plus the noise. A
nominal 5 % gives 8-13 % false alarms there, hence 2 % and a drop larger than the band. The unimodal fit follows a bad
last epoch and then takes the curve for quieter than it is, so the noise is at least that of the second differences:
without it 2 % still gave up to 14 % false alarms in simulated runs of 10 to 30 epochs, with it up to 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from turnaround.analysis.curves import MAX_CURVES, Array, Curve, monotone_fit, moving_means, simulated, unimodal_fit
from turnaround.analysis.stable import (
    BAND,
    MIN_EPOCHS,
    CurveFit,
    curve_noise,
    fit_curve,
    is_still_rising,
    known_values,
    plateau_epoch,
)

Kind = Literal["harmful", "over-confident", "memorising", "none", "underfitting", "unknown"]

NUM_SIMULATED = 400  # bootstrap curves: 2 % of them are eight
MAX_P = 0.02  # a drop of 1.9 points is then seen in 23-80 % of runs, of 3.8 points in 85-100 % (docs/LOG.md)
RISING_LOSS_PERCENT = 5.0  # generalisation loss GL > 5, as Prechelt (1998) stops, on means of three epochs
LOSS_MEAN_EPOCHS = 3
MEMORISING_GAP = 0.03  # a judgement: three points, and three standard errors


@dataclass(frozen=True, kw_only=True)
class Overfitting:
    """The verdict and what it rests on; None is "not measured, or in too few epochs to say"."""

    kind: Kind
    drop: float | None
    """Fall of validation accuracy from its peak to the last epoch, in the unimodal fit."""
    since_epoch: int | None
    """The last epoch of the peak; None when accuracy did not fall at all."""
    p: float | None
    """Bootstrap p-value: the share of curves that never fall, plus noise, with such a drop."""
    loss_rise_percent: float | None
    """Validation loss at the end over its minimum, both as means of three epochs."""
    gap: float | None
    """Training less validation accuracy at the stable epoch, or at the last one where there is no stable epoch."""
    gap_se: float | None
    """Standard error of the gap from the number of images, or from the noise of the curve where that is not known."""


def overfitting(curve: Curve, *, num_validation: int | None, seed: int = 0) -> Overfitting:
    """Judge one run's curves."""
    curve = curve.filled()
    fit = fit_curve(curve.val_accuracy, num_images=num_validation, band=BAND)
    drop, since_epoch, p = (None, None, None) if fit is None else _drop(fit, seed)
    loss_rise_percent = _loss_rise_percent(curve.val_loss)
    gap, gap_se = _gap(curve, fit, num_validation)
    band = BAND if fit is None else fit.band(BAND)
    # By harm: the first that holds is the verdict, so a run that is harmed is never called merely over-confident.
    kind: Kind = "none"
    if drop is None or p is None:
        kind = "unknown"
    elif drop > band and p < MAX_P:
        kind = "harmful"
    elif loss_rise_percent is not None and loss_rise_percent > RISING_LOSS_PERCENT:
        kind = "over-confident"
    # From here on training accuracy decides; a fall and a rising loss can be told without it.
    elif gap is None:
        kind = "unknown"
    # Three standard errors to say that there is a gap, two to say that there is none; between them neither is said.
    elif gap > MEMORISING_GAP and gap > 3 * (gap_se or 0.0):
        kind = "memorising"
    elif gap < 2 * (gap_se or 0.0) and _is_rising(curve.train_accuracy, num_validation):
        kind = "underfitting"
    return Overfitting(
        kind=kind,
        drop=drop,
        since_epoch=since_epoch,
        p=p,
        loss_rise_percent=loss_rise_percent,
        gap=gap,
        gap_se=gap_se,
    )


@lru_cache(maxsize=MAX_CURVES)
def _drop(fit: CurveFit, seed: int) -> tuple[float, int | None, float]:
    """Return the drop, the last epoch before it, and its p-value under a curve that never falls."""
    peak = float(fit.unimodal.max())
    drop = peak - float(fit.unimodal[-1])
    if drop <= 0:
        return 0.0, None, 1.0
    since_epoch = fit.epochs[int(np.flatnonzero(fit.unimodal == peak)[-1])]
    noise = max(fit.noise or 0.0, _noise_of_differences(fit.values))
    # Null hypothesis: the isotonic fit is the true curve. (NUM_SIMULATED, epochs)
    curves = unimodal_fit(simulated(monotone_fit(fit.values[None])[0], noise, NUM_SIMULATED, seed))
    drops = curves.max(axis=1) - curves[:, -1]
    return drop, since_epoch, float(np.mean(drops >= drop))


def _noise_of_differences(values: Array) -> float:
    """Estimate the noise from second differences, in which a smooth trend cancels; without the steep first third."""
    differences = np.diff(values[len(values) // 3 :], n=2)
    # var(y[i] - 2 y[i+1] + y[i+2]) = (1 + 4 + 1) s^2
    return math.sqrt(float(np.mean(differences**2)) / 6.0)


def _loss_rise_percent(val_loss: Sequence[float]) -> float | None:
    known = known_values(val_loss)[1]
    if len(known) < MIN_EPOCHS:
        return None
    # GL = 100 (loss[E] / min loss - 1), Prechelt (1998)
    means = moving_means(known[None], LOSS_MEAN_EPOCHS)[0]
    lowest = float(means.min())
    return 100.0 * (float(means[-1]) / lowest - 1.0) if lowest > 0 else None


def _gap(curve: Curve, fit: CurveFit | None, num_images: int | None) -> tuple[float | None, float | None]:
    """Return the gap and its standard error, at the epoch nearest to the stable one where both are known."""
    both = list(zip(curve.epochs, curve.train_accuracy, curve.val_accuracy, strict=True))
    both = [(epoch, train, val) for epoch, train, val in both if math.isfinite(train) and math.isfinite(val)]
    if not both:
        return None, None
    stable_epoch = curve.epochs[-1] if fit is None else plateau_epoch(fit, fit.band(BAND))[0]
    _, train, val = min(both, key=lambda row: abs(row[0] - stable_epoch))
    if num_images:
        # se^2 = p_t (1 - p_t) / n + p_v (1 - p_v) / n: the training subset is as large as the validation set.
        shares = [min(max(share, 0.0), 1.0) for share in (train, val)]
        return train - val, math.sqrt(sum(share * (1.0 - share) / num_images for share in shares))
    noise = None if fit is None else fit.noise
    return train - val, None if noise is None else math.sqrt(2.0) * noise


def _is_rising(train_accuracy: Sequence[float], num_images: int | None) -> bool:
    epochs, values = known_values(train_accuracy)
    if len(epochs) < MIN_EPOCHS:
        return False
    noise = curve_noise(values, unimodal_fit(values[None])[0], num_images) or 0.0
    return is_still_rising(epochs, values, noise=noise, band=max(BAND, noise))
