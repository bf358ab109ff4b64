"""`turnaround train`: one run, from a recipe or a folder of images."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnaround.cli.options import (
    Account,
    Batch,
    ClusterFlags,
    Device,
    Engine,
    Epochs,
    Gpu,
    Hosts,
    LearningRate,
    Log,
    Model,
    More,
    Notify,
    NotifyIdle,
    NoWait,
    On,
    Partition,
    Pretrained,
    Processes,
    Restarts,
    RunOut,
    Set,
    Share,
    ShowBatch,
    Size,
    Submit,
    Time,
    TimeLimit,
    command_began_s,
    notifier_of,
    overrides_of,
    refuse_no_page,
    refuse_unwritable,
    write_text,
)

if TYPE_CHECKING:
    from turnaround.launch.clusters.contract import Cluster, FileWriter, TrainingJob
    from turnaround.recipe import Recipe
    from turnaround.record.notify import Notifier
    from turnaround.workers.environment import RankInfo

    ToldOf = tuple[tuple[str, ...], Notifier | None]

SHOWN_IMAGES = 24
"""On the page of --show-batch, each twice: some 200 kB."""


def train(
    source: Annotated[str, typer.Argument(help="A folder of images, a recipe file (.toml), or a built-in recipe.")],
    workers: Annotated[int | None, typer.Option(help="Data-parallel workers: they decide the result.")] = None,
    processes: Processes = None,
    share: Share = None,
    engine: Engine = None,
    restarts: Restarts = 0,
    device: Device = "auto",
    out: RunOut = None,
    set_: Set = None,
    time_limit: TimeLimit = None,
    epochs: Epochs = None,
    batch: Batch = None,
    lr: LearningRate = None,
    model: Model = None,
    pretrained: Pretrained = None,
    size: Size = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Do not keep the decoded images after the run.")] = False,
    private: Annotated[
        bool, typer.Option("--private", help="Leave host names and command lines out of the record.")
    ] = False,
    log: Log = None,
    notify: Notify = None,
    notify_idle: NotifyIdle = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be run, and do nothing.")] = False,
    show_batch: ShowBatch = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout; no progress.")] = False,
    on: On = "local",
    gpu: Gpu = None,
    hosts: Hosts = None,
    partition: Partition = None,
    account: Account = None,
    time: Time = None,
    slurm: More = None,
    no_wait: NoWait = False,
    submit: Submit = False,
) -> None:
    """Train on a folder of images and record the run.

    [bold]turnaround train photos/[/bold]                          one folder for each class
    [bold]turnaround train photos/ --model resnet50 --pretrained --epochs 5[/bold]
    [bold]turnaround train photos/ --workers 4[/bold]              as 4 GPUs would
    [bold]turnaround train photos/ --show-batch page.html[/bold]   how images are varied
    [bold]turnaround train photos/ --workers 8 --on slurm --gpu v100[/bold]
    """
    from turnaround import recipes
    from turnaround.record.viewers.follow import chosen

    viewers, notifier = chosen(log or ()), notifier_of(notify, notify_idle)
    here, where = _where(processes=processes, share=share, device=device)
    keys = {"workers": workers, "engine": engine, "epochs": epochs, "batch": batch, "lr": lr, "model": model}
    keys |= {"size": size}
    overrides = overrides_of(set_, keys, no_cache=no_cache, time_limit=time_limit, pretrained=pretrained)
    recipe = recipes.find(source, overrides)
    if show_batch is not None:
        is_here = here.is_alone and on == "local" and not dry_run
        return _show_batch(recipe, show_batch, is_here=is_here, device=where["device"], as_json=json_)
    recipe = recipe if here.is_alone else _under_a_launcher(recipe, here, out=out, overrides=overrides)
    target = out or _default_target(recipe)
    flags = ClusterFlags(on, gpu, hosts, partition, account, time, tuple(slurm or ()), no_wait, submit=submit)
    if cluster := flags.target():
        _refuse_on_cluster(cluster, recipe, restarts=restarts, here=here, viewers=viewers, private=private)
        training = _training(recipe, (source, *overrides), target, **where)
        return _train_there(training, cluster, flags, is_dry=dry_run, as_json=json_, notifier=notifier)
    if dry_run:
        return _print_plan(recipe, target, **where)
    wishes = {**where, "restarts": restarts, "is_private": private}
    return _train_here(recipe, target, here=here, told=(viewers, notifier), as_json=json_, wishes=wishes)


def _default_target(recipe: Recipe) -> Path:
    from turnaround.record.layout import default_run_path

    return default_run_path(Path("runs"), f"{recipe.name}-{recipe.workers.count}w")


def _where(*, processes: int | None, share: str | None, device: str) -> tuple[RankInfo, dict[str, Any]]:
    """Return the rank of this command, and on which processes and devices to train: fields of the request."""
    from turnaround.launch.contract import checked_device
    from turnaround.workers.environment import place
    from turnaround.workers.shares import checked_share

    share = None if share is None else checked_share(share)
    return place(), {"processes": processes, "share": share, "device": checked_device(device)}


def _train_here(
    recipe: Recipe, target: Path, *, here: RankInfo, told: ToldOf, as_json: bool, wishes: dict[str, Any]
) -> None:
    """Train on this machine; `wishes` are fields of the request, `told` who else hears of it."""
    from turnaround.launch.lifecycle import Request, start
    from turnaround.reporting.training_display import print_result, run_display

    viewers, notifier = told
    with run_display(target, viewers, here=here, is_quiet=as_json, notifier=notifier) as (show, announced):
        run = start(
            recipe,
            Request(
                out=target,
                show=show,
                place=here,
                shows_progress=not as_json,
                command_s=command_began_s(),
                announce=announced,
                **wishes,
            ),
        )
    return print_result(run, as_json=as_json) if here.rank == 0 else None


def _under_a_launcher(recipe: Recipe, here: RankInfo, *, out: Path | None, overrides: list[str]) -> Recipe:
    """horovodrun or torch.distributed.run runs this command once in each process: all must mean the same run."""
    from turnaround.errors import InputError

    if out is None:
        raise InputError(
            f"A launcher has started this command {here.size} times: give it --out DIR, so that all mean the same run."
        )
    # A 1 that somebody has set is kept, and refused where the launcher's processes contradict it.
    is_default = recipe.workers.count == 1 and "workers.count" not in " ".join(overrides)
    return recipe.replace("workers", count=here.size) if is_default else recipe


def _show_batch(recipe: Recipe, path: Path, *, is_here: bool, device: str, as_json: bool) -> None:
    """Write the page of training images before and after their variation."""
    import tempfile

    from turnaround.errors import InputError
    from turnaround.launch.automatic import decide
    from turnaround.launch.prepare import cache_root, prepare_images
    from turnaround.reporting.pictures import preview_page
    from turnaround.reporting.terminal import err, preparation, print_json, print_notes

    if not is_here:
        raise InputError(
            "--show-batch writes a page on this machine and trains nothing. Leave --dry-run, --on and the launcher out."
        )
    refuse_no_page(path)
    refuse_unwritable(path)
    with tempfile.TemporaryDirectory() as temporary:
        cache = cache_root(recipe, temporary=Path(temporary))
        decision = decide(recipe, cache=cache, device=device)
        recipe = decision.recipe.resolved()
        decision = replace(decision, recipe=recipe)
        with preparation(err(), quiet=as_json) as show:
            prepared = prepare_images(recipe, cache=cache, show=show)
        from turnaround.training.preview import varied_images  # loads torch: after what may be wrong with the images

        images = varied_images(recipe, prepared.pixels, most=SHOWN_IMAGES)
    write_text(path, preview_page(recipe, images))
    if as_json:
        return print_json({"page": str(path), "images": len(images), "augment": vars(recipe.augment)})
    print_notes((*decision.notes(), *prepared.table.warnings))
    return err().print(f"page: {path}", markup=False)


def _refuse_on_cluster(
    cluster: Cluster | FileWriter,
    recipe: Recipe,
    *,
    restarts: int,
    here: RankInfo,
    viewers: tuple[str, ...],
    private: bool,
) -> None:
    from turnaround.errors import InputError
    from turnaround.workers.engines import ENGINES

    if viewers:
        raise InputError(
            f"--log {','.join(viewers)} follows a run of this machine, not a job of {cluster.title}. Leave it out, or "
            "watch it."
        )
    if not here.is_alone:
        raise InputError(
            f"--on {cluster.name} submits a job; it was itself started by a launcher. Call it once, on a login node."
        )
    if recipe.workers.engine != "torch":
        raise InputError(
            f"--on {cluster.name} starts the engine torch, not {recipe.workers.engine}. Leave --engine out, or write a "
            f"job of your own around {ENGINES[recipe.workers.engine].launcher}: docs/slurm.md has one."
        )
    if private:
        raise InputError(
            f"--private is for runs of this machine: a job of {cluster.title} has host names in its script and its "
            "status. Leave it out."
        )
    if restarts:
        raise InputError(
            f"--restarts {restarts} is for this machine: a job of {cluster.title} goes back into the queue by itself."
        )


def _training(
    recipe: Recipe, asked: tuple[str, ...], target: Path, *, processes: int | None, share: str | None, device: str
) -> TrainingJob:
    """Return the job; `asked` are the source and what was set of its recipe."""
    from turnaround.errors import InputError
    from turnaround.launch.clusters.contract import TrainingJob
    from turnaround.launch.contract import asked_processes, choose_processes
    from turnaround.workers.shares import shares_of

    if "," in device:
        raise InputError(f"--device {device} is for processes of this machine or of your own launcher. Leave --on out.")
    workers, words = recipe.workers.count, (asked[0], *(part for each in asked[1:] for part in ("--set", each)))
    wanted = asked_processes(processes, share, workers=workers)
    count = choose_processes(asked=workers if wanted is None else wanted, workers=workers, device=device)
    if share is not None:
        shares_of(share, workers=workers, processes=count)
        words = (*words, "--share", share)
    return TrainingJob(words=words, out=target, processes=count, device=device)


def _train_there(
    training: TrainingJob,
    cluster: Cluster | FileWriter,
    flags: ClusterFlags,
    *,
    is_dry: bool,
    as_json: bool,
    notifier: Notifier | None,
) -> None:
    """Train as a job of a cluster; a dry run prints its script, which can be submitted as it is."""
    from turnaround.launch.clusters.contract import FileWriter
    from turnaround.launch.clusters.follow import follow, inventory_of, submit_checked
    from turnaround.record.layout import RunDirectory
    from turnaround.record.notify import notified
    from turnaround.record.reader import Run
    from turnaround.reporting.terminal import err, print_json, print_script
    from turnaround.reporting.training_display import print_result

    if isinstance(cluster, FileWriter):
        return _write_file(training, cluster, flags, is_dry=is_dry, as_json=as_json, notifier=notifier)
    inventory = inventory_of(cluster, is_dry=is_dry)
    job = cluster.job(training, flags.wishes, inventory)
    if is_dry:
        if inventory is not None:
            cluster.check(job, inventory)
        return print_script(cluster.script(job))
    console = err()
    tell = (lambda line: None) if as_json else lambda line: console.print(line, markup=False)
    if notifier is not None and flags.no_wait:
        notifier.hand_on()
    job_id = submit_checked(job, cluster, inventory, tell)
    if flags.no_wait:
        return print_json({"directory": str(job.directory), "job_id": job_id}) if as_json else None
    with notified(job.directory, notifier, tell=tell) as notify:
        notify()
        follow(RunDirectory(job.directory), job_id, cluster, tell)
    return print_result(Run.load(job.directory), as_json=as_json)


def _write_file(
    training: TrainingJob,
    cluster: FileWriter,
    flags: ClusterFlags,
    *,
    is_dry: bool,
    as_json: bool,
    notifier: Notifier | None,
) -> None:
    """Print the file of a training for a cluster that others submit to, or hand it to the cluster's own client."""
    from turnaround.errors import InputError
    from turnaround.launch.clusters.written.task import job_name
    from turnaround.reporting.terminal import err, print_json, print_script

    if notifier is not None:
        raise InputError(f"--notify: export TURNAROUND_NOTIFY where {cluster.title} runs it, not in its file.")
    text = cluster.text(training, flags.wishes)
    if is_dry or not flags.submit or cluster.submit is None:
        return print_script(text)
    console, name = err(), job_name(training.out.name)
    cluster.submit(text, (lambda line: None) if as_json else lambda line: console.print(line, markup=False))
    if as_json:
        return print_json({"cluster": cluster.name, "job_name": name})
    return console.print(
        f"{cluster.title} has the job {name} and starts it again by itself. turnaround's authors have seen none on "
        "a real cloud: look at it (`sky jobs queue`), and at the run (`turnaround report` on the shared folder).",
        markup=False,
    )


def _print_plan(recipe: Recipe, target: Path, *, processes: int | None, share: str | None, device: str) -> None:
    """Print the resolved recipe as TOML, then the command of every process."""
    from turnaround.launch.automatic import decide
    from turnaround.launch.contract import LaunchPlan, asked_processes, choose_processes
    from turnaround.launch.handshake import StartMessage
    from turnaround.launch.local import LocalLauncher
    from turnaround.launch.prepare import cache_root
    from turnaround.recipes import as_toml
    from turnaround.record.layout import RunDirectory
    from turnaround.reporting.terminal import out
    from turnaround.workers.shares import EVEN, shares_of

    recipe = decide(recipe, cache=cache_root(recipe, temporary=target), device=device).recipe.resolved()
    workers = recipe.workers.count
    asked = asked_processes(processes, share, workers=workers)
    plan = LaunchPlan(
        directory=RunDirectory(target),
        message=StartMessage(device=device, share=share or EVEN, network=recipe.model.name, begun_at_s=0.0),
        processes=choose_processes(asked=asked, workers=workers, device=device),
        engine=recipe.workers.engine,
    )
    shares = shares_of(plan.message.share, workers=workers, processes=plan.processes)
    console = out()
    console.print(as_toml(recipe), markup=False)
    console.print(f"# would decode the images, write {shlex.quote(str(target))}, and start:", markup=False)
    console.print(f"#   {LocalLauncher().text(plan)}", markup=False)
    if len(set(shares)) > 1:
        console.print(f"# workers of each process: {', '.join(map(str, shares))}", markup=False)
