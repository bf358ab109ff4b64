"""Flags that are read from text."""

from __future__ import annotations

from pathlib import Path

import pytest

from console import Console
from turnaround.cli.options import seconds_of
from turnaround.errors import InputError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10min", 600), ("10 min", 600), ("2h", 7200), ("1h30min", 5400), ("1.5h", 5400), ("2 minutes", 120)],
)
def test_times(text: str, seconds: float) -> None:
    assert seconds_of(text, flag="--time-limit") == seconds


@pytest.mark.parametrize("text", ["10 parsecs", "", "10", "h", "-3min", "0s", "1min2h", "nan s"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(InputError, match=r"--time-limit takes a time with its unit: 90s, 10min") as caught:
        seconds_of(text, flag="--time-limit")
    assert f"Received: {text!r}" in str(caught.value)


def test_a_time_limit_is_a_key_of_the_recipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call = Console(monkeypatch, capsys)
    shown = call("train", "fruitbowl", "--time-limit", "10min", "--dry-run")
    assert (shown.code, "time_limit_s = 600.0" in shown.out) == (0, True)
    refused = call("train", "fruitbowl", "--time-limit", "10 parsecs", "--dry-run")
    assert (refused.code, "Received: '10 parsecs'" in refused.err) == (2, True)
    assert not Path("runs/fruitbowl-1w").exists()
