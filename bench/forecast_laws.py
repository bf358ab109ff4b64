"""Laws of throughput and of epochs: those of others, from their descriptions, and ours. For forecast.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from forecast_cases import Case, Point
from scipy.optimize import least_squares, minimize, nnls

from turnaround.forecast.epoch_time import EpochTime, EpochTimeObservation
from turnaround.forecast.epochs import EpochsObservation, EpochsToStable
from turnaround.forecast.interval import Interval
from turnaround.forecast.step_time import StepObservation, StepTime
from turnaround.forecast.time_law import Deployment

EPOCH_S = 1000.37
"""The first epoch of a table that is made of step times; whole seconds would be taken as rounded."""
DGX_BYTES_PER_S = 12.5e9
"""One port of 100 Gbit/s InfiniBand: a DGX-1 has four, a DGX-2 eight, a DGX A100 eight of 200."""

Law = Callable[[Sequence[Point]], Callable[[Point], float]]
Ours = Callable[[Case], Interval]


def linear(known: Sequence[Point]) -> Callable[[Point], float]:
    return lambda asked: known[0].y


def last_efficiency(known: Sequence[Point]) -> Callable[[Point], float]:
    return lambda asked: known[-1].y


def _relative_nnls(columns: Callable[[float], list[float]]) -> Law:
    def fit(known: Sequence[Point]) -> Callable[[Point], float]:
        rows = np.array([[c * known[0].y / p.y for c in columns(p.x)] for p in known])
        coefficients = nnls(rows, np.ones(len(known)))[0] * known[0].y
        return lambda asked: float(np.array(columns(asked.x)) @ coefficients)

    return fit


amdahl = _relative_nnls(lambda n: [1, n - 1])
# Ernest's features are 1, size/N, N and log N; with the size growing as N the second is a constant as the first.
ernest = _relative_nnls(lambda n: [1, n, math.log2(n)])


def universal_scalability(known: Sequence[Point]) -> Callable[[Point], float]:
    n, t = np.array([p.x for p in known]), np.array([p.y for p in known]) / known[0].y

    def law(c: np.ndarray, n: np.ndarray | float) -> np.ndarray:
        return np.asarray(c[0] * (1 + c[1] * (n - 1) + c[2] * n * (n - 1)))

    c = least_squares(lambda c: law(c, n) / t - 1, [1.0, 0.01, 1e-4], bounds=(0, np.inf)).x
    return lambda asked: float(law(c, asked.x)) * known[0].y


def pollux(known: Sequence[Point]) -> Callable[[Point], float]:
    """Gradient time and synchronisation joined by an exponent, with adaptdl's penalties and rule for unseen hosts."""
    scale, several_hosts = known[0].y, any(p.hosts > 1 for p in known)

    def law(c: np.ndarray, p: Point) -> float:
        grad, a_r, b_r, a_n, b_n, gamma = c
        if not several_hosts:
            a_n, b_n = 1.1 * a_r, 1.1 * b_r
        a, b = (a_r, b_r) if p.hosts == 1 else (max(a_n, 1.1 * a_r), max(b_n, 1.1 * b_r))
        sync = a + b * (p.x - 2) if p.x > 1 else 0.0
        return float((grad**gamma + sync**gamma) ** (1 / gamma))

    def loss(c: np.ndarray) -> float:
        errors = [math.log(law(c, p) / (p.y / scale)) for p in known]
        penalty = 1e-3 * (c[5] - 1) ** 2 + 1e-2 * ((c[2] / c[1]) ** 2 + (c[4] / c[3]) ** 2)
        return math.sqrt(sum(e * e for e in errors) / len(errors)) + float(penalty)

    start = [1.0, 0.1, 0.01, 0.1, 0.01, 1.5]
    bounds = [(1e-3, 10), (1e-6, 10), (1e-8, 10), (1e-6, 10), (1e-8, 10), (1, 10)]
    fitted = minimize(loss, start, bounds=bounds, method="L-BFGS-B").x
    return lambda asked: law(fitted, asked) * scale


def log_law(known: Sequence[Point]) -> Callable[[Point], float]:
    rows = np.array([[1 / p.y, math.log2(p.x) / p.y] for p in known])
    c = np.linalg.lstsq(rows, np.ones(len(known)), rcond=None)[0]
    return lambda asked: float(c[0] + c[1] * math.log2(asked.x))


def power_law(known: Sequence[Point]) -> Callable[[Point], float]:
    slope, constant = np.polyfit(np.log([p.x for p in known]), np.log([p.y for p in known]), 1)
    return lambda asked: float(np.exp(constant + slope * math.log(asked.x)))


THROUGHPUT_LAWS: dict[str, Law] = {
    "linear scaling": linear,
    "last efficiency kept": last_efficiency,
    "Amdahl": amdahl,
    "Universal Scalability": universal_scalability,
    "Ernest": ernest,
    "Pollux": pollux,
}
EPOCHS_LAWS: dict[str, Law] = {"log law": log_law, "power law": power_law}


def our_step_time(case: Case) -> Interval:
    """From own runs, on the network of the published machines."""
    return _step_time(case, DGX_BYTES_PER_S)


def our_step_time_untold(case: Case) -> Interval:
    """The same when nobody has told the network: it may be a slow one."""
    return _step_time(case, None)


def _step_time(case: Case, network_bytes_per_s: float | None) -> Interval:
    known = [StepObservation(processes=p.x, hosts=p.hosts, time_s=p.y, images_per_step=p.x) for p in case.known]
    return StepTime().fit(known).predict(_asked(case, network_bytes_per_s))


def our_epoch_time(case: Case) -> Interval:
    """The same from a table of epoch times, as `turnaround import` leaves it; given back as a step time."""
    first = case.known[0]
    scale_s = EPOCH_S * first.x / first.y  # of an epoch on one process
    known = [
        EpochTimeObservation(processes=p.x, hosts=p.hosts, time_s=scale_s * p.y / p.x, batch_per_process=1)
        for p in case.known
    ]
    return EpochTime().fit(known).predict(_asked(case, DGX_BYTES_PER_S)).scaled(case.asked.x / scale_s)


def _asked(case: Case, network_bytes_per_s: float | None) -> Deployment:
    return Deployment(processes=case.asked.x, hosts=case.asked.hosts, inter_host_bytes_per_s=network_bytes_per_s)


def our_epochs(case: Case) -> Interval:
    known = [EpochsObservation(global_batch=p.x, epochs=p.y, sd=p.sd) for p in case.known]
    return EpochsToStable().fit(known).predict(case.asked.x)
