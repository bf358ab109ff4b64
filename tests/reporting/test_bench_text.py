"""The ceilings for people: every part in the table, and the sentence that names the limit."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from turnaround.reporting.bench_text import bench_table, sentence


def facts(**rates: float) -> dict[str, Any]:
    def rate(value: float) -> dict[str, float]:
        return {"images_per_s": value, "low": value * 0.9, "high": value * 1.1, "rounds": 5}

    return {
        "rates": {name: rate(value) for name, value in rates.items()},
        "decode": rate(1234.0),
        "choices": {"pixels": {"value": "disk", "reason": "9.00 GiB of pixels do not fit into 4.0 GiB of free memory"}},
    }


@pytest.mark.parametrize(
    ("rates", "wanted"),
    [
        ({"input": 900, "model": 100, "training": 98}, "The model is the limit: training reaches 98 % of what"),
        ({"input": 60, "model": 100, "training": 50}, "at most 2.00 times faster with an input that costs nothing"),
        ({"input": 900, "all_reduce": 80, "model": 100, "training": 50}, "The exchange of gradients is the limit"),
        ({"input": 900, "model": 100, "training": 80}, "be at most 1.25 times faster without. Usual causes"),
        ({"input": 900, "model": 100, "training": 132}, "at 132 % of what the model does alone, which cannot be"),
    ],
)
def test_the_sentence_names_the_limit(rates: dict[str, float], wanted: str) -> None:
    assert wanted in sentence(facts(**rates))


def test_an_input_limit_says_where_the_pixels_are() -> None:
    assert "Where the pixels live: disk: 9.00 GiB of pixels do not fit" in sentence(
        facts(input=60, model=100, training=50)
    )


def test_every_part_has_its_row() -> None:
    console = Console(width=100, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(bench_table(facts(augmentation=5000, input=4000, model=1000, training=990)))
    lines = captured.get().splitlines()
    assert [line.split()[-3:] for line in lines[1:3]] == [["1,234", "1,111", "1,357"], ["4,000", "3,600", "4,400"]]
    assert not any("gradients" in line for line in lines[:6])  # one process exchanges nothing
