"""What all verbs have in common: their help pages, and the answer to a flag that is mistyped or misused.

In help, what a flag takes is one plain word, and a switch takes nothing. An answer says what is wrong, what was
received, and what to type instead: the near flag, the flag of the same meaning in other programs, or `--set`.
"""

from __future__ import annotations

import difflib
import inspect
import re
import signal
import typing
from pathlib import Path
from typing import Any

import typer.core

from turnaround.errors import EXIT_CTRL_C, STOPPED, end_on_ctrl_c

PLACEHOLDERS = {int: "N", float: "X", Path: "PATH", str: "TEXT"}
"""What an option takes, by the type of its value. An option says more with a metavar of its own."""


ELSEWHERE = {
    **dict.fromkeys(("learning-rate", "lr0", "base-lr"), "--lr"),
    **dict.fromkeys(("batch-size", "bs", "train-batch-size", "per-device-train-batch-size"), "--batch"),
    **dict.fromkeys(("imgsz", "img-size", "image-size", "input-size", "resolution"), "--size"),
    **dict.fromkeys(("arch", "network", "backbone", "architecture", "model-name"), "--model"),
    **dict.fromkeys(("num-epochs", "max-epochs", "num-train-epochs"), "--epochs"),
    **dict.fromkeys(("gpus", "num-gpus", "nproc", "nproc-per-node", "world-size", "num-workers"), "--workers"),
    **dict.fromkeys(("output", "output-dir", "save-dir", "outdir", "project", "run-name"), "--out"),
    **dict.fromkeys(("format", "include"), "--to"),
}
"""Flags of fastai, timm, Ultralytics, Transformers and torchrun, and ours of the same meaning."""
UsageError: Any = typer.BadParameter.__bases__[0]
"""What typer raises for a wrong use: click's class, or from typer 0.26 on its own copy, which it does not name."""


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


def corrected(error: Any, command: Any, words: list[str]) -> str:
    """Return the message about a wrong use of a verb, with what was received and what to type instead."""
    text = str(error.format_message())
    if (name := getattr(error, "option_name", None)) and text.startswith("No such option"):
        # click takes --lr -1 for a flag named -1, and would say that there is none.
        if re.match(r"-[0-9.]", name):
            negative = next((word for word in words if word.startswith(name)), name)
            return f"{negative} is below 0, which nothing here can be. Received: {' '.join(words)!r}."
        return f"No such option: {name}.{_instead(name, command)}"
    if text.startswith("Missing"):
        return text + next((f" For example: {line}" for line in examples(command)), "")
    if text.startswith("Got unexpected extra argument"):
        return f"{text}. A name with spaces in it needs quotes, and a flag two dashes."
    received = _received(getattr(error, "param", None), words)
    return text if received is None or repr(received) in text else f"{text}. Received: {received!r}."


def examples(command: Any) -> list[str]:
    """Return the commands of the help page, without what is said about them."""
    return re.findall(r"^\[bold\](.*?)\[/bold\]", command.help or "", re.MULTILINE)


def _instead(name: str, command: Any) -> str:
    """Say which flag of the verb is meant by a name it does not know."""
    flags = [flag for param in command.params for flag in (*param.opts, *param.secondary_opts) if flag[:2] == "--"]
    word = name.lstrip("-").replace("_", "-")
    if (known := ELSEWHERE.get(word)) in flags:
        return f" Did you mean {known}?"
    if "--set" in flags and (key := _recipe_key(word.replace("-", "_"))):
        return f" Did you mean --set {key}=VALUE?"
    near = difflib.get_close_matches(f"--{word}", flags, n=2)
    return f" Did you mean {' or '.join(near)}?" if near else f" {command.name} --help lists them."


def _recipe_key(name: str) -> str | None:
    """Return section and name of the recipe's key of this name."""
    from turnaround.recipe import SECTIONS

    return next((f"{section}.{name}" for section, kind in SECTIONS.items() if name in vars(kind)), None)


def _received(param: Any, words: list[str]) -> str | None:
    """Return what was typed for a parameter; None where the message is about no option."""
    for name in getattr(param, "opts", ()):
        for word, following in zip(words, [*words[1:], ""], strict=True):
            if word == name:
                return following
            if word.startswith(f"{name}="):
                return word.removeprefix(f"{name}=")
    return None


class Verb(typer.core.TyperCommand):
    """A verb whose help names what its flags take, and that answers a wrong one with the right one."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.help = joined_prose(self.help or "")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return what is left of the arguments; a wrong use is answered."""
        words = list(args)  # parsing takes them away
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            raise UsageError(corrected(error, self, words), ctx=ctx) from None

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, `--help` too."""
        return with_placeholders(super().get_params(ctx), typing.get_type_hints(self.callback))


class VerbGroup(typer.core.TyperGroup):
    """A group of verbs, whose own flags are switches."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, `--help` too."""
        return with_placeholders(super().get_params(ctx), {})

    def invoke(self, ctx: Any) -> Any:
        """Run the verb. A Ctrl-C that it has no words of its own for is one line: typer says nothing, or "Aborted"."""
        try:
            if signal.getsignal(signal.SIGINT) is end_on_ctrl_c:
                signal.signal(signal.SIGINT, signal.default_int_handler)  # the verb puts away what it has begun
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo(STOPPED, err=True)
            raise typer.Exit(EXIT_CTRL_C) from None
