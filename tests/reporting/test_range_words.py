"""What is said of a range agrees with its table: what is fastest and cheapest, by which times and at which cost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.build import LAB, Plan, build, import_table
from turnaround.analysis.prices import Price
from turnaround.analysis.workloads import survey
from turnaround.forecast.predict import fit_forecaster
from turnaround.forecast.question import Prediction, Question
from turnaround.reporting.range_text import range_lines
from turnaround.reporting.range_words import best_in_words, counts_in_words, hopeless_in_words


def asked(folder: Path, counts: Sequence[int], **more: Any) -> tuple[list[Prediction], Question]:
    question = Question(**({"workers": max(counts), "gpu": "V100", "job": "cal"} | more))
    forecaster = fit_forecaster(survey([import_table(LAB, folder)]), question)
    return [forecaster.predict(workers) for workers in counts], question


def said(folder: Path, counts: Sequence[int], **more: Any) -> str:
    return best_in_words(*asked(folder, counts, **more))


def test_the_fastest_within_noise_says_so(tmp_path: Path) -> None:
    assert said(tmp_path / "cal", (1, 2, 4, 8, 16)) == (
        "fastest to a stable accuracy 16 V100 (17 min; 8 within its interval), cheapest 1 V100 (59 min; 2 within its "
        "interval)."
    )
    assert counts_in_words([2, 4, 8, 16]) == "4 others from 2 to 16"
    assert hopeless_in_words([1]) == "1 worker"
    assert hopeless_in_words([2, 4, 8, 16]) == "2 to 16 workers"
    assert "fastest for 10 epochs" in said(tmp_path / "fruit", (2, 4), job="fruit", gpu="T4")


def test_what_was_measured_is_said_as_measured_with_its_cost(tmp_path: Path) -> None:
    # 19 min 27 s of 8 GPUs are 20 begun minutes: 8 x 20 / 60 x 3 = 8.
    prices = {"V100": Price(per_hour=3.0, billing_s=60.0, currency="EUR")}
    assert said(tmp_path, (4, 8), prices=prices) == (
        "fastest to a stable accuracy 8 V100 (19 min 27 s, 8.00 EUR), cheapest 4 V100 (28 min 22 s, 5.80 EUR)."
    )


def test_energy_stands_in_the_range_where_runs_have_measured_it(tmp_path: Path) -> None:
    for workers, epoch_s in ((1, 40.0), (2, 21.0)):
        build(tmp_path / f"w{workers}", Plan(workers=workers, epoch_time_s=epoch_s, watts=200.0))
    question = Question(workers=4, electricity=30.0, grid=0.35)
    forecaster = fit_forecaster(survey([tmp_path]), question)
    rows = [
        " ".join(line.split()) for line, _ in range_lines([forecaster.predict(n) for n in (1, 2, 4)], question, 300)
    ]
    assert any("energy elec- emissions" in row for row in rows)
    assert any(re.match(r"2 run .* [0-9.]+ Wh 1\.[0-9]+ [0-9.]+ g ", row) for row in rows), rows
    plain = Question(workers=4)
    rows = [line for line, _ in range_lines([forecaster.predict(n) for n in (1, 2)], plain, 300)]
    assert "energy" in rows[2]
    assert not any("emissions" in row for row in rows[:6])


def test_with_interruptions_the_ranking_is_that_of_interrupted_jobs(tmp_path: Path) -> None:
    prices = {"V100": Price(per_hour=2.48, spot_per_hour=0.74, currency="EUR")}
    counts = (1, 4, 32)
    told = said(tmp_path / "often", counts, gpus_per_host=4, interruptions_per_h=10.0, prices=prices)
    assert told.startswith("fastest to a stable accuracy 4 V100 (38 min, ")
    assert (
        "Each host is taken away 10 times an hour: these are times and costs (at the spot price) of the interr" in told
    )
    assert "undisturbed, the fastest would be 32 V100 (15 min, " in told
    seldom = said(tmp_path / "seldom", counts, gpus_per_host=4, interruptions_per_h=1.0, price=2.0)
    assert seldom.startswith("fastest to a stable accuracy 32 V100 (")
    assert seldom.endswith(
        "Each host is taken away once an hour: these are times and costs (at the full price, no spot price is known) "
        "of the interrupted job."
    )


def test_what_is_never_done_is_no_choice(tmp_path: Path) -> None:
    told = said(tmp_path / "some", (1, 2, 32), gpus_per_host=4, interruptions_per_h=100.0)
    assert told.endswith("With 32 workers it would hardly ever be done.")
    predictions, question = asked(tmp_path / "none", (1, 32), gpus_per_host=4, interruptions_per_h=1000.0)
    assert best_in_words(predictions, question).startswith(
        "Each host is taken away 1,000 times an hour: hardly any job would get as far as its first checkpoint"
    )
    shown = [line for line, _ in range_lines(predictions, question, 80)]
    assert sum(line.endswith(" never") for line in shown) == 2
