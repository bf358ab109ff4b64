"""The processes of one `srun`, which finds nobody a meeting point: the variables that torch.distributed.run would set.

srun --nodes=2 --ntasks-per-node=1 turnaround doctor      measures the network between two hosts
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from turnaround.errors import InputError
from turnaround.launch.clusters.slurm.interface import towards
from turnaround.launch.clusters.slurm.script import FIRST_PORT, NUM_PORTS
from turnaround.launch.clusters.slurm.states import expand
from turnaround.workers.engines import ENGINES
from turnaround.workers.environment import has_rank


def step_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return where the processes of this step meet, and the interface that leads there; empty outside of `srun`, or
    where another launcher has said it already."""
    if has_rank(variables) or "SLURM_STEP_NODELIST" not in variables or "SLURM_PROCID" not in variables:
        return {}
    try:
        hosts = expand(variables["SLURM_STEP_NODELIST"])
        rank, size = int(variables["SLURM_PROCID"]), int(variables["SLURM_STEP_NUM_TASKS"])
        here = _tasks(variables["SLURM_STEP_TASKS_PER_NODE"])[int(variables["SLURM_NODEID"])]
        job, step = int(variables["SLURM_JOB_ID"]), int(variables.get("SLURM_STEP_ID", "0"))
        local_rank = variables["SLURM_LOCALID"]
    except (KeyError, ValueError, IndexError) as error:
        raise InputError(
            f"This is a step of Slurm whose variables cannot be read: {error}. Start it with srun."
        ) from None
    if size == 1:
        return {}
    place = (str(rank), str(size), local_rank, str(here))
    found = {
        **dict(zip(ENGINES["torch"].rank_variables, place, strict=True)),
        "MASTER_ADDR": hosts[0],
        # Another step of the same job must not meet this one.
        "MASTER_PORT": str(FIRST_PORT + (job + step) % NUM_PORTS),
    }
    if len(hosts) > 1 and not variables.get("GLOO_SOCKET_IFNAME"):
        found["GLOO_SOCKET_IFNAME"] = towards(hosts)
    return found


def _tasks(text: str) -> list[int]:
    """2(x3),1 -> 2, 2, 2, 1: the tasks on each host of a step."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise ValueError(f"tasks per node {text!r}")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
