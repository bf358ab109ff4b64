"""Accuracies as fractions. Enters: the numbers of a column, as they stand. Leaves: fractions, or what is wrong.

People write 0.6888 and people write 68.88. The first is taken as it is, the second when asked for with --percent; a
column that mixes both is never guessed at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from turnaround.errors import InputError

ASK = "looks like percent; give --percent"


@dataclass(frozen=True, kw_only=True)
class AccuracyScale:
    """How the accuracies of one source are meant."""

    is_percent: bool
    is_curve: bool
    """The first epochs of a curve in percent may lie below 1; final accuracies in a table do not."""

    def check_column(self, column: str, values: Iterable[float | None], source: str) -> None:
        """InputError where the whole column is meant otherwise than was asked for."""
        known = [value for value in values if value and not math.isnan(value)]
        above = [value for value in known if value > 1]
        if self.is_percent and known and not above:
            raise InputError(
                f"{source}: no value of {column} is above 1 (the largest is {max(known):g}): these are fractions "
                "already. Leave --percent out."
            )
        is_whole_column = 2 * len(above) > len(known) if self.is_curve else len(above) == len(known)
        if not self.is_percent and above and is_whole_column and max(above) <= 100:
            raise InputError(
                f"{source}: {column} {ASK}. Its values lie from {min(known):g} to {max(known):g}; "
                "without --percent, accuracies are fractions from 0 to 1."
            )

    def problem(self, column: str, value: float | None) -> str | None:
        """What is wrong with one value of a column that is right as a whole."""
        if value is None or math.isnan(value):
            return None
        if not 0 <= value <= (100 if self.is_percent else 1):
            hint = ": percent among fractions?" if 1 < value <= 100 else ""
            return f"{column} must be from 0 to {100 if self.is_percent else 1}, received {value:g}{hint}"
        if self.is_percent and not self.is_curve and 0 < value <= 1:
            return f"{column} is {value:g}: a fraction among percents?"
        return None

    def fraction(self, value: float | None) -> float | None:
        """The value as it is recorded. Twelve digits: 68.88 / 100 is 0.6888 and not 0.6888000000000001."""
        return round(value / 100, 12) if self.is_percent and value is not None else value
