"""Slurm's own commands: submit, ask, cancel. Every call has a time limit, and every refusal is one sentence.

| asked          | answers                                | when                                                |
|----------------|----------------------------------------|-----------------------------------------------------|
| one job        | `scontrol show job`                    | it is queued, runs, or ended minutes ago (MinJobAge)|
|                | `sacct`                                | later, where the cluster keeps accounts             |
| all of a user's| `squeue --json`, or squeue as a table  | as for scontrol; the table where there is no JSON   |
| one not yet    | `sbatch --test-only`                   | always: when would it start? It submits nothing     |
| waits of before| `sacct`                                | where the cluster keeps accounts                    |

Times are seconds since 1970: Slurm is asked for them, since its dates have no time zone.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

from turnaround import safe_path
from turnaround.errors import InputError, MissingPartError
from turnaround.launch.clusters.contract import JobState, NoAnswerError, PastWait, unknown
from turnaround.launch.clusters.slurm.script import SlurmJob, job_script
from turnaround.launch.clusters.slurm.states import from_json, from_sacct, from_scontrol, start_at_s, waits_from_sacct
from turnaround.record.files import replace_file, storage_error
from turnaround.record.layout import RunDirectory

MAX_CALL_S = 30.0
"""A busy controller may take seconds; one that takes longer is in trouble."""
MAX_QUOTE = 300
ACCOUNTS_DAYS = 30
"""Waits from further back tell little of a queue."""
WAIT_FIELDS = "Submit,Start,ReqTRES"
SACCT_FIELDS = "JobIDRaw,State,Submit,Start,End,ExitCode,NodeList"


def submit(job: SlurmJob, *options: str, timeout_s: float = MAX_CALL_S) -> str:
    """Write the script into the run directory, make the folder for its output, submit; return the job's id."""
    require()
    _check_syntax("\n".join(job.settings.setup), timeout_s=timeout_s)
    script = RunDirectory(job.directory).job_script
    try:
        job.log_folder.mkdir(parents=True, exist_ok=True)  # Slurm does not make it, and says nothing
        script.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error("write the job's script", script, error) from None
    replace_file(script, job_script(job).encode("utf-8", "surrogateescape"))
    return submit_script(script, *options, timeout_s=timeout_s)


def submit_script(script: Path, *options: str, timeout_s: float = MAX_CALL_S) -> str:
    """Submit a script and return the id of its job."""
    done = _call("sbatch", "--parsable", *options, str(script.absolute()), timeout_s=timeout_s)
    if done.returncode != 0:
        raise InputError(f"Slurm has refused the job: {_words(done.stderr)}. The script is {script}.")
    job_id = done.stdout.strip().partition(";")[0]  # with several clusters: ID;CLUSTER
    if not job_id.isdecimal():
        raise InputError(
            f"sbatch has answered {_words(done.stdout)!r} instead of a job's number; is it really Slurm's?"
        )
    return job_id


def job_state(job_id: str, *, timeout_s: float = MAX_CALL_S) -> JobState:
    """Return the state of a job; UNKNOWN when Slurm has forgotten it and keeps no accounts."""
    done = _call("scontrol", "show", "job", "-o", _number(job_id), timeout_s=timeout_s)
    if done.returncode == 0 and done.stdout.strip():
        return from_scontrol(done.stdout.splitlines()[0])
    # Only this answer means "forgotten"; a controller that is down must not make a living job look ended.
    if "Invalid job id" not in done.stderr:
        raise InputError(f"Slurm does not say where job {job_id} stands: {_words(done.stderr)}. Try again.")
    return _from_accounts(job_id, timeout_s=timeout_s)


def job_states(*, timeout_s: float = MAX_CALL_S) -> dict[str, JobState]:
    """Return this user's jobs that Slurm has in memory, ended ones included, by id; one call for any number."""
    done = _call("squeue", "--json", "--me", timeout_s=timeout_s)
    if done.returncode == 0:
        return {state.job_id: state for state in from_json(done.stdout)}
    return _from_table(timeout_s=timeout_s)


def start_estimate_s(script: str, *, timeout_s: float = MAX_CALL_S) -> float | None:
    """Return the seconds until a job of this script would start, as Slurm plans now; None where it has no plan."""
    done = _call("sbatch", "--test-only", timeout_s=timeout_s, typed=script)
    if done.returncode != 0:
        raise InputError(f"Slurm would refuse such a job: {_words(done.stderr)}.")
    at_s = start_at_s(done.stderr)
    return None if at_s is None else max(0.0, at_s - time.time())


def past_waits(*, timeout_s: float = MAX_CALL_S) -> list[PastWait]:
    """Return the waits of this user's jobs of the last weeks; none where there are no accounts, or none to be seen."""
    options = ("-n", "-X", "-P", "-S", f"now-{ACCOUNTS_DAYS}days", "-o", WAIT_FIELDS)
    done = _call("sacct", *options, timeout_s=timeout_s)
    return waits_from_sacct(done.stdout) if done.returncode == 0 else []


def cancel(job_id: str, *, timeout_s: float = MAX_CALL_S) -> None:
    """Cancel a job; nothing happens to one that has ended already."""
    done = _call("scancel", _number(job_id), timeout_s=timeout_s)
    if done.returncode != 0 and "already complet" not in done.stderr and "Invalid job id" not in done.stderr:
        raise InputError(f"Slurm does not cancel job {job_id}: {_words(done.stderr)}.")


def requeue(job_id: str, *, timeout_s: float = MAX_CALL_S) -> None:
    """Requeue a running or ended job."""
    done = _call("scontrol", "requeue", _number(job_id), timeout_s=timeout_s)
    if done.returncode != 0:
        raise InputError(f"Slurm does not requeue job {job_id}: {_words(done.stderr)}. Submit its script again.")


def release(job_id: str, *, timeout_s: float = MAX_CALL_S) -> None:
    """Release a job that was submitted with --hold."""
    done = _call("scontrol", "release", _number(job_id), timeout_s=timeout_s)
    if done.returncode != 0:
        raise InputError(
            f"Slurm does not release job {job_id}: {_words(done.stderr)}. Try `scontrol release {job_id}`."
        )


def require() -> None:
    """Raise MissingPartError when this machine has no Slurm."""
    if shutil.which("sbatch") is None:
        raise MissingPartError(
            "There is no Slurm here: sbatch is not installed, or not in PATH. Run this on a login node of your cluster "
            "(`module load slurm` where it has modules), or leave out --on slurm to go on without a cluster."
        )


def _number(job_id: str) -> str:
    """Return a checked job id: it may come from a file that anybody has written, and must not become an option."""
    if not re.fullmatch(r"[0-9]{1,19}", job_id):
        raise InputError(f"{job_id[:100]!r} is no job's number. If it stands in a run's status.json, that is damaged.")
    return job_id


def call(name: str, *arguments: str, timeout_s: float = MAX_CALL_S) -> str:
    """Return what one of Slurm's commands prints; raise InputError with its own words."""
    done = _call(name, *arguments, timeout_s=timeout_s)
    if done.returncode != 0:
        where = " Is this a login node of the cluster? --dry-run prints the job without one." if name == "sinfo" else ""
        raise InputError(f"`{name}` has failed: {_words(done.stderr)}.{where}")
    return done.stdout


def _call(name: str, *arguments: str, timeout_s: float, typed: str = "") -> subprocess.CompletedProcess[str]:
    require()
    # An allocation's own variables (SLURM_MEM_PER_CPU ...) would be read as options of a new job.
    # What sbatch is started with the job begins with, and its set-up lines are the user's.
    environment = {k: v for k, v in safe_path.as_it_was().items() if not k.startswith("SLURM_") or k == "SLURM_CONF"}
    environment["SLURM_TIME_FORMAT"] = "%s"
    try:
        return subprocess.run(
            [name, *arguments],
            env=environment,
            input=typed,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NoAnswerError(
            f"Slurm does not answer: `{name}` had nothing to say for {timeout_s:g} s. Its controller may be down or "
            "overloaded; `scontrol ping` tells. Jobs that are running go on. Try again later."
        ) from None
    except OSError as error:
        raise MissingPartError(
            f"Slurm's command {name} cannot be run: {error}. Is Slurm installed completely?"
        ) from None


def _from_accounts(job_id: str, *, timeout_s: float) -> JobState:
    done = _call("sacct", "-j", job_id, "-n", "-X", "-P", "-o", SACCT_FIELDS, timeout_s=timeout_s)
    if done.returncode != 0:
        return unknown(job_id, f"Slurm has forgotten the job and keeps no accounts ({_words(done.stderr)})")
    if not done.stdout.strip():
        return unknown(job_id, "Slurm has no such job, and none in its accounts")
    return from_sacct(done.stdout.splitlines()[-1])  # a requeued job has a line for each start


def _from_table(*, timeout_s: float) -> dict[str, JobState]:
    """Return the jobs where squeue has no JSON: Slurm before 21.08, or built without it."""
    numbers = call("squeue", "--me", "--noheader", "--states=all", "--format=%A", timeout_s=timeout_s).split()
    return {job_id: job_state(job_id, timeout_s=timeout_s) for job_id in dict.fromkeys(numbers)}


def _check_syntax(setup: str, *, timeout_s: float) -> None:
    """Raise InputError for set-up lines that bash cannot parse: better now than after a night in the queue."""
    bash = shutil.which("bash")
    if bash is None:
        return
    done = subprocess.run([bash, "-n"], input=setup, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise InputError(f"Your setup lines are no valid bash: {_words(done.stderr)}. Received: {setup!r}.")


def _words(text: str) -> str:
    """Return what Slurm said, without its prefixes, in one short line."""
    lines = [re.sub(r"^\w+: (error|fatal): ", "", line).strip() for line in text.splitlines()]
    said = "; ".join(dict.fromkeys(line for line in lines if line)) or "no reason given"
    return (said if len(said) <= MAX_QUOTE else said[: MAX_QUOTE - 3] + "...").rstrip(".")
