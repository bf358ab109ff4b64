"""What stands in the tables, and by what they are sorted."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.build import LAB, Plan, build, import_table, rising
from turnaround.analysis.configurations import Workload
from turnaround.analysis.workloads import survey
from turnaround.forecast.sweep import forecasters_of
from turnaround.record.class_metrics import class_result
from turnaround.record.schema import Evaluation
from turnaround.reporting.page.tables import (
    MAX_CLASS_ROWS,
    HtmlTable,
    asked_counts,
    class_table,
    comparison,
    forecasts,
    leaderboard,
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    return survey([import_table(LAB, tmp_path_factory.mktemp("lab"))]).workloads[0]


def column(table: HtmlTable, heading: str) -> list[tuple[str, object]]:
    place = table.headings.index(heading)
    return [(row[place].text, row[place].key) for row in table.rows]


def test_the_labs_table(lab: Workload) -> None:
    table = comparison(lab)
    assert [cell.text for cell in table.rows[3]] == [
        *("8 V100", "256", "44", "556", "1.82x", "91 %", "23 min 07 s", "25 (by eye)", "67.2 %", "86.4 %")
    ]
    assert column(table, "job time")[0] == ("1 h 38 min", 5910.0)
    assert column(table, "speed-up")[:2] == [("baseline", 1.0), ("2.58x", pytest.approx(209 / 81))]
    assert [key for _, key in column(table, "configuration")] == [0.0, 1.0, 2.0, 3.0]
    assert table.tags == ("", "", "", "")
    assert dict(table.words)["job time"] == "from submit to finish"


def test_the_leaderboard_has_every_configuration_of_every_job(tmp_path: Path) -> None:
    jobs = survey([import_table(LAB, tmp_path)]).workloads
    board = leaderboard([(job, f"job-{place}") for place, job in enumerate(jobs)])
    assert board.headings[:3] == ("configuration", "accuracy", "job")
    assert [row[0].text for row in board.rows] == ["2 T4", "4 V100", "4 T4", "8 V100", "2 T4", "4 T4", "1 T4"]
    assert column(board, "accuracy")[0] == ("68.9 %", 0.6888)
    assert column(board, "accuracy")[-1] == ("-", None)
    assert {row[2].target for row in board.rows} == {"job-0-heading", "job-1-heading"}
    assert "batch" not in board.headings


def test_columns_without_a_value_are_left_out(lab: Workload) -> None:
    assert not any(heading.startswith(("epochs to", "time to", "runs")) for heading in comparison(lab).headings)


def test_a_rehearsal_is_tagged_and_has_no_time(tmp_path: Path) -> None:
    curve = rising(0.8, epochs=30, pace=3.0)
    build(tmp_path / "a", Plan(workers=1, accuracy=curve, epoch_time_s=60.0))
    build(tmp_path / "b", Plan(workers=4, processes=1, accuracy=curve, epoch_time_s=7.0))
    build(tmp_path / "c", Plan(workers=2, accuracy=curve[:3], state="failed"))
    table = comparison(survey([tmp_path]).workloads[0])
    assert table.tags == ("", "failed", "rehearsed")
    (time,) = (heading for heading in table.headings if heading.startswith("time to "))
    for heading in ("s/epoch", "images/s", "job time", time):
        assert column(table, heading)[2] == ("-", None)
    assert column(table, "s/epoch")[0] == ("60", 60.0)


def test_forecasts_are_told_from_what_was_measured(lab: Workload, tmp_path: Path) -> None:
    found = survey([import_table(LAB, tmp_path)])
    _, on_v100 = forecasters_of(found.workloads[0])
    counts = asked_counts(on_v100)
    assert counts == [1, 2, 4, 8, 16]
    table = forecasts([on_v100.predict(count) for count in counts])
    assert table.tags == ("forecast", "forecast", "measured", "measured", "forecast")
    measured, forecast = column(table, "job of 30 epochs")[3:]
    assert measured == ("23 min 07 s measured", 1387.0)
    assert forecast == ("13 min (11 min to 16 min)", pytest.approx(830, rel=0.1))
    assert "cost of the job" not in table.headings
    (_, priced) = forecasters_of(found.workloads[0], price=3.6)
    costs = column(forecasts([priced.predict(8)]), "cost of the job")
    assert costs == [("11.10 measured", pytest.approx(8 * 1387 * 3.6 / 3600))]
    assert column(forecasts([priced.predict(8)]), "cost to stable")[0][0] == "9.34 measured"
    assert [text for text, _ in column(table, "workers")] == ["1 V100", "2 V100", "4 V100", "8 V100", "16 V100"]


def test_of_very_many_classes_the_weakest_are_shown() -> None:
    count = MAX_CLASS_ROWS + 3
    results = [class_result(f"c{i}", num_images=10, num_predicted=10, num_right=9) for i in range(count)]
    results[-1] = class_result("weak", num_images=10, num_predicted=4, num_right=1)
    results[0] = class_result("empty", num_images=0, num_predicted=0, num_right=0)
    evaluation = Evaluation(
        epoch=1,
        num_images=1,
        top1=0.9,
        top5=None,
        loss=0.1,
        classes=[one.name for one in results],
        per_class=results,
        confusion=[],
    )
    table = class_table(evaluation)
    assert len(table.rows) == MAX_CLASS_ROWS
    assert [cell.text for cell in table.rows[-1]] == ["weak", "14.3 %", "25.0 %", "10.0 %", "10", "4"]
    assert "empty" not in [row[0].text for row in table.rows]
    assert column(table, "F1")[0] == ("90.0 %", pytest.approx(0.9))
