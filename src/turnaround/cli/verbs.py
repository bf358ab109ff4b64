"""The help of every verb: what a flag takes is said in one plain word, and a switch takes nothing.

Enters: a verb's parameters, as typer made them, and the types of its function. Leaves: the same parameters, with the
placeholders that help pages show.
"""

from __future__ import annotations

import inspect
import typing
from pathlib import Path
from typing import Any

import typer.core

PLACEHOLDERS = {int: "N", float: "X", Path: "PATH", str: "TEXT"}
"""What an option takes, by the type of its value. An option says more with a metavar of its own."""


def with_placeholders(params: list[Any], types: dict[str, Any]) -> list[Any]:
    """Give every parameter without a metavar one: `N` for whole numbers, nothing for a switch."""
    for param in params:
        if param.param_type_name == "argument":
            param.metavar = param.metavar or param.name.upper()
            param.display_type_rich = _no_type  # its name and its help say what it is; typer below 0.20 shows no type
        elif param.metavar is None:
            param.metavar = "" if param.is_flag else PLACEHOLDERS.get(_value_type(types.get(param.name)), "TEXT")
    return params


def _no_type(ctx: Any) -> None:
    """Show no type in the column of types."""


def _value_type(annotation: Any) -> Any:
    """Return int for `int | None` and for `list[int] | None`."""
    inner = [each for each in typing.get_args(annotation) if each is not type(None)]
    return _value_type(inner[0]) if inner else annotation


def joined_prose(text: str) -> str:
    """Join the lines of each paragraph of a docstring, as a terminal breaks them anew; examples keep their lines."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(each if each.startswith("[bold]") else each.replace("\n", " ") for each in paragraphs)


class Verb(typer.core.TyperCommand):
    """A verb whose help names what its flags take."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.help = joined_prose(self.help or "")

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, `--help` too."""
        return with_placeholders(super().get_params(ctx), typing.get_type_hints(self.callback))


class VerbGroup(typer.core.TyperGroup):
    """A group of verbs, whose own flags are switches."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, `--help` too."""
        return with_placeholders(super().get_params(ctx), {})
