"""docs/reliability.md says what the tests prove, and no more."""

from __future__ import annotations

import re

from fault_table import DOCUMENT, REPOSITORY, marked, with_table
from turnaround.training import faults

ROWS = 50
"""Of our table of faults; all of them apply."""


def test_the_table_is_that_of_the_tests() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert with_table(text) == text, "run python tests/fault_table.py"
    assert sorted({row for row, *_ in marked()}) == list(range(1, ROWS + 1))


def test_every_kind_and_phase_of_fault_is_explained() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [word for word in (*faults._KINDS, *faults.PHASES) if f"`{word}`" not in text] == []


def test_every_test_that_it_names_is_there() -> None:
    # Before it stands what other programs promise, with their own tests.
    text = DOCUMENT.read_text(encoding="utf-8").partition("## What an attack found")[2]
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) > ROWS
    assert [name for file, name in named if f"def {name}(" not in (REPOSITORY / file).read_text(encoding="utf-8")] == []
