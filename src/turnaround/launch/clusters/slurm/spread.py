"""How many hosts, and how many processes on each. Enters: the user's wishes, and the cluster where one can be asked.

One process has one GPU. Where nobody says how many hosts, the fewest that have room; all get the same number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from turnaround.errors import InputError
from turnaround.launch.clusters.slurm.cluster import Partition, most_gpus, spelled
from turnaround.launch.clusters.slurm.settings import SlurmSettings, names_said


def settings_for(
    wishes: Mapping[str, Any], *, processes: int, device: str, there: dict[str, Partition] | None
) -> SlurmSettings:
    """The user's file and flags as one job of so many processes; without a cluster to ask, every host has room."""
    said, settings = names_said(wishes), SlurmSettings.load(wishes)
    asks_gpus = device != "cpu" or wishes.get("gpu") is not None or wishes.get("gpus_per_host") is not None
    asks_gpus = asks_gpus and settings.gpus_per_host > 0
    if not asks_gpus:
        hosts, _ = spread(processes, hosts=settings.hosts, most=None)
        return replace(settings, gpu=None, gpus_per_host=0, hosts=hosts, cpus_per_gpu=settings.cpus_per_gpu or 1)
    if settings.gpu is not None and there is not None:
        settings = replace(settings, gpu=spelled(settings.gpu, settings, there))
    most = settings.gpus_per_host if "gpus_per_host" in said else None
    if most is None and there is not None:
        most = most_gpus(settings, there)
    hosts, each = spread(processes, hosts=settings.hosts if "hosts" in said else None, most=most)
    return replace(settings, hosts=hosts, gpus_per_host=each)


def spread(processes: int, *, hosts: int | None, most: int | None) -> tuple[int, int]:
    """Hosts, and processes on each."""
    if hosts is not None:
        if processes % hosts:
            raise InputError(
                f"{processes} process{'es' * (processes > 1)} cannot be spread evenly over {hosts} hosts. Choose a "
                "number of hosts that divides it."
            )
        return hosts, processes // hosts
    for count in range(1, processes + 1):
        if processes % count == 0 and (most is None or processes // count <= most):
            return count, processes // count
    return processes, 1
