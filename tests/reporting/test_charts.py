"""Small charts in text."""

from __future__ import annotations

import math

import pytest

from turnaround.reporting.charts import ASCII, BLOCKS, bar, glyphs_for, sparkline


def test_a_curve_from_its_lowest_to_its_highest() -> None:
    assert sparkline([0.0, 0.125, 0.5, 0.99, 1.0], low=0.0, high=1.0) == "▁▂▅██"
    assert sparkline([0.0, 0.125, 0.5, 0.99, 1.0], low=0.0, high=1.0, glyphs=ASCII) == "_.=##"


def test_a_missing_number_is_a_blank() -> None:
    assert sparkline([0.0, math.nan, 1.0, math.inf], low=0.0, high=1.0) == "▁ █ "


def test_several_values_in_one_cell_are_drawn_by_their_mean() -> None:
    assert sparkline([0.0, 1.0, 1.0, 1.0, math.nan, 0.0, 1.0], low=0.0, high=1.0, values_per_cell=2) == "▅█▁█"


def test_a_flat_curve_is_in_the_middle_and_values_outside_stay_inside() -> None:
    assert sparkline([0.7, 0.7], low=0.7, high=0.7) == "▅▅"
    assert sparkline([-1.0, 9.0], low=0.0, high=1.0) == "▁█"
    assert sparkline([], low=0.0, high=1.0) == ""


def test_bars_are_as_long_as_their_values() -> None:
    assert bar(8.0, longest=8.0, cells=4) == "████"
    assert bar(4.0, longest=8.0, cells=4) == "██"
    assert bar(5.0, longest=8.0, cells=4) == "██▌"
    assert bar(5.0, longest=8.0, cells=4, glyphs=ASCII) == "##"
    assert bar(99.0, longest=8.0, cells=4) == "████"


def test_something_is_not_nothing() -> None:
    assert bar(0.001, longest=1000.0, cells=10) == "▏"
    assert bar(0.001, longest=1000.0, cells=10, glyphs=ASCII) == "#"
    assert bar(0.0, longest=1000.0, cells=10) == ""
    assert bar(1.0, longest=0.0, cells=10) == "▏"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_has_no_bar(value: float) -> None:
    assert bar(value, longest=1.0, cells=10) in ("", "▏")


@pytest.mark.parametrize(
    ("mark", "drawn"),
    [(2.0, "█│██"), (6.0, "██ │"), (8.0, "██ │"), (0.0, "│█")],
)
def test_the_mark_stands_where_the_other_value_would_end(mark: float, drawn: str) -> None:
    value = 8.0 if mark == 2.0 else 4.0
    assert bar(value, longest=8.0, cells=4, mark=mark) == drawn
    assert bar(value, longest=8.0, cells=4, mark=mark, glyphs=ASCII) == drawn.replace("█", "#").replace("│", "|")


@pytest.mark.parametrize(
    ("encoding", "glyphs"),
    [("utf-8", BLOCKS), ("ascii", ASCII), ("latin-1", ASCII), ("cp1252", ASCII), ("no such one", ASCII), (None, ASCII)],
)
def test_blocks_only_where_they_can_be_shown(encoding: str | None, glyphs: object) -> None:
    assert glyphs_for(encoding) is glyphs
