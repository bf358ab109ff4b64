"""Runs as jobs of a batch system. Each cluster is a folder and a row of `CLUSTERS`. No torch: a login node has none.

contract.py    what a cluster must do
submission.py  a run becomes a job, once, wherever this is killed
scripts.py     no script is submitted again that somebody else has put there
follow.py      jobs to their end; who follows can leave and come back
job_status.py  what a cluster says of a job, in the run's status.json
slurm/         sbatch, squeue, requeue
written/       SkyPilot, Kubernetes and Kubeflow: one file that a person reads and submits; a row of `WRITTEN`
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from turnaround.errors import InputError, one_of
from turnaround.launch.clusters.contract import Cluster, FileWriter

CLUSTERS = {"slurm": "turnaround.launch.clusters.slurm.cluster:Slurm"}
"""By the name after --on: module and class, which is imported when it is asked for."""


WRITTEN = {
    "skypilot": ("SkyPilot", "skypilot:skypilot_file", "skypilot:submit_task"),
    "kubernetes": ("Kubernetes", "kubernetes:kubernetes_file", None),
    "kubeflow": ("Kubeflow", "kubeflow:kubeflow_file", None),
}
"""By the name after --on: its title; in written/ the module and function that write a training's file; and those that
submit it, where its own client is called."""


def writer_named(name: str) -> FileWriter:
    """Return who writes the file for a cluster that is a row of `WRITTEN`."""
    title, text, submit = WRITTEN[name]
    return FileWriter(name=name, title=title, text=_written(text), submit=_written(submit) if submit else None)


def _written(place: str) -> Any:
    module, _, function = place.partition(":")
    return getattr(import_module(f"{__name__}.written.{module}"), function)


def cluster_named(name: str) -> Cluster:
    """Return the cluster of this name; InputError when there is none."""
    if name in WRITTEN:
        raise InputError(
            f"--on {name} writes the file of one training and follows nothing: "
            f"turnaround train ... --on {name} > job.yaml"
        )
    if name not in CLUSTERS:
        raise InputError(one_of("cluster", name, tuple(CLUSTERS)))
    module, _, kind = CLUSTERS[name].partition(":")
    found: Cluster = getattr(import_module(module), kind)()
    return found


def step_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the engine's variables for a process that a cluster's launcher has started; empty for any other."""
    answers = (cluster_named(name).step_environment(variables) for name in CLUSTERS)
    return next(filter(None, answers), {})
