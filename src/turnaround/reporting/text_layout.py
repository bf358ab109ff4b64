"""Text in lines no wider than the terminal: sentences wrapped, tables split into several where one does not fit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rich.cells import cell_len, chop_cells

from turnaround.words import clean as clean  # whoever lays names out cleans them

GAP = 2
NARROWEST = 40
"""A terminal that claims less is taken for one of this width: below, nothing can be laid out."""
MIN_NAMES = 20  # cells of the column of names beside a table: narrower, names fall into too many lines


def wrapped(text: str, width: int, *, first: str = "", rest: str | None = None) -> list[str]:
    """Wrap the text in lines of at most `width` cells; `first` leads the first line, `rest` the others."""
    rest = " " * cell_len(first) if rest is None else rest
    lines, line, is_empty = [], first, True
    for word in _pieces(text, max(width - max(cell_len(first), cell_len(rest)), 1)):
        if not is_empty and cell_len(line) + 1 + cell_len(word) > width:
            lines.append(line)
            line, is_empty = rest, True
        line += word if is_empty else f" {word}"
        is_empty = False
    return [one.rstrip() for one in (*lines, line)]


def _pieces(text: str, width: int) -> Iterator[str]:
    """Yield the words, a number with its unit being one; a word wider than a line, such as a path, in pieces."""
    for word in _UNIT.sub(_TIED, " ".join(text.split())).split(" "):
        yield from (
            chop_cells(word.replace(_TIED, " "), width) if cell_len(word) > width else (word.replace(_TIED, " "),)
        )


_TIED = "\0"  # not in any text that was cleaned
# A blank between a number and its unit; not the first letter of a longer word, nor the s of "s/epoch".
_UNIT = re.compile(r"(?<=[0-9]) (?=(?:%|s|ms|min|h|px|GB)(?![\w/]))")


@dataclass(frozen=True, kw_only=True)
class TextColumn:
    """A column of text; the cells of a table's columns stand for the same rows."""

    heading: str
    """May have several lines."""
    cells: tuple[str, ...]
    is_left: bool = False

    @cached_property
    def width(self) -> int:
        return max(cell_len(line) for text in (self.heading, *self.cells) for line in text.split("\n"))

    def narrowed(self, width: int) -> TextColumn:
        """Return the column with long cells in several lines."""
        cells = ("\n".join(wrapped(cell, width, rest="  ")) for cell in self.cells)
        return replace(self, cells=tuple(cells))

    def padded(self, text: str) -> str:
        room = " " * (self.width - cell_len(text))
        return text + room if self.is_left else room + text


@dataclass(frozen=True)
class Table:
    """A table in lines."""

    heading: list[str]
    rows: list[str]


def tables(names: TextColumn, groups: Sequence[Sequence[TextColumn]], width: int) -> list[Table]:
    """Return one table where everything fits; else at least one for each group, each with the names in front.

    No cell is cut. Long names take several lines; where even those leave no room, they stand above their rows.
    """
    groups = [list(group) for group in groups if group]
    everything = [column for group in groups for column in group]
    if _width([names, *everything]) <= width:
        return [_table(names, everything)]
    widest = max((column.width for column in everything), default=0)
    # What the widest group leaves for names. Where that is too little, names get a third and groups are split.
    beside = width - GAP - max((_width(group) for group in groups), default=0)
    front = names.narrowed(beside if beside >= MIN_NAMES else max(width // 3, MIN_NAMES))
    if front.width + GAP + widest > width:
        lots = (some for group in groups for some in _fitting(group, 0, width))
        return [_with_names_apart(names, some, width) for some in lots]
    return [_table(front, some) for group in groups for some in _fitting(group, front.width + GAP, width)]


def _fitting(group: Sequence[TextColumn], taken: int, width: int) -> Iterator[list[TextColumn]]:
    """Yield the columns in as many lots as the width needs; a column wider than that comes alone."""
    some: list[TextColumn] = []
    for column in group:
        if some and taken + _width([*some, column]) > width:
            yield some
            some = []
        some.append(column)
    if some:
        yield some


def _width(columns: Sequence[TextColumn]) -> int:
    return sum(column.width for column in columns) + GAP * (len(columns) - 1)


def _table(names: TextColumn, columns: Sequence[TextColumn]) -> Table:
    """Return a table with names in front; a name of several lines has its figures in the first."""
    lines = []
    for row, name in enumerate(names.cells):
        first, *others = name.split("\n")
        lines += [_joined([names, *columns], [first, *(column.cells[row] for column in columns)]), *others]
    return Table(_heading([names, *columns]), lines)


def _with_names_apart(names: TextColumn, columns: Sequence[TextColumn], width: int) -> Table:
    """Return a table with each row under its name."""
    lines = []
    for row, name in enumerate(names.cells):
        lines += [*wrapped(name, width), _joined(columns, [column.cells[row] for column in columns])]
    return Table(_heading(columns), lines)


def _heading(columns: Sequence[TextColumn]) -> list[str]:
    """Return the heading, as many lines as its tallest column has; shorter ones stand at the bottom."""
    height = max(column.heading.count("\n") for column in columns) + 1
    texts = [column.heading.split("\n") for column in columns]
    lines = zip(*([""] * (height - len(text)) + text for text in texts), strict=True)
    return [_joined(columns, line) for line in lines]


def _joined(columns: Sequence[TextColumn], texts: Sequence[str]) -> str:
    return (" " * GAP).join(column.padded(text) for column, text in zip(columns, texts, strict=True)).rstrip()
