"""What a resume believes of recipe.json about the start before: each value of the right kind, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from turnaround.errors import RunDirectoryError
from turnaround.launch.last_start import LastStart


def test_what_was_asked_for_each_process_is_given_up_with_another_number_of_them() -> None:
    last = LastStart.of({"launch": {"processes": 2, "device": "cuda,cpu", "share": "11,5"}})
    assert last.place(processes=None) == ("cuda,cpu", "11,5")
    assert last.place(processes=2) == ("cuda,cpu", "11,5")
    assert last.place(processes=4) == (None, None)
    kept = LastStart.of({"launch": {"processes": 2, "device": "cpu", "share": "auto", "private": True, "wanted": 4}})
    assert kept.place(processes=4) == ("cpu", "auto")
    assert (kept.is_private, kept.wanted) == (True, 4)


@pytest.mark.parametrize("recipe", [{}, {"launch": {}}, {"launch": "imported"}, {"launch": None}])
def test_a_run_that_does_not_say(recipe: dict[str, Any]) -> None:
    assert LastStart.of(recipe) == LastStart()
    assert LastStart.of(recipe).place(processes=4) == (None, None)


@pytest.mark.parametrize("value", ["x", [1], {}, True, -1, 0, 1.5, 10**400, float("nan")], ids=lambda v: repr(v)[:9])
@pytest.mark.parametrize("name", ["processes", "wanted"])
def test_a_number_that_is_none(name: str, value: object) -> None:
    with pytest.raises(
        RunDirectoryError, match=rf"recipe.json is damaged: launch.{name} must be a number of processes"
    ):
        LastStart.of({"launch": {name: value}})


@pytest.mark.parametrize(
    "value", [7, {}, [1], "9" * 5000, "9" * 20_000, "x", 10**400], ids=lambda value: repr(value)[:9]
)
@pytest.mark.parametrize("name", ["device", "share"])
def test_a_text_that_is_none(name: str, value: object) -> None:
    with pytest.raises(RunDirectoryError, match=rf"launch.{name} must be what --{name} takes.*Remove it there"):
        LastStart.of({"launch": {name: value}})
