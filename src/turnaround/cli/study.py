"""`turnaround study`: many configurations of one recipe, and what they say."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnaround.recipe import Recipe
    from turnaround.study.conduct import Conductor, Work
    from turnaround.study.state import RunState


def study(
    source: Annotated[str, typer.Argument(help="A folder of images, a recipe file (.toml), or a built-in recipe.")],
    workers: Annotated[str | None, typer.Option(help="Workers to train with for real: 1,2,4.")] = None,
    rehearse: Annotated[str | None, typer.Option(help="Workers to rehearse on one device: 8,16.")] = None,
    repeat: Annotated[int, typer.Option(help="Runs of each configuration, with different seeds.", min=1)] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="The study's folder. Default: runs/NAME-study.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Overrides a key of the recipe; may be repeated."),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Stop before a run that would exceed it: 3gpu-hours, 90gpu-minutes.")
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Try runs again that have failed.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the planned runs, and do nothing.")] = False,
) -> None:
    """Run what is missing of a study, then compare and forecast. Stop it at any time: the same command goes on.

    [bold]turnaround study photos/ --workers 1,2,4 --rehearse 8,16 --repeat 3[/bold]
    """
    from turnaround import recipes
    from turnaround.cli.console import checked_device, err
    from turnaround.cli.console import out as stdout
    from turnaround.record.gpus import describe_gpus
    from turnaround.record.lock import RunLock
    from turnaround.study.conduct import Conductor, Work
    from turnaround.study.plan import counts, plan
    from turnaround.study.state import agree_with_before

    recipe = recipes.find(source, list(set_ or []))
    gpus = () if checked_device(device) == "cpu" else tuple(str(gpu["index"]) for gpu in describe_gpus())
    planned = plan(
        workers=counts(workers, flag="--workers") if workers else [],
        rehearse=counts(rehearse, flag="--rehearse") if rehearse else [],
        seeds=range(recipe.training.seed, recipe.training.seed + repeat),
        devices=_devices(len(gpus), device),
    )
    work = Work(
        folder=out or Path("runs") / f"{recipe.name}-study",
        source=source,
        overrides=tuple(set_ or []),
        device=device,
        gpus=gpus,
        retries_failed=retry,
        budget_gpu_s=_budget_s(budget) if budget else None,
    )
    conductor = Conductor(work, planned)
    if dry_run:
        for state in conductor.states():
            stdout().print(f"# {state.planned.label}: {state.standing}", shlex.join(work.command(state)), sep="\n")
        return
    agree_with_before(work.folder, {"source": source, "recipe": _compared(recipe)})
    with RunLock(work.folder / "study.lock"):
        _prepare(recipe, work)
        with _shown(conductor):
            conductor.run()
    if conductor.left_out:
        err().print(f"The budget does not pay for: {'; '.join(conductor.left_out)}.")
    _tell(work.folder, conductor)


def _devices(gpus: int, device: str) -> int:
    from turnaround.launch.contract import usable_cores

    return gpus or (1 if device == "mps" else usable_cores())


def _compared(recipe: Recipe) -> dict[str, object]:
    """What all runs of a study share: everything but seed and workers."""
    values = recipe.replace("training", seed=0).replace("workers", count=1).to_dict()
    return {section: content for section, content in values.items() if section != "name"}


def _budget_s(text: str) -> float:
    from turnaround.errors import InputError

    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*gpu-?(hour|minute|second)s?\s*", text.lower())
    seconds = float(found[1]) * {"hour": 3600, "minute": 60, "second": 1}[found[2]] if found else 0.0
    if seconds <= 0:
        raise InputError(f"--budget takes a time of GPUs: 3gpu-hours, 90gpu-minutes. Received: {text!r}.")
    return seconds


def _prepare(recipe: Recipe, work: Work) -> None:
    """The images once for all runs: bad input is said here, before anything is started."""
    import tempfile

    from turnaround.cli.console import err, preparation
    from turnaround.data.prepare import cache_root, prepare_images

    with tempfile.TemporaryDirectory() as temporary, preparation(err()) as show:
        prepare_images(recipe.resolved(), cache=cache_root(recipe, temporary=Path(temporary)), show=show)


@contextmanager
def _shown(conductor: Conductor) -> Iterator[None]:
    """A table that changes in a terminal; elsewhere a line for every change."""
    from rich.live import Live

    from turnaround.cli.console import err
    from turnaround.report.study_text import study_table

    console = err()
    if console.is_terminal:
        with Live(console=console, refresh_per_second=2) as live:
            conductor.on_change = lambda states: live.update(study_table(states))
            yield
    else:
        conductor.on_change = _tell_changes(lambda line: console.print(line, markup=False))
        yield


def _tell_changes(tell: Callable[[str], None]) -> Callable[[list[RunState]], None]:
    from turnaround.report.study_text import change_line, progress_line

    seen: dict[str, str] = {}

    def on_change(states: list[RunState]) -> None:
        changed = [state for state in states if seen.get(state.planned.name, "missing") != state.standing]
        for state in changed:
            tell(change_line(state))
        if changed:
            tell(progress_line(states))
        seen.update({state.planned.name: state.standing for state in states})

    return on_change


def _tell(folder: Path, conductor: Conductor) -> None:
    """The report of what there is, and what went wrong."""
    from turnaround.cli.console import err
    from turnaround.cli.report import report
    from turnaround.errors import TrainingError

    states = conductor.states()
    if any(state.directory.is_dir() for state in states):
        report(directories=[folder], job=None, json_=False)
        _forecast(folder, most=max(state.planned.workers for state in states))
    failed = [state for state in states if state.standing in ("failed", "interrupted")]
    for state in failed:
        err().print(f"{state.planned.label} {state.standing}: {state.cause}", markup=False)
    if failed:
        raise TrainingError(
            f"{len(failed)} of {len(states)} runs did not finish. Their logs are beside them in {folder}; "
            "the same command with --retry tries them again."
        )


def _forecast(folder: Path, *, most: int) -> None:
    """What the numbers of workers up to twice the largest would do, where the runs allow a forecast."""
    from contextlib import suppress

    from turnaround.cli.console import out
    from turnaround.cli.predict import predict
    from turnaround.errors import InputError

    counts = [2**k for k in range((2 * most).bit_length())]
    with suppress(InputError):  # it has nothing to learn from: the report has said why
        out().print("\n[bold]What other numbers of workers would do[/bold]")
        predict(directories=[folder], workers=",".join(map(str, counts)))
