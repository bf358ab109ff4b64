"""Runs as jobs of a batch system. Each cluster is a folder and a row of `CLUSTERS`. No torch: a login node has none.

contract.py    what a cluster must do
submission.py  a run becomes a job, once, wherever this is killed
follow.py      jobs to their end; who follows can leave and come back
job_status.py  what a cluster says of a job, in the run's status.json
slurm/         sbatch, squeue, requeue
"""

from importlib import import_module

from turnaround.errors import InputError, one_of
from turnaround.launch.clusters.contract import Cluster

CLUSTERS = {"slurm": "turnaround.launch.clusters.slurm.cluster:Slurm"}
"""By the name after --on: module and class, which is imported when it is asked for."""


def cluster_named(name: str) -> Cluster:
    """Return the cluster of this name; InputError when there is none."""
    if name not in CLUSTERS:
        raise InputError(one_of("cluster", name, tuple(CLUSTERS)))
    module, _, kind = CLUSTERS[name].partition(":")
    found: Cluster = getattr(import_module(module), kind)()
    return found
