"""The text of a cell as a value. Enters: a row. Leaves: numbers, counts, truths; CellError names the column.

`Cells` reads single cells; `AccuracyScale` turns accuracies into fractions, from CSV cells and logs alike.

An empty cell is None, and so is what programs write for "nothing": NA, nan, null, -.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from re import ASCII, compile

from turnaround.errors import InputError
from turnaround.record.importers.sheet import SheetRow

NOTHING = {"", "-", "na", "n/a", "nan", "null", "none"}
TRUE, FALSE = {"true", "yes", "y", "1"}, {"false", "no", "n", "0"}
NUMBER = compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]{1,3})?", ASCII)
UNITS_S = {
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
}
"""Seconds of a unit, by the words that people write. A bare m is none: it is minutes or months or metres."""
TIME_PART = compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]+)\s*", ASCII)
CLOCK = compile(r"([0-9]{1,6}):([0-5][0-9]):([0-5][0-9](?:\.[0-9]*)?)", ASCII)
MAX_QUANTITY = 1e9
"""Seconds (30 years), epochs or images per second: nobody has measured more."""
ASK = "looks like percent; give --percent"

CONTROL = compile(r"[\x00-\x1f\x7f-\x9f]")  # a terminal would obey them


def shown(text: str) -> str:
    """In one line, without control characters."""
    return " ".join(CONTROL.sub(" ", text).split())


class CellError(Exception):
    """This row cannot be taken; the text says which column, what was there and what would do."""


@dataclass(frozen=True)
class Cells:
    """The cells of one row, asked for by column and kind."""

    row: SheetRow
    has_decimal_commas: bool = False
    problems: list[str] = field(default_factory=list)
    """Everything that is wrong with the row, so that a user repairs it once."""

    def __post_init__(self) -> None:
        if self.row.surplus:
            self.problems.append(
                f"it has {self.row.surplus} more cells than the header: is a separator inside an unquoted cell?"
            )

    def expect_whole(self) -> Cells:
        """Note a row within which a program's log ends; a person may leave the last cells of a line out."""
        if self.row.is_cut:
            self.problems.append("the file ends within this line: it was cut off, or is still written")
        return self

    def raise_problems(self) -> None:
        if self.problems:
            raise CellError("; ".join(self.problems))

    def text(self, column: str) -> str | None:
        """Return a word or a name; None when the cell is empty."""
        text = shown(self.row.cells.get(column, ""))
        return None if text.casefold() in NOTHING else text

    def number(self, column: str) -> float | None:
        """Any finite number; the caller knows its range."""
        text = self.text(column)
        if text is None:
            return None
        plain = self._with_points(text)
        # `float` alone would take "1_000", "infinity" and digits of other scripts.
        value = float(plain) if NUMBER.fullmatch(plain.casefold()) else float("inf")
        if abs(value) == float("inf"):
            self._wrong(column, "a number")
            return None
        return value

    def above_zero(self, column: str) -> float | None:
        """Return a time or a rate."""
        value = self.number(column)
        if value is not None and not 0 < value <= MAX_QUANTITY:
            self._wrong(column, "a number above 0" if value <= 0 else f"at most {MAX_QUANTITY:,.0f}")
            return None
        return value

    def time_s(self, column: str, *, written_as: str | None = None, unit_s: float = 1.0) -> float | None:
        """Return a time in seconds: 44, or with units "0.5 h", "1 h 38 min", "23 min 07 s", or "1:38:30" (hours first).

        `written_as` is the column's own name where it has another unit, and `unit_s` that unit.
        """
        name = written_as or column
        text = self.text(name)
        if text is None:
            return None
        value = _with_units(self._with_points(text))
        if value is None:
            plain = self.number(name)
            value = None if plain is None else plain * unit_s
        if value is not None and not 0 < value <= MAX_QUANTITY:
            self._wrong(name, "a number above 0" if value <= 0 else f"at most {MAX_QUANTITY:,.0f}")
            return None
        return value

    def _with_points(self, text: str) -> str:
        # Two commas separate thousands, whatever the other cells do: "1,234,567" stays what it is, and is refused.
        return text.replace(",", ".") if self.has_decimal_commas and text.count(",") == 1 else text

    def count(self, column: str, *, low: int = 1, high: int = 2**53) -> int | None:
        """Return a whole number, as 4 or 4.0."""
        value = self.number(column)
        if value is None:
            return None
        if value != int(value) or not low <= value <= high:
            self._wrong(column, f"a whole number from {low}" + (f" to {high:,}" if high < 2**53 else ""))
            return None
        return int(value)

    def truth(self, column: str) -> bool | None:
        """Yes or no."""
        text = self.text(column)
        if text is None:
            return None
        if text.casefold() not in TRUE | FALSE:
            self._wrong(column, "true or false")
        return text.casefold() in TRUE

    def _wrong(self, column: str, expected: str) -> None:
        self.problems.append(f"{column} must be {expected}, received {reprlib.repr(self.row.cells[column])}")


def _with_units(text: str) -> float | None:
    """Return the seconds of a time that carries its units; None where it carries none."""
    text = text.casefold()
    if (clock := CLOCK.fullmatch(text)) is not None:
        hours, minutes, seconds = (float(part) for part in clock.groups())
        return 3600 * hours + 60 * minutes + seconds
    parts = TIME_PART.findall(text)
    if not parts or TIME_PART.sub("", text) or any(unit not in UNITS_S for _, unit in parts):
        return None
    sizes = [UNITS_S[unit] for _, unit in parts]
    is_falling = all(larger > smaller for larger, smaller in pairwise(sizes))  # "5 s 3 s" is no time
    return sum(float(number) * size for (number, _), size in zip(parts, sizes, strict=True)) if is_falling else None


@dataclass(frozen=True, kw_only=True)
class AccuracyScale:
    """How the accuracies of one source are meant: as fractions, or with --percent as percent.

    People write 0.6888 and people write 68.88. The first is taken as it is, the second when asked for with --percent;
    a column that mixes both is never guessed at.
    """

    is_percent: bool
    is_curve: bool
    """The first epochs of a curve in percent may lie below 1; final accuracies in a table do not."""

    def check_column(self, column: str, values: Iterable[float | None], source: str) -> None:
        """Raise InputError where the whole column is meant otherwise than was asked for."""
        known = [value for value in values if value and not math.isnan(value)]
        above = [value for value in known if value > 1]
        if self.is_percent and known and not above:
            raise InputError(
                f"{source}: no value of {column} is above 1 (the largest is {max(known):g}): these are fractions "
                "already. Leave --percent out."
            )
        # Of a curve in percent the first epochs may be below 1, but not half of them; final accuracies are all above.
        is_whole_column = 2 * len(above) > len(known) if self.is_curve else len(above) == len(known)
        if not self.is_percent and above and is_whole_column and max(above) <= 100:
            raise InputError(
                f"{source}: {column} {ASK}. Its values lie from {min(known):g} to {max(known):g}; "
                "without --percent, accuracies are fractions from 0 to 1."
            )

    def problem(self, column: str, value: float | None) -> str | None:
        """Say what is wrong with one value of a column that is right as a whole; None where nothing is."""
        if value is None or math.isnan(value):
            return None
        if not 0 <= value <= (100 if self.is_percent else 1):
            hint = ": percent among fractions?" if 1 < value <= 100 else ""
            return f"{column} must be from 0 to {100 if self.is_percent else 1}, received {value:g}{hint}"
        if self.is_percent and not self.is_curve and 0 < value <= 1:
            return f"{column} is {value:g}: a fraction among percents?"
        return None

    def fraction(self, value: float | None) -> float | None:
        """Return the value as it is recorded, to twelve digits: 68.88 / 100 is 0.6888 and not 0.6888000000000001."""
        return round(value / 100, 12) if self.is_percent and value is not None else value
