"""Slurm behind the contract of clusters: which of its files does what."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnaround.errors import TurnaroundError
from turnaround.launch.clusters.contract import JobState, PastWait, TrainingJob, Wishes
from turnaround.launch.clusters.slurm import client, inventory, probe, script, states, step
from turnaround.launch.clusters.slurm.inventory import Partition
from turnaround.launch.clusters.slurm.script import SlurmJob
from turnaround.launch.clusters.slurm.settings import SlurmSettings, parsed
from turnaround.record.files import read_bytes, replace_file

HELD = "JobHeldUser"
"""The reason that squeue gives for a job as we submit it. One that an administrator holds is not ours to release."""

MOVED = {
    "turnaround.launch.slurm.starts": "turnaround.launch.clusters.slurm.batch_hooks",
    "turnaround.launch.slurm.interface": "turnaround.launch.clusters.slurm.interface",
}
"""Modules that the scripts of older runs call, and where they are."""


class Slurm:
    """A cluster whose commands are in PATH."""

    name = "slurm"
    title = "Slurm"

    def require(self) -> None:
        client.require()

    def inventory(self) -> dict[str, Partition]:
        return inventory.partitions()

    def gpus_per_host(self, there: dict[str, Partition]) -> dict[str, int]:
        return inventory.gpus_per_host(there)

    def spelled(self, gpu: str, wishes: Wishes, there: dict[str, Partition]) -> str:
        return inventory.spelled(gpu, SlurmSettings.load(_overrides(wishes)), there)

    def job(self, training: TrainingJob, wishes: Wishes, there: dict[str, Partition] | None) -> SlurmJob:
        settings = inventory.settings_for(
            _overrides(wishes), processes=training.processes, device=training.device, there=there
        )
        return SlurmJob(
            directory=training.out.absolute(),
            train=() if training.watcher else training.words,
            working_directory=Path.cwd(),
            settings=settings,
            watcher=training.watcher,
            processes_per_host=training.processes // settings.hosts,
            device=None if training.device == "auto" else training.device,
        )

    def check(self, job: SlurmJob, there: dict[str, Partition]) -> list[str]:
        return inventory.check(job, there)

    def start_estimate_s(self, job: SlurmJob) -> float | None:
        return client.start_estimate_s(script.job_script(job))

    def past_waits(self) -> list[PastWait]:
        return client.past_waits()

    def why_unseen(self, folder: Path, job: SlurmJob) -> str | None:
        seen = probe.require_visible(folder, job.settings)
        return seen.reason if seen.answer == "unknown" else None

    def script(self, job: SlurmJob) -> str:
        return script.job_script(job)

    def submit(self, job: SlurmJob) -> str:
        return client.submit(job, "--hold")

    def submit_script(self, path: Path) -> str:
        text = before = read_bytes(path).decode("utf-8", "surrogateescape")
        for old, new in MOVED.items():
            text = text.replace(f" -m {old} ", f" -m {new} ")
        if text != before:
            replace_file(path, text.encode("utf-8", "surrogateescape"))
        return client.submit_script(path, "--hold")

    def release(self, job_id: str) -> None:
        client.release(job_id)

    def is_held(self, job: JobState) -> bool:
        return job.reason == HELD

    def state(self, job_id: str) -> JobState:
        return client.job_state(job_id)

    def states(self) -> dict[str, JobState]:
        return client.job_states()

    def cancel(self, job_id: str) -> None:
        client.cancel(job_id)

    def requeue(self, job_id: str) -> None:
        client.requeue(job_id)

    def step_environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        return step.step_environment(variables)

    def cancel_command(self, job_id: str) -> str:
        return f"scancel {job_id}"

    def why_lost(self, job: JobState, *, go_on: str) -> TurnaroundError | None:
        return states.why_lost(job, go_on=go_on)


def _overrides(wishes: Wishes) -> dict[str, Any]:
    """Return the overrides for SlurmSettings: --slurm key=value first, then what has a flag of its own."""
    names = ("gpu", "hosts", "partition", "account", "time")
    flags = {name: getattr(wishes, name) for name in names}
    return {**parsed(wishes.settings), **{name: value for name, value in flags.items() if value is not None}}
