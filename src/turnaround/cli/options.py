"""Flags that need more than a line, or that several verbs share."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from turnaround.errors import InputError, StorageError, one_of
from turnaround.workers.engines import ENGINES

if TYPE_CHECKING:
    from turnaround.launch.clusters.contract import Cluster, FileWriter, Wishes
    from turnaround.record.notify import Notifier

Processes = Annotated[
    int | None, typer.Option(help="Processes that host them: they decide the speed. Default: the devices here.")
]
Share = Annotated[
    str | None,
    typer.Option(
        "--share",
        metavar="SHARE",
        help="Workers of each process: even, 11,5 (given), or auto (by measured speed).",
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        help="Communication backend: "
        + " or ".join(f"{name} ({engine.backends})" for name, engine in ENGINES.items())
        + ". Default: the recipe's.",
    ),
]
Restarts = Annotated[
    int, typer.Option(min=0, help="Start again by itself from the last checkpoint when a process fails: how often.")
]
RunOut = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="The run directory. Default: runs/NAME, or the next free one."),
]
Device = Annotated[
    str,
    typer.Option(
        "--device", metavar="DEVICE", help="auto, cpu, cuda (gpu is the same) or mps; cuda,cpu: one for each process."
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Set a key of the recipe; may be repeated."),
]

ShowBatch = Annotated[
    Path | None,
    typer.Option(
        "--show-batch",
        metavar="FILE.html",
        help="Write a page with training images before and after their variation, and train nothing.",
    ),
]

# --- of a training: short for keys of the recipe

RECIPE = "Keys of the recipe (all of them: turnaround recipes keys)"

Epochs = Annotated[
    int | None, typer.Option("--epochs", help="How often every image is seen: training.epochs.", rich_help_panel=RECIPE)
]
Batch = Annotated[
    str | None,
    typer.Option(
        "--batch",
        metavar="N|auto",
        help="Images of a worker in each step: training.batch_per_worker. auto tries what fits.",
        rich_help_panel=RECIPE,
    ),
]
LearningRate = Annotated[
    float | None,
    typer.Option(
        "--lr", metavar="RATE", help="Learning rate of one worker: training.learning_rate.", rich_help_panel=RECIPE
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="NAME", help="The network, of turnaround models: model.name.", rich_help_panel=RECIPE
    ),
]
Pretrained = Annotated[
    list[bool] | None,  # every time that one of the two was typed: of a single value the last one would win silently
    typer.Option(
        "--pretrained/--from-scratch",
        metavar=" ",
        help="From ImageNet weights, or train from scratch: model.weights.",
        rich_help_panel=RECIPE,
        show_default=False,
    ),
]
Size = Annotated[
    int | None, typer.Option("--size", help="Pixels of a side of the images: data.size_px.", rich_help_panel=RECIPE)
]

Log = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        metavar="VIEWER",
        help="Show the run in another viewer too, while it trains: tensorboard, mlflow, wandb or trackio; may be "
        "repeated.",
    ),
]

Notify = Annotated[
    str | None,
    typer.Option(
        "--notify",
        metavar="COMMAND|URL",
        envvar="TURNAROUND_NOTIFY",
        show_envvar=False,
        help="When it ends or fails: run this command, or post JSON to this https:// address. Never recorded.",
    ),
]
NotifyIdle = Annotated[
    str | None,
    typer.Option(
        "--notify-idle",
        metavar="TIME",
        envvar="TURNAROUND_NOTIFY_IDLE",
        show_envvar=False,
        help="With --notify: also when a GPU has idled for so long: 10min.",
    ),
]

TimeLimit = Annotated[
    str | None,
    typer.Option(
        "--time-limit",
        metavar="TIME",
        help="90s, 10min, 1h30min: as many epochs as fit, start included; the learning rate ends in time.",
    ),
]
MoreEpochs = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Another number of epochs in all, also of a run that has finished; lifts a time limit, and says what "
        "becomes of the learning rate.",
    ),
]
Weights = Annotated[
    str,
    typer.Option(
        help="best: of the epoch with the best validation accuracy; last: of the newest checkpoint, which is also used "
        "where no best was kept."
    ),
]

# --- of a study

StudySource = Annotated[
    str | None, typer.Argument(help="A folder of images, a recipe file (.toml), or a built-in recipe.")
]
Command = Annotated[
    str | None,
    typer.Option(
        "--command",
        metavar="PROGRAM",
        help="In place of SOURCE, somebody else's program; {workers}, {seed} and {out} are filled in.",
    ),
]
WorkerCounts = Annotated[str | None, typer.Option("--workers", metavar="1,2,4", help="Workers to train with for real.")]
Rehearse = Annotated[str | None, typer.Option("--rehearse", metavar="8,16", help="Workers to rehearse on one device.")]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget", metavar="HOURS", help="Stop before a run that would exceed it: 3gpu-hours, 90gpu-minutes."
    ),
]

# --- of a cluster

PANEL = "On a Slurm cluster (always the same: ~/.config/turnaround/slurm.toml)"

On = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="WHERE",
        help="Who does the work: local (this machine) or slurm; skypilot, kubernetes, kubeflow: print its file.",
    ),
]
Gpu = Annotated[
    str | None,
    typer.Option("--gpu", metavar="KIND", help="The kind of GPU, as the cluster calls it.", rich_help_panel=PANEL),
]
Gpus = Annotated[
    str | None,
    typer.Option(
        "--gpu", metavar="KIND", help="Kinds of GPU, as the cluster calls them: t4,v100.", rich_help_panel=PANEL
    ),
]
Hosts = Annotated[
    int | None, typer.Option("--hosts", min=1, help="Hosts. Default: as few as have room.", rich_help_panel=PANEL)
]
HostCounts = Annotated[
    str | None,
    typer.Option("--hosts", metavar="1,2", help="Hosts. Default: as few as have room.", rich_help_panel=PANEL),
]
Partition = Annotated[
    str | None,
    typer.Option("--partition", metavar="NAME", help="The partition (or several, with commas).", rich_help_panel=PANEL),
]
Account = Annotated[
    str | None, typer.Option("--account", metavar="NAME", help="Who pays for it.", rich_help_panel=PANEL)
]
Time = Annotated[
    str | None,
    typer.Option(
        "--time",
        metavar="HH:MM:SS",
        help="The time limit of one start: 04:00:00. A job goes on after it.",
        rich_help_panel=PANEL,
    ),
]
More = Annotated[
    list[str] | None,
    typer.Option(
        "--slurm",
        "--job",
        metavar="KEY=VALUE",
        help="Any other key of slurm.toml: cpus_per_gpu=8; of a written file: image=..., shared=/mnt, volume=NAME.",
        rich_help_panel=PANEL,
    ),
]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Submit and end; the jobs go on by themselves.", rich_help_panel=PANEL)
]
Submit = Annotated[
    bool,
    typer.Option("--submit", help="Of skypilot: submit the file through its own client.", rich_help_panel=PANEL),
]
Cancel = Annotated[bool, typer.Option("--cancel", help="Cancel the study's jobs.", rich_help_panel=PANEL)]

LOCAL = "local"
owns_process = False
"""True where this process was started for one command and does nothing else (__main__.py)."""
_NUMBER = r"(\d+(?:\.\d+)?)"
_TIME = re.compile(rf"(?:{_NUMBER} *h(?:ours?)?)? *(?:{_NUMBER} *min(?:utes?)?)? *(?:{_NUMBER} *s(?:econds?)?)?")


RECIPE_FLAGS = {
    "workers": "workers.count",
    "engine": "workers.engine",
    "epochs": "training.epochs",
    "batch": "training.batch_per_worker",
    "lr": "training.learning_rate",
    "model": "model.name",
    "size": "data.size_px",
}
"""The key of the recipe that each plain flag is short for."""


def overrides_of(
    given: list[str] | None,
    flags: Mapping[str, object],
    *,
    pretrained: list[bool] | None,
    no_cache: bool = False,
    time_limit: str | None = None,
) -> list[str]:
    """Return what --set and the flags for single keys set in a recipe, each as SECTION.KEY=VALUE."""
    if len(begins := set(pretrained or ())) > 1:
        raise InputError("--pretrained and --from-scratch contradict each other: leave one of the two out.")
    values = {
        **{RECIPE_FLAGS[name]: value for name, value in flags.items()},
        "model.weights": ("imagenet" if True in begins else "none") if begins else None,
        "data.cache": "off" if no_cache else None,
        "training.time_limit_s": None if time_limit is None else f"{seconds_of(time_limit, flag='--time-limit'):g}",
    }
    return [*(given or []), *(f"{key}={value}" for key, value in values.items() if value is not None)]


def command_began_s() -> float | None:
    """Return the start of this process, by the monotonic clock; None where others began it for more than a command."""
    from turnaround.record.host import process_age_s

    return monotonic() - process_age_s() if owns_process else None


def seconds_of(text: str, *, flag: str) -> float:
    """Return the seconds of 90s, 10min, 2h or 1h30min; InputError for anything else."""
    match = _TIME.fullmatch(text.strip())
    parts = [float(part or 0) for part in match.groups()] if match else []
    total_s = sum(part * unit_s for part, unit_s in zip(parts, (3600, 60, 1), strict=bool(parts)))
    if not total_s:
        raise InputError(f"{flag} takes a time with its unit: 90s, 10min, 2h, 1h30min. Received: {text!r}.")
    return total_s


def notifier_of(notify: str | None, notify_idle: str | None) -> Notifier | None:
    """Return who is to be told; None where nobody asked. What this command starts does not tell it again."""
    from turnaround.record.notify import IDLE_VARIABLE, VARIABLE, Notifier

    for name in (VARIABLE, IDLE_VARIABLE):
        os.environ.pop(name, None)
    if notify is None:
        if notify_idle is not None:
            raise InputError(f"--notify-idle {notify_idle} says when, and nothing says whom: add --notify COMMAND|URL.")
        return None
    return Notifier(notify, idle_s=None if notify_idle is None else seconds_of(notify_idle, flag="--notify-idle"))


@dataclass(frozen=True)
class ClusterFlags:
    """The flags about the cluster; InputError for what makes no sense on this machine."""

    on: str = LOCAL
    gpu: str | None = None
    hosts: int | str | None = None
    partition: str | None = None
    account: str | None = None
    time: str | None = None
    more: tuple[str, ...] = ()
    no_wait: bool = False
    cancel: bool = False
    """True when the jobs of a study are to be cancelled."""
    submit: bool = False
    """True when a written file goes to its cluster's own client."""

    def __post_init__(self) -> None:
        from turnaround.launch.clusters import CLUSTERS, WRITTEN, writer_named

        if self.on not in (LOCAL, *CLUSTERS, *WRITTEN):
            raise InputError(one_of("--on", self.on, (LOCAL, *CLUSTERS, *WRITTEN)))
        values = {
            "gpu": self.gpu,
            "hosts": self.hosts,
            "partition": self.partition,
            "account": self.account,
            "time": self.time,
            "slurm": self.more or None,
            "no-wait": self.no_wait or None,
            "cancel": self.cancel or None,
            "submit": self.submit or None,
        }
        given = [name for name, value in values.items() if value is not None]
        if self.on == LOCAL and given:
            clusters = " or ".join(f"--on {name}" for name in (*CLUSTERS, *WRITTEN))
            raise InputError(f"--{given[0]} is for clusters: add {clusters}, or leave it out.")
        if self.on in WRITTEN and self.no_wait:
            raise InputError(f"--no-wait: --on {self.on} prints a file and waits for nothing. Leave it out.")
        if self.submit and self.on in CLUSTERS:
            raise InputError(f"--submit: --on {self.on} submits without it. Leave it out.")
        if self.submit and writer_named(self.on).submit is None:
            raise InputError(
                f"--submit is for clusters whose own client is called, not for --on {self.on}: "
                f"turnaround train ... --on {self.on} > job.yaml, then kubectl apply -f job.yaml."
            )

    def cluster(self) -> Cluster | None:
        """Return who does the work; None for this machine."""
        from turnaround.launch.clusters import cluster_named

        return None if self.on == LOCAL else cluster_named(self.on)

    def target(self) -> Cluster | FileWriter | None:
        """Return who does the work, or writes the file of it; None for this machine."""
        from turnaround.launch.clusters import WRITTEN, writer_named

        return writer_named(self.on) if self.on in WRITTEN else self.cluster()

    @property
    def wishes(self) -> Wishes:
        from turnaround.launch.clusters.contract import Wishes

        return Wishes(
            gpu=self.gpu,
            hosts=self.hosts,
            partition=self.partition,
            account=self.account,
            time=self.time,
            settings=self.more,
        )


# --- pages and tables that a verb writes


def refuse_unwritable(*targets: Path | None) -> None:
    """Refuse a place that cannot be written before the work is done."""
    for target in targets:
        if target is None:
            continue
        if target.is_dir() or not target.absolute().parent.is_dir():
            what = "it is a folder" if target.is_dir() else f"there is no folder {str(target.parent)!r}"
            next_step = "Give the path of a file" if target.is_dir() else "Make it first"
            raise StorageError(f"Cannot write {str(target)!r}: {what}. {next_step}, or choose another place.")
        try:
            # A nameless file in the same folder: permissions alone do not tell what a mounted disk allows.
            tempfile.TemporaryFile(dir=target.absolute().parent).close()
        except OSError as error:
            raise StorageError(
                f"Cannot write {str(target)!r}: {error.strerror} in its folder. Choose another place."
            ) from error


def refuse_no_page(path: Path) -> None:
    """Refuse a name that no browser would open as a page."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise StorageError(
            f"Cannot write the page {str(path)!r}: a page is html, and no browser opens it under that name. Give "
            f"{str(path.with_suffix('.html'))!r}."
        )


def write_text(path: Path, text: str, *, what: str = "page") -> None:
    """Write a page of html, or a table, where the user wants it; a failure names it by `what`."""
    try:
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise StorageError(f"Cannot write the {what} {str(path)!r}: {error.strerror}. Choose another place.") from error
