"""Every help page on a terminal of 80 columns: whole examples, whole titles, plain words for what a flag takes."""

from __future__ import annotations

import inspect
import re
import typing
from typing import Any

import pytest
import typer.main
from typer.models import OptionInfo
from typer.testing import CliRunner

from turnaround.cli import VERBS, app

COLUMNS = 80
GROUP: Any = typer.main.get_command(app)
GROUPS = ("prices", "recipes")
PAGES = {
    "": GROUP,
    **GROUP.commands,
    **{f"{group} {name}": command for group in GROUPS for name, command in GROUP.commands[group].commands.items()},
}


@pytest.fixture(autouse=True)
def a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setenv("TERM", "dumb")


def help_lines(page: str) -> list[str]:
    shown = CliRunner().invoke(app, [*page.split(), "--help"], prog_name="turnaround")
    assert shown.exit_code == 0
    return [line.strip() for line in shown.output.splitlines()]


def examples(command: Any) -> list[str]:
    text = inspect.cleandoc(command.help or "").splitlines()
    return [re.sub(r"\[/?bold\]", "", line) for line in text if line.startswith("[bold]")]


@pytest.mark.parametrize("page", PAGES)
def test_a_help_page(page: str) -> None:
    lines = help_lines(page)
    assert max(map(len, lines)) <= COLUMNS
    assert [line for line in lines if re.search(r"<\w+( range)?>|<list\[", line)] == []
    # Examples are to be copied: each on a line of its own.
    assert [example for example in examples(PAGES[page]) if example.strip() not in lines] == []
    # A title that is cut has no space before the rule that ends it.
    assert [line for line in lines if line.startswith("╭─ ") and not re.fullmatch(r"╭─ .* ─+╮", line)] == []


def test_the_verbs_in_a_line_each() -> None:
    listed = "\n".join(help_lines(""))
    for name, command in GROUP.commands.items():
        summary = inspect.cleandoc(command.help).split("\n\n")[0]
        assert re.search(rf"^│ {name} +{re.escape(summary)} *│$", listed, re.MULTILINE), name


def test_most_verbs_have_an_example() -> None:
    without = {page for page, command in PAGES.items() if page and not examples(command)}
    short = {"demo", "doctor", "prices", "prices remove", "prices clear", "recipes"}
    assert without <= {*short, *(page for page in PAGES if page.startswith("recipes "))}


def test_a_mistyped_verb_or_flag_names_the_near_one() -> None:
    for words, near in ((["tarin", "photos"], "train"), (["train", "photos", "--epoch", "3"], "--epochs")):
        refused = CliRunner().invoke(app, words)
        assert refused.exit_code == 2
        assert near in refused.output
        assert "Traceback" not in refused.output


def test_an_option_with_a_word_for_its_value_says_its_own_name() -> None:
    # typer 0.27 takes no name from the parameter of an option that has a `metavar`: the flag would not exist there.
    unnamed = []
    for verb in VERBS:
        for name, hint in typing.get_type_hints(verb, include_extras=True).items():
            options = [found for found in getattr(hint, "__metadata__", ()) if isinstance(found, OptionInfo)]
            unnamed += [(verb.__name__, name) for o in options if o.metavar and not str(o.default).startswith("-")]
    assert unnamed == []
