"""Accuracy and loss by epoch, and the accuracies at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from turnaround.analysis.configurations import Spread, Workload
from turnaround.analysis.repeats import Band, curve_band, drawn_runs
from turnaround.analysis.stable import EpochEstimate
from turnaround.reporting.comparison_table import epoch_text
from turnaround.reporting.page.fig_common import (
    MAX_BARS,
    MAX_SERIES,
    UNKNOWN_HUE,
    Figure,
    Series,
    Tone,
    Trace,
    axis,
    bar_axis,
    bar_height,
    epoch_axis,
    error_bars,
    is_drawn,
    layout,
    left_out,
    meta,
    number,
    numbers,
    plain,
    sentences,
    series_of,
    share_axis,
    shown_at_first,
    spread_out,
)
from turnaround.words import accuracy

Quantity = Literal["accuracy", "loss"]
STABLE_RULE = (
    "Diamonds: the stable epoch (the first within one percentage point, or the noise, of the best level seen) with its "
    "80 % interval; an open one is a lower bound."
)


@dataclass(frozen=True, kw_only=True)
class _Drawn:
    """One configuration's curves of one quantity."""

    series: Series
    validation: Band | None
    train: Band | None


def curve_figure(job: Workload, quantity: Quantity) -> Figure | None:
    """Return all configurations in one figure; None where no run has a curve of two epochs."""
    known = [one for series in series_of(job) if (one := _drawn(series, quantity)) is not None]
    if not known:
        return None
    chosen = {s.index for s in spread_out([one.series for one in known], MAX_SERIES)}
    drawn = [one for one in known if one.series.index in chosen]
    count = len(drawn)
    shaded = _most_overfit([one for place, one in enumerate(drawn) if not is_drawn(place, count)])
    # Plotly draws in the order of its list: the shaded gap comes first, so that every line lies above it.
    traces = [*_gap(shaded)] if shaded is not None else []
    for place, one in enumerate(drawn):
        traces += [trace | is_drawn(place, count) for trace in _traces(one, quantity, is_single=count == 1)]
    yaxis = (
        share_axis("accuracy (%)") if quantity == "accuracy" else axis("loss (mean of an image)", rangemode="tozero")
    )
    entries = sum(trace.get("showlegend", True) for trace in traces)
    return Figure(
        id=quantity,
        section="curves",
        title="Accuracy by epoch" if quantity == "accuracy" else "Loss by epoch",
        caption=_caption(drawn, quantity, len(known), shaded),
        alt=_alt(drawn, quantity),
        data=traces,
        layout=layout(entries=entries, xaxis=epoch_axis(_epochs(drawn)), yaxis=yaxis),
    )


def _epochs(drawn: Sequence[_Drawn]) -> list[Sequence[int]]:
    return [band.epochs for one in drawn for band in (one.validation, one.train) if band is not None]


def _drawn(series: Series, quantity: Quantity) -> _Drawn | None:
    runs = [summary for summary, _ in drawn_runs(series.configuration)]
    validation, train = curve_band(runs, f"val_{quantity}"), curve_band(runs, f"train_{quantity}")
    if max(len(band.epochs) for band in (validation, train) if band) < 2 if validation or train else True:
        return None
    return _Drawn(series=series, validation=validation, train=train)


def _traces(one: _Drawn, quantity: Quantity, *, is_single: bool) -> Iterator[Trace]:
    group = {"legendgroup": str(one.series.index)}
    name = plain(one.series.name)
    for role, band in (("validation", one.validation), ("train", one.train)):
        if band is None:
            continue
        # One entry of the legend for each configuration: its training line comes and goes with it (legendgroup).
        is_named = is_single or role == "validation" or one.validation is None
        if band.runs > 1:
            yield _band_trace(band, one.series) | group
        named = {"name": _word(role) if is_single else name, "showlegend": is_named}
        yield _line(one.series, band, role, quantity) | {"hovertext": f"{name}, {_word(role)}"} | named | group
    yield from (trace | group for trace in _running(one.series, quantity))
    if quantity == "accuracy":
        yield from (trace | group for trace in _stable_mark(one.series, one.validation))


def _word(role: str) -> str:
    return "training" if role == "train" else role


def _line(series: Series, band: Band, role: str, quantity: Quantity) -> Trace:
    shown = "%{y:.1%}" if quantity == "accuracy" else "%{y:.3g}"
    dashes = {"validation": "solid", "train": "dot"}
    if series.is_rehearsal:
        dashes = {"validation": "dash", "train": "dashdot"}
    values = numbers(spread.value for spread in band.spreads)
    return {
        "type": "scatter",
        # A line through a single epoch would be invisible.
        "mode": "lines" if len(values) > 1 else "markers",
        "x": list(band.epochs),
        "y": values,
        "line": {"dash": dashes[role], "width": 2 if role == "validation" else 1.5},
        "hovertemplate": f"%{{fullData.hovertext}}<br>epoch %{{x}}: {shown}<extra></extra>",
        "meta": meta(series.index, "rehearsal" if series.is_rehearsal and role == "validation" else role, series.tone),
    }


def _band_trace(band: Band, series: Series) -> Trace:
    """Draw the range of the repeats, lowest to highest, as one closed area."""
    return _area(
        band.epochs,
        numbers(spread.low for spread in band.spreads),
        numbers(spread.high for spread in band.spreads),
        series,
        "band",
    )


def _area(
    epochs: Sequence[int],
    low: Sequence[float | int | None],
    high: Sequence[float | int | None],
    series: Series,
    role: str,
) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        # There along the upper edge and back along the lower one: one trace, so a click on the legend hides all of it.
        "x": [*epochs, *reversed(epochs)],
        "y": [*high, *reversed(low)],
        "fill": "toself",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
        "meta": meta(series.index, role, series.tone),
    }


def _most_overfit(drawn: Sequence[_Drawn]) -> _Drawn | None:
    """Return the configuration with the widest generalisation gap: several areas would hide each other."""
    overfit = [one for one in drawn if _overfit_since(one.series) is not None and _both(one)]
    return max(overfit, key=lambda one: one.series.configuration.overfitting.gap or 0.0, default=None)


def _gap(one: _Drawn) -> Iterator[Trace]:
    """Yield the area between training and validation, from the epoch at which it overfits."""
    epochs, validation, train = zip(*_both(one), strict=True)
    low, high = (numbers(map(pick, validation, train)) for pick in (min, max))
    yield _area(epochs, low, high, one.series, "overfit") | {"legendgroup": str(one.series.index)}


def _both(one: _Drawn) -> list[tuple[int, float, float]]:
    """Return (epoch, validation, training) since it overfits, where both are known; nothing for fewer than two."""
    since = _overfit_since(one.series)
    if since is None or one.train is None or one.validation is None:
        return []
    train = dict(zip(one.train.epochs, one.train.spreads, strict=True))
    both = [
        (epoch, spread.value, train[epoch].value)
        for epoch, spread in zip(one.validation.epochs, one.validation.spreads, strict=True)
        if epoch >= since and epoch in train
    ]
    return both if len(both) > 1 else []


def _overfit_since(series: Series) -> float | None:
    """Return the epoch from which it overfits; None where it does not."""
    verdict, stable = series.configuration.overfitting, series.configuration.stable
    if verdict.kind not in ("harmful", "over-confident", "memorising"):
        return None
    # Only a fall of the validation accuracy has a first epoch of its own; a network that is over-confident or learns by
    # heart overfits, as far as a curve can tell, once its accuracy has stopped growing.
    return verdict.since_epoch if verdict.kind == "harmful" else stable.epoch or 1.0


def _running(series: Series, quantity: Quantity) -> Iterator[Trace]:
    """Yield a line for each run under way, where others of its configuration have finished."""
    finished = {summary.directory for summary, _ in drawn_runs(series.configuration)}
    for run in series.configuration.summaries:
        if run.state != "running" or run.directory in finished:
            continue
        band = curve_band([run], f"val_{quantity}")
        if band is not None:
            name = f"{plain(run.name)}, running"
            yield _line(series, band, "validation", quantity) | {
                "hovertext": name,
                "showlegend": False,
                "opacity": 0.8,
                "line": {"dash": "longdash", "width": 1.5},
                "meta": meta(series.index, "running", series.tone),
            }


def _stable_mark(series: Series, band: Band | None) -> Iterator[Trace]:
    stable = series.configuration.stable
    if stable.epoch is None or band is None:
        return
    nearest = min(zip(band.epochs, band.spreads, strict=True), key=lambda pair: abs(pair[0] - (stable.epoch or 0)))
    # The level of the plateau was fitted to all epochs; a stated epoch has no fit, and lies on the line.
    height = stable.level if stable.level is not None and stable.method != "stated" else nearest[1].value
    is_bound = stable.status == "not yet stable"
    yield {
        "type": "scatter",
        "mode": "markers",
        "x": [number(stable.epoch)],
        "y": [number(height)],
        **error_bars("x", [stable.epoch], [stable.low], [stable.high]),
        "marker": {"symbol": "diamond-open" if is_bound else "diamond", "size": 10},
        "hovertext": f"{plain(series.name)}: {stable_words(stable)}",
        "hovertemplate": "%{fullData.hovertext}<extra></extra>",
        "showlegend": False,
        "meta": meta(series.index, "stable", series.tone),
    }


def stable_words(stable: EpochEstimate) -> str:
    """Return the stable epoch in words, for a tooltip."""
    if stable.epoch is None:
        return "stable epoch unknown"
    if stable.status == "not yet stable":
        return f"not yet stable, at least epoch {epoch_text(stable.epoch)}"
    if stable.method == "stated":
        return f"stable at epoch {epoch_text(stable.epoch)}, as stated"
    if stable.low is None:
        return f"stable at epoch {epoch_text(stable.epoch)}"
    high = "later" if stable.high is None else epoch_text(stable.high)
    return f"stable at epoch {epoch_text(stable.epoch)} (80 %: {epoch_text(stable.low)} to {high})"


def _caption(drawn: Sequence[_Drawn], quantity: Quantity, known: int, shaded: _Drawn | None) -> str:
    most = max(band.runs for one in drawn for band in (one.validation, one.train) if band is not None)
    has_stable = quantity == "accuracy" and any(one.series.configuration.stable.epoch is not None for one in drawn)
    is_running = any(list(_running(one.series, quantity)) for one in drawn)
    return sentences(
        _images_words(drawn),
        "Dashed: rehearsed." if _any_rehearsal(drawn) else "",
        "Thin: still running." if is_running else "",
        f"Of repeats the median, and a band from the lowest to the highest (up to {most} runs)." if most > 1 else "",
        STABLE_RULE if has_stable else "",
        _overfit_words(drawn, shaded) if shaded is not None else "",
        shown_at_first(len(drawn)),
        left_out(len(drawn), known),
    )


def _images_words(drawn: Sequence[_Drawn]) -> str:
    if all(one.validation is None for one in drawn):
        return "Dotted: training images; validation images are not known."
    has_train = any(one.train is not None for one in drawn)
    return "Solid: validation images; dotted: training images." if has_train else "Validation images."


def _overfit_words(drawn: Sequence[_Drawn], shaded: _Drawn) -> str:
    others = [one.series.name for one in drawn if one is not shaded and _overfit_since(one.series) is not None]
    said = f"Shaded: the gap of {shaded.series.name}, which overfits since epoch "
    said += epoch_text(_overfit_since(shaded.series) or 1.0)
    if not others:
        return f"{said}."
    return (
        f"{said} (so {'do' if len(others) > 1 else 'does'} {', '.join(others[:4])}{' and others' * (len(others) > 4)})."
    )


def _any_rehearsal(drawn: Sequence[_Drawn]) -> bool:
    return any(one.series.is_rehearsal for one in drawn)


def _alt(drawn: Sequence[_Drawn], quantity: Quantity) -> str:
    said = []
    # A screen reader reads it as one sentence: eight configurations are about as many as can be listened to.
    for one in drawn[:8]:
        if one.validation is not None:
            last = one.validation.spreads[-1].value
            value = accuracy(last) if quantity == "accuracy" else f"{last:.3g}"
            stable = f", {stable_words(one.series.configuration.stable)}" if quantity == "accuracy" else ""
            said.append(f"{one.series.name} ends at {value} after epoch {one.validation.epochs[-1]}{stable}")
    if not said:
        return f"{quantity.capitalize()} by epoch, of training images only."
    rest = f"; and {len(drawn) - 8} more" if len(drawn) > 8 else ""
    return f"Validation {quantity} by epoch: {'; '.join(said)}{rest}."


WORDS = {"validation": "validation", "train": "training"}


def final_accuracy_figure(job: Workload) -> Figure | None:
    """Return training and validation accuracy at the end, by configuration; None where fewer than two are known."""
    known = [s for s in series_of(job) if s.configuration.final_val_accuracy is not None]
    if len(known) < 2:
        return None
    shown = spread_out(known, MAX_BARS)
    names = [s.name for s in shown]
    columns = [
        ("validation", "circle", [s.configuration.final_val_accuracy for s in shown]),
        ("train", "square-open", [s.configuration.final_train_accuracy for s in shown]),
    ]
    traces = [_final_trace(role, symbol, spreads, shown) for role, symbol, spreads in columns if any(spreads)]
    most = max(spread.count for _, _, spreads in columns for spread in spreads if spread is not None)
    best = max(
        shown, key=lambda s: s.configuration.final_val_accuracy.value if s.configuration.final_val_accuracy else 0.0
    )
    return Figure(
        id="final-accuracy",
        section="curves",
        title="Final accuracy",
        caption=sentences(
            "Share of images recognised after the last epoch: circles validation, open squares training."
            if len(traces) > 1
            else "Share of validation images recognised after the last epoch.",
            f"Of repeats the median, with the lowest and the highest (up to {most} runs)." if most > 1 else "",
            "Rehearsed configurations are named so." if any(s.is_rehearsal for s in shown) else "",
            left_out(len(shown), len(known)),
        ),
        alt=f"The highest validation accuracy at the end is that of {best.name}: "
        f"{accuracy(best.configuration.final_val_accuracy.value if best.configuration.final_val_accuracy else None)}.",
        data=traces,
        layout=layout(
            height=bar_height(names), entries=len(traces), xaxis=share_axis("accuracy (%)"), yaxis=bar_axis(names)
        ),
    )


def _final_trace(role: str, symbol: str, spreads: Sequence[Spread | None], shown: Sequence[Series]) -> Trace:
    known = [(place, spread) for place, spread in enumerate(spreads) if spread is not None]
    values = [spread.value for _, spread in known]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": WORDS[role],
        "x": numbers(values),
        "y": [place for place, _ in known],
        **error_bars("x", values, [s.low for _, s in known], [s.high for _, s in known]),
        "marker": {"symbol": symbol, "size": 9},
        "text": [plain(shown[place].name) for place, _ in known],
        "hovertemplate": f"%{{text}}: %{{x:.1%}} {WORDS[role]}<extra></extra>",
        "meta": meta(0 if role == "validation" else 1, "measured", Tone(hue=UNKNOWN_HUE)),
    }
