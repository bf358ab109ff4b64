"""Runs as jobs of a batch system. Each cluster is a folder and a row of `CLUSTERS`. No torch: a login node has none.

contract.py    what a cluster must do
submission.py  a run becomes a job, once, wherever this is killed
follow.py      jobs to their end; who follows can leave and come back
job_status.py  what a cluster says of a job, in the run's status.json
slurm/         sbatch, squeue, requeue
written/       SkyPilot and Kubernetes: one file that a person reads and submits; a row of `WRITTEN`
"""

from importlib import import_module

from turnaround.errors import InputError, one_of
from turnaround.launch.clusters.contract import Cluster, FileWriter

CLUSTERS = {"slurm": "turnaround.launch.clusters.slurm.cluster:Slurm"}
"""By the name after --on: module and class, which is imported when it is asked for."""


WRITTEN = {
    "skypilot": ("SkyPilot", "turnaround.launch.clusters.written.skypilot:skypilot_file"),
    "kubernetes": ("Kubernetes", "turnaround.launch.clusters.written.kubernetes:kubernetes_file"),
}
"""By the name after --on: its title, and the module and function that write a training's file."""


def writer_named(name: str) -> FileWriter:
    """Return who writes the file for a cluster that is a row of `WRITTEN`."""
    title, place = WRITTEN[name]
    module, _, function = place.partition(":")
    return FileWriter(name=name, title=title, text=getattr(import_module(module), function))


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
