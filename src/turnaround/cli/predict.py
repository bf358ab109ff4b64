"""`turnaround predict`: what would another number of GPUs, or another kind, do?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from turnaround.analysis.jobs import Survey
    from turnaround.forecast.predict import Forecaster
    from turnaround.forecast.question import Prediction, Question
    from turnaround.forecast.turnaround import Best

MOST_SINGLE_STEPS = 128
"""A longer range is looked at in powers of two."""
MOST_WORKERS = 100_000


def predict(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Runs, or folders of runs.")],
    workers: Annotated[
        str, typer.Option(help="How many workers, one on each GPU: 16, a list 1,2,4,8 or a range 1-32.")
    ],
    gpu: Annotated[str | None, typer.Option(help="Which kind: V100, A100, ... Default: the one measured.")] = None,
    hosts: Annotated[int | None, typer.Option(help="On how many hosts. Default: as in the runs.")] = None,
    price: Annotated[float | None, typer.Option(help="Of one GPU for one hour, in any currency.")] = None,
    job: Annotated[str | None, typer.Option(metavar="NAME", help="Which job, by its name or a part of it.")] = None,
    target: Annotated[float | None, typer.Option(help="A validation accuracy to reach, 0 to 1.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the forecast as JSON on stdout.")] = False,
    save: Annotated[
        bool, typer.Option("--save", help="Keep the forecast in DIR/forecasts.jsonl, to be scored by later runs.")
    ] = False,
) -> None:
    """Forecast a configuration that nobody has run: time, epochs, accuracy, cost.

    [bold]turnaround predict runs/ --workers 16 --gpu V100[/bold]      one answer, and what it rests on
    [bold]turnaround predict runs/ --workers 1-32 --price 2.48[/bold]  a table: the fastest and the cheapest
    """
    from turnaround.cli.report import look
    from turnaround.forecast.predict import forecaster
    from turnaround.forecast.question import Question

    counts = asked_workers(workers)
    question = Question(workers=counts[-1], gpu=gpu, hosts=hosts, price=price, job=job, target=target)
    found = look(directories)
    asked = forecaster(found, question)
    _tell(found)
    if len(counts) == 1:
        predictions = [_with_next_run(asked, counts[0])]
    else:
        predictions = [asked.predict(count) for count in _looked_at(counts, asked)]
    if json_:
        _print_json(predictions)
    else:
        _print_text(predictions, question)
        _print_scores(directories, found)
    if save:
        _save(directories[0], question, [p for p in predictions if p.workers in counts], found)


def asked_workers(text: str) -> list[int]:
    """ "16", "1,2,4" or "1-32" as numbers, ascending."""
    from turnaround.errors import InputError

    numbers: set[int] = set()
    for part in text.split(","):
        ends = re.fullmatch(r"\s*([0-9]{1,7})\s*(?:-\s*([0-9]{1,7})\s*)?", part)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (0, 0)
        if not 1 <= first <= last <= MOST_WORKERS:
            raise InputError(
                f"--workers takes whole numbers from 1 to {MOST_WORKERS:,}: 16, a list 1,2,4 or a range 1-32. "
                f"Received: {text!r}."
            )
        numbers |= set(_steps(first, last))
    return sorted(numbers)


def _steps(first: int, last: int) -> list[int]:
    if last - first < MOST_SINGLE_STEPS:
        return list(range(first, last + 1))
    return sorted({first, last} | {2**k for k in range(last.bit_length()) if first <= 2**k <= last})


def _looked_at(counts: Sequence[int], asked: Forecaster) -> list[int]:
    """What was asked for, and the measured counts in between."""
    measured = asked.laws.times.counts if asked.laws.times else []
    return sorted(set(counts) | {n for n in measured if counts[0] <= n <= counts[-1] and len(counts) > 8})


def _with_next_run(asked: Forecaster, workers: int) -> Prediction:
    from dataclasses import replace

    from turnaround.forecast.next_run import next_run

    prediction = asked.predict(workers)
    return replace(prediction, next_run=next_run(asked, prediction))


def _tell(found: Survey) -> None:
    """What could not be read, on stderr: stdout may go into a pipe."""
    from rich.text import Text

    from turnaround.cli.console import err
    from turnaround.report.lines import clean

    for item in found.left_out:
        err().print(Text(clean(f"left out: {item.directory}: {item.reason}"), style="yellow"))
    if found.running:
        err().print(Text(clean(f"still running, with what they have: {', '.join(found.running)}"), style="yellow"))


def _print_json(predictions: Sequence[Prediction]) -> None:
    from dataclasses import asdict

    from turnaround.cli.console import print_json

    if len(predictions) == 1:
        print_json(predictions[0].as_json())
        return
    best = best_of_range(predictions)
    print_json({"predictions": [p.as_json() for p in predictions], "best": asdict(best) if best else None})


def _print_text(predictions: Sequence[Prediction], question: Question) -> None:
    from rich.text import Text

    from turnaround.cli.console import out, print_lines

    console = out()
    width = min(console.width, 100)
    if len(predictions) == 1:
        lines = answer_lines(predictions[0], question, width)
    else:
        lines = range_lines(predictions, best_of_range(predictions), question, width)
    print_lines(console, (Text(line, style=style) for line, style in lines))


def _print_scores(directories: Sequence[Path], found: Survey) -> None:
    """How good the forecasts that were saved here have been, as far as runs have come since."""
    from rich.text import Text

    from turnaround.cli.console import out
    from turnaround.forecast.score import in_words, saved_in, scored

    said = in_words(scored([line for directory in directories for line in saved_in(directory)], found))
    if said is not None:
        out().print(Text(f"\n{said}"))


def best_of_range(predictions: Sequence[Prediction]) -> Best | None:
    """By time to stable where all have it, else by job time; None where neither is known."""
    from turnaround.forecast.turnaround import best_of

    for by, name in (("time to stable", "time_to_stable_s"), ("job time", "job_time_s")):
        times = {p.workers: getattr(p, name) for p in predictions}
        if times and all(time is not None for time in times.values()):
            return best_of({workers: time.value for workers, time in times.items()}, by=by)
    return None


def _save(folder: Path, question: Question, predictions: Sequence[Prediction], found: Survey) -> None:
    from dataclasses import replace

    from rich.text import Text

    from turnaround.cli.console import err
    from turnaround.forecast.score import save

    for prediction in predictions:
        path = save(folder, replace(question, workers=prediction.workers), prediction, found)
    err().print(Text(f"saved in {path}: later runs of the same configuration will score it"))


# --- text: (line, style), no wider than the terminal


def answer_lines(p: Prediction, question: Question, width: int) -> Iterator[tuple[str, str]]:
    """The answer first, then the figures, what they rest on, what was assumed, what to mind, what to run next."""
    from turnaround.forecast.words import figure_rows, headline, leave_one_out, left_open, next_in_words

    yield from ((line, "bold") for line in _wrapped(headline(p, question), width))
    rows = figure_rows(p, question)
    if rows:
        yield "", ""
        heading = ("", "estimate" if p.kind not in ("forecast", "measured") else "forecast", "80 % interval")
        measured = any(row[3] for row in rows)
        yield from _table([(*heading, "measured" if measured else ""), *rows], width)
    loo = leave_one_out(p)
    sections = (
        ("rests on", [*p.basis, *([loo] if loo else [])]),
        ("assumed", [*p.assumed, *left_open(p)]),
        ("mind", list(p.warnings)),
        ("run next", [following[0]] if (following := next_in_words(p)) else []),
    )
    for name, sentences in sections:
        yield from _section(name, sentences, width)
    if following:
        yield f"    {following[1]}", ""


def range_lines(
    predictions: Sequence[Prediction], best: Best | None, question: Question, width: int
) -> Iterator[tuple[str, str]]:
    """The best of the range first, then a row for each number of workers."""
    from turnaround.forecast.words import left_open

    yield from ((line, "bold") for line in _wrapped(_best_in_words(predictions, best), width))
    yield "", ""
    shown = [p for p in predictions if _is_shown(p, predictions, best)]
    rows = [*_range_headings(question, predictions[0].gpu), *(_range_row(p, best) for p in shown)]
    yield from _table(rows, width, headings=2)
    if any(p.kind == "measured" for p in shown):
        yield from _note("run: was run; the row is what the laws say of it. Asked for alone, it has both.", width)
    if any(p.reaches_stable is False for p in shown):
        yield from _note(f"* later than the {predictions[0].epochs_planned} epochs of the recipe", width)
    if len(shown) < len(predictions):
        yield from _note(f"{len(predictions)} numbers of workers were compared; --json has them all", width)
    last = predictions[-1]
    # What is said of one number of workers is said of those at the ends, which are the farthest from the runs.
    warnings = list(dict.fromkeys(warning for p in (predictions[0], last) for warning in p.warnings))
    for name, sentences in (
        ("rests on", last.basis),
        ("assumed", [*last.assumed, *left_open(last)]),
        ("mind", warnings),
    ):
        yield from _section(name, sentences, width)


def _range_headings(question: Question, gpu: str) -> list[tuple[str, ...]]:
    paid = "cost" if question.price else "GPU-h" if gpu != "CPU" else "CPU-h"
    return [
        ("", "an", "epochs", "time", "", paid, "", ""),
        ("workers", "epoch", "to stable", "to stable", "job", "of job", "accuracy", ""),
    ]


def _range_row(p: Prediction, best: Best | None) -> tuple[str, ...]:
    from turnaround.forecast.words import duration, money, percent

    hours = None if p.job_time_s is None else p.workers * p.job_time_s.value / 3600
    paid = money(p.cost.value) if p.cost else None if hours is None else f"{hours:.2g}"
    late = "*" if p.reaches_stable is False else " "
    return (
        f"{p.workers} run" if p.kind == "measured" else f"{p.workers}    ",
        "-" if p.epoch_time_s is None else duration(p.epoch_time_s.value),
        "-" if p.epochs_to_stable is None else f"{p.epochs_to_stable.value:.0f}{late}",
        "-" if p.time_to_stable_s is None else duration(p.time_to_stable_s.value),
        "-" if p.job_time_s is None else duration(p.job_time_s.value),
        paid or "-",
        "-" if p.val_accuracy is None else percent(p.val_accuracy.value),
        _marks(p.workers, best),
    )


def _marks(workers: int, best: Best | None) -> str:
    if best is None:
        return ""
    if best.fastest == best.cheapest == workers:
        return "best"
    places = {best.enough: "enough", best.cheapest: "cheapest", best.fastest: "fastest"}
    return places.get(workers, "")


def _is_shown(p: Prediction, predictions: Sequence[Prediction], best: Best | None) -> bool:
    """All of a short range; of a long one the ends, powers of two, what was run, and the best."""
    is_end = p.workers in (predictions[0].workers, predictions[-1].workers)
    is_power = p.workers & (p.workers - 1) == 0
    return len(predictions) <= 16 or is_end or is_power or p.kind == "measured" or bool(_marks(p.workers, best))


def _best_in_words(predictions: Sequence[Prediction], best: Best | None) -> str:
    from turnaround.forecast.words import duration, hardware

    first = predictions[0]
    if best is None:
        unknown = "times are" if first.epoch_time_s is None else "the epochs of a job are"
        return f"{first.job}: {unknown} not known, so the fastest and the cheapest cannot be told."
    by_workers = {p.workers: p for p in predictions}

    def told(workers: int) -> str:
        p = by_workers[workers]
        time_s = p.time_to_stable_s if best.by == "time to stable" else p.job_time_s
        return f"{hardware(workers, p.gpu)} ({duration(time_s.value) if time_s else '-'})"

    what = "to a stable accuracy" if best.by == "time to stable" else f"for {first.epochs_planned} epochs"
    answer = f"{first.job}: fastest {what} {told(best.fastest)}, cheapest {told(best.cheapest)}."
    if best.enough < best.fastest:
        answer += f" Beyond {hardware(best.enough, first.gpu)} more gain less than 5 %."
    return answer


def _section(name: str, sentences: Sequence[str], width: int) -> Iterator[tuple[str, str]]:
    if sentences:
        yield "", ""
        yield name, "bold"
        for sentence in sentences:
            yield from ((line, "") for line in _wrapped(sentence, width, first="  - "))


def _wrapped(text: str, width: int, *, first: str = "") -> list[str]:
    from turnaround.report.lines import clean, wrapped

    return wrapped(clean(text), width, first=first)


def _note(text: str, width: int) -> Iterator[tuple[str, str]]:
    """Below a table."""
    yield from ((line, "") for line in _wrapped(text, width, first="  "))


def _table(rows: Sequence[tuple[str, ...]], width: int, headings: int = 1) -> Iterator[tuple[str, str]]:
    """The first column and the last to the left, the others to the right; the first rows are headings."""
    from turnaround.report.lines import Column, tables

    last = len(rows[0]) - 1
    names, *columns = (
        Column(heading="\n".join(cells[:headings]), cells=cells[headings:], is_left=number in (0, last))
        for number, cells in enumerate(zip(*rows, strict=True))
        if any(cells)
    )
    for part, table in enumerate(tables(names, [columns], width - 2)):
        if part:
            yield "", ""
        yield from ((f"  {line}".rstrip(), "bold") for line in table.heading)
        yield from ((f"  {line}".rstrip(), "") for line in table.rows)
