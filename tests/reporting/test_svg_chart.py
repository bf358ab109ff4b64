"""Charts as SVG: what was measured and what not can be told without colour, and names are text."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from turnaround.reporting.svg_chart import Chart, ChartPoint, ChartSeries, Look, chart_svg


def series(look: Look, *values: tuple[float, float], name: str = "") -> ChartSeries:
    points = tuple(ChartPoint(x=x, y=y, low=0.9 * y, high=1.1 * y) for x, y in values)
    return ChartSeries(name=name or look, look=look, points=points)


def drawn(*parts: ChartSeries, is_log: bool = False) -> str:
    return chart_svg(Chart(title="T", y_title="y", series=parts, y_text=lambda v: f"{v:g}", is_log=is_log))


def circles(svg: str) -> list[tuple[float, float, str]]:
    found = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="3.4" stroke="[^"]+" fill="([^"]+)"', svg)
    return [(float(x), float(y), fill) for x, y, fill in found]


def test_looks_differ_in_shape_and_dash() -> None:
    measured, forecast = drawn(series("measured", (1, 1), (2, 2))), drawn(series("forecast", (1, 1), (2, 2)))
    assert {fill for *_, fill in circles(measured)} != {fill for *_, fill in circles(forecast)} == {"#ffffff"}
    assert "stroke-dasharray" in forecast
    assert "stroke-dasharray" not in measured
    rehearsed = drawn(series("rehearsed", (1, 1), (2, 2)))
    assert circles(rehearsed) == []
    assert rehearsed.count("l4.5 4.5") == 3  # two points, and one in the legend


def test_workers_lie_on_a_logarithmic_axis_and_values_in_their_order() -> None:
    (a, b, c, _) = circles(drawn(series("measured", (1, 1), (4, 4), (16, 16)), is_log=True))
    assert b[0] - a[0] == pytest.approx(c[0] - b[0], abs=0.2)
    assert a[1] > b[1] > c[1]
    assert a[1] - b[1] == pytest.approx(b[1] - c[1], abs=0.2)


@pytest.mark.parametrize("is_log", [True, False])
@pytest.mark.parametrize("value", [1e-9, 0.5, 3.0, 1e12])
def test_a_single_point_is_drawn_inside(value: float, is_log: bool) -> None:
    (point, _) = circles(drawn(series("measured", (8, value)), is_log=is_log))
    assert 0 < point[0] < 360
    assert 0 < point[1] < 236


def test_names_of_others_stay_text_and_the_picture_is_xml() -> None:
    svg = drawn(series("measured", (1, 1), name="<script>x</script>&\"'"))
    assert "<script>" not in svg
    ElementTree.fromstring(svg)


def test_a_long_legend_takes_rows_and_says_each_name_once() -> None:
    parts = [series("measured", (1, n), name=f"a rather long name {n % 4}") for n in range(1, 9)]
    svg = drawn(*parts)
    assert svg.count("a rather long name 1<") == 1
    height = float(re.search(r'viewBox="0 0 360 ([\d.]+)"', svg)[1])  # type: ignore[index]
    assert height == pytest.approx(236 + 2 * 13)
