"""A training as a batch script that a person can read, change and submit by hand. Text only: nothing is touched here.

The script's life, on the first of the job's hosts:

    start     `train`, or `resume` where the directory holds a run: a requeued job goes on by itself
    spread    srun starts torch.distributed.run once on each host; all meet at a port of the first host (on one host:
              on loopback, workers/torch_agent.py)
    USR2      comes from Slurm before the time limit (or a pre-emption) to the script, which passes it on through srun
              to every process of the job, again and again until it ends; whoever does not listen ignores it
    end       stopped, but resumable (75): back into the queue, while requeues are left; otherwise the exit status

Somebody else's program runs under a watcher on the first host and starts what it needs on the others itself. It cannot
be resumed from outside, so that a warning ends it; a job that Slurm puts back into the queue begins anew.
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from turnaround import safe_path
from turnaround.errors import InterruptedRunError
from turnaround.launch.clusters.slurm.settings import SlurmSettings, megabytes
from turnaround.launch.job_origin import BEGUN_VARIABLE
from turnaround.record.layout import RunDirectory, job_log
from turnaround.workers.engines import TORCH_AGENT

FIRST_PORT, NUM_PORTS = 20000, 10000
"""Below the ports that Linux gives to outgoing connections (32768 and up)."""
LAST_TASKS_S = 60
"""So long the other hosts may go on when one has ended: to write what they have, or to find out that it is gone."""
WARN_AGAIN_S = 2
RESUMABLE = InterruptedRunError.exit_code


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """One run as one job."""

    directory: Path
    """The run directory, absolute, on a file system that the compute nodes see."""
    train: tuple[str, ...]
    """The words after `turnaround train`, without --out, --processes and --device."""
    working_directory: Path
    """The folder where relative paths in `train` begin; absolute."""
    settings: SlurmSettings
    watcher: tuple[str, ...] = ()
    """Instead of `train`: the words after `python` that run somebody else's program and leave a run of it."""
    processes_per_host: int | None = None
    """None: one for each GPU, or a single one without GPUs."""
    device: str | None = None
    """None: cuda with GPUs, so that a broken driver is an error and not a slow training; otherwise cpu."""
    logs: Path | None = None
    """The folder for what the job prints; None: the run's own. It must exist when the job starts (client.submit)."""

    def __post_init__(self) -> None:
        for path in (self.directory, self.working_directory, self.log_folder):
            assert path.is_absolute(), f"the paths of a job are absolute, not {path}"

    @property
    def hosts(self) -> int:
        return self.settings.hosts

    @property
    def gpu(self) -> str | None:
        return self.settings.gpu

    @property
    def has_setup(self) -> bool:
        return bool(self.settings.setup)

    @property
    def processes_here(self) -> int:
        return self.processes_per_host or self.settings.gpus_per_host or 1

    @property
    def processes(self) -> int:
        return self.processes_here * self.settings.hosts

    @property
    def log_folder(self) -> Path:
        return self.logs or RunDirectory(self.directory).logs

    @property
    def python(self) -> str:
        return self.settings.python or ("python" if self.settings.setup else sys.executable)

    @property
    def name(self) -> str:
        """The job's name as squeue shows it."""
        return re.sub(r"[^A-Za-z0-9._+]+", "-", self.directory.name).strip("-")[:60] or "turnaround"

    def program(self, verb: str, *words: str) -> list[str]:
        """`turnaround VERB WORDS` as every process runs it; "$run" stands for the directory."""
        device = self.device or ("cuda" if self.settings.gpus_per_host else "cpu")
        place = ["--processes", str(self.processes), "--device", device]
        return ["-m", "turnaround", verb, *words, *place]


def job_script(job: SlurmJob) -> str:
    """Return the whole script. Paths may hold anything that a file system allows."""
    blocks = [
        _header(job),
        f"set -euo pipefail\n{BEGUN_VARIABLE}=$(date +%s.%N) # here the program begins\nexport {BEGUN_VARIABLE}",
        _signals(job),
        _places(job),
        _setup(job),
        f"# Python looks for code where it is installed, not in the folder of the job.\n{safe_path.shell_line()}",
        *([_watch(job)] if job.watcher else [_start(job), _on_each_host(job), _run(job), _end(job)]),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def quote(value: object) -> str:
    """Quote as one word of bash, whatever it holds. Line breaks are spelled out: sbatch refuses one with \\r\\n."""
    text = str(value)
    if not any(ord(character) < 32 or ord(character) == 127 for character in text):
        return shlex.quote(text)
    spelled = text.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\x{ord(match[0]):02x}", spelled) + "'"


def header_lines(settings: SlurmSettings) -> list[str]:
    """Return the options that say whose job it is and where it may run; the probe asks for the same."""
    named = (("partition", settings.partition), ("account", settings.account), ("qos", settings.qos))
    return [*(f"--{name}={value}" for name, value in named if value is not None), *settings.sbatch]


def _header(job: SlurmJob) -> str:
    settings = job.settings
    count, cpus, memory = settings.gpus_per_host, settings.cpus_per_gpu, settings.memory_per_gpu
    kind = f"{settings.gpu}:" if settings.gpu else ""
    # Ours is one task on each host, which starts the processes there; others, MPI too, count on one for each process.
    tasks = job.processes_here if job.watcher else 1
    lines = [f"--job-name={job.name}", *header_lines(settings), f"--nodes={settings.hosts}"]
    lines += [f"--ntasks-per-node={tasks}"]
    # Not --gpus-per-task: Slurm 22.05 leaves CUDA_VISIBLE_DEVICES empty with it.
    lines += [f"--gres=gpu:{kind}{count}"] if count else []
    lines += [f"--cpus-per-task={cpus * (count or job.processes_here) // tasks}"] if cpus else []
    lines += [f"--mem={megabytes(memory) * (count or job.processes_here)}M"] if memory else []
    lines += [f"--time={settings.time}"] if settings.time else []
    # B: to the batch shell alone, which passes it on (`_waited_for`): by default Slurm signals the steps, and not the
    # script. USR2, since NCCL may catch USR1. Appending: a job that was requeued goes on in the same log.
    lines += [f"--signal=B:USR2@{settings.signal_lead_s}", "--requeue", "--open-mode=append"]
    lines += [f'--output="{job_log(job.log_folder, "%j")}"' if _is_plain(job.log_folder) else "--output=/dev/null"]
    hosts = f"{settings.hosts} host{'s' * (settings.hosts > 1)}"
    each = f"{job.processes_here} process{'es' * (job.processes_here > 1)}{' each' * (settings.hosts > 1)}"
    what = f"# A {'program' if job.watcher else 'training'} on {hosts} with {each}, by turnaround."
    return "\n".join(["#!/bin/bash", what, *(f"#SBATCH {line}" for line in lines)])


def _is_plain(path: Path) -> bool:
    """Return whether sbatch reads a path in a header line as we mean it: it has its own rules for %, \\ and quotes."""
    return re.fullmatch(r"[\w./+=:@, -]+", str(path)) is not None


def _places(job: SlurmJob) -> str:
    lines = [
        "# The run, what is printed on the way, and where relative paths begin.",
        f"run={quote(job.directory)}",
        f"logs={quote(job.log_folder)}",
    ]
    if not _is_plain(job.log_folder):
        log = job_log(Path("$logs"), "$SLURM_JOB_ID")
        lines += [f'exec >>"{log}" 2>&1 # sbatch cannot read this path in a line of its own']
    return "\n".join([*lines, f"cd {quote(job.working_directory)}"])


def _setup(job: SlurmJob) -> str:
    if not job.settings.setup:
        return ""
    why = "# What the cluster needs first. Such scripts often use variables that are not set: that is no error here."
    return "\n".join([why, "set +u", *job.settings.setup, "set -u"])


def _start(job: SlurmJob) -> str:
    directory = RunDirectory(job.directory)
    train = " ".join(map(quote, job.program("train", *job.train)))
    resume = " ".join(map(quote, job.program("resume")))
    return f"""\
# A new run, or one that goes on: Slurm may have started this job before (SLURM_RESTART_COUNT).
{_before(job)}
program=({train} --out "$run")
if [ -e "$run/{directory.recipe.name}" ]; then
    program=({resume} "$run")
fi"""


def _before(job: SlurmJob) -> str:
    return f"""\
export python={quote(job.python)}
"$python" -m turnaround.launch.clusters.slurm.batch_hooks before "$run" "$logs\""""


def _on_each_host(job: SlurmJob) -> str:
    """Return the function that srun runs once on each host: `exec`, as what a task leaves behind is killed with it."""
    lines = [
        "set -euo pipefail",
        "trap '' USR2 # the training listens to it; torch.distributed.run, and Python while it starts, would die of it",
        *_network(job),
        *_threads(job),
    ]
    if job.processes == 1:
        lines += ['exec "$python" "$@"']
    else:
        wait_s = job.settings.signal_lead_s
        lines += [f"export TORCH_ELASTIC_SHUTDOWN_TIMEOUT={wait_s} # time to save, when another process has ended"]
        lines += _agent(job)
    meeting = [
        "# What each host runs. All processes meet at a port of the first host; it follows from the job's number.",
        f"export port=$(({FIRST_PORT} + SLURM_JOB_ID % {NUM_PORTS}))",
        'first_host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)',
        "export first_host",
    ]
    comment = ["# What the host runs."] if job.settings.hosts == 1 else meeting
    body = "\n".join(f"    {line}" for line in lines)
    return "\n".join([*comment, "# shellcheck disable=SC2317", "on_each_host() {", body, "}"])


def _agent(job: SlurmJob) -> list[str]:
    """Return the command that starts the processes of a host."""
    if job.settings.hosts == 1:
        return [f'exec "$python" -m {TORCH_AGENT} --nproc-per-node {job.processes_here} "$@"']
    return [
        'exec "$python" -m torch.distributed.run \\',
        f'    --nnodes {job.settings.hosts} --nproc-per-node {job.processes_here} --node-rank "$SLURM_NODEID" \\',
        # A static rendezvous: c10d unpickles what stands in its store, which every user of the cluster can write.
        '    --rdzv-backend static --master-addr "$first_host" --master-port "$port" \\',
        # The number of the restart: agents of a start that is being killed must not join the next one.
        '    --rdzv-id "$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}" "$@"',
    ]


def _network(job: SlurmJob) -> list[str]:
    """Gloo takes what the host's name resolves to, often 127.0.1.1; NCCL looks for itself unless it is told."""
    if job.processes == 1:
        return []
    if job.settings.hosts == 1:
        return ["export GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo # one host: over loopback, closed to others"]
    if job.settings.interface:
        name = quote(job.settings.interface)
        return [f"export GLOO_SOCKET_IFNAME={name} NCCL_SOCKET_IFNAME={name}"]
    return [
        'if [ -z "${GLOO_SOCKET_IFNAME:-}" ]; then # the interface that leads to the other hosts',
        '    GLOO_SOCKET_IFNAME=$("$python" -m turnaround.launch.clusters.slurm.interface "$SLURM_JOB_NODELIST")',
        "    export GLOO_SOCKET_IFNAME",
        "fi",
    ]


def _threads(job: SlurmJob) -> list[str]:
    """torch.distributed.run would set one thread for each process."""
    if job.processes_here == 1:
        return []
    return [
        f"threads=$(($(nproc) / {job.processes_here}))",
        'export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}"',
    ]


def _run(job: SlurmJob) -> str:
    # Since Slurm 22.05 a step does not inherit the CPUs of a task. A task that fails must not kill the others: they
    # have LAST_TASKS_S to save, or to say whom they have lost.
    cpus = ' --cpus-per-task="$SLURM_CPUS_PER_TASK"' if job.settings.cpus_per_gpu else ""
    return _waited_for(
        f"srun --nodes={job.settings.hosts} --ntasks-per-node=1{cpus} --kill-on-bad-exit=0 --wait={LAST_TASKS_S} \\\n"
        '    bash -c "$(declare -f on_each_host); on_each_host \\"\\$@\\"" bash "${program[@]}"',
    )


def _signals(job: SlurmJob) -> str:
    # Before anything that takes time: sbatch may warn up to 60 s early, and bash without a trap dies of it.
    return f"""\
# Slurm sends USR2 to this script {job.settings.signal_lead_s} s before the time limit, and on many clusters before a
# pre-emption. It is noted, and passed on to the step when there is one.
step='' warned=no
trap 'warned=yes; [ -z "$step" ] || kill -USR2 "$step" || true' USR2"""


def _waited_for(command: str) -> str:
    """Return lines that start the command, pass warnings on to it, and leave its exit status in `status`."""
    return f"""\
# TERM comes with scancel, to the processes too: they end by themselves, and this script waits for them.
trap ':' TERM
{command} &
step=$!
while kill -0 "$step" 2>/dev/null; do # a signal ends a wait early, and a warning during the start goes unheard
    if [ "$warned" = yes ]; then
        sleep {WARN_AGAIN_S} || true
        kill -USR2 "$step" 2>/dev/null || true
    else
        wait "$step" || true
    fi
done
status=0
wait "$step" || status=$?"""


def _watch(job: SlurmJob) -> str:
    """Not in a step of its own: the program may start steps itself, on all hosts of the job."""
    command = f"(trap '' USR2 && exec \"$python\" {' '.join(map(quote, job.watcher))})"
    return f"""\
{_before(job)}

# A watcher runs the program, keeps what it prints, and notes how it ends. Python would die of a USR2 while it starts.
{_waited_for(command)}
exit "$status\""""


def _end(job: SlurmJob) -> str:
    return f"""\
# torch.distributed.run makes every exit status a 1: the run's own record says whether it can go on ({RESUMABLE}).
status=$("$python" -m turnaround.launch.clusters.slurm.batch_hooks after "$run" "$logs" "$status") || status=1
if [ "$status" -ne {RESUMABLE} ]; then exit "$status"; fi

# Back into the queue when time was up or others go first; not when somebody has cancelled the job.
job=$(scontrol show job -o "$SLURM_JOB_ID") || job=
if [[ $job == *JobState=RUNNING* ]] && {{ [ "$warned" = yes ] || [[ $job =~ PreemptTime=[0-9] ]]; }}; then
    if "$python" -m turnaround.launch.clusters.slurm.batch_hooks requeue "$logs" {job.settings.max_requeues}; then
        scontrol requeue "$SLURM_JOB_ID" && exit {RESUMABLE}
        echo "Slurm has refused to put this job back into the queue. The last checkpoint is kept." >&2
    fi
fi
printf 'Go on with: turnaround resume %q\\n' "$run" >&2
exit {RESUMABLE}"""
