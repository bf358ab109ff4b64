"""Training and validation accuracy at the end, by configuration."""

from __future__ import annotations

from collections.abc import Sequence

from turnaround.analysis.configurations import Spread, Workload
from turnaround.report.page.fig_common import (
    MAX_BARS,
    Series,
    Trace,
    bar_axis,
    bar_height,
    error_bars,
    layout,
    left_out,
    meta,
    numbers,
    plain,
    sentences,
    series_of,
    share_axis,
    spread_out,
)
from turnaround.report.page.figure import Figure
from turnaround.words import accuracy

WORDS = {"validation": "validation", "train": "training"}


def final_accuracy_figure(job: Workload) -> Figure | None:
    """Training and validation accuracy at the end, by configuration; None where fewer than two are known."""
    known = [s for s in series_of(job) if s.case.final_val_accuracy is not None]
    if len(known) < 2:
        return None
    shown = spread_out(known, MAX_BARS)
    names = [s.name for s in shown]
    columns = [
        ("validation", "circle", [s.case.final_val_accuracy for s in shown]),
        ("train", "square-open", [s.case.final_train_accuracy for s in shown]),
    ]
    traces = [_final_trace(role, symbol, spreads, shown) for role, symbol, spreads in columns if any(spreads)]
    most = max(spread.count for _, _, spreads in columns for spread in spreads if spread is not None)
    best = max(shown, key=lambda s: s.case.final_val_accuracy.value if s.case.final_val_accuracy else 0.0)
    return Figure(
        id="final-accuracy",
        section="curves",
        title="Accuracy at the end",
        caption=sentences(
            "Share of images recognised after the last epoch: circles validation, open squares training."
            if len(traces) > 1
            else "Share of validation images recognised after the last epoch.",
            f"Of repeats the median, with the lowest and the highest (up to {most} runs)." if most > 1 else "",
            "Rehearsed configurations are named so." if any(s.is_rehearsal for s in shown) else "",
            left_out(len(shown), len(known)),
        ),
        alt=f"The highest validation accuracy at the end is that of {best.name}: "
        f"{accuracy(best.case.final_val_accuracy.value if best.case.final_val_accuracy else None)}.",
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
        "meta": meta(0 if role == "validation" else 1, "measured"),
    }
