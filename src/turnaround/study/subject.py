"""What a study is of: a recipe, or a program of somebody else. Enters: what was asked. Leaves: planned runs, or done.

The command line and `ta.run_study` come in here, so a study means the same from both, and either goes on with the
other's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from turnaround import recipes
from turnaround.cores import usable_cores
from turnaround.errors import InputError
from turnaround.recipe import Recipe
from turnaround.record.gpus import describe_gpus
from turnaround.record.layout import StudyDirectory
from turnaround.record.lock import RunLock
from turnaround.study.lifecycle import Conductor, Work, shared_settings
from turnaround.study.plan import PlannedRun, plan
from turnaround.study.program import Program
from turnaround.study.state import agree_with_before

# What reads images is imported inside functions: a plan that is only printed, and somebody else's program, need none.
if TYPE_CHECKING:
    from turnaround.launch.prepare import Show


@dataclass(frozen=True, kw_only=True)
class StudyAsked:
    """The configurations that were asked for, and what there is to run them on."""

    workers: Sequence[int]
    rehearse: Sequence[int] = ()
    repeat: int = 1
    device: str = "auto"
    settings: tuple[str, ...] = ()
    """SECTION.KEY=VALUE, as --set takes them."""
    is_here: bool = True
    """False for the jobs of a cluster, which is asked later for its devices."""
    gpus: tuple[str, ...] = ()
    """GPUs of this machine as CUDA_VISIBLE_DEVICES names them; empty without GPUs."""

    @property
    def num_devices(self) -> int:
        """The devices of this machine: the most workers that can run for real."""
        if not self.is_here:
            return max(self.workers, default=1)
        return len(self.gpus) or (1 if self.device == "mps" else usable_cores())


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The subject of a study: a recipe, or a program of somebody else."""

    name: str
    planned: tuple[PlannedRun, ...]
    compared: dict[str, object]
    """Settings that all runs of the study share; the same command goes on only with the same."""
    source: str = ""
    recipe: Recipe | None = None
    program: Program | None = None

    def work(self, asked: StudyAsked, *, out: Path | None) -> Work:
        """Return the settings of its runs; without `out` they go to runs/NAME-study."""
        return Work(
            folder=out or Path("runs") / f"{self.name}-study",
            source=self.source,
            program=self.program,
            overrides=asked.settings,
            device=asked.device,
            gpus=asked.gpus,
        )

    def refuse_if_missing(self, folder: Path) -> None:
        """Refuse a program that is not on this machine, before anything is started."""
        if self.program is not None:
            self.program.refuse_if_missing(self.planned, folder)

    def refuse_early(self, *, device: str) -> None:
        """Refuse a network, a weights file or a device that every run would refuse; on this machine."""
        from turnaround.launch.checks import refuse_early

        if self.recipe is not None:
            refuse_early(self.recipe, device=device)

    def prepare(self, show: Show) -> None:
        """Prepare the images once for all runs: bad input is said here, before anything is started."""
        from turnaround.launch.automatic import decide
        from turnaround.launch.prepare import cache_root, prepare_images

        if self.recipe is None:
            return
        with tempfile.TemporaryDirectory() as temporary:
            cache = cache_root(self.recipe, temporary=Path(temporary))
            prepare_images(decide(self.recipe, cache=cache, device="auto").recipe.resolved(), cache=cache, show=show)


def gpus_here(device: str) -> tuple[str, ...]:
    """Return the GPUs of this machine as CUDA_VISIBLE_DEVICES names them; none where processors are asked for."""
    return () if device == "cpu" else tuple(str(gpu["index"]) for gpu in describe_gpus())


def of_recipe(source: str, asked: StudyAsked) -> Subject:
    """Plan the runs of a recipe, or of a folder of images."""
    recipe = recipes.find(source, list(asked.settings))
    first = recipe.training.seed
    return Subject(
        name=recipe.name,
        planned=plan(
            workers=asked.workers,
            rehearse=asked.rehearse,
            seeds=range(first, first + asked.repeat),
            devices=asked.num_devices,
        ),
        compared={"source": source, "recipe": shared_settings(recipe)},
        source=source,
        recipe=recipe,
    )


def of_program(command: str, asked: StudyAsked) -> Subject:
    """Plan the runs of a program; without a limit of workers, since only the program knows its machine."""
    if asked.rehearse:
        raise InputError(
            "--rehearse stands in for workers inside turnaround's own training; nobody else's program can be "
            "rehearsed. Use --workers with --command."
        )
    if asked.settings:
        setting = asked.settings[0]
        raise InputError(
            f"A --command has no recipe, so {setting} cannot be set: leave --set and the flags for keys of the recipe "
            "out, and write it into the command."
        )
    program = Program.parse(command)
    if not asked.workers:
        raise InputError("A study of a --command needs configurations: --workers 1,2,4.")
    planned = plan(workers=asked.workers, rehearse=[], seeds=range(asked.repeat), devices=max(asked.workers))
    if asked.is_here:  # on a cluster srun and mpirun find as many tasks as there are workers
        program.refuse_if_unfit(planned)
    return Subject(name=program.name, planned=planned, compared={"command": command}, program=program)


def run_here(
    conductor: Conductor,
    subject: Subject,
    *,
    preparing: AbstractContextManager[Show],
    running: AbstractContextManager[None],
) -> None:
    """Run what is missing on this machine; `preparing` and `running` show it while the images and the runs are made."""
    work = conductor.work
    subject.refuse_if_missing(work.folder)
    subject.refuse_early(device=work.device)
    # Before the lock, which makes no folder: this does, and refuses a study of something else without touching it.
    agree_with_before(work.folder, subject.compared, subject.planned)
    with RunLock(StudyDirectory(work.folder).lock):
        with preparing as show:
            subject.prepare(show)
        with running:
            conductor.run()
