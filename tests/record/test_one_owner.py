"""One owner of every file name in a run, and one place that opens its files: walked through the source.

A second owner drifts: one of two parsers of `epoch-00003-step-00040` once could not read it. A second opener follows
the links that the first one refuses.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import turnaround

PACKAGE = Path(turnaround.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
OWNER = "record/layout.py"
NAMES = re.compile(
    r"(?:^|/)(?:(?:recipe|machine|status|evaluation|imported|bench|study|manifest|start|mlflow)\.json"
    r"|(?:epochs|forecasts)\.jsonl|(?:spans|telemetry|failure|pulse|rank|slurm)-.*|\.?epoch-[\d{\\(*]?.*"
    r"|(?:weights|optimizer)\.safetensors|processes\.log|run\.lock|job\.sh|page\.html|\.pixels|\.earlier)$"
)
OTHER_MEANINGS = {
    ("data/pixels.py", "manifest.json"): "the manifest of an entry of the pixel cache",
    ("data/changes.py", "*/manifest.json"): "the same",
    ("report/page/fig_scaling.py", "epoch-time"): "the id of a figure",
}


def name_of(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def literals(tree: ast.AST) -> Iterator[str]:
    """Every text in the code that may be a path: no docstring, nothing with a blank in it."""
    described = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in described:
            if not re.search(r"\s", node.value):
                yield node.value


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_no_other_file_knows_a_file_name_of_a_run(file: Path) -> None:
    if name_of(file) == OWNER:
        return
    known = [text for text in literals(ast.parse(file.read_text(encoding="utf-8"))) if NAMES.search(text)]
    assert [text for text in known if (name_of(file), text) not in OTHER_MEANINGS] == []


def test_the_owner_is_seen() -> None:
    known = [text for text in literals(ast.parse((PACKAGE / OWNER).read_text())) if NAMES.search(text)]
    expected = {"recipe.json", "epochs.jsonl", "spans-", "pulse-", "failure-", "epoch-", "processes.log", ".pixels"}
    assert expected <= set(known)


# --- who opens

TOUCHING_RUNS = ("record", "recorder", "adapters", "training", "launch", "study", "use", "report", "analysis", "forecast")
OPENER = "record/files.py"
CALLS = re.compile(
    r"^(open|os\.(open|replace|rename|remove|unlink|link|mkdir|rmdir|truncate)|shutil\.(rmtree|copy\w*|move))$"
    r"|\.(open|read_text|read_bytes|write_text|write_bytes|unlink|rmdir|rename|touch|hardlink_to|symlink_to)$"
)
NOT_PATHS = re.compile(r"^(RunDirectory|Image|PIL\.Image|webbrowser)\.open$")
ELSEWHERE = {
    "record/lock.py": {"os.link", "os.replace", "Path.read_bytes", "Path.read_text"},
    "record/machine.py": {"Path.read_text"},
}


def calls(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            text = ast.unparse(node.func)
            if CALLS.search(text) and not NOT_PATHS.search(text):
                yield node.lineno, text


if __name__ == "__main__":
    for file in FILES:
        if name_of(file).split("/")[0] in TOUCHING_RUNS and name_of(file) != OPENER:
            for line, text in calls(ast.parse(file.read_text(encoding="utf-8"))):
                print(name_of(file), line, text)
