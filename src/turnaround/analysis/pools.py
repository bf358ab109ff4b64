"""Accuracies that may be compared, and how far two of them differ by chance.

For the result it does not matter on which GPU, or in how many processes, a worker is computed. So all runs with the
same workers and the same global batch are repeats of one another: a pool. The noise of one run comes from the scatter
within the pools, from that of the curves, or from the number of validation images: the largest that is known.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from turnaround.analysis.compare import Fact
from turnaround.analysis.configurations import ConfigurationRuns, Workload

# One-sided, as MLPerf compares convergence (p = 0.05): the question is whether accuracy fell, not whether it differs.
CONFIDENCE = 0.95
_Z = 1.6449  # quantile of the normal distribution, one-sided at CONFIDENCE


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Repeats of one result."""

    workers: int
    global_batch: int | None
    configurations: tuple[ConfigurationRuns, ...]
    accuracies: tuple[float, ...]

    @property
    def accuracy(self) -> float:
        return fmean(self.accuracies)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Standard deviation of the final accuracy between runs that differ by chance only."""

    sd: float
    degrees: int | None
    """Degrees of freedom, where it was estimated from repeats; None where it comes from images counted or curves."""
    source: Literal["repeats", "curves", "counting"]
    """Scatter of runs that share workers and batch, of the epochs of a curve, or of counting validation images."""
    num_runs: int = 0
    """Number of repeats it was estimated from."""

    def limit(self, a: Pool, b: Pool) -> float:
        """Return the difference of two pools that chance explains, one-sided at 95 %."""
        # t(degrees, 0.95) s sqrt(1/n_a + 1/n_b): one standard deviation is taken for all pools.
        se = self.sd * math.sqrt(1 / len(a.accuracies) + 1 / len(b.accuracies))
        return self._quantile() * se

    def _quantile(self) -> float:
        if self.degrees is None:
            return _Z
        from scipy.special import stdtrit

        return float(stdtrit(self.degrees, CONFIDENCE))


@dataclass(frozen=True, kw_only=True)
class PooledGroup:
    """Pools that differ in the workers alone, fewest first."""

    pools: tuple[Pool, ...]
    noise: Noise | None
    """None when nothing tells."""

    @property
    def configurations(self) -> tuple[ConfigurationRuns, ...]:
        return tuple(configuration for pool in self.pools for configuration in pool.configurations)

    @property
    def is_one_run_each(self) -> bool:
        return all(len(configuration.finished) == 1 for configuration in self.configurations)


def groups_of(job: Workload) -> list[PooledGroup]:
    """Group the configurations that have a final accuracy by the settings that matter for accuracy."""
    by_settings: defaultdict[tuple[Fact, ...], list[ConfigurationRuns]] = defaultdict(list)
    for configuration in job.configurations:
        if configuration.final_val_accuracy is not None:
            by_settings[configuration.key.settings_for("accuracy")].append(configuration)
    pools = [_pools(configurations) for configurations in by_settings.values()]
    return [PooledGroup(pools=tuple(each), noise=_noise(each)) for each in pools]


def _pools(configurations: Iterable[ConfigurationRuns]) -> list[Pool]:
    by_result: defaultdict[tuple[int, int], list[ConfigurationRuns]] = defaultdict(list)
    for configuration in configurations:
        # 0: an unknown batch is a batch of its own.
        by_result[configuration.workers, configuration.global_batch or 0].append(configuration)
    return [
        Pool(
            workers=workers,
            global_batch=batch or None,
            configurations=tuple(members),
            accuracies=tuple(
                run.final_val_accuracy
                for configuration in members
                for run in configuration.finished
                if run.final_val_accuracy is not None
            ),
        )
        for (workers, batch), members in sorted(by_result.items(), key=lambda item: item[0])
    ]


def _noise(pools: Sequence[Pool]) -> Noise | None:
    # The larger of both: a few repeats may agree by luck.
    repeats, single = _scatter(pools), _single(pools)
    known = [noise for noise in (repeats, single) if noise is not None]
    return max(known, key=lambda noise: noise.sd) if known else None


def _scatter(pools: Sequence[Pool]) -> Noise | None:
    """Return the pooled standard deviation within the pools; None without repeats."""
    # s^2 = sum over pools and runs of (a - mean of its pool)^2 / sum over pools of (n - 1)
    degrees = sum(len(pool.accuracies) - 1 for pool in pools)
    if degrees < 1:
        return None
    num_repeated = sum(len(pool.accuracies) > 1 for pool in pools)
    squares = sum((value - pool.accuracy) ** 2 for pool in pools for value in pool.accuracies)
    return Noise(sd=math.sqrt(squares / degrees), degrees=degrees, source="repeats", num_runs=degrees + num_repeated)


def _single(pools: Sequence[Pool]) -> Noise | None:
    """Estimate the noise of one run by its curve, which counting images bounds from below, else by counting alone."""
    configurations = [configuration for pool in pools for configuration in pool.configurations]
    # The noise of a curve is at least that of counting (analysis/stable.py), so counting alone is the last resort.
    if curves := [c.stable.noise for c in configurations if c.stable.noise is not None]:
        return Noise(sd=median(curves), degrees=None, source="curves")
    counted = [binomial for c in configurations if (binomial := binomial_noise(c)) is not None]
    return Noise(sd=median(counted), degrees=None, source="counting") if counted else None


def binomial_noise(configuration: ConfigurationRuns) -> float | None:
    """Return the binomial standard deviation of an accuracy, sqrt(p (1 - p) / n); None where either is not known."""
    if configuration.final_val_accuracy is None or not configuration.num_validation:
        return None
    share = min(max(configuration.final_val_accuracy.value, 0.0), 1.0)
    return math.sqrt(share * (1 - share) / configuration.num_validation)
