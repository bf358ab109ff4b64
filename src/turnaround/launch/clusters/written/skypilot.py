"""SkyPilot: one task, for `sky jobs launch`, which recovers it on another machine when a spot machine is taken away.

A start that saved and ended with 75 is started again, uncounted; any other failure up to `max_restarts` times.
"""

from __future__ import annotations

from turnaround.errors import InputError
from turnaround.launch.clusters.contract import TrainingJob, Wishes
from turnaround.launch.clusters.written.task import RESUMABLE, HostTask, host_script, yaml_block, yaml_text

TITLE = "SkyPilot"


def skypilot_file(training: TrainingJob, wishes: Wishes) -> str:
    """Return the task; `sky jobs launch` takes it as it is. Pure."""
    task = HostTask.of(training, wishes, title=TITLE)
    settings = task.settings
    if task.gpu is not None and task.gpu.casefold() == "any":
        raise InputError("SkyPilot rents a kind of GPU: name it, as `sky show-gpus` does: --gpu V100.")
    first = '"${TURNAROUND_FIRST_HOST:-$(head -n 1 <<<"$SKYPILOT_NODE_IPS")}"'
    resources = {
        "accelerators": f"{task.gpu}:{task.processes_here}" if task.gpu else "",
        "cpus": f"{settings.cpus}+" if settings.cpus else "",
        "memory": f"{settings.memory_gb}+" if settings.memory_gb else "",
        "infra": settings.cloud,
        "image_id": f"docker:{settings.image}" if settings.image else "",
    }
    lines = [f"  {name}: {yaml_text(value)}" for name, value in resources.items() if value]
    if settings.spot == "yes":
        lines.append("  use_spot: true")
    volumes = f"volumes:\n  {yaml_text(settings.shared)}: {yaml_text(settings.volume)}\n" if settings.volume else ""
    setup = f"setup: |\n{yaml_block(settings.setup, indent=2)}\n" if settings.setup else ""
    return f"""\
# {task.name}: {task.hosts} x {task.processes_here} processes.
# Submit: sky jobs launch -n {task.name} FILE. Watch: sky jobs queue
# Written by turnaround and never run on a real cloud by its authors: read it before you trust it.
name: {task.name}
num_nodes: {task.hosts}
workdir: . # this folder goes along, and with it images that lie in it
resources:
{chr(10).join([*lines, "  job_recovery:"])}
    max_restarts_on_errors: {settings.max_restarts}
    recover_on_exit_codes: [{RESUMABLE}] # saved, to go on: not counted
{volumes}{setup}run: |
{yaml_block(host_script(task, rank='"$SKYPILOT_NODE_RANK"', first_host=first), indent=2)}
"""
