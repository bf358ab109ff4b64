"""`turnaround models`: the names that model.name takes."""

from __future__ import annotations

from typing import Annotated

import typer

MOST = 200
"""Names printed without a word: timm has more than a thousand."""


def models(
    word: Annotated[str | None, typer.Argument(metavar="WORD", help="Only names with this word in them.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the names as JSON on stdout.")] = False,
) -> None:
    """List the networks that can be trained.

    [bold]turnaround models resnet[/bold]       every name with "resnet" in it
    """
    from turnaround.errors import ModelError
    from turnaround.launch.automatic import downloaded_networks
    from turnaround.launch.checks import OWN_NETWORKS, timm_names
    from turnaround.reporting.terminal import print_json

    names = [*OWN_NETWORKS, *timm_names()]
    found = [name for name in names if word is None or word.casefold() in name]
    if not found:
        import difflib

        near = difflib.get_close_matches(str(word), names, n=5)
        hint = f" Near it: {', '.join(near)}." if near else ""
        raise ModelError(f"No network has {word!r} in its name.{hint} turnaround models lists all {len(names):,}.")
    here = {name.partition(".")[0] for name in downloaded_networks()}
    if json_:
        return print_json({"models": found, "own": list(OWN_NETWORKS), "weights_here": sorted(here)})
    own = {OWN_NETWORKS[0]: "our own, good at 64 px", OWN_NETWORKS[1]: "our own, for images of 32 to 64 px"}
    for name in found if word is not None else found[:MOST]:
        note = own.get(name) or ("trained weights are here" if name in here else "")
        typer.echo(f"{name:<40}{note}".rstrip())
    if word is None and len(found) > MOST:
        typer.echo(f"... and {len(found) - MOST:,} more: turnaround models WORD")
    if len(names) == len(OWN_NETWORKS):
        typer.echo("More with timm: pip install timm torchvision")
    return None
