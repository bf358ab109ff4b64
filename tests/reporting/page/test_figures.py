"""All pictures of a job: plain JSON, units on every axis, nothing empty, no times of rehearsals."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from analysis.build import LAB, Plan, build, import_table, rising
from reporting.page.figure_study import EVIL, figure, job_in, study_job
from turnaround.analysis.workloads import survey
from turnaround.forecast.sweep import forecasters_of
from turnaround.reporting.page.fig_common import Figure
from turnaround.reporting.page.figures import SECTIONS, figures_of

IDS = [
    "accuracy",
    "loss",
    "final-accuracy",
    "time-to-target",
    "time-to-stable",
    "cost",
    "epoch-time",
    "speed-up",
    "efficiency",
    "time-to-stable-by-workers",
    "epochs-to-stable",
    "where-the-time-goes",
    "inside-a-step",
    "usage-1-t4-1-1-32",
    "usage-2-t4-1-2-64",
    "usage-4-t4-1-4-128",
    "learning-rate",
    "noise-scale",
    "confusion",
    "confused-pairs",
]
TIMES = {"time", "scaling", "inside", "gpus"}


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Figure, ...]:
    job = study_job(tmp_path_factory.mktemp("study"))
    return figures_of(job, forecasters_of(job))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Figure, ...]]:
    found = survey([import_table(LAB, tmp_path_factory.mktemp("lab"))])
    return {job.name: figures_of(job, forecasters_of(job)) for job in found.workloads}


@pytest.fixture(scope="module")
def everything(figures: tuple[Figure, ...], lab: dict[str, tuple[Figure, ...]]) -> list[Figure]:
    return [*figures, *(figure for own in lab.values() for figure in own)]


def test_a_study_has_them_all_in_the_order_of_the_sections(figures: tuple[Figure, ...]) -> None:
    assert [figure.id for figure in figures] == IDS
    sections = list(dict.fromkeys(figure.section for figure in figures))
    assert sections == list(SECTIONS)


def test_the_labs_table_has_what_it_tells(lab: dict[str, tuple[Figure, ...]]) -> None:
    scaling = ["epoch-time", "speed-up", "efficiency"]
    to_stable = ["time-to-stable-by-workers", "epochs-to-stable"]
    assert {name: [figure.id for figure in own] for name, own in lab.items()} == {
        "caltech256, frozen": ["final-accuracy", "time-to-stable", "cost", *scaling, *to_stable, "where-the-time-goes"],
        "fruit, fine-tuned": ["final-accuracy", "job-time", "cost", *scaling, "where-the-time-goes"],
    }


def test_they_are_plain_json(everything: list[Figure]) -> None:
    for shown in everything:
        assert json.loads(json.dumps(asdict(shown), allow_nan=False)) == asdict(shown)


def test_ids_are_unique_and_fit_for_an_address(figures: tuple[Figure, ...]) -> None:
    assert len({figure.id for figure in figures}) == len(figures)
    assert [figure.id for figure in figures if not re.fullmatch("[a-z0-9-]+", figure.id)] == []


def test_every_trace_says_what_it_is_and_no_colour(everything: list[Figure]) -> None:
    for shown in everything:
        assert shown.data
        for trace in shown.data:
            assert {"series", "role"} <= set(trace["meta"]) <= {"series", "role", "hue", "shade"}
        assert "color" not in json.dumps([shown.data, shown.layout]).replace("colorbar", "")


def test_every_axis_has_a_title_and_every_picture_words(everything: list[Figure]) -> None:
    for shown in everything:
        axes = {name: axis for name, axis in shown.layout.items() if re.fullmatch("[xy]axis[0-9]*", name)}
        assert len(axes) >= 2
        unnamed = [name for name, axis in axes.items() if "title" not in axis and "ticktext" not in axis]
        assert (shown.id, unnamed) == (shown.id, [])
        assert shown.caption.endswith(".")
        assert shown.alt.endswith(".")


def texts(value: Any) -> list[str]:
    """All strings in a figure's values."""
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    return [value] if isinstance(value, str) else []


def test_names_of_others_stay_text(everything: list[Figure]) -> None:
    """Plotly knows a few tags: none but our own line breaks may reach it. Captions are escaped by the page."""
    for shown in everything:
        tags = {tag for text in texts([shown.data, shown.layout]) for tag in re.findall("<[^>]*>", text)}
        assert tags <= {"<br>", "<extra>", "</extra>"}
    assert any(EVIL in shown.alt for shown in everything)


def test_times_of_rehearsals_are_in_no_picture_of_times(figures: tuple[Figure, ...]) -> None:
    """Its 999 s an epoch would be anywhere: as a value, in a text, in seconds or in minutes."""
    for shown in figures:
        if shown.section in TIMES and shown.id != "epochs-to-stable":
            assert "rehearsed" not in json.dumps(asdict(shown))
            assert not re.search(r"\b(999|16\.65|29970|499\.5)\b", json.dumps(shown.data))


def test_rehearsed_curves_are_dashed_and_named(figures: tuple[Figure, ...]) -> None:
    for id in ("accuracy", "loss", "learning-rate"):
        shown = figure(figures, id)
        rehearsed = [trace for trace in shown.data if trace["meta"]["role"] == "rehearsal"]
        assert [trace["line"]["dash"] for trace in rehearsed] == ["dash"]
        assert [trace["name"] for trace in rehearsed] == ["8 workers rehearsed on 1 T4"]
        assert "Dashed: rehearsed." in shown.caption


def test_a_single_run_has_its_own_pictures(tmp_path: Path) -> None:
    build(tmp_path / "only", Plan(workers=1, accuracy=rising(epochs=12)))
    shown = figures_of(job_in(tmp_path))
    assert [one.id for one in shown] == ["accuracy", "loss", "where-the-time-goes", "learning-rate"]
    named = [trace["name"] for trace in shown[0].data if trace.get("showlegend", True)]
    assert named == ["validation", "training"]


def test_rehearsals_alone_have_no_times(tmp_path: Path) -> None:
    build(tmp_path / "r4", Plan(workers=4, processes=1, accuracy=rising(epochs=20)))
    build(tmp_path / "r8", Plan(workers=8, processes=1, accuracy=rising(epochs=20, pace=4)))
    job = job_in(tmp_path)
    shown = figures_of(job, forecasters_of(job))
    assert [one.id for one in shown if one.section in TIMES] == ["epochs-to-stable"]


def test_a_run_that_has_just_begun_has_none(tmp_path: Path) -> None:
    build(tmp_path / "new", Plan(workers=1, accuracy=(), state="running", time_s={"training_steady": 0.0}))
    assert [one.id for one in figures_of(job_in(tmp_path))] == ["where-the-time-goes"]


@pytest.mark.parametrize("time_s", [float("inf"), 1e-300, 1e300])
def test_times_that_cannot_be_leave_plain_json(tmp_path: Path, time_s: float) -> None:
    build(tmp_path / "odd", Plan(workers=2, epoch_time_s=time_s))
    build(tmp_path / "good", Plan(workers=1, epoch_time_s=9.0))
    job = job_in(tmp_path)
    json.dumps([asdict(one) for one in figures_of(job, forecasters_of(job))], allow_nan=False)


def test_many_configurations_stay_small_and_are_named(tmp_path: Path) -> None:
    for number in range(42):  # of 202 epochs: two more than are drawn, each
        training = {"learning_rate": 0.001 * (number + 1)}
        build(tmp_path / f"r{number}", Plan(accuracy=rising(epochs=202, seed=number), training=training))
    shown = figures_of(job_in(tmp_path))
    accuracy = figure(shown, "accuracy")
    lines = [trace for trace in accuracy.data if trace["meta"]["role"] == "validation"]
    assert (len(lines), sum("visible" not in trace for trace in lines)) == (40, 12)
    assert max(len(trace["x"]) for trace in lines) == 200
    assert "Shown: 40 of 42 configurations; the table has all." in accuracy.caption
    assert "12 are drawn at first" in accuracy.caption
    assert len(figure(shown, "time-to-stable").data) == 30
    assert len(json.dumps([asdict(one) for one in shown])) < 1_000_000


FOR_EACH_POINT = ("text", "hovertext", "customdata")
"""Variables of a tooltip that plotly looks up in the point: a single value for the whole trace is not found there."""


def test_a_tooltip_finds_what_it_names(everything: list[Figure]) -> None:
    for one in everything:
        for trace in one.data:
            for variable in re.findall(r"%\{([\w.]+)", trace.get("hovertemplate", "")):
                where, _, name = variable.rpartition(".")
                value = trace.get(name)
                if where == "fullData":
                    assert isinstance(value, str), (one.id, variable)
                elif variable in FOR_EACH_POINT:
                    assert isinstance(value, list), (one.id, variable)
