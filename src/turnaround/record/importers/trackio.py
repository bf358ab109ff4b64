"""The database of trackio: a project with all its runs, one row for each call of `trackio.log`.

It is a SQLite file (PROJECT.db); Python's own sqlite3 reads it, and trackio need not be installed.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from turnaround.errors import InputError
from turnaround.record.importers.cells import AccuracyScale, CellError
from turnaround.record.importers.history import HistoryRow, epoch_in, facts_in, history_run, numbers_in
from turnaround.record.importers.sheet import SourceFile
from turnaround.record.importers.values import (
    ImportedRun,
    ImportOptions,
    Reading,
    SkippedRow,
    assumed_workers,
    given_name,
)
from turnaround.record.layout import safe_name

SQLITE = b"SQLite format 3\x00"


def is_trackio(source: SourceFile) -> bool:
    """Tell whether the file is a SQLite database; one that is not trackio's is refused by its tables."""
    return (source.content or b"").startswith(SQLITE)


def read_trackio(source: SourceFile, options: ImportOptions, *, is_percent: bool = False) -> Reading:
    """Read all runs of the project."""
    rows, settings = _content(source.path)
    if len(rows) > 1 and options.name is not None:
        raise InputError(f"--name is for one run; {source.path} has {len(rows)}: they keep the names they have.")
    shares = AccuracyScale(is_percent=is_percent, is_curve=True)
    runs: dict[str, ImportedRun] = {}
    left_out: list[SkippedRow] = []
    notes: list[str] = []
    for stored, logged in rows.items():
        name = given_name(options, source.path) if options.name is not None else safe_name(stored) or source.path.stem
        facts = facts_in(settings.get(stored, {}))
        workers, assumed = assumed_workers(options, facts.workers)
        run = ImportedRun(name=name, source=source.path.name, format="trackio", workers=workers)
        try:
            # Two stored names may become one folder: what a file system cannot hold is left out of a name.
            if name in runs:
                raise CellError(f"the name {name[:60]!r} is that of another run already")
            runs[name], said = history_run(logged, facts, run=run, options=options, shares=shares)
        except CellError as error:
            left_out.append(SkippedRow(where=f"run {stored[:60]!r}", name=name[:60], reason=str(error)))
            continue
        notes += [*assumed, *(f"{name}: {text}" for text in said)]
    return Reading(runs=tuple(runs.values()), left_out=tuple(left_out), notes=tuple(dict.fromkeys(notes)))


def _content(path: Path) -> tuple[dict[str, list[HistoryRow]], dict[str, dict[str, Any]]]:
    """Return the logged rows and the settings by run."""
    rows: dict[str, list[HistoryRow]] = {}
    settings: dict[str, dict[str, Any]] = {}
    with _opened(path) as database:
        tables = {str(name) for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "metrics" not in tables or "run_name" not in _columns(database, "metrics"):
            seen = ", ".join(sorted(tables)[:8]) or "no tables"
            raise InputError(f"{path} is a SQLite database, but none of trackio: it has {seen}.")
        # By step and then by id: processes that log side by side write their rows as they come.
        asked = "SELECT id, run_name, timestamp, metrics FROM metrics ORDER BY run_name, step, id"
        for number, name, instant, logged in database.execute(asked):
            values = numbers_in(_object(path, number, logged))
            epoch = epoch_in(values)
            row = HistoryRow(line=int(number), values=values, epoch=epoch, clock_s=_seconds(instant))
            rows.setdefault(str(name), []).append(row)
        if "configs" in tables:
            for number, name, config in database.execute("SELECT id, run_name, config FROM configs"):
                settings[str(name)] = _object(path, number, config)
    if not rows:
        raise InputError(f"{path} is a database of trackio without a single logged row: there is nothing to import.")
    return rows, settings


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open it for reading only; InputError for one that is damaged or still locked by a training."""
    try:
        # Read only: opened otherwise, SQLite may undo a half-done write of the program whose file it is.
        address = f"file:{quote(str(path.resolve()))}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=5)) as database:
            yield database
    except sqlite3.Error as error:
        raise InputError(
            f"{path}: the database cannot be read ({error}). Is it whole, and no training writes?"
        ) from error


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
    return {str(row[1]) for row in database.execute("SELECT * FROM pragma_table_info(?)", (table,))}


def _object(path: Path, number: int, text: Any) -> dict[str, Any]:
    """Return the JSON object in a cell, which is text or the same as bytes."""
    try:
        content = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path}, row {number}: not a JSON object. The database is damaged.") from error
    return content if isinstance(content, dict) else {}


def _seconds(instant: Any) -> float | None:
    try:
        return datetime.fromisoformat(str(instant)).timestamp()
    except (ValueError, OverflowError):
        return None
