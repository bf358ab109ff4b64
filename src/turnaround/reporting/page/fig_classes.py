"""The confusion matrix, and the pairs of classes that are confused most."""

from __future__ import annotations

import math
from collections.abc import Sequence

from turnaround.analysis.configurations import Workload
from turnaround.analysis.confusion import Confusion, best_evaluated, confused_pairs, most_confused_classes, row_shares
from turnaround.findings.labels import label_of
from turnaround.reporting.page.fig_common import (
    Figure,
    axis,
    bar_axis,
    bar_height,
    layout,
    meta,
    numbers,
    plain,
    sentences,
)
from turnaround.words import accuracy, percent

MAX_CLASSES = 40  # of the confusion matrix: those that are confused most
MAX_PAIRS = 12
MAX_NAMED = 12
"""Largest number of classes with names at the columns too; more would overlap."""
SCALE = (0, 0.01, 0.05, 0.1, 0.25, 0.5, 1)
"""Shares with a tick on the colour bar."""
MAX_WRITTEN = 10
"""Largest number of classes with the numbers written in the cells."""
NAME_LENGTH = 18
MAX_SLANTED = 6


def class_figures(job: Workload) -> list[Figure]:
    """Return the figures of the most accurate run that was evaluated; none where no run was."""
    best = best_evaluated(job)
    if best is None:
        return []
    return [_matrix(best), *_pairs(best)]


def _matrix(best: Confusion) -> Figure:
    evaluation = best.evaluation
    places = most_confused_classes(evaluation, most=MAX_CLASSES) or [0]
    names = [_short(evaluation.classes[place]) for place in places]
    counts = [[evaluation.confusion[true][predicted] for predicted in places] for true in places]
    shares = row_shares(evaluation, places)
    full = [plain(evaluation.classes[place]) for place in places]
    ticks = {"tickmode": "array", "tickvals": list(range(len(names))), "ticktext": names}
    plain_axis = {"showgrid": False, "zeroline": False}
    is_named = len(places) <= MAX_NAMED
    trace = {
        "type": "heatmap",
        "z": [numbers(map(_stretched, row)) for row in shares],
        "zmin": 0,
        "zmax": 1,
        "hovertext": _hover(full, counts, shares),
        "hovertemplate": "%{hovertext}<extra></extra>",
        "xgap": 1,
        "ygap": 1,
        "colorbar": {
            "title": {"text": "share"},
            "tickmode": "array",
            "tickvals": numbers(map(_stretched, SCALE)),
            "ticktext": [f"{100 * part:g} %" for part in SCALE],
            "thickness": 12,
        },
        "meta": meta(0, "matrix"),
    }
    if len(places) <= MAX_WRITTEN:
        trace["text"] = [[str(n) if n else "" for n in row] for row in counts]
        trace["texttemplate"] = "%{text}"
    return Figure(
        id="confusion",
        section="classes",
        title="Confusion matrix",
        caption=sentences(
            f"{_which(best)} Each row is one true class; the colour is the share of its images"
            f"{', the number how many they are' if 'text' in trace else ''}.",
            "The scale is stretched, so that few images are seen.",
            "" if is_named else "Columns are in the order of the rows.",
            f"The {len(places)} of {len(evaluation.classes)} classes that are confused most."
            if len(places) < len(evaluation.classes)
            else "",
        ),
        alt=_alt(best),
        data=[trace],
        layout=layout(
            # 22 px a class, the height of its name; at most about a screen.
            height=min(max(200 + 22 * len(places), 340), 820),
            xaxis=axis(
                "predicted class",
                **ticks,
                tickangle=-90 if len(places) > MAX_SLANTED else -45,
                showticklabels=is_named,
                **plain_axis,
            ),
            yaxis=axis("true class", **ticks, range=[len(places) - 0.5, -0.5], **plain_axis),
        ),
    )


def _stretched(part: float | None) -> float | None:
    # The square root: a confusion of 1 % has a tenth of the colour scale, not a hundredth.
    return None if part is None else math.sqrt(part)


def _hover(
    names: Sequence[str], counts: Sequence[Sequence[int]], shares: Sequence[Sequence[float | None]]
) -> list[list[str]]:
    return [
        [f"{names[true]} as {names[p]}: {count} images, {accuracy(shares[true][p])}" for p, count in enumerate(row)]
        for true, row in enumerate(counts)
    ]


def _which(best: Confusion) -> str:
    top1 = accuracy(best.evaluation.top1)
    return (
        f"Validation images after the last epoch of {best.summary.name} ({label_of(best.configuration)}), the most "
        f"accurate run ({top1} of {best.evaluation.num_images:,} images)."
    )


def _short(name: str) -> str:
    return plain(name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 2]}..")


def _pairs(best: Confusion) -> list[Figure]:
    evaluation = best.evaluation
    pairs = confused_pairs(evaluation, most=MAX_PAIRS)
    if not pairs:
        return []
    names = [f"{evaluation.classes[pair.true]} as {evaluation.classes[pair.predicted]}" for pair in pairs]
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": [pair.num_images for pair in pairs],
        "y": list(range(len(pairs))),
        "width": 0.6,
        "customdata": [[percent(pair.share, 1), plain(evaluation.classes[pair.true])] for pair in pairs],
        "hovertemplate": "%{x} images, %{customdata[0]} of %{customdata[1]}<extra></extra>",
        "meta": meta(0, "measured"),
    }
    total = len(confused_pairs(evaluation))
    return [
        Figure(
            id="confused-pairs",
            section="classes",
            title="The most confused classes",
            caption=sentences(
                f"Images of one class that were taken for another. {_which(best)}",
                f"The first {len(pairs)} of {total} pairs." if len(pairs) < total else "",
            ),
            alt=_alt(best),
            data=[trace],
            layout=layout(
                height=bar_height(names),
                xaxis=axis("validation images", rangemode="tozero", tickformat=",d"),
                yaxis=bar_axis(names),
            ),
        )
    ]


def _alt(best: Confusion) -> str:
    pairs = confused_pairs(best.evaluation, most=3)
    if not pairs:
        return "Every validation image was recognised."
    classes = best.evaluation.classes
    confusions = [f"{classes[p.true]} taken for {classes[p.predicted]} ({p.num_images} images)" for p in pairs]
    return f"Confused most: {'; '.join(confusions)}."
