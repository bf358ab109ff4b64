"""`turnaround watch`: the page of runs while they train."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import socket

    from turnaround.record.folder import FollowedFolder
    from turnaround.reporting.live.address import PageAddress


def watch(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run, or a folder of runs.")],
    port: Annotated[int, typer.Option(help="0: any that is free.", min=0, max=65535)] = 8765,
    host: Annotated[
        str, typer.Option(help="The address to listen on. The default is reached from this machine alone.")
    ] = "127.0.0.1",
    socket_: Annotated[
        Path | None,
        typer.Option("--socket", metavar="PATH", help="Listen on a Unix socket of your own instead of a port."),
    ] = None,
) -> None:
    """Look at runs while they train, as a live page.

    [bold]turnaround watch runs/fruit[/bold]        one run
    [bold]turnaround watch runs/[/bold]             all runs below a folder, later ones too
    """
    from turnaround.record.folder import FollowedFolder
    from turnaround.reporting.terminal import err

    folder = FollowedFolder(directory)  # a folder that is not there is said before anything is loaded
    with _listening(host, port, socket_) as listening:
        place = _place(folder, listening, host=host, path=socket_)
        for line in place.lines():
            err().print(line, markup=False)
        _serve(folder, place, listening)


@contextmanager
def _listening(host: str, port: int, path: Path | None) -> Iterator[socket.socket]:
    from turnaround.web.sockets import listen, listen_at

    with listen_at(path) if path is not None else listen(host, port) as listening:
        yield listening


def _place(folder: FollowedFolder, listening: socket.socket, *, host: str, path: Path | None) -> PageAddress:
    from turnaround.reporting.live.address import PageAddress
    from turnaround.web.tokens import kept_token

    token, is_kept = kept_token(f"watch {folder.root}")
    port = 0 if path is not None else listening.getsockname()[1]
    return PageAddress(directory=folder.given, host=host, port=port, token=token, is_kept=is_kept, socket=path)


def _serve(folder: FollowedFolder, place: PageAddress, listening: socket.socket) -> None:
    import hashlib
    import os

    from turnaround.reporting.live.page_builder import PageBuilder
    from turnaround.reporting.live.server import LiveServer, LiveService, Pacing, run_server
    from turnaround.reporting.live.view import LiveView

    view = LiveView(folder)
    service = LiveService(PageBuilder(folder, view, title=view.title), Pacing())
    # Cookies do not know ports: two pages of one machine need two names.
    cookie = f"turnaround-{hashlib.sha256(os.fsencode(folder.root)).hexdigest()[:8]}"
    run_server(LiveServer(service, place.access, cookie=cookie), listening)
