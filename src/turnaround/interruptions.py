"""Machines that are taken away: how often, and how often to save because of it.

Enters: a rate as a person writes it, and the measured pause of a checkpoint. Leaves: interruptions an hour, and the
interval between checkpoints that costs the least time. For interruptions at random (exponential times between them) an
interval of work x with a checkpoint of c takes (1/r + wait) e^(r start) (e^(r (x + c)) - 1) on average, at the rate r.
Per unit of work that is least where (1 - r x) e^(r (x + c)) = 1, whatever start and wait are; for rare interruptions
x = sqrt(2 c / r), Young's rule (1974), refined by Daly (2006).
"""

from __future__ import annotations

import math
import re

from turnaround.errors import InputError

HOUR_S = 3600.0
UNITS_S = {"s": 1.0, "min": 60.0, "h": HOUR_S, "hour": HOUR_S, "d": 24 * HOUR_S, "day": 24 * HOUR_S}
UNITS_S |= {"week": 7 * 24 * HOUR_S}
MAX_PER_H = 3600.0
"""One a second: no training goes anywhere with more."""
USUAL_EVERY_S = 60.0
"""Seconds between checkpoints where no rate of interruptions is known."""
MIN_EVERY_S = 1.0
"""All processes decide together about once a second whether to save."""
FIRST_PAUSE_S = 1.0
"""Pause of a checkpoint that nobody has measured yet: that of some hundred MB. It decides about the first one only."""


def rate_per_h(text: str, *, flag: str) -> float:
    """Return the interruptions an hour of "0.5/h", "3/day" or "1/20min"; InputError for anything else."""
    names = "|".join(sorted(UNITS_S, key=len, reverse=True))
    found = re.fullmatch(rf"\s*([0-9]*\.?[0-9]+)\s*/\s*([0-9]*\.?[0-9]+)?\s*({names})s?\s*", text, flags=re.ASCII)
    each = float(found[2] or 1) if found else 0.0
    rate = float(found[1]) / each * HOUR_S / UNITS_S[found[3]] if found and each > 0 else -1.0
    if not 0 <= rate <= MAX_PER_H:
        raise InputError(
            f"{flag} takes a rate with its unit, at most one a second: 0.5/h, 3/day, 1/20min. Received: {text!r}."
        )
    return rate


def best_interval_s(*, pause_s: float, per_h: float) -> float:
    """Return the seconds of work between checkpoints that cost the least time; at least MIN_EVERY_S."""
    rate = per_h / HOUR_S
    if rate <= 0:
        return math.inf
    pause = rate * max(pause_s, 0.0)  # in mean times between interruptions, as all below
    low, high = 0.0, 1.0
    # ln(1 - x) + x + c falls from c at 0 to minus infinity at 1: halved until a double has no more digits.
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if math.log1p(-middle) + middle + pause > 0 else (low, middle)
    return max(low / rate, MIN_EVERY_S)


class CheckpointInterval:
    """The interval between checkpoints of a training that measures its own pauses."""

    def __init__(
        self, every_s: float | str, per_h: float | None, *, paused_s: float = 0.0, saves: int | None = None
    ) -> None:
        """`every_s` is a number, or "auto": by the rate of interruptions where one is known, else the usual one.

        `paused_s` is how long the training has waited for `saves` checkpoints before it was interrupted.
        """
        self.per_h = per_h if isinstance(every_s, str) else None
        self.every_s = USUAL_EVERY_S if isinstance(every_s, str) else every_s
        is_known = bool(saves) and 0 <= paused_s < math.inf
        self._paused_s, self._saves = (paused_s, saves or 0) if is_known else (0.0, 0)
        if self.per_h is not None:
            # Without a pause: soon enough to measure one, also where interruptions are rare.
            first_s = min(USUAL_EVERY_S, best_interval_s(pause_s=FIRST_PAUSE_S, per_h=self.per_h))
            self.every_s = self._best_s(self.per_h) if is_known else first_s

    def paused(self, pause_s: float) -> None:
        """Note how long the training has waited for a checkpoint; an interval that is ours follows the mean."""
        if self.per_h is not None:
            self._paused_s, self._saves = self._paused_s + pause_s, self._saves + 1
            self.every_s = self._best_s(self.per_h)

    def _best_s(self, per_h: float) -> float:
        return best_interval_s(pause_s=self._paused_s / self._saves, per_h=per_h)
