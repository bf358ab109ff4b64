"""What limits a training: the verdict from the rates of its parts."""

from __future__ import annotations

import pytest

from turnaround.analysis.ceilings import ceilings


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
