"""`turnaround recipes`: list, show and copy the built-in recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnaround.cli.verbs import Verb, VerbGroup
from turnaround.errors import InputError

recipes_app = typer.Typer(cls=VerbGroup, help="List, show and copy the built-in recipes.", invoke_without_command=True)


@recipes_app.callback(invoke_without_command=True)
def default(context: typer.Context) -> None:
    """The built-in recipes, one line each."""
    if context.invoked_subcommand is None:
        list_recipes()


@recipes_app.command("list", cls=Verb)
def list_recipes() -> None:
    """List the built-in recipes, one line each."""
    from turnaround import recipes

    width = max(len(name) for name in recipes.names())
    for name in recipes.names():
        typer.echo(f"{name:<{width}}  {recipes.headline(name)}")
    typer.echo("\nturnaround recipes show NAME     the whole recipe, with comments")
    typer.echo("turnaround recipes copy NAME     into a file of your own, to edit and train from")
    typer.echo("turnaround recipes keys          every key that a recipe may have")


@recipes_app.command(cls=Verb)
def show(name: str) -> None:
    """Print a recipe with its comments."""
    from turnaround import recipes

    typer.echo(recipes.text(name), nl=False)


@recipes_app.command(cls=Verb)
def copy(
    name: str,
    to: Annotated[Path | None, typer.Argument(help="The new file. Default: NAME.toml here.")] = None,
) -> None:
    """Copy a recipe into a file of your own."""
    from turnaround import recipes
    from turnaround.record.files import storage_error

    content, target = recipes.text(name), to or Path(f"{name}.toml")
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(content)
    except FileExistsError:
        raise InputError(
            f"{str(target)!r} already exists. Choose another name: turnaround recipes copy {name} FILE."
        ) from None
    except OSError as error:
        raise storage_error("copy the recipe", target, error) from error
    typer.echo(f"{target} written. Edit it, then: turnaround train {target}")


@recipes_app.command(cls=Verb)
def keys() -> None:
    """Print every key with its default and its meaning."""
    from turnaround import recipes

    typer.echo(recipes.keys_text())
