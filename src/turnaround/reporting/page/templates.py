"""The page's html templates. Enters: the name of a piece and its values. Leaves: html in which every value is text."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from turnaround.reporting.text_layout import clean

if TYPE_CHECKING:
    from jinja2 import Environment


def asset(name: str) -> str:
    """Return the text of a file in reporting/assets."""
    return (files("turnaround.reporting") / "assets" / name).read_text(encoding="utf-8")


@cache
def environment() -> Environment:
    """Return an environment that escapes whatever is filled in, and removes what would turn or hide text."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    templates = Environment(
        autoescape=True,
        loader=FunctionLoader(asset),
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["tied"] = tied
    return templates


def tied(text: str) -> str:
    """Tie a number to its unit, and a range to its end, by non-breaking characters.

    It is not for what is copied, such as a command: spaces and hyphens are others than those of the text.
    """
    return _RANGE.sub("\\1\u2011\\2", _BEFORE_UNIT.sub("\u00a0", text))


_RANGE = re.compile(r"(?<=\()([0-9.,]+)-([0-9.,]+)(?=\))")  # in brackets: names may have hyphens between digits
_BEFORE_UNIT = re.compile(r"(?<=[0-9]) (?=(?:%|s|ms|min|h|px|images|epochs)(?![\w/]))")


def piece(name: str, **values: Any) -> Markup:
    """One macro of blocks.html.j2, filled in."""
    filled: Markup = getattr(_pieces(), name)(**values).strip()
    return filled


@cache
def _pieces() -> Any:
    return environment().get_template("blocks.html.j2").module


def _shown(value: object) -> object:
    """Clean plain text, since names come from files of others; what is Markup was cleaned when it was made."""
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value
