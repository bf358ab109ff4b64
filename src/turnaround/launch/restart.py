"""Decides on how many processes a run is started again by itself, when one of them has failed.

The workers never change, so any number gives the same training. It goes on with fewer when a device is gone, or when
the same process has failed twice in a row and nothing was saved in between: then it will fail again, and the run does
without it and without its GPU. Each process that is left hosts the same number of workers. When GPUs that were gone are
back, it goes on with as many processes as before: at the next restart, or while it trains, between two steps.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from turnaround.errors import ProcessFailedError
from turnaround.launch.contract import LaunchPlan, even_processes
from turnaround.launch.failure import RankFailedError
from turnaround.record.gpus import describe_gpus
from turnaround.record.layout import RunDirectory
from turnaround.workers.shares import EVEN, processes_of

GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"


class Restarts:
    """Remembers the failure before, and decides how the next start differs from the last."""

    def __init__(self, plan: LaunchPlan, *, workers: int) -> None:
        self.workers, self.num_gpus = workers, _num_gpus(plan)
        self._before: tuple[frozenset[int], str] | None = None

    def after(self, error: ProcessFailedError, plan: LaunchPlan) -> tuple[LaunchPlan, str]:
        """Return the plan of the next start, and a sentence where it has fewer processes."""
        ranks = frozenset(error.ranks if isinstance(error, RankFailedError) else ())
        # A new checkpoint in between means progress: then a second failure of the same rank may be chance again.
        saved = _newest(plan.directory)
        failed_again = self._before is not None and bool(self._before[0] & ranks) and self._before[1] == saved
        self._before = (ranks, saved)
        if (more := grown(plan, workers=self.workers)) is not None:
            self.num_gpus, self._before = _num_gpus(plan), None
            return more, grown_sentence(plan, more)
        gpus, before = _num_gpus(plan), self.num_gpus
        self.num_gpus = gpus
        if plan.processes == 1:
            return plan, ""
        # Only where each process had a GPU of its own: processes that share GPUs can go on sharing what is left.
        if plan.processes <= before and gpus < plan.processes:
            left = f"{gpus or 'no'} GPU{'s' * (gpus != 1)} of {before} {'is' if gpus == 1 else 'are'} left"
            wanted = replace(plan, wanted=max(plan.wanted or 0, plan.processes))
            return self._fewer(wanted, at_most=max(1, gpus), why=left)
        if failed_again:
            who = " and ".join(str(rank) for rank in sorted(ranks))
            # A failing GPU would fail under its next process too, so it goes with the rank that had it.
            without = _without_gpus(ranks, {**os.environ, **plan.environment}) if plan.processes <= gpus else {}
            why = f"process {who} failed twice in a row before anything new was saved"
            fewer = replace(plan, environment={**plan.environment, **without})
            return self._fewer(fewer, at_most=plan.processes - 1, why=why)
        return plan, ""

    def _fewer(self, plan: LaunchPlan, *, at_most: int, why: str) -> tuple[LaunchPlan, str]:
        processes = even_processes(workers=self.workers, at_most=at_most)
        self._before = None  # ranks have other numbers now
        count = f"{processes} process{'es' * (processes > 1)}"
        return _on(plan, processes), f"It goes on with {count} instead of {plan.processes}: {why}."


def grown(plan: LaunchPlan, *, workers: int) -> LaunchPlan | None:
    """Return the plan with the processes that GPUs which are back allow; None where there are no more than now."""
    if plan.wanted is None or plan.processes >= plan.wanted:
        return None
    processes = even_processes(workers=workers, at_most=min(_num_gpus(plan), plan.wanted))
    if processes <= plan.processes:
        return None
    return replace(_on(plan, processes), wanted=plan.wanted if processes < plan.wanted else None)


def _on(plan: LaunchPlan, processes: int) -> LaunchPlan:
    """Return the plan on another number of processes; shares and devices for each of those before are given up."""
    share = plan.message.share if processes_of(plan.message.share) is None else EVEN
    device = "auto" if "," in plan.message.device else plan.message.device
    return replace(plan, processes=processes, message=replace(plan.message, share=share, device=device))


def grown_sentence(before: LaunchPlan, now: LaunchPlan) -> str:
    return f"It goes on with {now.processes} processes instead of {before.processes}: GPUs are back."


def _num_gpus(plan: LaunchPlan) -> int:
    return 0 if plan.message.device == "cpu" else len(describe_gpus())


def _without_gpus(ranks: frozenset[int], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the setting that leaves the other processes' GPUs: process r has the r-th visible one."""
    named = environment.get(GPUS_VARIABLE)
    visible = [name for name in named.split(",") if name] if named else [str(i) for i in range(len(describe_gpus()))]
    return {GPUS_VARIABLE: ",".join(name for place, name in enumerate(visible) if place not in ranks)}


def _newest(directory: RunDirectory) -> str:
    """Return the name of the newest visible checkpoint; names are in the order of the training."""
    return next((files.path.name for files in reversed(directory.checkpoints())), "")
