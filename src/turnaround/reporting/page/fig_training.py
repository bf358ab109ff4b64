"""Learning rate and gradient noise scale by epoch."""

from __future__ import annotations

from collections.abc import Sequence

from turnaround.analysis.configurations import Workload
from turnaround.analysis.repeats import Band, drawn_runs, epoch_band
from turnaround.record.schema import METRICS
from turnaround.reporting.page.fig_common import (
    MAX_SERIES,
    Figure,
    Series,
    Trace,
    axis,
    epoch_axis,
    is_drawn,
    layout,
    left_out,
    log_ticks,
    meta,
    numbers,
    plain,
    sentences,
    series_of,
    shown_at_first,
    spread_out,
)

Known = list[tuple[Series, Band]]


def learning_rate_figure(job: Workload) -> Figure | None:
    """Return the values at the end of each epoch; None where no run has two epochs."""
    known = _known(job, "learning_rate")
    if not known:
        return None
    shown = _shown(known)
    return Figure(
        id="learning-rate",
        section="training",
        title="Learning rate by epoch",
        caption=sentences("At the end of each epoch.", *_notes(shown, known)),
        alt="; ".join(
            f"{series.name} goes from {band.spreads[0].value:.2g} to {band.spreads[-1].value:.2g}, at most "
            f"{max(spread.value for spread in band.spreads):.2g}"
            for series, band in shown[:8]
        )
        + ".",
        data=_lines(shown),
        layout=layout(
            height=320,
            entries=len(shown),
            xaxis=epoch_axis(band.epochs for _, band in shown),
            yaxis=axis(_title("learning_rate"), rangemode="tozero", exponentformat="power"),
        ),
    )


def noise_scale_figure(job: Workload) -> Figure | None:
    """Draw the noise scale with its 90 % interval; None where it was not measured."""
    known = _known(job, "noise_scale")
    if not known:
        return None
    shown = _shown(known)
    bands = [
        trace | is_drawn(place, len(shown)) for place, (series, _) in enumerate(shown) for trace in _interval(series)
    ]
    lines = _lines(shown)
    heights = [spread.value for _, band in shown for spread in band.spreads]
    return Figure(
        id="noise-scale",
        section="training",
        title="Gradient noise scale by epoch",
        caption=sentences(
            "Images a step beyond which more workers buy little: an order of magnitude, not a number. The band is its "
            "90 % interval, where it has an upper end.",
            *_notes(shown, known),
        ),
        alt="; ".join(f"{s.name} ends at about {band.spreads[-1].value:,.0f} images" for s, band in shown[:8]) + ".",
        data=[*bands, *lines],
        layout=layout(
            height=340,
            entries=len(shown),
            xaxis=epoch_axis(band.epochs for _, band in shown),
            yaxis=axis(_title("noise_scale"), **log_ticks([*heights, *(h * 3 for h in heights)])),
        ),
    )


def _title(name: str) -> str:
    metric = METRICS[name]
    return f"{metric.label} ({metric.unit})" if metric.unit else metric.label


def _known(job: Workload, quantity: str) -> Known:
    found: Known = []
    for series in series_of(job):
        band = epoch_band([run for _, run in drawn_runs(series.configuration)], quantity)
        if band is not None and len(band.epochs) > 1 and any(spread.value > 0 for spread in band.spreads):
            found.append((series, band))
    return found


def _shown(known: Known) -> Known:
    chosen = {series.index for series in spread_out([series for series, _ in known], MAX_SERIES)}
    return [(series, band) for series, band in known if series.index in chosen]


def _notes(shown: Known, known: Known) -> list[str]:
    most = max(band.runs for _, band in shown)
    return [
        f"Of repeats the median (up to {most} runs)." if most > 1 else "",
        "Dashed: rehearsed." if any(series.is_rehearsal for series, _ in shown) else "",
        shown_at_first(len(shown)),
        left_out(len(shown), len(known)),
    ]


def _lines(shown: Known) -> list[Trace]:
    return [_line(*pair) | is_drawn(place, len(shown)) for place, pair in enumerate(shown)]


def _line(series: Series, band: Band) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plain(series.name),
        "x": list(band.epochs),
        "y": numbers(spread.value for spread in band.spreads),
        "line": {"dash": "dash" if series.is_rehearsal else "solid", "width": 2},
        "hovertemplate": "%{fullData.name}<br>epoch %{x}: %{y:.3g}<extra></extra>",
        "legendgroup": str(series.index),
        "meta": meta(series.index, "rehearsal" if series.is_rehearsal else "measured", series.tone),
    }


def _interval(series: Series) -> Sequence[Trace]:
    runs = [run for _, run in drawn_runs(series.configuration)]
    low, high = epoch_band(runs, "noise_scale_low"), epoch_band(runs, "noise_scale_high")
    if low is None or high is None:
        return []
    lows = dict(zip(low.epochs, low.spreads, strict=True))
    both = [(e, lows[e].low, s.high) for e, s in zip(high.epochs, high.spreads, strict=True) if e in lows]
    both = [(epoch, low_end, high_end) for epoch, low_end, high_end in both if low_end > 0]  # the scale has no zero
    if len(both) < 2:
        return []
    epochs = [epoch for epoch, _, _ in both]
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [*epochs, *reversed(epochs)],
            "y": [*numbers(h for _, _, h in both), *reversed(numbers(v for _, v, _ in both))],
            "fill": "toself",
            "line": {"width": 0},
            "hoverinfo": "skip",
            "showlegend": False,
            "legendgroup": str(series.index),
            "meta": meta(series.index, "band", series.tone),
        }
    ]
