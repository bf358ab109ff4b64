"""`turnaround watch`: the page of runs while they train."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import socket

    from turnaround.analysis.workloads import Survey
    from turnaround.forecast.predict import Forecaster
    from turnaround.forecast.score import Score
    from turnaround.report.live.folder import FollowedFolder
    from turnaround.report.page.blocks import PageView
    from turnaround.web.guard import Access

MAX_SCORED_BYTES = 2**20


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
    """Look at runs while they train: progress, time left, what holds them back, and the whole report.

    [bold]turnaround watch runs/fruit[/bold]        one run
    [bold]turnaround watch runs/[/bold]             all runs below a folder, also those that are still to come
    """
    from turnaround.cli.console import err
    from turnaround.report.live.folder import FollowedFolder

    folder = FollowedFolder(directory)  # a folder that is not there is said before anything is loaded
    with _listening(host, port, socket_) as listening:
        place = _place(folder, listening, host=host, path=socket_)
        for line in place.lines():
            err().print(line, markup=False)
        _serve(folder, place, listening)


@dataclass(frozen=True, kw_only=True)
class PageAddress:
    """Where the page is, and for whom."""

    directory: Path
    host: str
    port: int
    """0 on a Unix socket."""
    token: str = field(repr=False)
    is_kept: bool
    """Whether the token will be the same at the next start."""
    socket: Path | None = None

    @property
    def url(self) -> str:
        import socket

        name = socket.gethostname() if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104
        shown = f"[{name}]" if ":" in name else name
        return f"http://{shown}:{self.port or 8765}/?token={self.token}"

    @property
    def is_opened(self) -> bool:
        from turnaround.web.guard import is_loopback

        return self.socket is None and not is_loopback(self.host)

    @property
    def access(self) -> Access:
        import socket

        from turnaround.web.guard import Access

        names = {self.host.lower()}
        if self.is_opened:
            names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        return Access(names=frozenset(names), token=self.token, is_opened=self.is_opened)

    def lines(self) -> Iterator[str]:
        """What a person must know."""
        yield f"{self.directory} is shown at {self.url}"
        if not self.is_kept:
            yield "The address changes with every start: there is no folder of yours to keep its token in."
        if self.is_opened:
            yield (
                "Open to the network: whoever has this address may read what the runs have recorded, and it travels "
                "unencrypted. On a network that you do not trust, leave --host out and use ssh -L. Ctrl-C ends it."
            )
            return
        yield "Only this machine reaches it, and only with this address. Ctrl-C ends it."
        if self.socket is not None:
            yield f"Through ssh, on your own machine: {tunnel(8765, str(self.socket.absolute()))}"
        elif is_remote():
            yield f"From your own machine first: {tunnel(self.port, f'127.0.0.1:{self.port}')}"


def is_remote() -> bool:
    """Whether somebody has come here through ssh."""
    import os

    return bool(os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY"))


def tunnel(port: int, target: str) -> str:
    """The command that brings the page to where its reader sits."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = "USER"
    return shlex.join(["ssh", "-L", f"{port}:{target}", f"{user}@{socket.gethostname()}"])


@contextmanager
def _listening(host: str, port: int, path: Path | None) -> Iterator[socket.socket]:
    from turnaround.web.sockets import listen, listen_at

    with listen_at(path) if path is not None else listen(host, port) as listening:
        yield listening


def _place(folder: FollowedFolder, listening: socket.socket, *, host: str, path: Path | None) -> PageAddress:
    from turnaround.web.tokens import kept_token

    token, is_kept = kept_token(f"watch {folder.root}")
    port = 0 if path is not None else listening.getsockname()[1]
    return PageAddress(directory=folder.given, host=host, port=port, token=token, is_kept=is_kept, socket=path)


def _serve(folder: FollowedFolder, place: PageAddress, listening: socket.socket) -> None:
    import hashlib
    import os

    from turnaround.report.live.page_builder import PageBuilder
    from turnaround.report.live.server import LiveServer, LiveService, Pacing, run_server

    view = LiveView(folder)
    service = LiveService(PageBuilder(folder, view, title=view.title), Pacing())
    # Cookies do not know ports: two pages of one machine need two names.
    cookie = f"turnaround-{hashlib.sha256(os.fsencode(folder.root)).hexdigest()[:8]}"
    run_server(LiveServer(service, place.access, cookie=cookie), listening)


class LiveView:
    """What the live page tells of a survey; no example pictures: a record must not say what the server opens."""

    def __init__(self, folder: FollowedFolder) -> None:
        self.folder = folder
        self.title = folder.root.name or str(folder.root)
        self._forecasters: dict[str, tuple[Forecaster, ...]] = {}
        self._scores: tuple[Score, ...] = ()
        self._known: dict[str, frozenset[tuple[str, int]]] = {}
        """By job: the finished runs that the forecasts rest on. They take longer than all the rest, so they are made
        anew only when one more has finished."""

    def __call__(self, survey: Survey, notes: tuple[str, ...]) -> PageView:
        from dataclasses import replace

        from turnaround.cli.page import Wanted, page_view

        self._forecast(survey)
        wanted = Wanted(has_pictures=False, has_forecasts=False, is_live=True)
        view = page_view(survey, [], wanted=wanted)
        command = f"turnaround report {shlex.quote(str(self.folder.given))} --out page.html"
        return replace(
            view,
            title=self.title,
            forecasters={job.name: self._forecasters.get(job.name, ()) for job in survey.jobs},
            scores=self._scores,
            notes=(*view.notes, *notes),
            command=command,
        )

    def _forecast(self, survey: Survey) -> None:
        from turnaround.forecast.along import forecasters_of

        for job in survey.jobs:
            finished = [run for case in job.cases for run in case.runs if run.state == "finished"]
            known = frozenset((run.directory, run.epochs) for run in finished)
            if known and known != self._known.get(job.name):
                self._known[job.name] = known
                self._forecasters[job.name] = forecasters_of(job)
                self._scores = self._scored(survey)

    def _scored(self, survey: Survey) -> tuple[Score, ...]:
        """How saved forecasts did; of a single run they lie around its folder, where nothing is read."""
        from turnaround.forecast.score import FILE_NAME, saved_in, scored
        from turnaround.record.layout import RunDirectory

        file = self.folder.root / FILE_NAME
        try:
            is_readable = not RunDirectory(self.folder.root).is_run() and file.lstat().st_size <= MAX_SCORED_BYTES
        except OSError:
            return ()
        return tuple(scored(saved_in(self.folder.root), survey)) if is_readable else ()
