"""A folder of runs, or one run, while they come and go."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from turnaround.errors import RunDirectoryError
from turnaround.record.files import FOLDER
from turnaround.record.follow import FollowedRun
from turnaround.record.growing import stamp_of
from turnaround.record.layout import RunDirectory

MAX_RUNS = 300
MAX_FOLDERS = 20_000
MAX_DEPTH = 6
FIRST_BYTES, BYTES_A_LOOK = 64 * 2**20, 4 * 2**20
"""At the start everything that an ordinary study has; later a look stays short, whatever grows."""
# A walk that takes long comes less often: took_s / SCAN_SHARE is the pause that keeps it at this share of a core.
SCAN_EVERY_S = 2.0
SCAN_SHARE = 0.02
"""Largest share of one core for finding new runs."""
NAMES = RunDirectory(Path())  # only for the names of its files
MAKE_A_RUN = (NAMES.recipe.name, NAMES.status.name, NAMES.lock.name)

Parts = tuple[str, ...]


class FollowedFolder:
    """The folder of runs that `turnaround watch` looks at, once a second."""

    def __init__(self, root: Path, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self.given = root
        try:
            self.root = root.resolve(strict=True)
            os.close(os.open(self.root, FOLDER))
        except (OSError, RuntimeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise RunDirectoryError(f"{root} cannot be watched: {reason}. Give a run, or a folder of runs.") from error
        self.now_s = now_s
        self.notes: tuple[str, ...] = ()
        """A sentence for each part of the folder that is not shown."""
        self._all: dict[Parts, FollowedRun] = {}
        self._next_scan_s = 0.0
        self._budget_bytes = FIRST_BYTES

    @property
    def runs(self) -> list[FollowedRun]:
        """The runs that are there, in natural order (run-2 before run-10)."""
        return [self._all[parts] for parts in sorted(self._all, key=_natural) if self._all[parts].is_there]

    def look(self) -> None:
        """Read what is new. OSError means that the folder itself is gone, or cannot be read just now."""
        if self.now_s() >= self._next_scan_s:
            self._scan()
        budget_bytes = self._budget_bytes
        for parts, run in list(self._all.items()):
            try:
                budget_bytes -= run.look(budget_bytes)
            except OSError:  # gone, or replaced by a link
                del self._all[parts]
        self._budget_bytes = BYTES_A_LOOK

    def _scan(self) -> None:
        begun_s = time.thread_time()
        root = os.open(self.root, FOLDER)
        scan = _Scan()
        try:
            scan.below(root, ())
        finally:
            os.close(root)
        found = sorted(scan.found, key=lambda item: -item[1])
        # Those that changed last: what trains now is shown, whatever lies around it.
        kept = {parts for parts, _ in found[:MAX_RUNS]}
        self._all = {parts: run for parts, run in self._all.items() if parts in kept}
        for parts in kept - set(self._all):
            self._all[parts] = FollowedRun(self.root, parts, self.now_s)
        self.notes = tuple(scan.notes(num_left_out=len(found) - len(kept)))
        took_s = time.thread_time() - begun_s
        self._next_scan_s = self.now_s() + max(SCAN_EVERY_S, took_s / SCAN_SHARE)


class _Scan:
    """One walk through the folder, by descriptors: no link is followed, and the inside of runs is not searched."""

    def __init__(self) -> None:
        self.found: list[tuple[Parts, int]] = []
        """Each run, and when it last changed."""
        self.num_folders = self.num_links = 0

    def below(self, folder: int, parts: Parts) -> None:
        self.num_folders += 1
        stamps = {name: stamp for name in MAKE_A_RUN if (stamp := stamp_of(folder, name)) and stamp.is_plain}
        if stamps:
            self.found.append((parts, max(stamp.changed_ns for stamp in stamps.values())))
        # Without a recipe it may still become a run, or be a folder of runs in which somebody has such a file too.
        if NAMES.recipe.name in stamps or len(parts) >= MAX_DEPTH:
            return
        for name in self._folders(folder):
            if self.num_folders > MAX_FOLDERS:
                return
            try:
                deeper = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            except OSError:
                continue
            try:
                self.below(deeper, (*parts, name))
            finally:
                os.close(deeper)

    def _folders(self, folder: int) -> list[str]:
        names: list[str] = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.startswith(".") or len(names) > MAX_FOLDERS:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        names.append(entry.name)
                    elif entry.is_symlink():
                        self.num_links += 1
        except OSError:
            return names
        return names

    def notes(self, *, num_left_out: int) -> Iterator[str]:
        if num_left_out:
            yield (
                f"{num_left_out:,} more runs are here; the {MAX_RUNS} that changed last are shown. Watch a folder of "
                "fewer runs to see the others."
            )
        if self.num_folders > MAX_FOLDERS:
            yield f"Runs were looked for in the first {MAX_FOLDERS:,} folders only."
        if self.num_links:
            links = "1 link is" if self.num_links == 1 else f"{self.num_links:,} links are"
            yield f"{links} not followed: only what lies in the folder itself is shown."


def _natural(parts: Parts) -> list[tuple[str, int]]:
    return [(text, int(digits or 0)) for text, digits in re.findall(r"([^0-9]*)([0-9]{0,18})", "/".join(parts))]
