"""Figures as a sentence wants them, and the evidence that most rules hand over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from turnaround.analysis.configurations import ConfigurationRuns, Spread
from turnaround.findings.finding import Evidence


def seconds(value: float) -> str:
    """A duration as people say it: "80 s", "43 min 14 s", "1 h 38 min"."""
    if value < 120:
        return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def epoch(case: ConfigurationRuns) -> str:
    """The time of an epoch of a case that has times."""
    assert case.epoch_time_s is not None, "only timed cases are compared in time"
    time_s = case.epoch_time_s.value
    return f"{time_s:.0f} s" if 10 <= time_s < 1000 else seconds(time_s)  # two that are compared have one unit


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def accuracy(share: float) -> str:
    return percent(share, 1)


def points(difference: float) -> str:
    """A difference of two accuracies."""
    text = f"{100 * difference:.1f}"
    return f"{text} point{'' if text == '1.0' else 's'}"


def times(ratio: float) -> str:
    """A factor: whole where it is."""
    return f"{ratio:.0f}" if abs(ratio - round(ratio)) < 0.005 else f"{ratio:.2f}"


def listed(names: Sequence[str], limit: int = 4) -> str:
    """ "a, b and c"; of many the first few and their number."""
    shown = [*names[:limit], f"{len(names) - limit} more"] if len(names) > limit else list(names)
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def figure(case: ConfigurationRuns, what: str, spread: Spread | None, unit: str = "") -> Iterable[Evidence]:
    """One figure of a case over its repeats; nothing when it has none."""
    if spread is not None:
        yield Evidence(run=who(case), what=what, value=spread.value, unit=unit)


def who(case: ConfigurationRuns) -> str:
    """The run's name where there is one run, else the configuration and how often it was run."""
    return case.runs[0].name if len(case.runs) == 1 else f"{case.label} ({len(case.runs)} runs)"


def epoch_times(*cases: ConfigurationRuns) -> tuple[Evidence, ...]:
    return tuple(e for case in cases for e in figure(case, "epoch time", case.epoch_time_s, "s"))


def image_rates(*cases: ConfigurationRuns) -> tuple[Evidence, ...]:
    return tuple(e for case in cases for e in figure(case, "images per second", case.images_per_s, "images/s"))


def final_accuracies(*cases: ConfigurationRuns) -> tuple[Evidence, ...]:
    """Means over the repeats, as the sentences about pools have them."""
    known = [(case, [a for run in case.finished if (a := run.final_val_accuracy) is not None]) for case in cases]
    what = "final validation accuracy" + (" (mean)" if any(len(values) > 1 for _, values in known) else "")
    return tuple(Evidence(run=who(case), what=what, value=fmean(values)) for case, values in known if values)
