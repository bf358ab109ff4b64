"""What records say cannot act on a terminal: escape sequences in names are shown, never sent."""

from __future__ import annotations

import ast
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Group
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

import turnaround
from analysis.build import Plan, build, rising
from reporting.page.figure_study import with_evaluation
from turnaround.cli import app
from turnaround.record.files import read_json
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run
from turnaround.record.writer import write_json
from turnaround.reporting.progress import PlainProgress
from turnaround.reporting.terminal import SafeConsole, out, print_notes
from turnaround.reporting.training_display import announce, print_result

CLIPBOARD = "\x1b]52;c;ZXZpbA==\x07"
"""OSC 52: a terminal that obeys it puts `evil` into the clipboard."""
EVIL = f"apple{CLIPBOARD}\x9b31m\u202e"
SHOWN = "apple?]52;c;ZXZpbA==?"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run of which every name that others could have chosen is an attack."""
    path = tmp_path / "runs" / "mine"
    build(path, Plan(accuracy=rising(0.8, epochs=12)))
    with_evaluation(path, [EVIL, "pear"], [[1, 9], [0, 10]])
    directory = RunDirectory(path)
    recipe = read_json(directory.recipe)
    write_json(directory.recipe, {**recipe, "name": EVIL, "data": {**recipe["data"], "source": f"/photos/{EVIL}"}})
    write_json(directory.machine, {**read_json(directory.machine), "passed_over_checkpoints": [EVIL]})
    return path


def is_harmless(text: str) -> bool:
    return not set(text) & {"\x1b", "\x07", "\x9b", "\u202e"}


@pytest.mark.parametrize(
    "shown",
    [EVIL, Text(EVIL), Group(Text(EVIL), EVIL)],
    ids=["markup", "text", "group"],
)
def test_no_text_acts_on_the_terminal(shown: Any) -> None:
    stream = io.StringIO()
    table = Table(EVIL)
    table.add_row(Text(EVIL))
    for renderable in (shown, table):
        SafeConsole(file=stream, width=200).print(renderable)
    assert is_harmless(stream.getvalue())
    assert stream.getvalue().count(SHOWN) >= 3


def test_our_own_styles_and_lines_are_kept() -> None:
    stream = io.StringIO()
    console = SafeConsole(file=stream, force_terminal=True, color_system="standard", width=80)
    console.print(Text("red\nand more", style="red"))
    assert stream.getvalue() == "\x1b[31mred\x1b[0m\n\x1b[31mand more\x1b[0m\n"


def test_there_is_no_other_console() -> None:
    package = Path(turnaround.__file__).parent
    made = {
        file.name
        for folder in ("cli", "reporting", "use", "launch", "study")
        for file in (package / folder).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Console", "rich.print", "rich.get_console")
    }
    assert made == set()


@pytest.mark.parametrize(
    "arguments", [["report", "RUNS"], ["report", "RUNS", "--job", "apple"], ["predict", "RUNS", "--workers", "4"]]
)
def test_verbs_that_read_runs(run: Path, arguments: list[str]) -> None:
    done = CliRunner().invoke(app, [str(run.parent) if word == "RUNS" else word for word in arguments])
    assert done.exit_code == 0, done.output
    assert "apple" in done.output
    assert is_harmless(done.output)


def test_train_and_resume(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_result(Run.load(run), as_json=False)
    printed = capsys.readouterr()
    assert f"{SHOWN}31m?: 10.0 % of 10 images" in printed.out
    assert is_harmless(printed.out + printed.err)


def test_what_is_about_to_be_trained(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = SimpleNamespace(
        name=EVIL,
        size_px=64,
        global_batch=32,
        model=SimpleNamespace(name="small"),
        workers=SimpleNamespace(count=1),
        training=SimpleNamespace(num_epochs=1),
    )
    pixels = SimpleNamespace(
        num_train=8, labels=[0] * 10, classes=[EVIL, "pear"], skipped=[(f"{EVIL}.jpg", "empty file")]
    )
    prepared = SimpleNamespace(pixels=pixels, table=SimpleNamespace(warnings=[EVIL]), notes=())
    announce(out(), cast(Any, recipe), cast(Any, prepared), 1)
    printed = capsys.readouterr().out
    assert printed.count(SHOWN) == 3
    assert is_harmless(printed)


def test_names_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    out().print("photos/:apple:/[1]", markup=False)
    assert capsys.readouterr().out == "photos/:apple:/[1]\n"


def test_a_dry_run(tmp_path: Path) -> None:
    recipe = tmp_path / f"{EVIL}.toml"
    recipe.write_text('[data]\nsource = "fruitbowl"\n', encoding="utf-8")
    done = CliRunner().invoke(app, ["train", str(recipe), "--dry-run", "--device", "cpu"])
    assert done.exit_code == 0, done.output
    assert "apple" in done.output
    assert is_harmless(done.output)


def test_notes_and_warnings_of_a_training(capsys: pytest.CaptureFixture[str]) -> None:
    print_notes([EVIL])
    stream = io.StringIO()
    PlainProgress(stream).warn(EVIL)
    printed = capsys.readouterr().err + stream.getvalue()
    assert printed.count(SHOWN) == 2
    assert is_harmless(printed)


ON_A_TERMINAL = """
import sys
from turnaround.reporting import terminal
text = "a\\x7f\\x9b31m\\u2028\\u202e\\u2066\\x1b[2J\\u6f22"
terminal.print_json({text: [text]})
terminal.print_script("x=" + text + "\\n\\tgo on\\n")
"""


def test_json_and_scripts_do_not_act_on_a_terminal() -> None:
    """On a real one, whose encoding has all of it: without an encoding, JSON is ASCII anyway."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}
    done = subprocess.run([sys.executable, "-c", ON_A_TERMINAL], stdout=theirs, env=environment, timeout=60)
    os.close(theirs)
    said, part = b"", b"."
    while part:
        try:
            part = os.read(ours, 4096)
        except OSError:  # what Linux says when the other end is closed
            part = b""
        said += part
    os.close(ours)
    text = said.decode().replace("\r\n", "\n")
    assert done.returncode == 0
    assert is_harmless(text.replace("\n", "").replace("\t", ""))
    document, end, script = text.partition("\n}\n")
    told = "a\x7f\x9b31m\u2028\u202e\u2066\x1b[2J\u6f22"
    assert json.loads(document + end) == {told: [told]}
    assert "\\u007f\\u009b31m\\u2028\\u202e\\u2066\\u001b[2J\u6f22" in document
    assert script == "x=a??31m????[2J\u6f22\n\tgo on\n"
