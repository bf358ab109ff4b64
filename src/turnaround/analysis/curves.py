"""Learning curves, and their isotonic, unimodal and growth fits. A curve is a row: every fit takes many at once.

Isotonic (monotone) and unimodal fits are least squares by pooling adjacent violators (PAVA). While the pooling walks
along a curve it leaves behind the fit of every beginning of it, so that one walk from the left and one from the right
give the error of every place the peak could be at: the best unimodal fit costs no more than two monotone ones.

The growth law (Weibull) is L - A exp(-((e - 0.5) / t)^b). L and A are linear: for each (t, b) they have a closed form,
and one matrix product gives the error of all points of a grid for all curves. A few Gauss-Newton steps from the best
point end the search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# The grid only has to lead to the right valley; Gauss-Newton steps go down to its floor. 30 epochs have 40 x 8 points.
# b goes from a steep start with a long tail (0.5) to an S-shaped rise (2).
_LOG_T_STEP = 0.15
_LOG_T_FIRST = math.log(0.25)
_LOG_B = np.log(np.geomspace(0.5, 2.0, 8))
_LOG_B_STEP = float(_LOG_B[1] - _LOG_B[0])
_REFINEMENTS = 4  # Gauss-Newton steps from the best point of the grid
_REWEIGHTINGS = 5  # of the robust fit, until the weights belong to the fit
_DAMPING = 1.01  # of the diagonal, Levenberg's: t and b are nearly collinear in short curves
_MIN_SPREAD = 1e-12  # keeps a constant shape from dividing by zero
MAX_CURVES = 4096
"""Size of the caches: a curve takes some kilobytes, with its fit and its estimates."""

Judge = TypeVar("Judge", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Learning curves of one run: a value after each epoch; NaN where it is not known."""

    epochs: tuple[int, ...] = ()
    """Counted from 1; may have gaps, and may name an epoch twice after a resume."""
    val_accuracy: tuple[float, ...] = ()
    train_accuracy: tuple[float, ...] = ()
    """In evaluation mode, without augmentation, on a subset of the training images as large as the validation set."""
    val_loss: tuple[float, ...] = ()
    train_loss: tuple[float, ...] = ()

    def filled(self) -> Curve:
        """Return every epoch from 1 to the last, once: a gap is NaN, and the newest line of a repeated epoch counts."""
        length = max(self.epochs, default=0)
        columns = (self.val_accuracy, self.train_accuracy, self.val_loss, self.train_loss)
        val_accuracy, train_accuracy, val_loss, train_loss = (self._placed(column, length) for column in columns)
        return Curve(
            epochs=tuple(range(1, length + 1)),
            val_accuracy=val_accuracy,
            train_accuracy=train_accuracy,
            val_loss=val_loss,
            train_loss=train_loss,
        )

    def _placed(self, values: Sequence[float], length: int) -> tuple[float, ...]:
        placed = [float("nan")] * length
        for epoch, value in zip(self.epochs, values, strict=False):  # a column that was never measured is empty
            if epoch >= 1:
                placed[epoch - 1] = value
        return tuple(placed)


@dataclass(frozen=True)
class _Pooled:
    """The last block of the isotonic fit of curve[: position + 1], for each position of each curve."""

    start: NDArray[np.intp]  # (curves, epochs): first position of that block
    mean: Array  # (curves, epochs): height of that block
    error: Array  # (curves, epochs + 1)
    """Residual sum of squares of that fit, with a leading column of zeros for the empty curve."""

    def fit(self, lengths: NDArray[np.intp]) -> Array:
        """Return the isotonic fit of the first `lengths` values of each curve; NaN after them."""
        rows, (count, width) = np.arange(len(self.mean)), self.mean.shape
        fitted = np.full((count, width), np.nan)
        end = lengths - 1  # of the block that the position is in; blocks are walked from the last to the first
        for position in range(width - 1, -1, -1):
            is_inside = position <= end
            fitted[is_inside, position] = self.mean[rows[is_inside], end[is_inside]]
            is_first = is_inside & (self.start[rows, end] == position)
            end[is_first] = position - 1
        return fitted


def _pool(curves: Array) -> _Pooled:
    """PAVA on all curves at once: merge the newest block into the one before it while that one is higher."""
    count, width = curves.shape
    zeros = np.zeros((count, 1))
    # Prefix sums, (curves, epochs + 1): mean and squared error of any block are differences of two columns.
    sums = np.concatenate([zeros, np.cumsum(curves, axis=1)], axis=1)
    squares = np.concatenate([zeros, np.cumsum(curves**2, axis=1)], axis=1)
    start = np.empty((count, width), dtype=np.intp)
    mean = np.full((count, width + 1), -np.inf)  # column 0 stands before the first block and is never higher
    error = np.zeros((count, width + 1))
    everyone = np.arange(count)
    for position in range(width):
        first = np.full(count, position)
        height = curves[:, position].copy()
        rows = everyone[mean[:, position] > height]
        while rows.size:
            first[rows] = start[rows, first[rows] - 1]
            begin = first[rows]
            height[rows] = (sums[rows, position + 1] - sums[rows, begin]) / (position + 1 - begin)
            rows = rows[mean[rows, begin] > height[rows]]
        start[:, position], mean[:, position + 1] = first, height
        # SSE of a block of n values with mean h: sum(y^2) - n h^2; rounding may leave it just below 0.
        own = squares[:, position + 1] - squares[everyone, first] - (position + 1 - first) * height**2
        error[:, position + 1] = error[everyone, first] + np.maximum(own, 0.0)
    return _Pooled(start, mean[:, 1:], error)


def monotone_fit(curves: Array) -> Array:
    """Least-squares isotonic fit (PAVA) of each row."""
    count, width = curves.shape
    centre = curves.mean(axis=1, keepdims=True)  # sums of squares lose no digits to a large constant
    fitted: Array = _pool(curves - centre).fit(np.full(count, width)) + centre
    return fitted


def unimodal_fit(curves: Array) -> Array:
    """Least-squares unimodal fit of each row: isotonic up to the best peak, antitonic after it."""
    count, width = curves.shape
    centre = curves.mean(axis=1, keepdims=True)
    level = curves - centre
    pooled = _pool(np.concatenate([level, level[:, ::-1]]))  # (2 curves, epochs): from the left, from the right
    # Column k, (curves, epochs + 1): SSE with the first k values rising and the others falling.
    error = pooled.error[:count] + pooled.error[count:, ::-1]
    rising = np.argmin(error, axis=1)  # how many values the rising part has
    fitted = pooled.fit(np.concatenate([rising, width - rising]))
    joined: Array = np.where(np.arange(width) < rising[:, None], fitted[:count], fitted[count:, ::-1]) + centre
    return joined


def num_blocks(fitted: Array) -> NDArray[np.intp]:
    """Count the constant stretches of each fitted row: the degrees of freedom that the fit has used up."""
    count: NDArray[np.intp] = 1 + np.count_nonzero(np.diff(fitted, axis=1), axis=1)
    return count


@dataclass(frozen=True)
class _Grid:
    """The growth law's shapes exp(-((e - 0.5) / t)^b), one row for each (t, b)."""

    log_t: Array  # (points,)
    log_b: Array  # (points,)
    shapes: Array  # (points, epochs)
    squares: Array  # (points, epochs)


@lru_cache(maxsize=8)
def _grid(epochs: tuple[int, ...]) -> _Grid:
    """Return the grid over t and b.

    t reaches from half the first epoch to three times the last, where the law is a straight line or a parabola.
    """
    times = np.arange(_LOG_T_FIRST, _log_t_last(epochs), _LOG_T_STEP)
    log_t, log_b = (axis.reshape(-1) for axis in np.meshgrid(times, _LOG_B))
    shapes = _shapes(epochs, log_t, log_b)[0]
    return _Grid(log_t, log_b, shapes, shapes**2)


def _log_t_last(epochs: tuple[int, ...]) -> float:
    return math.log(3.0 * epochs[-1])


def _shapes(epochs: tuple[int, ...], log_t: Array, log_b: Array) -> tuple[Array, Array, Array]:
    """Return the shapes and their derivatives by log t and by log b, each (pairs, epochs)."""
    # z = ((e - 0.5) / t)^b, s = exp(-z):  ds/dlog t = b z s,  ds/dlog b = -z log(z) s.
    # e - 0.5 is the middle of epoch e.
    b = np.exp(log_b)[:, None]
    log_z = b * (np.log(np.asarray(epochs) - 0.5) - log_t[:, None])
    z = np.exp(log_z)
    shapes = np.exp(-z)
    by_log_t = shapes * z
    return shapes, b * by_log_t, -log_z * by_log_t


def growth_fit(epochs: tuple[int, ...], curves: Array, weights: Array | None = None) -> Array:
    """(Weighted) least-squares fit of the growth law to each row; a constant where the row does not grow.

    Variable projection: a grid over (t, b) with L and A in closed form, then damped Gauss-Newton steps.
    """
    weights = np.full(len(epochs), 1.0 / len(epochs)) if weights is None else weights / weights.sum()
    grid = _grid(epochs)
    means = grid.shapes @ weights
    spread = np.maximum(grid.squares @ weights - means**2, _MIN_SPREAD)
    centred = curves - (curves @ weights)[:, None]
    # With L and A at their best, SSE(t, b) = SST - cov(y, s)^2 / var(s): search the largest explained part.
    # The shapes fall: what grows is explained by a negative factor (-A) only. (curves, points)
    explained = np.minimum((centred * weights) @ grid.shapes.T, 0.0) / np.sqrt(spread)
    best = np.argmin(explained, axis=1)
    log_t, log_b = grid.log_t[best], grid.log_b[best]
    fitted, step_t, step_b = _projected(epochs, centred, weights, log_t, log_b)
    for _ in range(_REFINEMENTS):
        next_t = np.clip(log_t + step_t, _LOG_T_FIRST, _log_t_last(epochs))
        next_b = np.clip(log_b + step_b, _LOG_B[0], _LOG_B[-1])
        found, found_step_t, found_step_b = _projected(epochs, centred, weights, next_t, next_b)
        is_better = (found - centred) ** 2 @ weights < (fitted - centred) ** 2 @ weights
        log_t, log_b = np.where(is_better, next_t, log_t), np.where(is_better, next_b, log_b)
        fitted = np.where(is_better[:, None], found, fitted)
        # A step that went too far is tried again at a quarter of its length.
        step_t, step_b = np.where(is_better, found_step_t, step_t / 4), np.where(is_better, found_step_b, step_b / 4)
    restored: Array = fitted + (curves - centred)
    return restored


def _projected(
    epochs: tuple[int, ...], centred: Array, weights: Array, log_t: Array, log_b: Array
) -> tuple[Array, Array, Array]:
    """Return the best fit of each row with its own (t, b), and the Gauss-Newton step to a better (t, b)."""
    shape, by_t, by_b = (each - (each @ weights)[:, None] for each in _shapes(epochs, log_t, log_b))
    spread = np.maximum(shape**2 @ weights, _MIN_SPREAD)
    factor = np.minimum((shape * centred) @ weights / spread, 0.0)
    fitted = factor[:, None] * shape
    # L and A follow (t, b) by themselves: only what the derivatives have beside the shape can move the fit (variable
    # projection with Kaufman's approximation of the Jacobian, which drops the term with the residual).
    along = ((shape * each) @ weights / spread for each in (by_t, by_b))
    by_t, by_b = (
        factor[:, None] * (each - share[:, None] * shape) for each, share in zip((by_t, by_b), along, strict=True)
    )
    left_over = centred - fitted
    # Normal equations of two unknowns, J'WJ step = J'W residual, solved by Cramer's rule for all rows at once.
    tt, tb, bb = ((one * other) @ weights for one, other in ((by_t, by_t), (by_t, by_b), (by_b, by_b)))
    t, b = (each * left_over @ weights for each in (by_t, by_b))
    tt, bb = tt * _DAMPING + 1e-15, bb * _DAMPING + 1e-15
    determinant = tt * bb - tb**2
    step_t, step_b = (t * bb - b * tb) / determinant, (b * tt - t * tb) / determinant
    return fitted, np.clip(step_t, -_LOG_T_STEP, _LOG_T_STEP), np.clip(step_b, -_LOG_B_STEP, _LOG_B_STEP)


def robust_growth_fit(epochs: tuple[int, ...], curve: Array, scale: float) -> Array:
    """Robust growth fit of one curve: soft-L1 loss, for which residuals much larger than `scale` count by their size.

    Iteratively reweighted least squares: weights 1 / sqrt(1 + (residual / scale)^2), until they belong to the fit.
    """
    # loss 2 (sqrt(1 + z) - 1), z = (residual / scale)^2; its derivative by z is the weight.
    fitted: Array = growth_fit(epochs, curve[None])[0]
    for _ in range(_REWEIGHTINGS if scale > 0 else 0):
        fitted = growth_fit(epochs, curve[None], 1.0 / np.sqrt(1.0 + ((curve - fitted) / scale) ** 2))[0]
    return fitted


def moving_means(curves: Array, width: int) -> Array:
    """Return the means of every `width` consecutive values of each row."""
    windows = np.lib.stride_tricks.sliding_window_view(curves, width, axis=1)
    means: Array = windows.mean(axis=2)
    return means


def simulated(mean_curve: Array, noise: float, count: int, seed: int) -> Array:
    """Parametric bootstrap: draw `count` curves of `mean_curve` plus normal noise."""
    curves: Array = mean_curve + noise * np.random.default_rng(seed).standard_normal((count, len(mean_curve)))
    return curves


def cached_by_curve(judge: Judge) -> Judge:
    """Memoise a function of a curve and of details: parts of a page ask for the same one, a live page at each change.

    Its answers must not be changed by whoever gets them.
    """

    @lru_cache(maxsize=MAX_CURVES)
    def once(curve: bytes, *details: Any, **named: Any) -> Any:
        return judge(np.frombuffer(curve, dtype=np.float64), *details, **named)

    @wraps(judge)
    def ask(curve: Sequence[float], *details: Any, **named: Any) -> Any:
        # By its bytes, since NaN is not equal to itself.
        return once(np.asarray(curve, dtype=np.float64).reshape(-1).tobytes(), *details, **named)

    return cast(Judge, ask)
