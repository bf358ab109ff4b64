"""A compute-time proposal: two printed pages with strong and weak scaling, accuracy at scale and what is asked for.

Enters: a Proposal. Leaves: html that needs nothing else and runs no script; each figure as SVG, with its values as CSV.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from turnaround.analysis.energy import EnergyRates
from turnaround.analysis.prices import Price
from turnaround.errors import StorageError
from turnaround.findings import Finding
from turnaround.findings.proposal import has_gpus, how_measured, to_mind
from turnaround.forecast.energy import electricity_cost, emissions_kg
from turnaround.forecast.interval import Interval
from turnaround.forecast.proposal import AccuracyPoint, Proposal, ScalingPoint
from turnaround.record.files import replace_file
from turnaround.record.machine import installed_version
from turnaround.reporting.page.fig_common import tone_of_kind
from turnaround.reporting.page.render import GENERATOR
from turnaround.reporting.page.templates import asset, environment
from turnaround.reporting.prices_text import price_text
from turnaround.reporting.svg_chart import Chart, ChartPoint, ChartSeries, Look, chart_svg
from turnaround.reporting.text_layout import clean
from turnaround.web.pages import content_hash
from turnaround.words import UNKNOWN, about, accuracy, duration, emissions, energy, hardware, money, number, percent

MAX_ROWS = 14
"""Rows of the table: what half a page has room for."""
SPREADSHEET_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, kw_only=True)
class ProposalFigure:
    """One picture with its caption, and the values in it."""

    name: str
    """The stem of its files."""
    title: str
    svg: str
    csv: str


@dataclass(frozen=True, kw_only=True)
class ProposalOptions:
    """What the user adds to the figures."""

    price: Price | None = None
    """Price of one GPU of the kind that is asked for."""
    rates: EnergyRates
    command: str = ""


def proposal_page(proposal: Proposal, findings: Sequence[Finding], options: ProposalOptions) -> str:
    """Return the two pages as html text."""
    css = asset("proposal.css")
    return (
        environment()
        .get_template("proposal.html.j2")
        .render(
            css=css,
            style_hash=content_hash(css),
            generator=GENERATOR,
            job=proposal.job.name,
            sentence=_sentence(proposal),
            request=list(_request_rows(proposal, options)),
            figures=proposal_figures(proposal),
            rows=list(_rows(proposal))[:MAX_ROWS],
            measured=how_measured(proposal),
            mind=to_mind(proposal, findings),
            version=installed_version(),
            command=options.command,
        )
    )


def write_figures(proposal: Proposal, folder: Path) -> list[Path]:
    """Write each figure as SVG and its values as CSV into a folder, which is made; return the files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"Cannot make the folder {str(folder)!r} for the figures: {error.strerror}.") from error
    written = []
    for figure in proposal_figures(proposal):
        for ending, text in (("svg", figure.svg + "\n"), ("csv", figure.csv)):
            path = folder / f"{figure.name}.{ending}"
            replace_file(path, text.encode("utf-8", "replace"))
            written.append(path)
    return written


# --- what is asked for


def _unit(proposal: Proposal) -> str:
    return "GPU-hours" if has_gpus(proposal.job.configurations) else "process-hours"


def _sentence(proposal: Proposal) -> str:
    request = proposal.request
    p = request.prediction
    where = hardware(p.workers, p.gpu, hosts=p.hosts)
    trainings = "one training" if request.trainings == 1 else f"{request.trainings:,} trainings"
    asked = f"{_range(request.gpu_hours, number)} {_unit(proposal)}"
    power = f" and {_range(request.energy_wh, energy)} of GPU energy" if request.energy_wh is not None else ""
    return f"Asked for: {asked}{power}, for {trainings} on {where}."


def _request_rows(proposal: Proposal, options: ProposalOptions) -> Iterator[tuple[str, str]]:
    request, rates = proposal.request, options.rates
    p = request.prediction
    how = "measured" if request.is_measured else "forecast, 80 % interval"
    yield "configuration", hardware(p.workers, p.gpu, hosts=p.hosts)
    yield f"one training ({how})", _range(request.time_s, duration if request.is_measured else about)
    yield "trainings", f"{request.trainings:,}"
    yield f"{_unit(proposal)}, all trainings", _range(request.gpu_hours, number)
    used = request.energy_wh
    of_gpus = " of the GPUs" if has_gpus(proposal.job.configurations) else ""
    yield f"energy{of_gpus}, all trainings", _range(used, energy) if used is not None else "not known"
    if (cost := request.cost(options.price)) is not None:
        assert options.price is not None, "there is no cost without a price"
        currency = options.price.currency or ""
        yield (
            f"cost at {price_text(options.price, p.gpu)}",
            _range(cost, lambda value: f"{money(value)} {currency}".rstrip()),
        )
    if (paid := electricity_cost(used, rates)) is not None:
        yield f"electricity at {rates.electricity:g} per kWh", _range(paid, money)
    if (emitted := emissions_kg(used, rates)) is not None:
        yield f"emissions at {rates.grid:g} kg CO2e per kWh", _range(emitted, emissions)
    if p.epochs_to_stable is not None and p.epochs_planned is not None:
        epochs = _range(p.epochs_to_stable, lambda value: f"{value:.0f}")
        yield "epochs to a stable accuracy", f"{epochs}; a training has {p.epochs_planned}"
    yield "validation accuracy", _accuracy_asked_for(proposal)


def _accuracy_asked_for(proposal: Proposal) -> str:
    """Return the accuracy of so many workers, and how to measure it where nobody has."""
    p = proposal.request.prediction
    seen = [a for a in proposal.accuracies if a.workers == p.workers]
    if seen:
        # What was run goes before what was rehearsed, the kind that is asked for before others.
        best = min(seen, key=lambda a: (a.kind != "measured", a.gpu != p.gpu))
        how = "measured" if best.kind == "measured" else "rehearsed"
        where = "" if best.gpu == p.gpu else f" on {best.gpu}"
        return f"{_range(best.accuracy, accuracy)}, {how}{where}"
    how = f"rehearse it with: turnaround train SOURCE --workers {p.workers} --processes 1"
    if p.val_accuracy is None:
        return f"not measured; {how}"
    return f"{_range(p.val_accuracy, accuracy)}, forecast; not measured: {how}"


def _range(value: Interval, show: Callable[[float], str]) -> str:
    """Return the value, and its interval where it has one that can be seen."""
    low, high = show(value.low), show(value.high)
    return show(value.value) if low == high else f"{show(value.value)} ({low} to {high})"


# --- the table


def _rows(proposal: Proposal) -> Iterator[dict[str, str]]:
    """Yield one row for each configuration with times, then the rehearsals, which have none."""
    accuracies = {(a.gpu, a.workers): a for a in proposal.accuracies if a.kind == "measured"}
    for point in sorted(proposal.points, key=lambda p: (p.gpu, p.group, p.workers)):
        seen = accuracies.get((point.gpu, point.workers)) if point.kind == "measured" else None
        yield {
            "name": hardware(point.workers, point.gpu),
            "how": "forecast" if point.kind == "forecast" else _runs(point.runs),
            "epoch": _range(point.epoch_time_s, about if point.kind == "forecast" else duration),
            "speedup": _range(point.speedup, lambda value: f"{value:.2f}"),
            "strong": _range(point.efficiency, percent),
            "weak": UNKNOWN if point.weak_efficiency is None else _range(point.weak_efficiency, percent),
            "accuracy": UNKNOWN if seen is None else _range(seen.accuracy, accuracy),
        }
    for rehearsed in (a for a in proposal.accuracies if a.kind == "rehearsed"):
        blank = dict.fromkeys(("epoch", "speedup", "strong", "weak"), UNKNOWN)
        how = f"rehearsed, {_runs(rehearsed.runs)}"
        yield {"name": f"{rehearsed.workers} workers", "how": how, **blank} | {
            "accuracy": _range(rehearsed.accuracy, accuracy)
        }


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


# --- figures


def proposal_figures(proposal: Proposal) -> tuple[ProposalFigure, ...]:
    """Return the figures of which anything is known: strong and weak scaling, efficiency, accuracy."""
    points = proposal.points
    figures = [
        _scaling_figure("strong-scaling", points, lambda p: p.speedup, ideal=lambda first, n: n / first.workers),
        _scaling_figure("efficiency", points, lambda point: point.efficiency, ideal=lambda first, n: 1.0),
    ]
    weak = [point for point in points if point.step_time_s is not None]
    if weak:
        fewest_last = sorted(weak, key=lambda point: -point.workers)
        first_s = {point.group: point.step_time_s.value for point in fewest_last if point.step_time_s}
        ideal = _ideal_step(first_s)
        figures.insert(1, _scaling_figure("weak-scaling", weak, lambda point: point.step_time_s, ideal=ideal))
    return (*figures, *([_accuracy_figure(proposal.accuracies)] if proposal.accuracies else []))


Ideal = Callable[[ScalingPoint, int], float]


def _ideal_step(first_s: dict[int, float]) -> Ideal:
    return lambda first, workers: first_s[first.group]


_TITLES = {
    "strong-scaling": "Strong scaling: speed-up of an epoch",
    "weak-scaling": "Weak scaling: time of a step",
    "efficiency": "Efficiency of strong scaling",
    "accuracy": "Validation accuracy at scale",
}
_Y_AXES: dict[str, tuple[str, Callable[[float], str], bool]] = {
    "strong-scaling": ("speed-up over the baseline", lambda value: f"{value:g}", True),
    "weak-scaling": ("time of a step", duration, False),
    "efficiency": ("efficiency", percent, False),
}


def _scaling_figure(
    name: str, points: Sequence[ScalingPoint], read: Callable[[ScalingPoint], Interval | None], *, ideal: Ideal
) -> ProposalFigure:
    series: list[ChartSeries] = []
    for group in dict.fromkeys(point.group for point in points):
        own = sorted((p for p in points if p.group == group), key=lambda p: p.workers)
        kind, colour = clean(own[0].gpu), tone_of_kind(own[0].gpu).hue
        line = tuple(ChartPoint(x=n, y=ideal(own[0], n)) for n in (own[0].workers, own[-1].workers))
        series.append(ChartSeries(name="ideal", look="ideal", points=line))
        looks: tuple[Look, ...] = ("measured", "forecast")
        for look in looks:
            drawn = tuple(_drawn(p.workers, value) for p in own if p.kind == look and (value := read(p)) is not None)
            if drawn:
                series.append(ChartSeries(name=f"{kind} {look}", look=look, points=drawn, colour=colour))
    y_title, y_text, is_log = _Y_AXES[name]
    tops = [end for s in series for p in s.points for end in (p.y, p.high) if end is not None]
    chart = Chart(
        title=_TITLES[name],
        y_title=y_title,
        series=tuple(series),
        y_text=y_text,
        is_log=is_log,
        # From 0 on: a small fall must not look like a collapse.
        y_range=None if is_log else (0.0, 1.08 * max(tops)),
    )
    return ProposalFigure(name=name, title=_TITLES[name], svg=chart_svg(chart), csv=_scaling_csv(name, points, read))


def _drawn(workers: int, value: Interval) -> ChartPoint:
    return ChartPoint(x=workers, y=value.value, low=value.low, high=value.high)


def _accuracy_figure(points: Sequence[AccuracyPoint]) -> ProposalFigure:
    series = []
    for kind in ("measured", "rehearsed"):
        look: Look = "measured" if kind == "measured" else "rehearsed"
        for gpu in dict.fromkeys(point.gpu for point in points if point.kind == kind):
            own = [p for p in points if p.kind == kind and p.gpu == gpu]
            name = f"{clean(gpu)} measured" if kind == "measured" else f"rehearsed on {clean(gpu)}"
            drawn = tuple(_drawn(p.workers, p.accuracy) for p in own)
            series.append(ChartSeries(name=name, look=look, points=drawn, colour=tone_of_kind(gpu).hue))
    chart = Chart(title=_TITLES["accuracy"], y_title="validation accuracy", series=tuple(series), y_text=accuracy)
    rows = [(p.gpu, p.workers, p.kind, p.runs, *_ends(p.accuracy)) for p in points]
    text = _csv(("gpu", "workers", "kind", "runs", "val_accuracy", "low", "high"), rows)
    return ProposalFigure(name="accuracy", title=_TITLES["accuracy"], svg=chart_svg(chart), csv=text)


# --- values as CSV


def _scaling_csv(name: str, points: Sequence[ScalingPoint], read: Callable[[ScalingPoint], Interval | None]) -> str:
    column = {"strong-scaling": "speedup", "weak-scaling": "step_time_s", "efficiency": "efficiency"}[name]
    rows = [
        (p.gpu, p.workers, p.kind, p.runs, *_ends(p.epoch_time_s), *_ends(value))
        for p in points
        if (value := read(p)) is not None
    ]
    times = ("epoch_time_s", "epoch_time_s_low", "epoch_time_s_high")
    return _csv(("gpu", "workers", "kind", "runs", *times, column, f"{column}_low", f"{column}_high"), rows)


def _ends(value: Interval) -> tuple[str, str, str]:
    """Return value, low and high; without the ends where there is no interval."""
    shown = [f"{end:.6g}" for end in (value.value, value.low, value.high)]
    return (shown[0], shown[1], shown[2]) if value.low < value.high else (shown[0], "", "")


def _csv(heading: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heading)
    # A name from a table of others that begins as a formula does is text for a spreadsheet too.
    writer.writerows(
        [f"'{cell}" if isinstance(cell, str) and cell.startswith(SPREADSHEET_FORMULA) else cell for cell in row]
        for row in rows
    )
    return text.getvalue()
