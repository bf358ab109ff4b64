"""What the pictures share: plain numbers, names that stay text, axes that can be read."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from analysis.build import Plan, build
from reporting.page.figure_study import EVIL, job_in
from turnaround.reporting.page.fig_common import (
    TimeUnit,
    bar_axis,
    error_bars,
    is_drawn,
    label_lines,
    layout,
    left_out,
    log_ticks,
    number,
    plain,
    series_of,
    slug,
    worker_axis,
)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (math.nan, None),
        (math.inf, None),
        (2.0, 2),
        (0.123456789, 0.12346),
        (123456.0, 123460),
        (1e300, 1e300),
    ],
)
def test_numbers_are_plain(value: float | None, shown: float | None) -> None:
    assert number(value) == shown
    assert type(number(value)) is type(shown)


def test_names_are_text() -> None:
    assert plain(EVIL) == "&lt;img src=x onerror=alert(1)&gt;"
    assert plain("a & b\u202e\n") == "a &amp; b??"
    assert label_lines("16 workers rehearsed on 1 <b>GPU</b>") == "16 workers rehearsed<br>on 1 &lt;b&gt;GPU&lt;/b&gt;"
    assert label_lines("") == ""
    assert label_lines("x" * 45) == "<br>".join(["x" * 20, "x" * 20, "x" * 5])


@pytest.mark.parametrize(
    ("longest_s", "name", "value"), [(0.2, "ms", 200), (200.0, "s", 200), (1200.0, "min", 20), (7200.0 * 9, "h", 18)]
)
def test_times_have_the_unit_that_reads_well(longest_s: float, name: str, value: float) -> None:
    unit = TimeUnit.of([None, longest_s])
    assert (unit.name, unit(longest_s), unit(None)) == (name, value, None)


def test_error_bars_are_distances_and_absent_where_there_are_none() -> None:
    bars = error_bars("x", [2.0, 3.0, 4.0], [1.5, None, 4.0], [2.25, 5.0, None])["error_x"]
    assert (bars["array"], bars["arrayminus"]) == ([0.25, 2, None], [0.5, None, None])
    assert error_bars("y", [2.0], [2.0], [None]) == {}


@pytest.mark.parametrize("values", [[1.0, 1000.0], [20.0, 209.0], [6.0, 7.0], [1.0, 1.01], [0.003], [], [1.0, 1e9]])
def test_a_logarithmic_axis_has_a_few_ticks_within_its_range(values: list[float]) -> None:
    ticks = log_ticks(values)
    low, high = (10 ** ticks["range"][0], 10 ** ticks["range"][1])
    assert 2 <= len(ticks["tickvals"]) <= 12
    assert all(low * 0.999 <= tick <= high * 1.001 for tick in ticks["tickvals"])
    assert all(low <= value <= high for value in values)
    assert len(ticks["ticktext"]) == len(set(ticks["ticktext"])) == len(ticks["tickvals"])


def test_the_axis_of_workers_names_what_was_run(tmp_path: Path) -> None:
    for workers in (1, 6):
        build(tmp_path / str(workers), Plan(workers=workers, gpu=None))
    configurations = job_in(tmp_path).configurations
    axis = worker_axis([1, 2, 3, 4, 6, 8, 12], configurations)
    assert (axis["tickvals"], axis["title"]["text"]) == ([1, 2, 4, 6, 8], "workers (processes)")
    crowded = worker_axis([1, 3, *(2**k for k in range(10))], configurations)
    assert crowded["tickvals"] == [2**k for k in range(10)]


def test_equal_names_have_places_of_their_own() -> None:
    axis = bar_axis(["same", "same"])
    assert (axis["tickvals"], axis["ticktext"], axis["range"]) == ([0, 1], ["same", "same"], [1.5, -0.5])


def test_an_id_does_not_depend_on_other_configurations(tmp_path: Path) -> None:
    build(tmp_path / "b", Plan(workers=4))
    before = [slug(series) for series in series_of(job_in(tmp_path))]
    build(tmp_path / "a", Plan(workers=1))
    assert before == ["4-t4-1-4-128"]
    assert [slug(series) for series in series_of(job_in(tmp_path))] == ["1-t4-1-1-32", *before]


def test_of_very_many_a_few_are_drawn() -> None:
    drawn = [place for place in range(40) if not is_drawn(place, 40)]
    assert (len(drawn), drawn[0], drawn[-1]) == (12, 0, 39)
    assert is_drawn(1, 40) == {"visible": "legendonly"}
    assert left_out(3, 3) == ""


def test_a_legend_has_room_and_one_name_needs_none() -> None:
    assert layout(entries=1)["showlegend"] is False
    assert layout(entries=8)["showlegend"] is True
    assert layout(entries=2)["height"] < layout(entries=8)["height"] < layout(entries=100)["height"] < 600
