"""Asks a cluster when jobs of several sizes would start. Nothing is submitted.

Enters: a forecaster, the question of an estimate or their predictions, and the user's wishes. Leaves: the same with the
cluster's GPUs of a host, and with the queue.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from turnaround.analysis.gpu_kinds import data_sheet, kind_of
from turnaround.analysis.workloads import Survey
from turnaround.errors import InputError
from turnaround.forecast.estimate import EstimateQuestion
from turnaround.forecast.predict import Forecaster
from turnaround.forecast.question import Prediction, QueueForecast
from turnaround.forecast.queue import MAX_ASKED, MAX_ASKING_S, Wait, WaitLaw, waits_in, with_queue
from turnaround.forecast.ranking import best_of_range
from turnaround.launch.clusters.contract import Cluster, ClusterJob, NoAnswerError, TrainingJob, Wishes

ANY_KIND = "gpu"
"""A cluster may have GPUs of kinds that it does not name: these may be any."""
PROCESSORS = "CPU"


@dataclass(frozen=True, kw_only=True)
class ClusterQueue:
    """One cluster, what it has, and what the user wants of it."""

    cluster: Cluster
    inventory: Any
    wishes: Wishes

    @classmethod
    def ask(cls, cluster: Cluster, wishes: Wishes) -> ClusterQueue:
        """Return what the cluster has; MissingPartError or InputError where it is not here, or does not answer."""
        cluster.require()
        return cls(cluster=cluster, inventory=cluster.inventory(), wishes=wishes)

    def placed(self, forecaster: Forecaster) -> Forecaster:
        """Return the forecaster with as many GPUs on each host as the cluster has."""
        question, gpu = forecaster.question, forecaster.laws.gpu
        if question.hosts is not None or question.gpus_per_host is not None:
            told = "--hosts" if question.hosts is not None else "--gpus-per-host"
            raise InputError(f"--on {self.cluster.name} asks the cluster what {told} tells: give one of the two.")
        if gpu == PROCESSORS:
            return forecaster
        each = self._gpus_per_host([gpu])[gpu]
        return replace(forecaster, question=replace(question, gpus_per_host=each, cluster=self.cluster.title))

    def placed_estimate(self, question: EstimateQuestion) -> EstimateQuestion:
        """Return the question with as many GPUs on each host as the cluster has, for the kinds that it has.

        InputError where it has none of them, or where the user's wishes fit no job on it.
        """
        kinds = tuple(dict.fromkeys(map(kind_of, question.gpus)))
        each = self._gpus_per_host([kind for kind in kinds if kind != PROCESSORS])
        asked = tuple(kind for kind in kinds if kind in each or kind == PROCESSORS)
        refused = [why for kind in asked if (why := self._why_never(kind, question.workers[0])) is not None]
        if len(refused) == len(asked):  # a partition that is not there is told before anything is measured
            raise InputError(refused[0])
        return replace(question, queued_gpus=asked, cluster_gpus_per_host=each)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of GPU that the cluster names and that have a data sheet."""
        there = self.cluster.gpus_per_host(self.inventory)
        return tuple(dict.fromkeys(kind_of(name) for name in there if data_sheet(name) is not None))

    def with_queue(self, predictions: Sequence[Prediction], known: Survey | None) -> list[Prediction]:
        """Return the predictions with their queue; InputError where the cluster would start none of them."""
        law = WaitLaw().fit([*(waits_in(known) if known else ()), *self._accounts()])
        answered, until_s = list(predictions), time.monotonic() + MAX_ASKING_S
        for number in by_importance(predictions)[:MAX_ASKED]:
            if time.monotonic() < until_s:
                answered[number] = self._with_wait(predictions[number], law)
        asked = [p.queue for p in answered if p.queue is not None]
        refused = [queue.refused for queue in asked if queue.refused is not None]
        if refused and len(refused) == len(asked):
            raise InputError(refused[0])
        return answered

    def _gpus_per_host(self, gpus: Sequence[str]) -> dict[str, int]:
        """Return the GPUs of a host by kind, of those that the cluster has; InputError where it has none of several."""
        there = self.cluster.gpus_per_host(self.inventory)
        found = {gpu: there.get(self._named(gpu) or ANY_KIND) for gpu in gpus}
        if gpus and not any(found.values()):
            has = f"it has {', '.join(sorted(there))}" if there else "it has no GPUs"
            raise InputError(
                f"{self.cluster.title} has no {' or '.join(gpus)}: {has}. Ask about one of these with --gpu, or leave "
                "--on out."
            )
        return {gpu: each for gpu, each in found.items() if each is not None}

    def _with_wait(self, prediction: Prediction, law: WaitLaw) -> Prediction:
        try:
            job = self._job(prediction.gpu, prediction.workers)
            self.cluster.check(job, self.inventory)
            estimated_s = self.cluster.start_estimate_s(job)
        except NoAnswerError:
            raise  # the next question would wait as long
        except InputError as error:
            return replace(prediction, queue=QueueForecast(refused=str(error)))
        return with_queue(prediction, law, estimated_s=estimated_s)

    def _why_never(self, gpu: str, workers: int) -> str | None:
        """Return why such a job can never start, as far as the inventory tells; None where it may."""
        try:
            self.cluster.check(self._job(gpu, workers), self.inventory)
        except InputError as error:
            return str(error)
        return None

    def _job(self, gpu: str, workers: int) -> ClusterJob:
        is_cpu = gpu == PROCESSORS
        wishes = self.wishes if is_cpu else replace(self.wishes, gpu=self._named(gpu))
        training = TrainingJob(words=(), out=Path("asked"), processes=workers, device="cpu" if is_cpu else "cuda")
        return self.cluster.job(training, wishes, self.inventory)

    def _named(self, gpu: str) -> str | None:
        """Return a kind of GPU as the cluster spells it; None where it names none like it."""
        there = self.cluster.gpus_per_host(self.inventory)
        return next((name for name in there if name != ANY_KIND and kind_of(name) == gpu), None)

    def _accounts(self) -> Iterator[Wait]:
        for past in self.cluster.past_waits():
            yield Wait(gpus=past.gpus, gpu=kind_of(past.gpu) if past.gpu else None, wait_s=past.wait_s)


def by_importance(predictions: Sequence[Prediction]) -> list[int]:
    """Return the positions of the predictions in the order in which the cluster is asked: what a headline may name
    first (fastest, cheapest, enough, measured, the ends), then powers of two, then all others."""
    named: set[tuple[str, int]] = set()
    for gpu in dict.fromkeys(p.gpu for p in predictions):
        of_kind = [p for p in predictions if p.gpu == gpu]
        best = best_of_range(of_kind)
        counts = [] if best is None else [best.fastest, best.cheapest, best.near_fastest, best.enough]
        counts += [min(p.workers for p in of_kind), max(p.workers for p in of_kind)]
        named |= {(gpu, count) for count in counts}

    def rank(p: Prediction) -> int:
        if (p.gpu, p.workers) in named or p.kind == "measured":
            return 0
        return 1 if p.workers & (p.workers - 1) == 0 else 2

    # Sorting is stable: within a rank they are asked in their own order.
    return sorted(range(len(predictions)), key=lambda number: rank(predictions[number]))
