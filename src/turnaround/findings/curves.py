"""Findings about single learning curves: still rising, falling, over-confident, learnt by heart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from turnaround.analysis.configurations import ConfigurationRuns, Workload
from turnaround.analysis.overfit import MEMORISING_GAP, Kind, Overfitting
from turnaround.analysis.pools import binomial_noise
from turnaround.findings.finding import Draft, Evidence, figure, who
from turnaround.findings.labels import label_of
from turnaround.words import accuracy, listed, percent, points


def not_yet_stable(job: Workload) -> Iterator[Draft]:
    """Report one finding: the one that has come least far, and the others; what overfits has a finding of its own."""
    rising = [
        c
        for c in job.configurations
        if c.finished and c.stable.status == "not yet stable" and c.overfitting.kind != "harmful"
    ]
    if not rising:
        return
    rising.sort(key=lambda configuration: -(configuration.stable.epoch or 0.0))
    worst, epochs = rising[0], max(run.epochs for run in rising[0].finished)
    others = f"; nor has that on {listed([label_of(c) for c in rising[1:]])}" if len(rising) > 1 else ""
    text = (
        f"The validation accuracy on {label_of(worst)} has not become stable in {epochs} epochs: its plateau begins at "
        f"epoch {worst.stable.epoch or 0:.0f} or later{others}."
    )
    evidence = (Evidence(run=who(c), what="stable epoch, at least", value=c.stable.epoch or 0) for c in rising)
    yield Draft(
        text=text,
        evidence=tuple(evidence),
        advice="Train for more epochs before you compare final accuracies: what still moves has no final one.",
    )


@dataclass(frozen=True, kw_only=True)
class _Verdict:
    """Sentences for one kind of overfitting."""

    what: str
    size: Callable[[Overfitting], float]
    text: str
    """Text with {label}, {size} and {epoch}."""
    advice: str


_GAP = "training less validation accuracy"
_VERDICTS: dict[Kind, _Verdict] = {
    "harmful": _Verdict(
        what="fall of validation accuracy",
        size=lambda found: found.drop or 0.0,
        text="Training on {label} overfits: validation accuracy has fallen by {size} since epoch {epoch}",
        advice="Stop at the epoch of the best validation accuracy, augment more, or let fewer layers learn.",
    ),
    "over-confident": _Verdict(
        what="rise of validation loss",
        size=lambda found: (found.loss_rise_percent or 0.0) / 100,
        text="Training on {label} ends over-confident: validation loss is {percent} above its minimum, accuracy holds",
        advice="Use the classes, not the probabilities; label smoothing or fewer epochs help.",
    ),
    "memorising": _Verdict(
        what=_GAP,
        size=lambda found: found.gap or 0.0,
        text="Training on {label} overfits, but harmlessly: training accuracy is {size} above validation, which holds",
        advice="More augmentation, images or weight decay may raise validation accuracy; nothing is lost yet.",
    ),
    "underfitting": _Verdict(
        what=_GAP,
        size=lambda found: found.gap or 0.0,
        text="Training on {label} is not done: training accuracy still rises, and is only {size} from validation",
        advice="Train for more epochs, with a larger learning rate, or let more layers learn.",
    ),
}


def overfitting_of(kind: Kind, job: Workload) -> Iterator[Draft]:
    """Report one finding: the configuration in which it is largest, and the others."""
    verdict = _VERDICTS[kind]
    found = [configuration for configuration in job.configurations if configuration.overfitting.kind == kind]
    if kind == "underfitting":  # few images hide a gap from the verdict, but not from the table beside it
        found = [configuration for configuration in found if _size(verdict, configuration) <= MEMORISING_GAP]
    if not found:
        return
    worst = max(found, key=lambda configuration: _size(verdict, configuration))
    size, others = _size(verdict, worst), [label_of(c) for c in found if c is not worst]
    text = verdict.text.format(
        label=label_of(worst), size=points(abs(size)), percent=percent(size), epoch=worst.overfitting.since_epoch
    )
    yield Draft(
        text=f"{text}{f' (also: {listed(others)})' if others else ''}.",
        evidence=tuple(Evidence(run=who(c), what=verdict.what, value=_size(verdict, c), unit="share") for c in found),
        advice=verdict.advice,
    )


def _size(verdict: _Verdict, configuration: ConfigurationRuns) -> float:
    """Return the size of what was found; a gap is that of the final accuracies, which stand in the table beside it."""
    # The verdict itself rests on the gap at the stable epoch (analysis/overfit.py), which no table shows.
    train, val = configuration.final_train_accuracy, configuration.final_val_accuracy
    if verdict.what == _GAP and train is not None and val is not None:
        return train.value - val.value
    return verdict.size(configuration.overfitting)


def memorising(job: Workload) -> Iterator[Draft]:
    """Report memorising from the curves; where a table has none, from its two final accuracies."""
    yield from overfitting_of("memorising", job)
    told = [(gap, c) for c in job.configurations if (gap := _stated_gap(c)) is not None]
    if not told:
        return
    gap, worst = max(told, key=lambda pair: pair[0])
    train, val = worst.final_train_accuracy, worst.final_val_accuracy
    assert train is not None, "a gap has both ends"
    assert val is not None, "a gap has both ends"
    others = [label_of(configuration) for _, configuration in told if configuration is not worst]
    text = (
        f"Training on {label_of(worst)} ends with {accuracy(train.value)} on training and {accuracy(val.value)} on "
        f"validation images{f' (likewise {listed(others)})' if others else ''}: it overfits by {points(gap)}; "
        "without curves nobody can say whether validation accuracy fell."
    )
    evidence = (
        e
        for _, configuration in told
        for what, spread in (
            ("final training accuracy", configuration.final_train_accuracy),
            ("final validation accuracy", configuration.final_val_accuracy),
        )
        for e in figure(who(configuration), what, None if spread is None else spread.value, "share")
    )
    advice = (
        "Import the curves too (turnaround import TABLE --curves CURVES): only they tell whether the overfitting "
        "does harm. Training accuracy under augmentation is too low, so the true gap is larger."
    )
    yield Draft(text=text, evidence=tuple(evidence), advice=advice)


def _stated_gap(configuration: ConfigurationRuns) -> float | None:
    """Return the gap of two final accuracies without a curve, where it is above 3 points and 3 binomial sd."""
    train, val = configuration.final_train_accuracy, configuration.final_val_accuracy
    if train is None or val is None or any(run.curve.epochs for run in configuration.summaries):
        return None
    # Without a curve there is no noise of epochs: that of counting the images is the least.
    gap = train.value - val.value
    return gap if gap > max(MEMORISING_GAP, 3 * (binomial_noise(configuration) or 0.0)) else None
