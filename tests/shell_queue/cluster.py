"""Jobs in folders of SHELL_QUEUE, each with a runner of its own. A command to a job is an empty file in its folder."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnaround.children import die_with_parent
from turnaround.errors import InputError, InterruptedRunError, MissingPartError, ProcessFailedError, TurnaroundError
from turnaround.launch.clusters.contract import JobState, PastWait, TrainingJob, Wishes, unknown
from turnaround.launch.job_origin import BEGUN_VARIABLE
from turnaround.record.layout import RunDirectory

FOLDER_VARIABLE = "SHELL_QUEUE"
HELD = "Held"
RUNNERS: list[subprocess.Popen[bytes]] = []
"""Of all jobs: the fixture waits for them."""


@dataclass(frozen=True, kw_only=True)
class ShellJob:
    training: TrainingJob
    hosts: int = 1
    gpu: str | None = None
    has_setup: bool = False

    @property
    def directory(self) -> Path:
        return self.training.out.absolute()

    @property
    def log_folder(self) -> Path:
        return RunDirectory(self.directory).logs

    @property
    def processes_here(self) -> int:
        return self.training.processes


class ShellQueue:
    name = "shell"
    title = "Shell queue"

    def require(self) -> None:
        if FOLDER_VARIABLE not in os.environ:
            raise MissingPartError(f"There is no shell queue here: {FOLDER_VARIABLE} is not set.")

    def inventory(self) -> dict[str, int]:
        return {"hosts": 1}

    def gpus_per_host(self, inventory: Any) -> dict[str, int]:
        return {}

    def spelled(self, gpu: str, wishes: Wishes, inventory: Any) -> str:
        return gpu

    def job(self, training: TrainingJob, wishes: Wishes, inventory: Any | None) -> ShellJob:
        if wishes.gpu is not None:
            raise InputError(f"The shell queue has no GPU. Received: --gpu {wishes.gpu}.")
        return ShellJob(training=training)

    def check(self, job: ShellJob, inventory: Any) -> list[str]:
        return []

    def start_estimate_s(self, job: ShellJob) -> float | None:
        return None  # it starts whatever is released, and keeps no plan

    def past_waits(self) -> list[PastWait]:
        return []

    def why_unseen(self, folder: Path, job: ShellJob) -> str | None:
        return None

    def script(self, job: ShellJob) -> str:
        training, python = job.training, shlex.quote(sys.executable)
        where = f"--processes {training.processes} --device {training.device}"
        train = f"train {shlex.join(training.words)} --out"
        return f"""\
#!/bin/bash
export {BEGUN_VARIABLE}=$(date +%s.%N)
run={shlex.quote(str(job.directory))}
cd {shlex.quote(str(Path.cwd()))}
{python} -m shell_queue.runner started "$run"
if [ -e "$run/{RunDirectory(job.directory).recipe.name}" ]; then verb=resume; else verb={shlex.quote(train)}; fi
exec {python} -m turnaround $verb "$run" {where}
"""

    def submit(self, job: ShellJob) -> str:
        directory = RunDirectory(job.directory)
        directory.logs.mkdir(parents=True, exist_ok=True)
        directory.job_script.write_text(self.script(job))
        return self.submit_script(directory.job_script)

    def submit_script(self, script: Path) -> str:
        queue = _queue()
        job_id = str(1 + sum(1 for _ in queue.iterdir()))
        (queue / job_id).mkdir()
        path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        # Ends with whoever runs the tests, not with a command: those are called in the process of the test.
        runner = subprocess.Popen(
            [sys.executable, "-m", "shell_queue.runner", "run", str(queue / job_id), str(script.absolute())],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        RUNNERS.append(runner)
        return job_id

    def release(self, job_id: str) -> None:
        (_queue() / job_id / "release").touch()

    def cancel(self, job_id: str) -> None:
        (_queue() / job_id / "cancel").touch()

    def requeue(self, job_id: str) -> None:
        (_queue() / job_id / "requeue").touch()

    def is_held(self, job: JobState) -> bool:
        return job.reason == HELD

    def state(self, job_id: str) -> JobState:
        try:
            noted = json.loads((_queue() / job_id / "job.json").read_text())
        except FileNotFoundError:
            is_new = (_queue() / job_id).is_dir()  # its runner has not come to it
            return JobState(job_id=job_id, state="PENDING", reason=HELD) if is_new else unknown(job_id, "no such job")
        return JobState(**{**noted, "hosts": tuple(noted["hosts"])})

    def states(self) -> dict[str, JobState]:
        return {path.name: self.state(path.name) for path in _queue().iterdir()}

    def step_environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        return {}

    def cancel_command(self, job_id: str) -> str:
        return f"touch {shlex.quote(str(_queue() / job_id / 'cancel'))}"

    def why_lost(self, job: JobState, *, go_on: str) -> TurnaroundError | None:
        if job.state == "CANCELLED":
            return InterruptedRunError(f"Shell job {job.job_id} was cancelled. {go_on}")
        if job.state == "FAILED":
            return ProcessFailedError(f"Shell job {job.job_id} failed with exit status {job.exit_code}. {go_on}")
        return None


def _queue() -> Path:
    return Path(os.environ[FOLDER_VARIABLE])
