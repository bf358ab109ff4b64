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
Trees = dict[str, ast.Module]
"""The source, by the path of each file in the package."""
OWNER = "record/layout.py"
NAMES = re.compile(
    r"(?:^|/)(?:(?:recipe|machine|status|evaluation|imported|bench|study|manifest|start|mlflow)\.json"
    r"|(?:epochs|forecasts)\.jsonl|(?:spans|telemetry|failure|pulse|rank|slurm)-.*|\.?epoch-[\d{\\(*]?.*"
    r"|(?:weights|optimizer|average)\.safetensors|processes\.log|(?:run|study)\.lock|job\.sh|page\.html|\.pixels|\.earlier)$"
)
OTHER_MEANINGS = {
    ("data/pixels.py", "manifest.json"): "the manifest of an entry of the pixel cache",
    ("data/pixels.py", "*/manifest.json"): "the same",
    ("reporting/page/fig_scaling.py", "epoch-time"): "the id of a figure",
    ("reporting/page/figures.py", "epoch-time"): "the same",
    ("reporting/page/questions.py", "epoch-time"): "the same",
}


@pytest.fixture(scope="module")
def trees() -> Trees:
    files = sorted(PACKAGE.rglob("*.py"))
    return {file.relative_to(PACKAGE).as_posix(): ast.parse(file.read_text(encoding="utf-8")) for file in files}


def literals(tree: ast.AST) -> Iterator[str]:
    """Every text in the code that may be a path: no docstring, nothing with a blank in it."""
    nodes = list(ast.walk(tree))
    described = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in described:
            continue
        if not re.search(r"\s", node.value):
            yield node.value


def test_no_other_file_knows_a_file_name_of_a_run(trees: Trees) -> None:
    known = {(name, text) for name, tree in trees.items() for text in literals(tree) if NAMES.search(text)}
    assert {one for one in known if one[0] != OWNER} - OTHER_MEANINGS.keys() == set()


def test_the_owner_is_seen(trees: Trees) -> None:
    known = [text for text in literals(trees[OWNER]) if NAMES.search(text)]
    expected = {"recipe.json", "epochs.jsonl", "spans-", "pulse-", "failure-", "epoch-", "processes.log", ".pixels"}
    expected |= {"run.lock", "study.lock", "average.safetensors"}
    assert expected <= set(known)


# --- who opens

TOUCHING = (
    "data",
    "record",
    "recorder",
    "adapters",
    "training",
    "launch",
    "study",
    "use",
    "reporting",
    "analysis",
    "forecast",
)
OPENERS = ("record/files.py", "data/plain.py")
"""Of runs, and of caches: a room of the GPU side's flow may not import the record."""
CALLS = re.compile(
    r"^(open|np\.load|os\.(open|replace|rename|remove|unlink|link|truncate)|shutil\.(rmtree|copy\w*|move))$"
    r"|\.(open|read_text|read_bytes|write_text|write_bytes|unlink|rename|touch|hardlink_to|symlink_to)$"
)
NOT_PATHS = re.compile(
    r"^(RunDirectory|Image|PIL\.Image|webbrowser)\.open$|^urllib\.request\.build_opener|^Path\(f?'/proc/"
)
ELSEWHERE = {
    "analysis/gpu_kinds.py": "the user's table of GPU kinds, and ours in the package",
    "analysis/prices.py": "the user's table of prices",
    "data/decode.py": "images, which the user names",
    "data/decoders.py": "the file of pixels that is being built, in a folder of its own; what the kernel tells",
    "data/entry.py": "locks, without links; what is removed, renamed and synced is of a folder of its own",
    "data/pixels.py": "the entry that is being built, in a folder of its own; a manifest that is removed",
    "data/reading.py": "rows of a file that was mapped as a plain one",
    "data/source.py": "a known set that is fetched, in a folder of its own",
    "data/split_file.py": "a split that is written under a temporary name",
    "data/formats/tables.py": "a table of the user's, found to be a plain file",
    "data/formats/tar.py": "a shard of the user's, opened without waiting",
    "launch/clusters/slurm/probe.py": "the file of a probe, in a folder of its own",
    "launch/clusters/slurm/settings.py": "the user's settings of a cluster",
    "launch/clusters/written/skypilot.py": "the task that is submitted, in a folder of its own",
    "launch/checks.py": "the user's weights file, and timm's own source",
    "record/folder.py": "folders by descriptor, without links",
    "record/git.py": "a repository, not a run",
    "record/importers/sheet.py": "a log of somebody else, named by the user",
    "record/importers/write.py": "a rename of a run that was just made",
    "record/lock.py": "link and replace by the descriptor of the folder",
    "reporting/page/render.py": "the library of figures in its package",
    "reporting/page/templates.py": "our own assets",
    "study/outside.py": "a rename of whatever lies there, which follows no link",
    "training/faults.py": "damage done on purpose, in tests",
    "training/neighbours.py": "the libraries and the run queues of this process, told by the kernel",
    "training/fitting.py": "the memory limits of the control group, told by the kernel",
    "use/export.py": "the exported file, named by the user",
    "use/service.py": "our own assets",
}


def calls(tree: ast.AST) -> Iterator[str]:
    """Every call that opens, replaces or removes a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            text = ast.unparse(node.func)
            if CALLS.search(text) and not NOT_PATHS.search(text):
                yield text


def test_nobody_else_opens_files_and_every_exception_is_still_one(trees: Trees) -> None:
    touching = {name: tree for name, tree in trees.items() if name.split("/")[0] in TOUCHING}
    opened = {name: found for name, tree in touching.items() if (found := list(calls(tree)))}
    assert {name: found for name, found in opened.items() if name not in (*OPENERS, *ELSEWHERE)} == {}
    assert {*OPENERS, *ELSEWHERE} - opened.keys() == set()
