"""Where the time from the command to the first step goes, part by part: `start_up_s` in machine.json.

The parts follow each other on process 0, by the clock of the host. What a GPU does meanwhile without anybody waiting
for it shows in the part that waits: an upload of pixels often in the warm-up.
"""

from __future__ import annotations

import time


class StartUp:
    """Seconds of every part so far, in their order."""

    def __init__(self, begun_at_s: float | None = None) -> None:
        """Begin with the command, by this host's monotonic clock."""
        self._last_s = time.monotonic() if begun_at_s is None else begun_at_s
        self.parts_s: dict[str, float] = {}

    def ended(self, part: str, at_s: float | None = None) -> None:
        """Note that a part is over, now or at a moment that is known; one that ended before the last took no time."""
        at_s = max(self._last_s, time.monotonic() if at_s is None else at_s)
        self.parts_s[part] = self.parts_s.get(part, 0.0) + at_s - self._last_s
        self._last_s = at_s
