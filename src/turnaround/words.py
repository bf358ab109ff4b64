"""Text of values: durations, percent, counts, lists and hardware, each by one rule for the whole package.

Enters: numbers and names. Leaves: text without layout. A measured time has one text, wherever it stands:

    below 1 s     "3.2 ms", "420 ms"           whole milliseconds, two digits below 10
    below 10 s    "1.4 s", "9.8 s"             two digits
    below 2 min   "80 s", "119 s"              whole seconds
    below 1 h     "3 min 25 s", "27 min"       seconds are left out where there are none
    from 1 h on   "1 h 38 min", "2 h"          likewise minutes

A forecast is `about` a time: the time is rounded to about two digits and then said by the same rule. Times that are
compared in one sentence (`durations`) share a unit, and get a digit more as long as two different times read alike.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
from datetime import datetime

GIB = 2**30
"""Bytes."""
UNKNOWN = "-"
"""Text for a value that is not known."""
MIXED_UNITS_FROM_S = 120.0
"""Seconds alone are read easily up to here; an epoch of 80 s is compared with one of 119 s."""
ONE_UNIT_UP_TO_S = 1000.0
"""Times that are compared stay in seconds up to here if the shortest is below 2 minutes: "209 s and 81 s"."""
MAX_MORE_DIGITS = 3
"""Two times that still read alike with so many more digits are the same for every reader."""


# --- times


def duration(time_s: float | None) -> str:
    """Return a measured time as text, by the rule at the head of this file."""
    if time_s is None:
        return UNKNOWN
    return ("-" if time_s < 0 else "") + " ".join(f"{figure} {unit}" for figure, unit in _parts(abs(time_s)))


def about(time_s: float) -> str:
    """Return a forecast time, rounded to about two digits: "25 s", "2 min 40 s", "14 min", "3 h 10 min", "40 h"."""
    return duration(_rough(time_s))


def interval(value_s: float, low_s: float, high_s: float) -> str:
    """Return a forecast time with bounds: "14 min (11-17)", or with units where they differ: "90 s (60 s to 3 min)"."""
    parts = [_parts(_rough(time_s)) for time_s in (value_s, low_s, high_s)]
    if {tuple(unit for _, unit in each) for each in parts} == {(parts[0][0][1],)}:
        return f"{about(value_s)} ({parts[1][0][0]}-{parts[2][0][0]})"
    return f"{about(value_s)} ({about(low_s)} to {about(high_s)})"


def clock(at: datetime, now: datetime) -> str:
    """Return an instant as a clock shows it: "at 15:02", "tomorrow at 03:10", "on 19 November at 09:00"."""
    days = (at.date() - now.date()).days
    # Beyond a day the minute is no help, but it is no harm either.
    return {0: "", 1: "tomorrow "}.get(days, f"on {at.day} {at:%B} ") + f"at {at:%H:%M}"


def durations(*times_s: float) -> tuple[str, ...]:
    """Times that are compared: in one unit, and never two different times with one text."""
    texts = tuple(duration(time_s) for time_s in times_s)
    units = {tuple(unit for _, unit in _parts(abs(time_s))) for time_s in times_s}
    is_short = min(times_s) < MIXED_UNITS_FROM_S and max(times_s) < ONE_UNIT_UP_TO_S
    if _is_distinct(times_s, texts) and (len(units) == 1 or not is_short):
        return texts
    return distinct(_in_seconds, *times_s)


def _parts(time_s: float) -> list[tuple[str, str]]:
    """Return (figure, unit) from the largest unit down."""
    if 0 < time_s < 0.9995:
        return [(f"{1000 * time_s:.2g}" if time_s < 0.00995 else f"{1000 * time_s:.0f}", "ms")]
    if time_s < 9.95:
        return [(f"{time_s:.2g}", "s")]
    whole = round(time_s)
    if whole < MIXED_UNITS_FROM_S:
        return [(str(whole), "s")]
    if whole < 3600:
        minutes, seconds = divmod(whole, 60)
        return [(str(minutes), "min"), *([(f"{seconds:02d}", "s")] if seconds else [])]
    hours, minutes = divmod(round(time_s / 60), 60)
    return [(f"{hours:,}", "h"), *([(f"{minutes:02d}", "min")] if minutes else [])]


def _rough(time_s: float) -> float:
    """Round to the step that leaves about two digits in the unit the time will be said in."""
    if time_s < MIXED_UNITS_FROM_S:
        return float(f"{time_s:.2g}")
    # (below, step) in seconds: 10 s of some minutes, whole minutes to 100 of them, 10 min of some hours, whole hours.
    step = next((step for below, step in ((600, 10), (6000, 60), (36000, 600)) if time_s < below), 3600)
    return float(step * round(time_s / step))


def _in_seconds(time_s: float, more: int) -> str:
    return f"{time_s:.{2 + more}g} s" if time_s < 9.95 else f"{time_s:,.{more}f} s"


# --- numbers


def distinct(show: Callable[[float, int], str], *values: float) -> tuple[str, ...]:
    """Show each value with as few digits more as it takes until different values have different texts."""
    for more in range(MAX_MORE_DIGITS):
        texts = tuple(show(value, more) for value in values)
        if _is_distinct(values, texts):
            return texts
    return tuple(show(value, MAX_MORE_DIGITS) for value in values)


def _is_distinct(values: Sequence[float], texts: Sequence[str]) -> bool:
    return len(set(texts)) == len(set(values))


def percent(share: float | None, digits: int = 0) -> str:
    """Return a share of one as percent: "91 %"."""
    return UNKNOWN if share is None else f"{100 * share:.{digits}f} %"


def accuracy(share: float | None) -> str:
    """Return an accuracy, a share of one, to a tenth of a percent: fewer images than 1,000 do not resolve more."""
    return percent(share, 1)


def points(difference: float) -> str:
    """Return a difference of two accuracies in percentage points: "1.0 point", "2.5 points"."""
    text = f"{100 * difference:.1f}"
    return f"{text} {plural(1 if text == '1.0' else 2, 'point')}"


def factor(ratio: float) -> str:
    """Return a factor as text: "2" where it is whole, else "2.58"."""
    return f"{ratio:.0f}" if abs(ratio - round(ratio)) < 0.005 else f"{ratio:.2f}"


def number(value: float, digits: int = 3) -> str:
    """Return so many significant digits, and all digits of a whole number: "209", "80.5", "1.21", "12,345"."""
    if not math.isfinite(value):
        return UNKNOWN
    decimals = 0 if value == 0 else max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text and value == round(value) else text


def setting(value: bool | int | float | str | tuple[tuple[str, bool | int | float | str], ...], unit: str = "") -> str:
    """Return a setting of a run: "yes", "0.001", "32 per worker"; of named values all, or "off" without any."""
    if isinstance(value, tuple):
        return ", ".join(f"{name} {setting(one)}" for name, one in value) or "off"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g} {unit}".rstrip() if isinstance(value, float) else f"{value} {unit}".rstrip()


def energy(wh: float | None) -> str:
    """Return an energy with three digits: "0.41 Wh", "212 Wh", "1.35 kWh"."""
    if wh is None or not math.isfinite(wh):
        return UNKNOWN
    if 0 < wh < 0.0995:
        return f"{wh:.2g} Wh"
    return f"{number(wh)} Wh" if wh < 999.5 else f"{number(wh / 1000)} kWh"


def emissions(kg: float) -> str:
    """Return emissions with three digits: "120 g CO2e", "1.35 kg CO2e"."""
    return f"{number(kg)} kg CO2e" if kg >= 0.9995 else f"{number(1000 * kg)} g CO2e"


def money(value: float) -> str:
    """Return a cost in the currency of the price that was given: "9.33"; at least two digits of what is less than a
    tenth, which would read as free: "0.0021"."""
    decimals = 1 - math.floor(math.log10(value)) if 0 < value < 0.0995 else 2
    return f"{value:,.{decimals}f}"


# --- counts and lists


def plural(count: int, noun: str) -> str:
    """Return the noun as `count` wants it: "class" and "classes", "copy" and "copies", "run" and "runs"."""
    if count == 1:
        return noun
    if noun.endswith(("s", "x", "ch", "sh")) and not noun.endswith("epoch"):  # its ch is a k
        return f"{noun}es"
    return f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{noun}s"


def counted(count: int, noun: str) -> str:
    """Return a count and its noun: "1 class", "2 classes", "1,200 images"."""
    return f"{count:,} {plural(count, noun)}"


def listed(names: Sequence[object], limit: int = 4) -> str:
    """Join names as a sentence does: "a, b and c"; of more than `limit` the first, and how many more there are."""
    shown = [str(name) for name in names[:limit]]
    if len(names) > limit:
        shown.append(f"{len(names) - limit:,} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}" if shown else ""


# --- hardware


def hardware(workers: int, gpu: str, *, hosts: int = 1, rehearsed_on: int | None = None) -> str:
    """Workers and what they ran on: "16 V100 on 2 hosts", "8 workers rehearsed on 1 H200", "2 CPU processes".

    `rehearsed_on` is the number of processes that hosted the workers of a rehearsal.
    """
    if rehearsed_on is not None:
        where = f", {hosts} hosts" if hosts > 1 else ""
        return f"{counted(workers, 'worker')} rehearsed on {_devices(rehearsed_on, gpu, unknown='process')}{where}"
    where = f" on {hosts} hosts" if hosts > 1 else ""
    return f"{_devices(workers, gpu, unknown='worker')}{where}"


def _devices(count: int, gpu: str, *, unknown: str) -> str:
    """A kind of GPU has no plural: "4 V100"."""
    if gpu not in ("CPU", "unknown"):
        return f"{count} {gpu}"
    return counted(count, "CPU process" if gpu == "CPU" else unknown)


# Control, format (bidirectional overrides), surrogate (bytes that are no UTF-8), line and paragraph separators.
_UNSHOWN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def clean(text: str) -> str:
    """Replace by ? what would move the cursor, colour the screen or turn the text: names come from files of others."""
    return "".join("?" if unicodedata.category(letter) in _UNSHOWN else letter for letter in text)


def harmless(text: str) -> str:
    """Clean a text of several lines, which stay, as indentations do."""
    return "\n".join("\t".join(map(clean, line.split("\t"))) for line in text.split("\n"))


def few(texts: Sequence[str], *, most: int = 3, most_letters: int = 100) -> str:
    """Join the first of several texts, which may be somebody else's and long, and say how many more there are."""
    told = [text if len(text) <= most_letters else f"{text[: most_letters - 3]}..." for text in texts[:most]]
    return "; ".join([*told, *([f"and {len(texts) - most} more"] if len(texts) > most else [])])
