"""The forecasts on other people's measurements: how far off, how often inside, and better than the other laws."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    file = Path(__file__).parents[2] / "bench" / "forecast.py"
    spec = importlib.util.spec_from_file_location("bench_forecast", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


HEADER = "source,model,framework,gpu,gpus,nodes,precision,batch_per_gpu,images_per_s,data,series\n"


def test_what_is_left_out_is_counted(bench: ModuleType, tmp_path: Path) -> None:
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


def test_the_halves_are_stable_and_share_nothing(bench: ModuleType) -> None:
    cases = [bench.Case(series=f"s{i % 7}", known=(), asked=bench.Point(x=i + 1, y=1.0)) for i in range(20)]
    first, second = bench.halves(cases)
    again, _ = bench.halves(list(reversed(cases)))
    assert {c.series for c in first} == {c.series for c in again}
    assert {c.series for c in first} & {c.series for c in second} == set()
    assert len(first) + len(second) == 20


def test_the_other_laws_recover_themselves(bench: ModuleType) -> None:
    def points(law) -> list:  # type: ignore[no-untyped-def,type-arg]
        return [bench.Point(x=n, y=law(n)) for n in (1, 2, 4, 8)]

    asked = bench.Point(x=16, y=0.0)
    assert bench.amdahl(points(lambda n: 1 + 0.01 * (n - 1)))(asked) == pytest.approx(1.15)
    usl = bench.universal_scalability(points(lambda n: 1 + 0.01 * (n - 1) + 0.001 * n * (n - 1)))
    assert usl(asked) == pytest.approx(1.39, rel=1e-3)
    assert bench.pollux(points(lambda n: 1.0 if n == 1 else 1.1))(asked) == pytest.approx(1.1, rel=0.02)
    assert bench.power_law(points(lambda n: 3 * n**0.5))(asked) == pytest.approx(12)


@pytest.mark.photos
def test_throughput_of_the_test_half(bench: ModuleType, samples: Path) -> None:
    series, left_out = bench.throughput_series(samples / "published" / "throughput.csv")
    cases = bench.largest_held_out(series)
    assert len(cases) == 84
    assert dict(left_out) == {"series that scale more than linearly": 8, "series with a single GPU count": 2}
    calibration, test = bench.halves(cases)
    scores = bench.scores(test, calibration, bench.our_step_time, bench.THROUGHPUT_LAWS)
    ours = scores.pop("ours")  # with constants that were picked with both halves in view
    assert ours.median <= 0.04
    assert 0.72 <= ours.coverage <= 0.88
    for name, other in scores.items():
        assert ours.median < other.median, name
        assert ours.quantile_80 < other.quantile_80, name
        assert ours.width < other.width, name
    one = bench.from_one_count(series)
    assert bench.score(one, [bench.our_step_time(c) for c in one], of_rate=True).coverage >= 0.8


@pytest.mark.photos
def test_throughput_with_constants_that_saw_the_calibration_half_only(bench: ModuleType, samples: Path) -> None:
    series, _ = bench.throughput_series(samples / "published" / "throughput.csv")
    calibration, test = bench.halves(bench.largest_held_out(series))
    noise = bench.scaling.NOISE
    with bench.constants(bench.scaling, bench.blind_step_constants(calibration)):
        clean = bench.score(test, [bench.our_step_time(c) for c in test], of_rate=True)
    after = bench.scaling.NOISE
    assert after == noise
    assert clean.median <= 0.04
    assert clean.quantile_80 <= 0.08
    assert 0.65 <= clean.coverage <= 0.9  # 71 %: below the 80 % that the interval promises


@pytest.mark.photos
def test_epochs_of_the_next_batch(bench: ModuleType, samples: Path) -> None:
    series = bench.epochs_series(samples / "published" / "epochs_to_converge.csv")
    assert {name: len(points) for name, points in series.items()} == {"resnet": 12, "ssd": 4, "ssd (RetinaNet)": 9}
    cases = bench.next_batch_held_out(series)
    scores = bench.scores(cases, cases, bench.our_epochs, bench.EPOCHS_LAWS)
    ours = scores.pop("ours")
    assert ours.median <= 0.06
    assert 0.72 <= ours.coverage <= 0.88
    assert all(ours.median < other.median and ours.quantile_80 < other.quantile_80 for other in scores.values())
