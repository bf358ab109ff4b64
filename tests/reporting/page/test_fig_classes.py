"""The confusion matrix and the most confused classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.build import Plan, build
from reporting.page.figure_study import EVIL, job_in, with_evaluation
from turnaround.reporting.page.fig_classes import class_figures


def test_the_matrix_has_shares_and_numbers(tmp_path: Path) -> None:
    with_evaluation(build(tmp_path / "r", Plan()), [EVIL, "apple", "empty"], [[6, 2, 0], [1, 9, 0], [0, 0, 0]])
    matrix, pairs = class_figures(job_in(tmp_path))
    (heat,) = matrix.data
    assert heat["z"][0] == pytest.approx([0.75**0.5, 0.25**0.5, 0], rel=1e-4)
    assert heat["z"][2] == [None] * 3
    assert heat["text"] == [["6", "2", ""], ["1", "9", ""], ["", "", ""]]
    assert heat["hovertext"][0][1] == "&lt;img src=x onerror=alert(1)&gt; as apple: 2 images, 25.0 %"
    assert matrix.layout["yaxis"]["ticktext"][0] == "&lt;img src=x onerr.."
    assert "of r (2 T4), the most accurate run (83.3 % of 18 images)" in matrix.caption
    assert [trace["x"] for trace in pairs.data] == [[2, 1]]
    assert pairs.layout["yaxis"]["ticktext"] == [
        "&lt;img src=x<br>onerror=alert(1)&gt; as<br>apple",
        "apple as &lt;img src=x<br>onerror=alert(1)&gt;",
    ]
    assert matrix.alt.startswith(f"Confused most: {EVIL} taken for apple (2 images)")


def test_of_many_classes_the_most_confused(tmp_path: Path) -> None:
    count = 60
    confusion = [[20 if true == predicted else 0 for predicted in range(count)] for true in range(count)]
    for true in range(0, count, 3):
        confusion[true][(true + 7) % count] = 1 + true
    with_evaluation(build(tmp_path / "r", Plan()), [f"class {n}" for n in range(count)], confusion)
    matrix, pairs = class_figures(job_in(tmp_path))
    shown = len(matrix.data[0]["z"])
    assert 30 < shown <= 40
    assert f"The {shown} of 60 classes that are confused most." in matrix.caption
    assert "Columns are in the order of the rows." in matrix.caption
    assert matrix.layout["xaxis"]["showticklabels"] is False
    assert "text" not in matrix.data[0]
    assert pairs.data[0]["x"] == sorted(pairs.data[0]["x"], reverse=True)
    assert len(pairs.data[0]["x"]) == 12
    assert "The first 12 of 20 pairs." in pairs.caption


def test_where_all_is_right_there_are_no_pairs(tmp_path: Path) -> None:
    with_evaluation(build(tmp_path / "r", Plan()), ["a", "b"], [[3, 0], [0, 4]])
    (matrix,) = class_figures(job_in(tmp_path))
    assert matrix.alt == "Every validation image was recognised."


def test_without_an_evaluation_there_is_nothing(tmp_path: Path) -> None:
    build(tmp_path / "r", Plan())
    assert class_figures(job_in(tmp_path)) == []
