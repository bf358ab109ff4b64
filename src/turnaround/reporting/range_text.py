"""A range of workers for the terminal: the best of it in sentences, and a row for each number of workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from turnaround.findings.forecasts import Answer
from turnaround.findings.interruptions import interruptions_notes
from turnaround.findings.queue import queue_notes
from turnaround.forecast.question import Prediction, Question
from turnaround.forecast.ranking import Best, best_of_range
from turnaround.reporting.forecast_text import clean_lines, note_lines, ready_lines, section_lines, table_lines
from turnaround.reporting.forecast_words import queue_cells, range_text, time_text
from turnaround.reporting.range_words import best_in_words
from turnaround.reporting.text_layout import TextColumn
from turnaround.words import UNKNOWN, emissions, energy, interval, money
from turnaround.words import accuracy as accuracy_text


def range_lines(predictions: Sequence[Prediction], question: Question, width: int) -> Iterator[tuple[str, str]]:
    """Yield the best of the range first, then a row for each number of workers."""
    best = best_of_range(predictions)
    yield from ready_lines(predictions, width)
    said = best_in_words(predictions, question)
    yield from ((line, "bold") for line in clean_lines(f"{predictions[0].job}: {said}", width))
    yield "", ""
    shown = [p for p in predictions if _is_shown(p, predictions, best)]
    names = TextColumn(heading="workers", cells=tuple(map(_name, shown)), is_left=True)
    yield from table_lines(
        names, [_times(shown), [*_costs(shown, question), *_energies(shown, question), _end(shown, best)]], width
    )
    if any(p.kind == "measured" for p in shown):
        yield from note_lines(
            "run: figures without an interval as measured, where they were; all else is forecast.", width
        )
    if any(_is_late(p) for p in shown):
        yield from note_lines(f"* later than the {predictions[0].epochs_planned} epochs of the recipe", width)
    if len(shown) < len(predictions):
        yield from note_lines(f"{len(predictions)} numbers of workers were compared; --json has them all", width)
    yield from _sections(predictions, question, best, width)


def _sections(
    predictions: Sequence[Prediction], question: Question, best: Best | None, width: int
) -> Iterator[tuple[str, str]]:
    first, last = Answer.of(predictions[0]), Answer.of(predictions[-1])
    # What is said of one number of workers is said of those at the ends, which are the farthest from the runs.
    warnings = list(dict.fromkeys(warning for answer in (first, last) for warning in answer.warnings))
    # How often to save depends on the number of hosts: it is said of the one that a reader would take.
    taken = next((p for p in predictions if best is not None and p.workers == best.fastest), predictions[-1])
    has_queue = any(p.queue is not None for p in predictions)
    for name, sentences in (
        ("based on", last.basis),
        ("interruptions", list(interruptions_notes(taken, of_many=True))),
        ("queue", list(queue_notes(predictions, question.cluster or "the cluster")) if has_queue else []),
        ("assumed", [*last.assumed, *last.left_open]),
        ("caveats", warnings),
    ):
        yield from section_lines(name, sentences, width)


def _name(p: Prediction) -> str:
    return f"{p.workers} run" if p.kind == "measured" else str(p.workers)


def _column(heading: str, cells: Sequence[str]) -> list[TextColumn]:
    """Return the column in a list, or nothing where no row has a figure."""
    return [TextColumn(heading=heading, cells=tuple(cells))] if any(cells) else []


def _times(shown: Sequence[Prediction]) -> list[TextColumn]:
    # The intervals stand with the times that are ranked: those to stable, where there are any.
    has_stable = any(p.time_to_stable_s is not None for p in shown)
    interrupted = "interrupted\nto stable" if has_stable else "interrupted\njob"
    queue = [queue_cells(p) for p in shown]
    job = [time_text(p, "job_time_s") if has_stable else range_text(p, "job_time_s") for p in shown]
    return [
        *_column("in the\nqueue", [wait for wait, _ in queue]),
        *_column("ready\nin", [ready for _, ready in queue]),
        *_column("an\nepoch", [time_text(p, "epoch_time_s") for p in shown]),
        *_column("epochs\nto stable", [_epochs(p) for p in shown]),
        *_column("time\nto stable", [range_text(p, "time_to_stable_s") for p in shown]),
        *_column("job", job),
        *_column(interrupted, [_interrupted(p, has_stable=has_stable) for p in shown]),
    ]


def _epochs(p: Prediction) -> str:
    epochs = p.best_known("epochs_to_stable")
    return UNKNOWN if epochs is None else f"{epochs:.0f}{'*' if _is_late(p) else ' '}"


def _interrupted(p: Prediction, *, has_stable: bool) -> str:
    """The time on machines that are taken away; empty where nobody asked about such."""
    if p.interrupted is None:
        return ""
    time_s = p.interrupted.time_to_stable_s if has_stable else p.interrupted.job_time_s
    return "never" if time_s is None else interval(time_s.value, time_s.low, time_s.high)


def _costs(shown: Sequence[Prediction], question: Question) -> list[TextColumn]:
    gpu = shown[0].gpu
    is_priced = question.price_of(gpu) is not None
    hours = [UNKNOWN if p.gpu_hours is None else f"{p.gpu_hours:.2g}" for p in shown]
    found = [p.interrupted for p in shown]
    is_to_stable = any(one is not None and one.cost_to_stable is not None for one in found)
    interrupted = [one and (one.cost_to_stable if is_to_stable else one.cost) for one in found]
    return [
        *_column(
            "cost\nof job" if is_priced else "GPU-h\nof job" if gpu != "CPU" else "CPU-h\nof job",
            [_figure(p, "cost") for p in shown] if is_priced else hours,
        ),
        *_column("cost\nto stable", [_figure(p, "cost_to_stable") for p in shown] if is_priced else []),
        *_column(
            "interrupted\ncost to stable" if is_to_stable else "interrupted\ncost of job",
            [money(cost.value) if cost else "" for cost in interrupted],
        ),
    ]


def _energies(shown: Sequence[Prediction], question: Question) -> list[TextColumn]:
    """Return the energy of the job where it is known, with its price and emissions at the rates that were given."""
    known = [p.best_known("energy_wh") for p in shown]
    paid = [None if wh is None else question.rates.price(wh) for wh in known]
    emitted = [None if wh is None else question.rates.emissions_kg(wh) for wh in known]
    return [
        *_column("energy\nof job", ["" if wh is None else energy(wh) for wh in known]),
        *_column("elec-\ntricity", ["" if price is None else money(price) for price in paid]),
        *_column("emissions\nCO2e", ["" if kg is None else emissions(kg).removesuffix(" CO2e") for kg in emitted]),
    ]


def _figure(p: Prediction, name: str) -> str:
    value = p.best_known(name)
    return UNKNOWN if value is None else money(value)


def _end(shown: Sequence[Prediction], best: Best | None) -> TextColumn:
    """Return accuracies with what is to be said of a row: apart, the latter could be a table of its own."""
    cells = [f"{accuracy_text(p.best_known('val_accuracy')):<8}{_marks(p.workers, best)}".rstrip() for p in shown]
    return TextColumn(heading="accuracy", cells=tuple(cells), is_left=True)


def _is_late(p: Prediction) -> bool:
    """Return whether a stable accuracy is forecast for later than the end; one that was seen came in time."""
    return p.reaches_stable is False and "epochs_to_stable" not in p.measured


def _marks(workers: int, best: Best | None) -> str:
    if best is None:
        return ""
    if best.fastest == best.cheapest == workers:
        return "best"
    places = {best.near_fastest: "within 10 %"}
    places |= {best.enough: "enough", best.cheapest: "cheapest", best.fastest: "fastest"}
    return places.get(workers, "")


def _is_shown(p: Prediction, predictions: Sequence[Prediction], best: Best | None) -> bool:
    """Choose the rows: all of a short range; of a long one the ends, powers of two, what was run, and the best."""
    is_end = p.workers in (predictions[0].workers, predictions[-1].workers)
    is_power = p.workers & (p.workers - 1) == 0
    is_named = best is not None and p.workers in (best.fastest, best.cheapest, best.enough, best.near_fastest)
    return len(predictions) <= 16 or is_end or is_power or p.kind == "measured" or is_named
