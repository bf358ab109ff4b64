"""A prediction in sentences and cells, without layout: numbers are rounded as their intervals deserve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from turnaround.analysis.configurations import Spread
from turnaround.findings.forecasts import interval_text, next_run_text
from turnaround.forecast.interval import Interval
from turnaround.forecast.question import Against, Prediction, Question
from turnaround.reporting.prices_text import price_text
from turnaround.words import (
    UNKNOWN,
    about,
    accuracy,
    duration,
    emissions,
    energy,
    hardware,
    money,
    number,
)


def headline(p: Prediction, question: Question) -> str:
    """Return the answer in one or two sentences."""
    said = list(_time_clauses(p))
    if p.reaches_stable is None and p.val_accuracy is not None:
        said.append(f"{accuracy(p.val_accuracy.value)} validation accuracy")
    label = f" ({p.kind})" if p.kind not in ("forecast", "measured") else ""
    figures = ", ".join(said) or "no time can be forecast"
    answer = f"{hardware(p.workers, p.gpu, hosts=p.hosts)} for {p.job}: {figures}{label}."
    if p.epochs_to_stable is not None and p.epochs_planned is not None:
        answer += f" {_stable_sentence(p)}"
    if p.against is not None:
        answer += f" {decision(p, p.against)}"
    if question.target is not None:
        answer += f" {_target_sentence(p, question.target)}"
    return answer


def decision(p: Prediction, against: Against) -> str:
    """Return what the GPUs asked for buy against the most that were run."""
    what = "to a stable accuracy" if against.is_to_stable else f"for {p.epochs_planned} epochs"
    times = "twice" if p.times_as_many == 2 else f"{p.times_as_many:.2g} times"
    here = hardware(against.workers, p.gpu)
    unit = "processes" if p.gpu == "CPU" else "GPUs"
    time = duration(against.time_s) if against.is_measured else about(against.time_s)
    if about(against.time_s - against.saved_s) == about(against.time_s) or against.saved_s <= 0:
        return f"That is no sooner {what} than {here} ({time}), at {times} the {unit}."
    forecast = p.time_to_stable_s if against.is_to_stable else p.job_time_s
    is_open = forecast is not None and forecast.high >= against.time_s
    doubt = "; the interval has room for no gain" if is_open else ""
    return f"Against {here} that saves about {about(against.saved_s)} of {time} {what}, at {times} the {unit}{doubt}."


def _time_clauses(p: Prediction) -> Iterator[str]:
    if p.epoch_time_s is not None:
        yield f"about {about(p.epoch_time_s.value)} an epoch"
    if p.job_time_s is not None:
        yield f"{about(p.job_time_s.value)} for {p.epochs_planned} epochs"
    if p.cost is not None:
        yield f"at a cost of {money(p.cost.value)} {p.currency or ''}".rstrip()


def _stable_sentence(p: Prediction) -> str:
    assert p.epochs_to_stable is not None
    assert p.epochs_planned is not None
    needed = f"{p.epochs_to_stable.value:.0f} epochs"
    if p.time_to_stable_s is not None:
        needed += f", {about(p.time_to_stable_s.value)}"
    if p.stable_by_end == "open":
        between = f"{p.epochs_to_stable.low:.0f} to {p.epochs_to_stable.high:.0f} epochs"
        return f"Whether the accuracy will be stable by then is open: that takes {between}."
    sure = " probably" if p.stable_by_end in ("probably", "probably not") else ""
    if p.reaches_stable:
        return f"The accuracy will{sure} be stable by then (after about {needed})."
    return f"The accuracy will{sure} not be stable by then: that takes about {needed}."


def _target_sentence(p: Prediction, target: float) -> str:
    if p.val_accuracy is None:
        return f"Whether it reaches {accuracy(target)} cannot be said: no run has a validation accuracy."
    between = f"{accuracy(p.val_accuracy.low)} to {accuracy(p.val_accuracy.high)}"
    if p.val_accuracy.high < target:
        return f"It will not reach {accuracy(target)}: the accuracy is forecast as {between}."
    if p.val_accuracy.value < target:
        return f"It will probably not reach {accuracy(target)}: the accuracy is forecast as {between}."
    after = f" after about {p.epochs_to_target.value:.0f} epochs" if p.epochs_to_target else ""
    return f"It should reach {accuracy(target)}{after} (forecast: {between})."


def figure_rows(p: Prediction, question: Question) -> list[tuple[str, str, str, str]]:
    """Return name, value, interval, and what was measured."""
    paid = question.price_of(p.gpu)
    price = f", {price_text(paid, p.gpu)}" if paid else ""
    job = f"job of {p.epochs_planned} epochs"
    rows: list[tuple[str, str, Interval | None, Callable[[float], str]]] = [
        ("epoch_time_s", "an epoch", p.epoch_time_s, about),
        ("images_per_s", "images/s", p.images_per_s, number),
        ("epochs_to_stable", "epochs to stable", p.epochs_to_stable, lambda v: f"{v:.0f}"),
        ("time_to_stable_s", "time to stable", p.time_to_stable_s, about),
        ("epochs_to_target", "epochs to target", p.epochs_to_target, lambda v: f"{v:.0f}"),
        ("time_to_target_s", "time to target", p.time_to_target_s, about),
        ("job_time_s", job, p.job_time_s, about),
        ("queue_s", "in the queue", p.queue.wait_s if p.queue else None, about),
        ("ready_s", _ready_title(p), p.queue.ready_s if p.queue else None, about),
        ("interrupted_s", f"{job}, interrupted", p.interrupted.job_time_s if p.interrupted else None, about),
        (
            "interrupted_cost",
            f"cost, interrupted{_interrupted_price(p, question)}",
            p.interrupted.cost if p.interrupted else None,
            money,
        ),
        ("cost", f"cost of the job{price}", p.cost, money),
        ("cost_to_stable", "cost to stable", p.cost_to_stable, money),
        ("energy_wh", "energy of the GPUs", p.energy_wh, energy),
        ("energy_to_stable_wh", "energy to stable", p.energy_to_stable_wh, energy),
        ("electricity_cost", f"electricity, {question.electricity or 0:g} per kWh", p.electricity_cost, money),
        ("emissions_kg", f"emissions, {question.grid or 0:g} kg CO2e per kWh", p.emissions_kg, emissions),
        ("val_accuracy", "validation accuracy", p.val_accuracy, accuracy),
    ]
    return [
        (
            title,
            show(forecast.value),
            f"{show(forecast.low)} to {show(forecast.high)}",
            _seen(p.measured.get(name), duration if show is about else show),
        )
        for name, title, forecast, show in rows
        if forecast is not None
    ]


def _interrupted_price(p: Prediction, question: Question) -> str:
    """The price at which an interrupted job is paid: not that of the row beside it where a spot price is known."""
    table = question.prices.get(p.gpu)
    if p.interrupted is not None and p.interrupted.is_spot and table is not None and table.spot_per_hour is not None:
        return f", {price_text(replace(table, per_hour=table.spot_per_hour), p.gpu)} (spot)"
    paid = question.price_of(p.gpu)
    return f", {price_text(paid, p.gpu)}" if paid else ""


def _ready_title(p: Prediction) -> str:
    is_to_stable = p.queue is not None and p.queue.is_to_stable
    return "from now to stable" if is_to_stable else "from now to the job's end"


def _seen(spread: Spread | None, show: Callable[[float], str]) -> str:
    if spread is None:
        return ""
    return show(spread.value) + (f" ({spread.count} runs)" if spread.count > 1 else "")


def time_text(p: Prediction, name: str) -> str:
    """Return a time as it was measured, else as it is forecast."""
    measured = p.measured.get(name)
    time_s = p.best_known(name)
    return duration(measured.value) if measured is not None else UNKNOWN if time_s is None else about(time_s)


def range_text(p: Prediction, name: str) -> str:
    """Return a time as it was measured, else as it is forecast with its interval."""
    forecast: Interval | None = getattr(p, name)
    if name in p.measured or forecast is None:
        return time_text(p, name)
    return interval_text(forecast)


def next_in_words(p: Prediction) -> tuple[str, str] | None:
    """Return what to run next, what it costs and why; and the command."""
    run = p.next_run
    if run is None:
        return None
    if run.is_rehearsal:
        device = "one process" if p.gpu == "CPU" else "one GPU"
        what, options = f"rehearse {run.workers} workers on {device}", f"--workers {run.workers} --processes 1"
    else:
        what, options = f"run {hardware(run.workers, p.gpu)}", f"--workers {run.workers}"
    price = f", {money(run.cost)}" if run.cost is not None else ""
    unit = "process-hours" if p.gpu == "CPU" else "GPU-hours"
    costs = f" ({run.gpu_hours:.2g} {unit}{price})" if run.gpu_hours is not None else ""
    why = next_run_text(run)
    return f"{what}{costs}: {why[0].lower()}{why[1:]}", f"turnaround train SOURCE {options}"


def queue_cells(p: Prediction) -> tuple[str, str]:
    """Return the wait, and the time until the result is there; empty where no cluster was asked."""
    if p.queue is None:
        return "", ""
    wait_s, ready_s = p.queue.wait_s, p.queue.ready_s
    return (
        UNKNOWN if wait_s is None else about(wait_s.value),
        UNKNOWN if ready_s is None else interval_text(ready_s),
    )
