"""The tests that prove what docs/reliability.md promises: its table is made from their markers.

python tests/fault_table.py        writes the table into the document
"""

from __future__ import annotations

import ast
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
DOCUMENT = REPOSITORY / "docs" / "reliability.md"
BEGIN, END = "<!-- made by tests/fault_table.py -->\n", "<!-- end -->\n"


def marked() -> list[tuple[int, str, str]]:
    """(row, what is promised, test) of every `pytest.mark.fault`, by row."""
    found = []
    texts = {file: file.read_text(encoding="utf-8") for file in sorted((REPOSITORY / "tests").rglob("test_*.py"))}
    for file in (file for file, text in texts.items() if "mark.fault(" in text):  # to parse all of them takes seconds
        for node in ast.walk(ast.parse(texts[file])):
            for mark in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.fault":
                    row, what = (ast.literal_eval(argument) for argument in mark.args)
                    found.append((row, what, f"{file.relative_to(REPOSITORY).as_posix()}::{node.name}"))
    return sorted(found)


def table() -> str:
    """As it stands in the document."""
    lines = ["| row | what happens, and what is promised | proved by |", "| --- | --- | --- |"]
    lines += [f"| {row} | {what} | `{test}` |" for row, what, test in marked()]
    return "\n".join(lines) + "\n"


def with_table(text: str) -> str:
    """The document with the table of today."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
