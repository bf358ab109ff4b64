"""How values become text: one rule for each kind, and never one text for two different values that are compared."""

from __future__ import annotations

import pytest

from turnaround.words import (
    UNKNOWN,
    about,
    accuracy,
    counted,
    duration,
    durations,
    factor,
    few,
    hardware,
    interval,
    listed,
    money,
    number,
    percent,
    points,
    setting,
)


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (None, UNKNOWN),
        (0.0, "0 s"),
        (0.0123, "12 ms"),
        (0.00321, "3.2 ms"),
        (0.1234, "123 ms"),
        (0.9996, "1 s"),
        (1.234, "1.2 s"),
        (5.0, "5 s"),
        (9.949, "9.9 s"),
        (9.96, "10 s"),
        (80.4, "80 s"),
        (119.4, "119 s"),
        (119.6, "2 min"),
        (205, "3 min 25 s"),
        (1387, "23 min 07 s"),
        (1800, "30 min"),
        (3599.7, "1 h"),
        (5910, "1 h 38 min"),
        (7384, "2 h 03 min"),
        (7199.9, "2 h"),
        (4_000_000, "1,111 h 07 min"),
        (-80, "-80 s"),
    ],
)
def test_a_measured_time_has_one_text(time_s: float | None, text: str) -> None:
    assert duration(time_s) == text


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (0.424, "420 ms"),
        (25.3, "25 s"),
        (103, "100 s"),
        (119, "2 min"),
        (161, "2 min 40 s"),
        (180, "3 min"),
        (830, "14 min"),
        (5910, "1 h 38 min"),
        (11_520, "3 h 10 min"),
        (145_000, "40 h"),
    ],
)
def test_a_forecast_has_about_two_digits_by_the_same_rule(time_s: float, text: str) -> None:
    assert about(time_s) == text


def test_an_interval_says_its_unit_once_where_it_is_one() -> None:
    assert interval(840, 660, 1020) == "14 min (11-17)"
    assert interval(90, 60, 180) == "90 s (60 s to 3 min)"
    assert interval(160, 150, 170) == "2 min 40 s (2 min 30 s to 2 min 50 s)"
    assert interval(25, 20, 30) == "25 s (20-30)"


@pytest.mark.parametrize(
    ("times_s", "texts"),
    [
        ((209, 81), ("209 s", "81 s")),  # one unit, although 209 s alone is "3 min 29 s"
        ((1.42, 1.38), ("1.42 s", "1.38 s")),  # not "1.4 s" twice
        ((0.548, 0.423), ("548 ms", "423 ms")),
        ((0.98, 1.1), ("0.98 s", "1.1 s")),
        ((80.4, 80.1), ("80.4 s", "80.1 s")),
        ((9.8, 10.2), ("9.8 s", "10 s")),
        ((1387, 5910), ("23 min 07 s", "1 h 38 min")),
        ((5911, 5912), ("5,911 s", "5,912 s")),
        ((80.0, 80.0), ("80 s", "80 s")),
        ((80.0, 80.000001), ("80.000 s", "80.000 s")),
    ],
)
def test_times_that_are_compared_share_a_unit_and_differ(times_s: tuple[float, ...], texts: tuple[str, ...]) -> None:
    assert durations(*times_s) == texts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (percent(0.914), "91 %"),
        (percent(0.1234, 2), "12.34 %"),
        (percent(None), UNKNOWN),
        (accuracy(0.6721), "67.2 %"),
        (accuracy(None), UNKNOWN),
        (points(0.01), "1.0 point"),
        (points(0.025), "2.5 points"),
        (factor(2.0), "2"),
        (factor(2.58), "2.58"),
        (number(209.0), "209"),
        (number(80.5), "80.5"),
        (number(1.206), "1.21"),
        (number(12345.4), "12,345"),
        (number(0.0), "0"),
        (number(float("nan")), UNKNOWN),
        (money(1234.5), "1,234.50"),
        (money(0.0021), "0.0021"),
        (money(0.012), "0.012"),
        (money(0.1), "0.10"),
        (money(0.0996), "0.10"),
        (money(0.0), "0.00"),
        (counted(1, "class"), "1 class"),
        (counted(2, "class"), "2 classes"),
        (counted(1200, "image"), "1,200 images"),
        (counted(0, "copy"), "0 copies"),
        (counted(2, "day"), "2 days"),
        (counted(3, "box"), "3 boxes"),
        (counted(2, "epoch"), "2 epochs"),
        (listed([]), ""),
        (listed(["a"]), "a"),
        (listed(["a", "b"]), "a and b"),
        (listed(["a", "b", "c"]), "a, b and c"),
        (listed(list("abcdef")), "a, b, c, d and 2 more"),
        (listed([1, 2]), "1 and 2"),
    ],
)
def test_numbers_counts_and_lists(text: str, expected: str) -> None:
    assert text == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (hardware(16, "V100", hosts=2), "16 V100 on 2 hosts"),
        (hardware(1, "T4"), "1 T4"),
        (hardware(1, "CPU"), "1 CPU process"),
        (hardware(4, "CPU"), "4 CPU processes"),
        (hardware(4, "unknown"), "4 workers"),
        (hardware(8, "H200", rehearsed_on=1), "8 workers rehearsed on 1 H200"),
        (hardware(8, "unknown", rehearsed_on=2, hosts=2), "8 workers rehearsed on 2 processes, 2 hosts"),
    ],
)
def test_hardware(text: str, expected: str) -> None:
    assert text == expected


def test_settings() -> None:
    assert [setting(True), setting(0.001), setting(32, "per worker"), setting("adam")] == [
        "yes",
        "0.001",
        "32 per worker",
        "adam",
    ]
    assert (setting((("flip", True), ("zoom", 0.1))), setting(())) == ("flip yes, zoom 0.1", "off")


def test_a_few_of_many_texts() -> None:
    assert few(["a", "b"]) == "a; b"
    assert few(["a", "b", "c", "d", "e"]) == "a; b; c; and 2 more"
    assert few(["x" * 200]) == "x" * 97 + "..."
