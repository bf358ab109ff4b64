"""One training as the task of some hosts: the settings that a file needs, and the commands that every host runs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import Any

from turnaround import safe_path
from turnaround.errors import InputError, InterruptedRunError, one_of
from turnaround.launch.clusters.contract import TrainingJob, Wishes
from turnaround.record.layout import RunDirectory

PORT = 29500  # that of torch.distributed.run itself
RESUMABLE = InterruptedRunError.exit_code
REFUSED = InputError.exit_code
DIVERGED = 3
"""The status of a host whose run has diverged: the same training would diverge again."""
GRACE_S = 120
"""Time to save after a SIGTERM; a spot machine of the large clouds is gone after 30 to 120 s."""
HOOKS = "turnaround.launch.clusters.written.hooks"


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """What --job KEY=VALUE sets, besides --gpu and --hosts."""

    shared: str = ""
    """Folder that all hosts see, for the run; --out lies in it."""
    volume: str = ""
    """The volume behind it: a PersistentVolumeClaim, or a volume of SkyPilot."""
    image: str = ""
    """Container image with turnaround in it."""
    python: str = "python"
    setup: str = ""
    """A command before the first start, such as pip install turnaround."""
    cpus: str = ""
    memory_gb: str = ""
    spot: str = "no"
    cloud: str = ""
    max_restarts: str = "20"

    @classmethod
    def parse(cls, given: tuple[str, ...]) -> TaskSettings:
        """Return the settings of KEY=VALUE words; InputError for what is none of them."""
        names = tuple(field.name for field in fields(cls))
        values: dict[str, str] = {}
        for word in given:
            name, is_pair, value = word.partition("=")
            if not is_pair or not value:
                raise InputError(f"--job takes KEY=VALUE. Received: {word!r}.")
            if name not in names:
                raise InputError(one_of("key for --job", name, names))
            values[name] = value
        settings = cls(**values)
        for name in ("cpus", "memory_gb", "max_restarts"):
            if (text := getattr(settings, name)) and not re.fullmatch(r"[1-9][0-9]{0,5}", text):
                raise InputError(f"--job {name} takes a whole number from 1. Received: {text!r}.")
        if settings.spot not in ("yes", "no"):
            raise InputError(f"--job spot takes yes or no. Received: {settings.spot!r}.")
        if settings.shared and not settings.shared.startswith("/"):
            raise InputError(f"--job shared takes an absolute path on the hosts. Received: {settings.shared!r}.")
        return settings


@dataclass(frozen=True, kw_only=True)
class HostTask:
    """One training, spread over hosts of equal size."""

    name: str
    run: str
    """The run directory, as the hosts see it."""
    words: tuple[str, ...]
    hosts: int
    processes_here: int
    gpu: str | None
    settings: TaskSettings

    @classmethod
    def of(cls, training: TrainingJob, wishes: Wishes, *, title: str) -> HostTask:
        """Return the task of a training; InputError for what the cluster cannot be told."""
        settings = TaskSettings.parse(wishes.settings)
        for flag in ("partition", "account", "time"):
            if getattr(wishes, flag) is not None:
                raise InputError(f"--{flag} is for Slurm; a file for {title} has no such thing. Leave it out.")
        hosts = int(wishes.hosts or 1)
        if training.processes % hosts:
            raise InputError(
                f"{training.processes} processes do not spread evenly over {hosts} hosts. Give another --hosts or "
                "--workers."
            )
        if not settings.shared:
            raise InputError(
                f"--on {title.casefold()} needs a folder that all hosts see, for the run and its checkpoints: "
                "--job shared=/mnt/shared (and --job volume=NAME to have it mounted)."
            )
        is_cpu = training.device == "cpu"
        if not is_cpu and wishes.gpu is None:
            raise InputError(f"Nobody here sees the machines of {title}: give --gpu KIND, or --device cpu.")
        return cls(
            name=job_name(training.out.name),
            run=str(PurePosixPath(settings.shared) / training.out.name),
            words=training.words,
            hosts=hosts,
            processes_here=training.processes // hosts,
            gpu=None if is_cpu else wishes.gpu,
            settings=settings,
        )

    @property
    def has_gpus(self) -> bool:
        return self.gpu is not None


def job_name(name: str) -> str:
    """Return the name as clusters allow it: small letters, digits and dashes, at most 50."""
    # 63 is the most of a DNS label (RFC 1123), and Jobs append an index and five letters for each pod. A Service's name
    # must begin with a letter (RFC 1035).
    plain = re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-")[:50].strip("-")
    return plain if plain[:1].isalpha() else f"run-{plain}".rstrip("-")


def host_script(task: HostTask, *, rank: str, first_host: str) -> str:
    """Return what each host runs; `rank` and `first_host` are its number and the meeting point, as shell words.

    torch.distributed.run makes every exit status a 1: the run's own record says whether it can go on.
    """
    # No `set -e`: a status that is not 0 is an answer here. The program runs in the background since bash, while it
    # waits for one in the foreground, runs no trap.
    directory, python = RunDirectory(Path(task.run)), quote(task.settings.python)
    device = [] if task.has_gpus else ["--device", "cpu"]
    train = " ".join(map(quote, ("train", *task.words, *device)))
    return f"""\
set -uo pipefail
run={quote(task.run)}
rank={rank}
first_host={first_host}
{safe_path.shell_line()} # no code from the current folder
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT={GRACE_S} # time to save, when another process has ended
known=$({python} -m {HOOKS} before "$run" "$rank") || exit $?
# The first start trains; every later one goes on. All hosts have decided before any process starts.
if [ -e "$run/{directory.recipe.name}" ]; then program=(resume "$run"); else program=({train} --out "$run"); fi
{python} -m torch.distributed.run \\
    --nnodes {task.hosts} --nproc-per-node {task.processes_here} --node-rank "$rank" \\
    --master-addr "$first_host" --master-port {PORT} -m turnaround "${{program[@]}}" &
program_id=$!
trap 'kill -TERM "$program_id" 2>/dev/null' TERM INT # the machine is taken away: save, and end with {RESUMABLE}
status=0
wait "$program_id" || status=$?
while kill -0 "$program_id" 2>/dev/null; do # a signal ends a wait early
    status=0
    wait "$program_id" || status=$?
done
exit "$({python} -m {HOOKS} after "$run" "$status" "$known")"
"""


def yaml_block(text: str, *, indent: int) -> str:
    """Return lines as the body of a YAML block scalar (`|`)."""
    return "\n".join(" " * indent + line if line else "" for line in text.splitlines())


def yaml_text(value: Any) -> str:
    """Return a scalar or a list in YAML's flow style; JSON is a part of YAML."""
    return json.dumps(value, ensure_ascii=False)
