"""What holds a run back: from spans, epochs and telemetry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.build import LAB, built, import_table, rising
from turnaround.analysis.bottleneck import bottleneck, ceilings, gpu_busy
from turnaround.findings.bottlenecks import why
from turnaround.record.reader import Run

# wait, copy, compute, reduce, update
HEALTHY = (0.001, 0.001, 0.090, 0.004, 0.004)
HUNGRY = (0.030, 0.001, 0.061, 0.004, 0.004)
TALKING = (0.001, 0.001, 0.064, 0.030, 0.004)


def both(parts: tuple[float, ...]) -> dict[int, tuple[float, ...]]:
    return {0: parts, 1: parts}


@pytest.mark.parametrize(
    ("options", "kind", "share"),
    [
        ({"parts_s": both(HEALTHY)}, "compute", 0.94),
        ({"parts_s": both(HUNGRY)}, "input", 0.31),
        ({"parts_s": both(TALKING)}, "communication", 0.30),
        ({"parts_s": {0: HEALTHY, 1: (0.001, 0.001, 0.178, 0.004, 0.004)}}, "straggler", 1 - 136 / 180),
        ({"parts_s": both(HEALTHY), "busy_percent": 40.0}, "host", 0.60),
        ({"parts_s": both(HUNGRY), "busy_percent": 40.0}, "input", 0.31),  # an idle GPU is explained by its input
        ({"parts_s": both(HEALTHY), "busy_percent": 95.0}, "compute", 0.94),
        ({"parts_s": both(HEALTHY), "evaluation_time_s": 5.0}, "evaluation", 1 / 3),
        ({"parts_s": both(HEALTHY), "evaluation_time_s": 1.5}, "compute", 0.94),
    ],
)
def test_the_verdict_is_the_largest_share(options: dict[str, Any], kind: str, share: float, tmp_path: Path) -> None:
    found = bottleneck(built(tmp_path / "run", **options))
    assert found.kind == kind
    assert found.share == pytest.approx(share, abs=0.005)
    assert found.most_gain == (None if kind == "compute" else pytest.approx(1 / (1 - found.share)))


def test_spans_say_that_they_are_spans(tmp_path: Path) -> None:
    found = bottleneck(built(tmp_path / "run", parts_s=both(HUNGRY)))
    assert "30 % of a step is waiting for the next batch" in why(found)
    assert "by the spans of 10 steps; only turnaround bench, which measures each part alone, is conclusive" in why(
        found
    )


def test_nothing_timed_is_unknown(tmp_path: Path) -> None:
    found = bottleneck(built(tmp_path / "run"))
    assert (found.kind, found.share, found.most_gain) == ("unknown", None, None)
    assert "too few of its steps were timed" in why(found)
    imported = bottleneck(Run.load(import_table(LAB, tmp_path / "lab") / "model1"))
    assert (imported.kind, "a table has no spans" in why(imported)) == ("unknown", True)


@pytest.mark.parametrize("ranks", [None, [{}], [{"workers": []}, {"workers": []}], "two", [1, 2]])
def test_ranks_that_are_not_ours(ranks: object, tmp_path: Path) -> None:
    run = built(tmp_path / "run", parts_s=both(HEALTHY), machine={"ranks": ranks}, busy_percent=90.0)
    assert bottleneck(run).kind == "compute"


def test_spans_of_nothing(tmp_path: Path) -> None:
    assert bottleneck(built(tmp_path / "run", parts_s=both((0.0, 0.0, 0.0, 0.0, 0.0)))).kind == "unknown"


def test_only_the_gpus_of_the_run_count(tmp_path: Path) -> None:
    ranks = [{"host": "node1", "device": "cuda:0", "workers": [0]}]
    run = built(tmp_path / "run", workers=1, busy_percent=80.0, machine={"ranks": ranks}, accuracy=rising(epochs=3))
    assert gpu_busy(run) == pytest.approx(0.8)
    assert gpu_busy(built(tmp_path / "other")) is None


def test_damaged_spans_are_the_reason(tmp_path: Path) -> None:
    run = built(tmp_path / "run", parts_s=both(HUNGRY))
    run.directory.spans(0).write_text('{"format": 99, "step": 1}\n')
    found = bottleneck(run)
    assert found.kind == "unknown"
    assert "spans-0.jsonl: written in format 99 by a newer turnaround" in why(found)


@pytest.mark.parametrize(
    ("rates", "limit", "most_gain"),
    [
        ({"input": 900.0, "model": 100.0, "training": 97.0}, "model", 1.0),
        ({"input": 60.0, "model": 100.0, "training": 50.0}, "input", 2.0),
        ({"input": 900.0, "all_reduce": 80.0, "model": 100.0, "training": 60.0}, "communication", 100 / 60),
        ({"input": 900.0, "all_reduce": 800.0, "model": 100.0, "training": 80.0}, "host", 1.25),
        ({"model": 100.0, "training": 50.0}, "host", 2.0),  # features computed once: there is no input
    ],
)
def test_the_limit_and_the_most_that_its_end_could_gain(rates: dict[str, float], limit: str, most_gain: float) -> None:
    found = ceilings(rates)
    assert found.limit == limit
    assert found.most_gain == pytest.approx(most_gain)
    assert found.share_of_ceiling == pytest.approx(rates["training"] / rates["model"])
