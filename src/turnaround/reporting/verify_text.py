"""What `turnaround verify` says: each file in a line, and a line for all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from turnaround.record.verify import FileCheck, FileState, Reason
from turnaround.words import counted

STYLES: dict[FileState, str] = {"whole": "green", "damaged": "bold red", "unknown": "dim"}
SENTENCES: dict[Reason, str] = {
    "as_written": "as it was written",
    "torn": "as it was written; its last line was cut off by a kill, or is being written: the next start removes it",
    "no_checksum": "readable, but without a checksum: an earlier version wrote it, or another program",
    "not_checked": "has no checksum: for people, or of another program",
    "leftover": "left by a writer that was killed: the next start removes it",
    "checksum": "not what was written: its checksum is another",
    "lines": "has lines that are not what was written: readers pass over them",
    "digest": "not what was written: its digest is another",
    "manifest": "nobody knows what it should be: its manifest is damaged or does not name it",
    "missing": "is missing: the manifest beside it names it, or the state of the run implies it",
    "epochs": "does not hold the epochs of the run, each once and in their order",
    "other_run": "is as it was written, but not of the run that the files beside it are of",
    "link": "is a symbolic link: nothing is read through it",
    "not_plain": "is no plain file: nothing is read from it",
    "unreadable": "cannot be read",
    "too_deep": "is a folder too deep to be ours: nothing in it was looked at",
}


def verify_lines(checks: Sequence[FileCheck]) -> Iterator[Text]:
    """Yield the lines for a terminal: damage last, where it is seen."""
    for check in sorted(checks, key=lambda check: check.state == "damaged"):
        line = Text(f"{check.state:8}", style=STYLES[check.state])
        line.append(f" {check.path}: {_sentence(check)}", style="default")
        yield line
    found = Counter(check.state for check in checks)
    yield Text(
        f"{counted(len(checks), 'file')}: {found['whole']:,} whole, {found['damaged']:,} damaged, "
        f"{found['unknown']:,} unknown.",
        style="bold",
    )


def payload_of(path: Path, checks: Sequence[FileCheck]) -> dict[str, Any]:
    """Return the same for programs."""
    found = Counter(check.state for check in checks)
    return {
        "path": str(path),
        **{state: found[state] for state in STYLES},
        "files": [
            {"path": check.path, "state": check.state, "reason": check.reason, "detail": check.detail or None}
            for check in checks
        ],
    }


def _sentence(check: FileCheck) -> str:
    return SENTENCES[check.reason] + (f" ({check.detail})" if check.detail else "")
