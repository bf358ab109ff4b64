"""The text of a cell as a value. Enters: a row. Leaves: numbers, counts, truths; CellError names the column.

An empty cell is None, and so is what programs write for "nothing": NA, nan, null, -.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass, field
from re import ASCII, compile

from turnaround.record.importers.sheet import SheetRow

NOTHING = {"", "-", "na", "n/a", "nan", "null", "none"}
TRUE, FALSE = {"true", "yes", "y", "1"}, {"false", "no", "n", "0"}
NUMBER = compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]{1,3})?", ASCII)

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

    def raise_problems(self) -> None:
        if self.problems:
            raise CellError("; ".join(self.problems))

    def text(self, column: str) -> str | None:
        """A word or a name; None when the cell is empty."""
        text = shown(self.row.cells.get(column, ""))
        return None if text.casefold() in NOTHING else text

    def number(self, column: str) -> float | None:
        """Any finite number; the caller knows its range."""
        text = self.text(column)
        if text is None:
            return None
        plain = text.replace(",", ".") if self.has_decimal_commas and text.count(",") == 1 else text
        value = float(plain) if NUMBER.fullmatch(plain.casefold()) else float("inf")
        if abs(value) == float("inf"):
            self._wrong(column, "a number")
            return None
        return value

    def above_zero(self, column: str) -> float | None:
        """A time or a rate."""
        value = self.number(column)
        if value is not None and value <= 0:
            self._wrong(column, "a number above 0")
            return None
        return value

    def count(self, column: str, *, low: int = 1, high: int = 2**53) -> int | None:
        """A whole number, as 4 or 4.0."""
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
