"""`turnaround resume`: go on with a run that was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnaround.cli.options import (
    ClusterFlags,
    Log,
    MoreEpochs,
    Notify,
    NotifyIdle,
    On,
    Restarts,
    command_began_s,
    notifier_of,
)
from turnaround.workers.engines import ENGINES

if TYPE_CHECKING:
    from turnaround.launch.clusters.contract import Cluster
    from turnaround.record.layout import RunDirectory
    from turnaround.record.notify import Notifier

OtherProcesses = Annotated[int | None, typer.Option(help="Another number of processes. Default: as many as before.")]
OtherShare = Annotated[
    str | None,
    typer.Option(
        "--share", metavar="SHARE", help="Other shares of the workers: even, 11,5, or auto. Default: as before."
    ),
]
OtherEngine = Annotated[
    str | None,
    typer.Option(
        "--engine", metavar="ENGINE", help=f"Another communication backend than before: {' or '.join(ENGINES)}."
    ),
]
OtherDevice = Annotated[
    str | None, typer.Option("--device", metavar="DEVICE", help="auto, cpu, cuda or mps. Default: as before.")
]
AcceptDataChange = Annotated[
    bool, typer.Option("--accept-data-change", help="Go on with images that have changed; the record keeps it.")
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Refuse to go on with another version of turnaround or of a library.")
]
AcceptScript = Annotated[
    bool, typer.Option("--accept-script", help="Submit job.sh though it is not as you submitted it: you have read it.")
]


def resume(
    directory: Annotated[Path, typer.Argument(help="The run directory.")],
    processes: OtherProcesses = None,
    share: OtherShare = None,
    engine: OtherEngine = None,
    epochs: MoreEpochs = None,
    restarts: Restarts = 0,
    device: OtherDevice = None,
    accept_data_change: AcceptDataChange = False,
    accept_script: AcceptScript = False,
    strict: Strict = False,
    log: Log = None,
    notify: Notify = None,
    notify_idle: NotifyIdle = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout; no progress.")] = False,
    on: On = "local",
) -> None:
    """Go on after a crash or a Ctrl-C, from the last checkpoint.

    [bold]turnaround resume runs/x[/bold]                on this machine
    [bold]turnaround resume runs/x --epochs 40[/bold]    more epochs than the recipe asked for
    [bold]turnaround resume runs/x --on slurm[/bold]     follow its job, or submit it again
    """
    from turnaround.launch.contract import checked_device
    from turnaround.launch.lifecycle import Request
    from turnaround.launch.lifecycle import resume as go_on
    from turnaround.record.layout import RunDirectory
    from turnaround.record.reader import Run
    from turnaround.record.viewers.follow import chosen
    from turnaround.reporting.training_display import print_result, run_display
    from turnaround.workers.environment import place

    viewers, notifier = chosen(log or ()), notifier_of(notify, notify_idle)
    if cluster := ClusterFlags(on=on).cluster():
        flags = {"processes": processes, "share": share, "engine": engine, "epochs": epochs, "restarts": restarts}
        checks = {"accept-data-change": accept_data_change, "strict": strict, "log": ",".join(viewers)}
        _refuse_other_flags(**flags, **checks)
        return _rejoin(directory, cluster, notifier, as_json=json_, accepts_script=accept_script)
    _refuse_elsewhere(RunDirectory(directory), accepts_script=accept_script)
    # Read before: that no segment was added is how a run shows that there was nothing to go on with.
    here, before = place(), Run.load(directory).status
    with run_display(directory, viewers, here=here, is_quiet=json_, notifier=notifier) as (show, announced):
        request = Request(
            out=directory,
            show=show,
            processes=processes,
            share=share,
            device=None if device is None else checked_device(device),
            engine=engine,
            epochs=epochs,
            accepts_data_change=accept_data_change,
            is_strict=strict,
            place=here,
            restarts=restarts,
            shows_progress=not json_,
            command_s=command_began_s(),
            announce=announced,
        )
        run = go_on(request)
    if here.rank != 0:
        return None
    if before.state == "finished" and run.status.segments == before.segments and not json_:
        _say_finished(directory)
    return print_result(run, as_json=json_)


def _say_finished(directory: Path) -> None:
    from turnaround.reporting.terminal import err

    err().print(
        f"{directory} is finished: there is nothing to go on with; --epochs N gives it more. This is its result:",
        markup=False,
    )


def _rejoin(
    directory: Path, cluster: Cluster, notifier: Notifier | None, *, as_json: bool, accepts_script: bool
) -> None:
    from turnaround.launch.clusters.follow import rejoin
    from turnaround.record.notify import notified
    from turnaround.record.reader import Run
    from turnaround.reporting.terminal import err
    from turnaround.reporting.training_display import print_result

    console = err()
    tell = (lambda line: None) if as_json else lambda line: console.print(line, markup=False)
    with notified(directory, notifier, tell=tell) as begin:
        begin()
        rejoin(directory, cluster, tell, accepts_script=accepts_script)
    return print_result(Run.load(directory), as_json=as_json)


def _refuse_elsewhere(directory: RunDirectory, *, accepts_script: bool) -> None:
    """Raise InputError where a job trains the run, or a flag speaks of one."""
    from turnaround.errors import InputError
    from turnaround.launch.clusters.submission import refuse_if_queued

    if accepts_script:
        raise InputError("--accept-script is for a job of a cluster. Add --on slurm, or leave it out.")
    refuse_if_queued(directory)


def _refuse_other_flags(**flags: object) -> None:
    """The job's script says how it goes on."""
    from turnaround.errors import InputError

    for name, value in flags.items():
        if value:
            given = f"--{name}" if value is True else f"--{name} {value}"
            raise InputError(
                f"{given}: a job goes on as its script says (job.sh in the run directory). Leave it out, or "
                "edit the script."
            )
