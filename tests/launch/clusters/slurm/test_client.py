"""Slurm's commands when they are missing, silent or unwilling. What they say on a real cluster: tests/slurm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from turnaround.errors import InputError, MissingPartError, StorageError
from turnaround.launch.clusters.slurm import client
from turnaround.launch.clusters.slurm.script import SlurmJob
from turnaround.launch.clusters.slurm.settings import SlurmSettings

JOB = "JobId=7 JobState=COMPLETED ExitCode=0:0 SubmitTime=1000 StartTime=1060 EndTime=1090 NodeList=n1"


class Commands:
    """A folder at the head of PATH with commands that answer as told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def answer(self, name: str, script: str) -> None:
        (self.folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (self.folder / name).chmod(0o755)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    made = Commands(tmp_path / "bin")
    made.answer("sbatch", "echo 7")
    return made


def job(folder: Path) -> SlurmJob:
    return SlurmJob(directory=folder / "run", train=("x",), working_directory=folder, settings=SlurmSettings())


def test_no_slurm_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for ask in (client.require, client.job_states, lambda: client.submit(job(tmp_path))):
        with pytest.raises(MissingPartError, match=r"There is no Slurm here: .* login node .* leave out --on slurm"):
            ask()
    assert not (tmp_path / "run").exists()


def test_an_incomplete_slurm(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(commands.folder))
    with pytest.raises(MissingPartError, match="Slurm's command scontrol cannot be run"):
        client.job_state("7")


def test_a_silent_controller(commands: Commands) -> None:
    commands.answer("scontrol", "exec sleep 20")
    with pytest.raises(InputError, match=r"does not answer: `scontrol` had nothing to say for 0.2 s"):
        client.job_state("7", timeout_s=0.2)


def test_an_unreachable_controller(commands: Commands) -> None:
    said = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    commands.answer("scontrol", f"echo '{said}' >&2; exit 1")
    with pytest.raises(InputError, match=r"where job 7 stands: .*Unable to contact slurm controller .*Try again"):
        client.job_state("7")
    with pytest.raises(InputError, match=r"does not requeue job 7: .*Submit its script again"):
        client.requeue("7")


def test_submitted(commands: Commands, tmp_path: Path) -> None:
    commands.answer("sbatch", 'printf "%s\\n" "$@" > "$(dirname "$0")/said"; echo "12;cluster"')
    assert client.submit(job(tmp_path)) == "12"
    assert (tmp_path / "run" / "logs").is_dir()
    assert (tmp_path / "run" / "job.sh").read_text().startswith("#!/bin/bash")
    said = (commands.folder / "said").read_text().splitlines()
    assert said == ["--parsable", str(tmp_path / "run" / "job.sh")]


def test_an_allocation_around_us_does_not_leak_into_the_job(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "256")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    commands.answer("sinfo", "env")
    said = client.call("sinfo").splitlines()
    assert "SLURM_CONF=/etc/slurm.conf" in said
    assert "SLURM_TIME_FORMAT=%s" in said
    assert not any(line.startswith("SLURM_MEM_PER_CPU") for line in said)


def test_refused(commands: Commands, tmp_path: Path) -> None:
    commands.answer(
        "sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid qos specification' >&2; exit 1"
    )
    with pytest.raises(
        InputError, match=r"refused the job: Batch job submission failed: Invalid qos specification. The"
    ):
        client.submit(job(tmp_path))
    commands.answer("sbatch", "printf 'x%.0s' {1..1000} >&2; exit 1")
    with pytest.raises(InputError) as caught:
        client.submit(job(tmp_path))
    assert len(str(caught.value)) < 600
    commands.answer("sbatch", "echo 'Submitted to PBS'")
    with pytest.raises(InputError, match="has answered 'Submitted to PBS' instead of a job's number"):
        client.submit(job(tmp_path))
    commands.answer("sbatch", "exit 1")
    with pytest.raises(InputError, match="no reason given"):
        client.submit(job(tmp_path))


def test_no_place_for_the_script(commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(StorageError, match="Cannot write the job's script"):
        client.submit(job(tmp_path))


def test_the_accounts_when_the_controller_has_forgotten(commands: Commands) -> None:
    commands.answer("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    commands.answer("sacct", "echo '7|FAILED|1000|1060|1090|1:0|n1'; echo '7|COMPLETED|1100|1160|1190|0:0|n2'")
    state = client.job_state("7")
    assert (state.state, state.hosts, state.queue_time_s()) == ("COMPLETED", ("n2",), 60)
    commands.answer("sacct", "exit 0")
    assert (client.job_state("7").state, client.job_state("7").reason) == (
        "UNKNOWN",
        "Slurm has no such job, and none in its accounts",
    )


def test_a_table_where_there_is_no_json(commands: Commands) -> None:
    commands.answer("squeue", "case $1 in --json) echo 'unrecognized option' >&2; exit 1 ;; esac; echo 7; echo 7")
    commands.answer("scontrol", f"echo '{JOB}'")
    assert {job_id: state.state for job_id, state in client.job_states().items()} == {"7": "COMPLETED"}


def test_what_cannot_be_cancelled(commands: Commands) -> None:
    commands.answer(
        "scancel", "echo 'scancel: error: Kill job error on job id 7: Access/permission denied' >&2; exit 1"
    )
    with pytest.raises(InputError, match="does not cancel job 7: Kill job error on job id 7: Access/permission denied"):
        client.cancel("7")
    commands.answer("scancel", "echo 'Job/step already completing or completed' >&2; exit 1")
    client.cancel("7")


def test_a_command_that_fails(commands: Commands) -> None:
    commands.answer("sinfo", "echo 'sinfo: fatal: bad' >&2; exit 1")
    with pytest.raises(InputError, match=r"`sinfo` has failed: bad.* Is this a login node of the cluster\? --dry-run"):
        client.call("sinfo")


@pytest.mark.parametrize("job_id", ["", "7 8", "--help", "7;rm", "9" * 30])
def test_a_number_that_is_none(job_id: str, commands: Commands) -> None:
    """Out of a status.json that somebody has written: it never reaches a command."""
    commands.answer("scontrol", "touch called; exit 1")
    for ask in (client.job_state, client.cancel, client.requeue, client.release):
        with pytest.raises(InputError, match=r"is no job's number\. .*status.json"):
            ask(job_id)
    assert not Path("called").exists()


def test_a_job_that_cannot_be_released(commands: Commands) -> None:
    commands.answer("scontrol", "echo 'Access/permission denied' >&2; exit 1")
    with pytest.raises(
        InputError, match=r"does not release job 7: Access/permission denied\. Try `scontrol release 7`"
    ):
        client.release("7")
