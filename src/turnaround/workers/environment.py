"""The only reader of what a launcher says about this process.

| variable            | set by                        | meaning                         |
|---------------------|-------------------------------|---------------------------------|
| RANK                | torch.distributed.run         | number of this process          |
| WORLD_SIZE          | torch.distributed.run         | processes in all                |
| LOCAL_RANK          | torch.distributed.run         | number of this process on host  |
| LOCAL_WORLD_SIZE    | torch.distributed.run         | processes on this host          |
| HOROVOD_RANK        | horovodrun, launch/horovod.py | number of this process          |
| HOROVOD_SIZE        | horovodrun, launch/horovod.py | processes in all                |
| HOROVOD_LOCAL_RANK  | horovodrun, launch/horovod.py | number of this process on host  |
| HOROVOD_LOCAL_SIZE  | horovodrun, launch/horovod.py | processes on this host          |

Where both kinds are set they must say the same. Without any this process is alone. Where the processes of a start meet
(MASTER_ADDR and MASTER_PORT, HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT) tells that start from others.
No torch: the command line asks too.

A program of others that records itself (turnaround.Recorder) may have been started in more ways; `anywhere` knows them,
the first that has set its variables counts:

| OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE | mpirun of Open MPI, and horovodrun through it      |
| PMI_RANK, PMI_SIZE                                    | mpiexec of MPICH and Intel MPI                     |
| SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID     | srun; not a batch script, which is alone           |
| TF_CONFIG                                             | whoever starts a MultiWorkerMirroredStrategy       |
| TURNAROUND_RUN_DIR                                    | `turnaround study --command`: where to record      |
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from turnaround.errors import InputError
from turnaround.workers.engines import ENGINES

VARIABLES = {name: engine.rank_variables for name, engine in ENGINES.items()}
MEETING_POINTS = {name: engine.meeting_point for name, engine in ENGINES.items()}
LAUNCHERS = {name: engine.launcher for name, engine in ENGINES.items()}
STEP_OF_SLURM = "SLURM_STEP_ID"
"""Set in what srun starts, and not in a batch script, which is alone."""
# Rank, size, rank and size on this host (empty: it does not say), then what tells one start from another. mpirun before
# srun: Open MPI starts a daemon on each host through srun, so Slurm's variables there number daemons.
OTHERS = {
    "mpirun": (
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        *("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    ),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID"),
    "srun": (
        # Not SLURM_NTASKS: a batch script has that too, and with SLURM_PROCID 0 it would wait for others.
        *("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
        *("SLURM_JOB_ID", STEP_OF_SLURM, "SLURM_RESTART_COUNT"),
    ),
}
RUN_DIR_VARIABLE = "TURNAROUND_RUN_DIR"
OMP_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables by which OpenMP's runtimes set how threads wait: a user who has set one of these has chosen."""
RUN_QUEUES = Path("/proc/self/schedstat")
"""Where Linux tells how long a process has waited for cores, which training/neighbours.py watches."""


@dataclass(frozen=True, kw_only=True)
class RankInfo:
    """The rank of this process among all, and on its host."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    engines: tuple[str, ...] = ()
    """The engines whose launcher has set its variables; none when this process was started by hand."""
    start: str = ""
    """Identifies a start: the same in all its processes; another start has, as a rule, another one."""

    @property
    def is_alone(self) -> bool:
        """Tell whether there is no other process to agree with."""
        return self.size == 1


def has_rank(variables: Mapping[str, str]) -> bool:
    """Tell whether the launcher of an engine has numbered a process with these variables."""
    return any(names[0] in variables for names in VARIABLES.values())


def rank_in(variables: Mapping[str, str]) -> int | None:
    """Return the rank in the variables of another process, whatever else they say; None where there is none."""
    return _first_number(0, variables)


def local_rank_in(variables: Mapping[str, str] = os.environ) -> int:
    """Return the number on this host that a launcher has given this process, whose rank among all is known better."""
    return _first_number(2, variables) or 0


def _first_number(index: int, variables: Mapping[str, str]) -> int | None:
    texts = (variables.get(names[index], "") for names in VARIABLES.values())
    return next((int(text) for text in texts if text.isdecimal()), None)


def is_run_by_others(variables: Mapping[str, str]) -> bool:
    """Tell whether a launcher of others runs this command, as a rule once for each process."""
    return has_rank(variables) or STEP_OF_SLURM in variables


def place(variables: Mapping[str, str] = os.environ) -> RankInfo:
    """Return this process's rank; raise InputError when the launchers' variables contradict each other."""
    found = [place for engine in VARIABLES if (place := _place(engine, variables)) is not None]
    if not found:
        return RankInfo()
    first = found[0]
    for other in found[1:]:
        if (first.rank, first.size) != (other.rank, other.size):
            mine, theirs = (
                ", ".join(f"{n}={variables[n]}" for n in VARIABLES[p.engines[0]][:2]) for p in (first, other)
            )
            raise InputError(
                f"Two launchers contradict each other: {mine} against {theirs}. Unset the ones that are left over from "
                "another start."
            )
    return replace(first, engines=tuple(p.engines[0] for p in found))


def _place(engine: str, variables: Mapping[str, str]) -> RankInfo | None:
    """Read what the launcher of one engine says; None when it says nothing."""
    names = VARIABLES[engine]
    if names[0] not in variables and names[1] not in variables:
        return None
    try:
        rank, size = int(variables[names[0]]), int(variables[names[1]])
        # Rank and size are enough, as people set them by hand: one process on each host.
        local_rank, local_size = int(variables.get(names[2], "0")), int(variables.get(names[3], "1"))
    except (KeyError, ValueError) as error:
        raise InputError(
            f"{names[0]} and {names[1]} must both be whole numbers (problem: {error}). Start this through "
            f"`turnaround train` or `{LAUNCHERS[engine]}`, or unset both."
        ) from None
    if not (0 <= rank < size and 0 <= local_rank < local_size <= size):
        contradiction = (
            f"{names[0]}={rank} of {names[1]}={size} with {names[2]}={local_rank} of {names[3]}={local_size}"
        )
        raise InputError(f"{contradiction} cannot be.")
    start = " ".join(variables.get(name, "-") for name in MEETING_POINTS[engine])
    return RankInfo(rank=rank, size=size, local_rank=local_rank, local_size=local_size, engines=(engine,), start=start)


def anywhere(variables: Mapping[str, str] = os.environ) -> RankInfo:
    """Return this process's rank under any known launcher, ours or another; `engines` has the launcher's name."""
    ours = place(variables)
    # Ours first: below one torch.distributed.run on each host srun knows the hosts, and not the processes.
    if ours.engines:
        return ours
    found = (_other(launcher, names, variables) for launcher, names in OTHERS.items())
    return next((place for place in (*found, _tf_config(variables)) if place is not None), ours)


def _other(launcher: str, names: tuple[str, ...], variables: Mapping[str, str]) -> RankInfo | None:
    """Read another launcher's variables; None where they are missing or nonsense: leftovers must not stop anybody."""
    try:
        rank, size = int(variables[names[0]]), int(variables[names[1]])
        local_rank = int(variables.get(names[2], "0"))
        # Where a launcher does not say: as many as this number shows, at least.
        local_size = int(variables.get(names[3], str(max(local_rank + 1, 1))))
    except (KeyError, ValueError):
        return None
    if not (0 <= rank < size and 0 <= local_rank < local_size):
        return None
    start = " ".join(variables.get(name, "-") for name in names[4:])
    return RankInfo(
        rank=rank, size=size, local_rank=local_rank, local_size=local_size, engines=(launcher,), start=start
    )


def _tf_config(variables: Mapping[str, str]) -> RankInfo | None:
    """Read TensorFlow's cluster: the chief is process 0, and the workers follow; its addresses identify the start."""
    try:
        config = json.loads(variables["TF_CONFIG"])
        cluster, task = config["cluster"], config["task"]
        everyone = [(kind, index) for kind in ("chief", "worker") for index in range(len(cluster.get(kind, [])))]
        # Parameter servers and evaluators train nothing and are not among them: ValueError.
        rank = everyone.index((task["type"], int(task["index"])))
    except (KeyError, ValueError, TypeError, AttributeError):
        return None
    return RankInfo(rank=rank, size=len(everyone), engines=("TF_CONFIG",), start=json.dumps(cluster, sort_keys=True))
