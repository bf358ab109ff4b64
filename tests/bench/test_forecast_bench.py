"""The forecasts on other people's measurements: how far off, how often inside, and better than the other laws."""

from __future__ import annotations

import math
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

PARTS = ("forecast_cases", "forecast_laws", "forecast_constants")
BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def bench() -> Iterator[SimpleNamespace]:
    """Everything the command is made of, under one name. The folder stands last: tests have a `forecast` too."""
    sys.path.append(str(BENCH))
    command = runpy.run_path(str(BENCH / "forecast.py"), run_name="bench_forecast")
    parts = [*(vars(sys.modules[name]) for name in PARTS), command]
    yield SimpleNamespace(**{name: value for part in parts for name, value in part.items()})
    sys.path.remove(str(BENCH))


HEADER = "source,model,framework,gpu,gpus,nodes,precision,batch_per_gpu,images_per_s,data,series\n"


def test_what_is_left_out_is_counted(bench: SimpleNamespace, tmp_path: Path) -> None:
    rows = [
        ("1", "100", "a"),
        ("4", "390", "a"),
        ("4", "410", "a"),
        ("16", "1500", "a"),
        ("8", "", "a"),
        ("1", "5", "b"),
    ]
    rows += [("1", "100", "c"), ("8", "1760", "c")]
    lines = [f"s,m,f,V100-16GB (DGX-1),{gpus},,AMP,,{rate},real,{name}\n" for gpus, rate, name in rows]
    (tmp_path / "throughput.csv").write_text(HEADER + "".join(lines))
    series, left_out = bench.throughput_series(tmp_path / "throughput.csv")
    assert [(p.x, p.y, p.hosts) for p in series["a"]] == [(1, 0.01, 1), (4, 0.01, 1), (16, 16 / 1500, 2)]
    assert dict(left_out) == {
        "rows without a count, a rate or a precision": 1,
        "series with a single GPU count": 1,
        "series that scale more than linearly": 1,
    }


def test_the_halves_are_stable_and_share_nothing(bench: SimpleNamespace) -> None:
    cases = [bench.Case(series=f"s{i % 7}", known=(), asked=bench.Point(x=i + 1, y=1.0)) for i in range(20)]
    first, second = bench.halves(cases)
    again, _ = bench.halves(list(reversed(cases)))
    assert {c.series for c in first} == {c.series for c in again}
    assert {c.series for c in first} & {c.series for c in second} == set()
    assert len(first) + len(second) == 20


def test_the_other_laws_recover_themselves(bench: SimpleNamespace) -> None:
    def points(law) -> list:  # type: ignore[no-untyped-def,type-arg]
        return [bench.Point(x=n, y=law(n)) for n in (1, 2, 4, 8)]

    asked = bench.Point(x=16, y=0.0)
    assert bench.amdahl(points(lambda n: 1 + 0.01 * (n - 1)))(asked) == pytest.approx(1.15)
    usl = bench.universal_scalability(points(lambda n: 1 + 0.01 * (n - 1) + 0.001 * n * (n - 1)))
    assert usl(asked) == pytest.approx(1.39, rel=1e-3)
    assert bench.pollux(points(lambda n: 1.0 if n == 1 else 1.1))(asked) == pytest.approx(1.1, rel=0.02)
    assert bench.power_law(points(lambda n: 3 * n**0.5))(asked) == pytest.approx(12)


def test_the_finite_sample_correction(bench: SimpleNamespace) -> None:
    assert bench.conformal([float(n) for n in range(1, 10)], 0.8) == 8  # ceil(10 x 0.8) of 9
    assert bench.conformal([1.0, 2.0, 3.0], 0.8) == 3
    assert bench.rounded_up(0.1141) == 0.115
    assert bench.rounded_up(0.114) == 0.114


def test_constants_are_put_back(bench: SimpleNamespace) -> None:
    before = bench.scaling.NOISE
    with bench.constants(bench.scaling, {"NOISE": 1.0}):
        during = bench.scaling.NOISE
    assert (during, bench.scaling.NOISE) == (1.0, before)


def test_slopes_of_benchmarks_come_back(bench: SimpleNamespace) -> None:
    def points(critical: float) -> list:  # type: ignore[type-arg]
        return [bench.Point(x=b, y=10 * (1 + b / critical)) for b in (100, 200, 400, 800)]

    derived = bench.typical_slopes({name: points(800.0) for name in "abc"})
    # Known are the first three batches: 400 of 800.
    assert derived["TYPICAL_SLOPE"] == pytest.approx(0.5)
    assert derived["SCATTER"] == pytest.approx(0, abs=1e-9)


def test_what_is_missed_is_said(bench: SimpleNamespace) -> None:
    def score(median: float, coverage: float):  # type: ignore[no-untyped-def]
        return bench.Score(
            cases=9, median=median, quantile_80=0.1, quantile_95=0.2, coverage=coverage, width=0.3, winkler=0.2
        )

    assert bench.wanted(score(0.05, 0.8), most_error=0.06).endswith("Held.\n")
    assert "MISSED: the median error is 6.3 %, 90 % are inside." in bench.wanted(score(0.063, 0.9), most_error=0.06)


def test_an_interval_is_scored_by_its_width_and_what_it_misses(bench: SimpleNamespace) -> None:
    forecast = bench.Interval(value=1.0, low=0.5, high=2.0)
    assert bench.winkler(forecast, 1.5) == pytest.approx(math.log(4))
    assert bench.winkler(forecast, 2.0 * math.e) == pytest.approx(math.log(4) + 10)
    assert bench.winkler(forecast, 0.5 / math.e) == pytest.approx(math.log(4) + 10)


def test_a_table_of_epochs_is_forecast_as_its_steps(bench: SimpleNamespace) -> None:
    points = [bench.Point(x=n, y=0.1 * (1 + 0.02 * math.log2(n))) for n in (1, 2, 4, 8)]
    [last] = [c for c in bench.all_ahead({"a": points}) if len(c.known) == 3]
    assert bench.our_epoch_time(last).value == pytest.approx(bench.our_step_time(last).value, rel=1e-6)
    kinds = {name: len(cases) for name, cases in bench.by_kind(bench.all_ahead({"a": points})).items() if cases}
    assert kinds == {"to twice the largest count": 2, "4 times": 1, "one host": 3, "lost so far: up to 2 %": 2,
                     "lost so far: 2 to 10 %": 1}  # fmt: skip
    assert "worse" in bench.paired([last], bench.our_step_time, lambda known: lambda asked: asked.y * 1.0)


@pytest.mark.photos
def test_throughput_of_the_half_that_the_constants_have_not_seen(bench: SimpleNamespace, samples: Path) -> None:
    series, left_out = bench.throughput_series(samples / "published" / "throughput.csv")
    cases = bench.largest_held_out(series)
    assert len(cases) == 84
    assert dict(left_out) == {"series that scale more than linearly": 8, "series with a single GPU count": 2}
    calibration, test = bench.halves(cases)
    one_calibration, one_test = bench.one_count_halves(series)
    assert {c.series for c in calibration} < {c.series for c in one_calibration}
    assert {c.series for c in test} < {c.series for c in one_test}
    derived = bench.step_constants(bench.Fits.of(calibration, one_calibration))
    assert bench.shipped(bench.scaling, derived) == "The package has these."
    scores = bench.scores(test, calibration, bench.our_step_time, bench.THROUGHPUT_LAWS)
    ours = scores.pop("ours")
    assert ours.median <= 0.04
    assert 0.72 <= round(ours.coverage, 2) <= 0.88
    for name, other in scores.items():
        assert ours.median < other.median, name
        assert ours.width < other.width, name
    table = bench.score(test, [bench.our_epoch_time(c) for c in test], of_rate=True)
    assert table.median <= 1.05 * ours.median
    assert table.winkler <= 1.15 * ours.winkler
    assert 0.72 <= bench.score(one_test, [bench.our_step_time(c) for c in one_test], of_rate=True).coverage <= 0.88


@pytest.mark.photos
def test_epochs_of_the_next_batch(bench: SimpleNamespace, samples: Path) -> None:
    """The constants come from other benchmarks. The median error is 6.3 %, a little above the 6 % we wanted."""
    series = bench.epochs_series(samples / "published" / "epochs_to_converge.csv")
    assert {name: len(points) for name, points in series.items()} == {"resnet": 12, "ssd": 4, "ssd (RetinaNet)": 9}
    cases = bench.next_batch_held_out(series)
    scores = bench.scores(cases, cases, bench.our_epochs, bench.EPOCHS_LAWS)
    ours = scores.pop("ours")
    assert ours.median <= 0.065
    assert 0.72 <= ours.coverage <= 0.88
    assert all(ours.median < other.median and ours.quantile_80 < other.quantile_80 for other in scores.values())
