"""SkyPilot: one task, for `sky jobs launch`, which recovers it on another machine when a spot machine is taken away.

A start that saved and ended with 75 is started again, uncounted; any other failure up to `max_restarts` times.
`submit_task` hands it to SkyPilot's own client, where that is installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from turnaround import safe_path
from turnaround.errors import InputError, MissingPartError
from turnaround.launch.clusters.contract import TrainingJob, Wishes
from turnaround.launch.clusters.written.task import RESUMABLE, HostTask, host_script, yaml_block, yaml_text

TITLE = "SkyPilot"
CLIENT = "sky"
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
MAX_REASON = 500
ERROR_CLASS = re.compile(r"^[\w.]+(?:Error|Exception): ")
"""What Python prints before the sentence: sky.exceptions.NoCloudAccessError: ..."""


def skypilot_file(training: TrainingJob, wishes: Wishes) -> str:
    """Return the task; `sky jobs launch` takes it as it is. Pure."""
    task = HostTask.of(training, wishes, title=TITLE)
    settings = task.settings
    if task.gpu is not None and task.gpu.casefold() == "any":
        raise InputError("SkyPilot rents a kind of GPU: name it, as `sky show-gpus` does: --gpu V100.")
    # The first of SkyPilot's addresses is that of the host with rank 0.
    first = '"${TURNAROUND_FIRST_HOST:-$(head -n 1 <<<"$SKYPILOT_NODE_IPS")}"'
    resources = {
        "accelerators": f"{task.gpu}:{task.processes_here}" if task.gpu else "",
        # With +: at least so many; machines with exactly that number may not exist.
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


def submit_task(text: str, tell: Callable[[str], None]) -> None:
    """Submit the task through `sky jobs launch`, which returns when the job waits for its machines; `tell` gets what it
    prints, line by line. InputError with SkyPilot's own reason when it refuses."""
    # Beside our own Python, too: that of a virtual environment which nobody has activated is not in PATH.
    client = shutil.which(CLIENT) or shutil.which(CLIENT, path=str(Path(sys.executable).parent))
    if client is None:
        raise MissingPartError(
            "SkyPilot is not installed here: there is no `sky` in PATH. Install it for your cloud (pip install "
            '"skypilot[aws]"), or leave --submit out and submit the printed file where it is.'
        )
    said = "no reason given"
    with tempfile.TemporaryDirectory(prefix="turnaround-") as folder:
        file = Path(folder) / "task.yaml"
        file.write_text(text, encoding="utf-8")
        # --yes: whoever types --submit has decided. SkyPilot shows what it would rent on the way.
        words = [client, "jobs", "launch", "--yes", "--detach-run", str(file)]
        with subprocess.Popen(
            words,
            env=safe_path.as_it_was(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        ) as process:
            # The last line is the reason, should it refuse: Python prints the exception after everything else.
            for line in process.stdout or ():
                if plain := COLOURS.sub("", line).strip():
                    said = plain
                    tell(plain)
    if process.returncode != 0:
        reason = ERROR_CLASS.sub("", said)[:MAX_REASON].rstrip(".")
        raise InputError(
            f"SkyPilot has not taken the job: {reason}. `sky check` tells which clouds are set up, `sky jobs queue` "
            "what was submitted; without --submit the file is printed."
        )
