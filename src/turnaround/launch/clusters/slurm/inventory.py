"""The nodes of a cluster (sinfo), and whether a job's wishes can ever be met there.

Slurm accepts some jobs that can never start and leaves them in the queue, or refuses them with "Requested node
configuration is not available". The same questions asked before have answers that help.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from turnaround.errors import InputError, one_of
from turnaround.launch.clusters.slurm.client import call
from turnaround.launch.clusters.slurm.script import SlurmJob
from turnaround.launch.clusters.slurm.settings import SlurmSettings, megabytes, names_said, seconds

SINFO_FORMAT = "%P|%N|%G|%c|%m|%l|%T"
ANY_KIND = "gpu"
"""For GPUs whose kind the cluster does not name."""


@dataclass(frozen=True, kw_only=True)
class Node:
    name: str
    gpus: dict[str, int]
    """Number of GPUs of each kind."""
    cpus: int
    memory_mb: int
    state: str

    @property
    def is_usable(self) -> bool:
        """True when jobs can run there, now or when others have ended."""
        # By the beginning: sinfo appends marks such as * (does not answer), ~ (powered down) and # (powering up).
        return not self.state.startswith(("down", "drain", "fail", "unk", "inval", "error"))


@dataclass(frozen=True, kw_only=True)
class Partition:
    name: str
    is_default: bool
    time_limit_s: int | None
    """None: no limit."""
    nodes: tuple[Node, ...]

    @property
    def gpu_kinds(self) -> tuple[str, ...]:
        return tuple(sorted({kind for node in self.nodes for kind in node.gpus}))


def partitions(*, timeout_s: float = 30.0) -> dict[str, Partition]:
    """Return all partitions of the cluster that this user may see, by name."""
    return parse(call("sinfo", "--noheader", "--Node", f"--format={SINFO_FORMAT}", timeout_s=timeout_s))


def parse(text: str) -> dict[str, Partition]:
    """Parse what sinfo prints: one line for each node in each partition."""
    found: dict[str, tuple[str, dict[str, Node]]] = {}
    defaults = set()
    for line in text.splitlines():
        values = line.split("|")
        if len(values) != 7:
            raise InputError(f"This version of sinfo answers in a way that turnaround does not know: {line[:100]!r}.")
        label, name, gres, cpus, memory, limit, state = (value.strip() for value in values)
        partition = label.rstrip("*")  # sinfo marks the default partition by it
        if label.endswith("*"):
            defaults.add(partition)
        node = Node(name=name, gpus=_gpus(gres), cpus=_count(cpus), memory_mb=_count(memory), state=state)
        found.setdefault(partition, (limit, {}))[1][name] = node
    return {
        name: Partition(
            name=name, is_default=name in defaults, time_limit_s=_limit_s(limit), nodes=tuple(nodes.values())
        )
        for name, (limit, nodes) in found.items()
    }


def check(job: SlurmJob, there: dict[str, Partition]) -> list[str]:
    """`InputError` for what this cluster can never give; what is only unlikely now, as sentences."""
    settings = job.settings
    chosen = _chosen(settings, there)
    if not chosen:
        return []  # no default partition: Slurm itself must decide
    _check_time(settings, chosen)
    nodes = _with_gpus(settings, chosen)
    # CPUs and memory are asked for by GPU; without GPUs by process, as the script does.
    share = settings.gpus_per_host or job.processes_here
    cpus = (settings.cpus_per_gpu or 0) * share
    memory_mb = megabytes(settings.memory_per_gpu) * share if settings.memory_per_gpu else 0
    for what, wanted, best in (
        ("CPUs", cpus, max(node.cpus for node in nodes)),
        ("MB of memory", memory_mb, max(node.memory_mb for node in nodes)),
    ):
        if wanted > best:
            raise InputError(
                f"{wanted} {what} on each host are asked for, but no node of {_named(chosen)} has more than {best}. "
                f"Ask for less {'(cpus_per_gpu)' if what == 'CPUs' else '(memory_per_gpu)'}."
            )
    fitting = [node for node in nodes if node.cpus >= cpus and node.memory_mb >= memory_mb]
    if len(fitting) < settings.hosts:
        raise InputError(
            f"{settings.hosts} hosts are asked for, but {_named(chosen)} has {len(fitting)} that fit. Ask for fewer."
        )
    usable = [node for node in fitting if node.is_usable]
    if len(usable) < settings.hosts:
        out = [f"{node.name} ({node.state})" for node in fitting if not node.is_usable]
        return [f"The job will wait: of the {len(fitting)} nodes that fit, {', '.join(out)} cannot be used now."]
    return []


def most_gpus(settings: SlurmSettings, there: dict[str, Partition]) -> int | None:
    """Return the GPUs, of the kind asked for, of the best node that the job may go to; None when Slurm must decide."""
    chosen = _chosen(settings, there)
    return max(_having(settings.gpu, _nodes(chosen)).values()) if chosen and _kinds(settings, chosen) else None


def gpus_per_host(there: dict[str, Partition]) -> dict[str, int]:
    """The most GPUs of each kind that a node has."""
    found: dict[str, int] = {}
    for node in _nodes(list(there.values())):
        for kind, count in node.gpus.items():
            found[kind] = max(found.get(kind, 0), count)
    return found


def spelled(gpu: str, settings: SlurmSettings, there: dict[str, Partition]) -> str:
    """Return a kind of GPU as this cluster spells it: people write V100 for v100."""
    kinds = {kind for partition in _chosen(settings, there) for kind in partition.gpu_kinds}
    return gpu if gpu in kinds else next((kind for kind in kinds if kind.casefold() == gpu.casefold()), gpu)


def _chosen(settings: SlurmSettings, there: dict[str, Partition]) -> list[Partition]:
    """Return the partitions that the job may go to; several may be named with commas."""
    if settings.partition is None:
        return [partition for partition in there.values() if partition.is_default]
    names = settings.partition.split(",")
    for name in names:
        if name not in there:
            raise InputError(one_of("partition", name, tuple(sorted(there))))
    return [there[name] for name in names]


def _named(chosen: list[Partition]) -> str:
    names = ", ".join(partition.name for partition in chosen)
    return f"partition{'s' * (len(chosen) > 1)} {names}"


def _check_time(settings: SlurmSettings, chosen: list[Partition]) -> None:
    wanted_s = settings.time_limit_s
    limits = [partition.time_limit_s for partition in chosen]
    longest_s = None if None in limits else max(limit for limit in limits if limit is not None)
    if wanted_s is not None and longest_s is not None and wanted_s > longest_s:
        raise InputError(
            f"time = {settings.time!r} is longer than {_named(chosen)} allows ({_spelled(longest_s)}). Ask for less: a "
            "job whose time is up puts itself back into the queue and goes on."
        )


def _with_gpus(settings: SlurmSettings, chosen: list[Partition]) -> list[Node]:
    """Return the nodes with the GPUs that are asked for."""
    nodes = _nodes(chosen)
    count, kind = settings.gpus_per_host, settings.gpu
    if count == 0:
        return nodes
    _kinds(settings, chosen)
    having = _having(kind, nodes)
    most = max(having.values())
    if count > most:
        what = f"{kind} GPU" if kind else "GPU"
        raise InputError(
            f"{count} {what}s on each host are asked for, but no node of {_named(chosen)} has more than {most}. "
            # Rounded up: as many hosts as hold all GPUs that were asked for.
            f"Use more hosts: hosts = {-(-count * settings.hosts // most)} with gpus_per_host = {most}."
        )
    return [node for node in nodes if having[node.name] >= count]


def _nodes(chosen: list[Partition]) -> list[Node]:
    return list({node.name: node for partition in chosen for node in partition.nodes}.values())


def _having(kind: str | None, nodes: list[Node]) -> dict[str, int]:
    """GPUs of a kind, or of any, by node."""
    return {node.name: sum(node.gpus.values()) if kind is None else node.gpus.get(kind, 0) for node in nodes}


def _kinds(settings: SlurmSettings, chosen: list[Partition]) -> list[str]:
    """Return the kinds of GPU that there are; raise InputError when the one that is asked for is not there."""
    kinds = sorted({kind for partition in chosen for kind in partition.gpu_kinds})
    if not kinds:
        raise InputError(
            f"No node of {_named(chosen)} has a GPU. Choose another partition, or train with --device cpu."
        )
    if settings.gpu is not None and settings.gpu not in kinds:
        raise InputError(f"{_named(chosen)}: {one_of('GPU kind', settings.gpu, tuple(kinds))}")
    return kinds


def _gpus(gres: str) -> dict[str, int]:
    """gpu:v100:4(S:0-1),gpu:t4:2,nvme:1 -> {v100: 4, t4: 2}; gpu:4 has no kind."""
    found: dict[str, int] = {}
    for match in re.finditer(r"(?:^|,)(?:gres[:/])?gpu(?::([^:,()]+?))??:(\d+)(?:\([^)]*\))?(?=,|$)", gres):
        kind = match[1] or ANY_KIND
        found[kind] = found.get(kind, 0) + int(match[2])
    return found


def _count(text: str) -> int:
    """4, or 4+ for "at least"."""
    return int(text.rstrip("+")) if text.rstrip("+").isdecimal() else 0


def _limit_s(text: str) -> int | None:
    return None if text in ("infinite", "n/a", "UNLIMITED", "") else seconds(text)


def _spelled(limit_s: int) -> str:
    days, rest = divmod(limit_s, 86400)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


# --- how many hosts, and how many processes on each: one process has one GPU


def settings_for(
    wishes: Mapping[str, Any], *, processes: int, device: str, there: dict[str, Partition] | None
) -> SlurmSettings:
    """Join the user's file and flags to one job of so many processes; without a cluster to ask, every host has room."""
    said, settings = names_said(wishes), SlurmSettings.load(wishes)
    asks_gpus = device != "cpu" or wishes.get("gpu") is not None or wishes.get("gpus_per_host") is not None
    asks_gpus = asks_gpus and settings.gpus_per_host > 0
    if not asks_gpus:
        hosts, _ = spread(processes, hosts=settings.hosts, most=None)
        # A core for each process at least: Slurm would give one to all processes of a host together.
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
    # As few hosts as have room: gradients stay within a host as far as they can. All hosts get the same number, since
    # torch.distributed.run takes one --nproc-per-node for all.
    for count in range(1, processes + 1):
        if processes % count == 0 and (most is None or processes // count <= most):
            return count, processes // count
    return processes, 1
