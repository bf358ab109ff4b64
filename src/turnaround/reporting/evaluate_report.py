"""The report of `turnaround evaluate`: as JSON, for the terminal, as a page with pictures, and a table of every image.

Names of files and classes come from others: each is text everywhere, and the page runs no script at all.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from io import StringIO
from typing import TYPE_CHECKING, Any

from rich.text import Text

from turnaround.analysis.confusion import Pair, confused_pairs, most_confused_classes, row_shares
from turnaround.analysis.guessing import against_guessing, wilson_interval
from turnaround.analysis.paired import PairedAnswers, paired_answers
from turnaround.findings.evaluation import evaluation_sentences, headline, paired_sentence
from turnaround.record.schema import CalibrationBin, ClassResult, Evaluation
from turnaround.reporting.page.templates import asset, environment
from turnaround.reporting.text_layout import NARROWEST, TextColumn, clean, tables, wrapped
from turnaround.web.pages import base_css, content_hash
from turnaround.words import UNKNOWN, accuracy, counted, percent

if TYPE_CHECKING:
    from turnaround.use.evaluate import EvaluatedImage, EvaluatedRun

MAX_MISTAKES = 24
"""Wrong answers on the page and in --json, the surest first; the table has every image."""
MISTAKES_ON_TERMINAL = 5
MAX_PAIRS = 5
MAX_MATRIX = 25
"""Classes of the confusion matrix on the page: wider ones cannot be read there."""
MAX_CLASS_ROWS = 60
"""Classes in the terminal's table; more scroll the figures away."""
SHADES = 8

Comparison = tuple["EvaluatedRun", PairedAnswers]


def compared(run: EvaluatedRun, other: EvaluatedRun) -> PairedAnswers:
    """Hold two runs against each other on the images that both could read."""
    theirs = {image.file: image.is_right for image in other.images}
    ours = [(image.is_right, theirs[image.file]) for image in run.images if image.file in theirs]
    return paired_answers([one for one, _ in ours], [one for _, one in ours])


def evaluation_payload(run: EvaluatedRun, source: str, against: Comparison | None = None) -> dict[str, Any]:
    """Return everything but the single images, of which the surest mistakes are there."""
    payload = {"images": source, **_figures(run)}
    if against is not None:
        other, answers = against
        sentence = paired_sentence(*_names(run, other), answers)
        payload["against"] = {**_figures(other), "comparison": {**asdict(answers), "sentence": sentence}}
    return payload


def _figures(run: EvaluatedRun) -> dict[str, Any]:
    evaluation, held = run.evaluation, against_guessing(run.evaluation)
    low, high = wilson_interval(evaluation.top1, evaluation.num_images)
    kept = ("num_images", "top5", "loss", "macro_precision", "macro_recall", "macro_f1", "calibration_error")
    return {
        "run": str(run.run),
        "weights": run.weights,
        "epoch": evaluation.epoch,
        "accuracy": {"value": evaluation.top1, "low": low, "high": high},
        "guessing_accuracy": None if held is None else held.guessing,
        **{name: getattr(evaluation, name) for name in kept},
        "calibration": [asdict(one) for one in evaluation.calibration],
        "classes": evaluation.classes,
        "per_class": [asdict(one) for one in evaluation.per_class],
        "confusion": evaluation.confusion,
        "sentences": [headline(evaluation), *evaluation_sentences(evaluation)],
        "mistakes": [asdict(image) for image in run.mistakes()[:MAX_MISTAKES]],
        "unreadable": [asdict(one) for one in run.unreadable],
        "notes": list(run.notes),
    }


def _names(run: EvaluatedRun, other: EvaluatedRun) -> tuple[str, str]:
    """Return the folders' names, or the whole paths where those are the same."""
    names = (run.run.resolve().name, other.run.resolve().name)
    return names if names[0] != names[1] else (str(run.run), str(other.run))


def images_csv(run: EvaluatedRun, against: EvaluatedRun | None = None) -> str:
    """Return a table with a line for every image that could be read, in the order of the source."""
    text = StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    answers = ("predicted", "confidence", "label_probability", "rank", "is_right")
    others = {image.file: image for image in against.images} if against is not None else {}
    more = [f"against_{name}" for name in answers] if against is not None else []
    writer.writerow(["file", "label", *answers, *more])
    for image in run.images:
        cells = [image.file, image.label, *_cells(image, answers)]
        if against is not None:
            other = others.get(image.file)
            cells += [""] * len(answers) if other is None else _cells(other, answers)
        writer.writerow(cells)
    return text.getvalue()


def _cells(image: EvaluatedImage, names: Iterable[str]) -> list[str]:
    values = (getattr(image, name) for name in names)
    return [f"{value:.6f}" if isinstance(value, float) else str(value) for value in values]


# --- for the terminal


def evaluation_lines(run: EvaluatedRun, against: Comparison | None = None, *, width: int) -> Iterator[Text]:
    """Yield everything, in lines no wider than the terminal."""
    width = max(width, NARROWEST)
    for style, text in _sentences(run, against):
        yield from (Text(line, style=style) for line in wrapped(clean(text), width))
    yield Text("")
    shown = _shown_classes(run.evaluation)
    for table in tables(*_columns(shown[:MAX_CLASS_ROWS]), width):
        yield from map(Text, (*table.heading, *table.rows))
    if len(shown) > MAX_CLASS_ROWS:
        yield Text(f"and {counted(len(shown) - MAX_CLASS_ROWS, 'class')} more: --page and --json have all of them")
    for heading, lines in (("Confused most:", _pairs(run.evaluation)), ("Surest mistakes:", _mistakes(run))):
        if lines:
            yield Text("")
            yield Text(heading, style="bold")
            for line in lines:
                yield from map(Text, wrapped(clean(line), width, first="  ", rest="    "))


def _sentences(run: EvaluatedRun, against: Comparison | None) -> Iterator[tuple[str, str]]:
    yield "bold", headline(run.evaluation)
    yield from (("", sentence) for sentence in evaluation_sentences(run.evaluation))
    if against is not None:
        other, answers = against
        yield "bold", paired_sentence(*_names(run, other), answers)
        yield "", f"{_names(run, other)[1]}: {headline(other.evaluation)}"
    yield from (("yellow", f"caution: {note}") for note in run.notes)


def _shown_classes(evaluation: Evaluation) -> list[ClassResult]:
    """Return the classes that have images or were predicted, those with the lowest F1 first."""
    shown = [one for one in evaluation.per_class if one.num_images or one.num_predicted]
    return sorted(shown, key=lambda one: (one.f1 is None, one.f1 or 0.0, one.name))


def _columns(shown: Sequence[ClassResult]) -> tuple[TextColumn, list[list[TextColumn]]]:
    figures = {
        "images": [f"{one.num_images:,}" for one in shown],
        "precision": [accuracy(one.precision) for one in shown],
        "recall": [accuracy(one.recall) for one in shown],
        "F1": [accuracy(one.f1) for one in shown],
    }
    names = TextColumn(heading="class", cells=tuple(clean(one.name) for one in shown), is_left=True)
    return names, [[TextColumn(heading=heading, cells=tuple(cells)) for heading, cells in figures.items()]]


def _pairs(evaluation: Evaluation) -> list[str]:
    return [_pair_text(evaluation, pair) for pair in confused_pairs(evaluation, most=MAX_PAIRS)]


def _pair_text(evaluation: Evaluation, pair: Pair) -> str:
    true, predicted = evaluation.classes[pair.true], evaluation.classes[pair.predicted]
    return f"{true} taken for {predicted}: {counted(pair.num_images, 'image')}, {percent(pair.share)} of {true}"


def _mistakes(run: EvaluatedRun) -> list[str]:
    wrong = run.mistakes()
    return [
        f"{image.file}: {image.label} taken for {image.predicted} ({percent(image.confidence, 1)} sure)"
        for image in wrong[:MISTAKES_ON_TERMINAL]
    ]


# --- as a page


def shown_mistakes(run: EvaluatedRun) -> list[EvaluatedImage]:
    """Return the mistakes whose pictures the page shows."""
    return run.mistakes()[:MAX_MISTAKES]


def evaluation_page(
    run: EvaluatedRun, source: str, pictures: Mapping[str, str], against: Comparison | None = None
) -> str:
    """Return the page as html text; `pictures` are data URIs by file."""
    evaluation, css = run.evaluation, base_css() + asset("check.css") + asset("evaluate.css")
    places = most_confused_classes(evaluation, most=MAX_MATRIX) if evaluation.confusion else []
    mistakes = run.mistakes()
    return (
        environment()
        .get_template("evaluate.html.j2")
        .render(
            run=run.run.resolve().name,
            source=source,
            which=run.which,
            headline=headline(evaluation),
            sentences=list(evaluation_sentences(evaluation)),
            compared=None if against is None else paired_sentence(*_names(run, against[0]), against[1]),
            runs=[_run_row(one) for one in (run, *(() if against is None else (against[0],)))],
            notes=run.notes,
            mistakes=[_figure(image) for image in mistakes[:MAX_MISTAKES]],
            num_mistakes=len(mistakes),
            pictures=pictures,
            matrix=_matrix(evaluation, places),
            columns=[evaluation.classes[place] for place in places],
            num_classes=len(evaluation.classes),
            pairs=_pairs(evaluation),
            per_class=[_class_row(one) for one in _shown_classes(evaluation)],
            bins=[_bin_row(place, one) for place, one in enumerate(evaluation.calibration)],
            unreadable=run.unreadable,
            css=css,
            style_hash=content_hash(css),
        )
    )


def _run_row(run: EvaluatedRun) -> list[str]:
    evaluation = run.evaluation
    low, high = wilson_interval(evaluation.top1, evaluation.num_images)
    return [
        run.run.resolve().name,
        accuracy(evaluation.top1),
        f"{accuracy(low)} to {accuracy(high)}",
        UNKNOWN if evaluation.top5 is None else accuracy(evaluation.top5),
        accuracy(evaluation.macro_precision),
        accuracy(evaluation.macro_recall),
        accuracy(evaluation.macro_f1),
        percent(evaluation.calibration_error, 1),
    ]


def _figure(image: EvaluatedImage) -> dict[str, str]:
    return {
        "file": image.file,
        "label": image.label,
        "predicted": image.predicted,
        "confidence": percent(image.confidence, 1),
    }


def _class_row(one: ClassResult) -> list[str]:
    figures = (one.precision, one.recall, one.f1)
    return [one.name, f"{one.num_images:,}", f"{one.num_predicted or 0:,}", *(accuracy(figure) for figure in figures)]


def _matrix(evaluation: Evaluation, places: Sequence[int]) -> list[dict[str, Any]]:
    """Return the rows: the class, and for each column the images with their shade, by the share of the row."""
    rows = []
    for true, shares in zip(places, row_shares(evaluation, places), strict=True):
        counts = [evaluation.confusion[true][predicted] for predicted in places]
        cells = [
            # The square root: a confusion of 1 % has a shade of its own.
            {"count": count, "shade": round(SHADES * (share or 0.0) ** 0.5), "is_right": predicted == true}
            for count, share, predicted in zip(counts, shares, places, strict=True)
        ]
        rows.append({"name": evaluation.classes[true], "cells": cells})
    return rows


def _bin_row(place: int, one: CalibrationBin) -> dict[str, Any]:
    """Return one bar of the reliability diagram, in units of the drawing: 0 to 100 from the bottom."""
    return {
        "place": place,
        "num_images": one.num_images,
        "accuracy": None if one.accuracy is None else round(100 * one.accuracy, 1),
        "confidence": None if one.confidence is None else round(100 * one.confidence, 1),
    }
