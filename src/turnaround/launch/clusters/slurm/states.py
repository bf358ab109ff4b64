"""Where a job stands, in one type, read from what scontrol, squeue and sacct print."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from turnaround.errors import InputError, InterruptedRunError, ProcessFailedError, TurnaroundError
from turnaround.launch.clusters.slurm.hosts import expand

WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
ALIVE = ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")

UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, kw_only=True)
class JobState:
    """One job as Slurm sees it. Times are seconds since 1970."""

    job_id: str
    state: str
    """Slurm's own word: PENDING, RUNNING, COMPLETING, COMPLETED, FAILED, TIMEOUT, CANCELLED, NODE_FAIL, PREEMPTED,
    OUT_OF_MEMORY ...; UNKNOWN when Slurm has forgotten the job."""
    reason: str | None = None
    """Why it waits or failed, as Slurm says it: Resources, Priority, NonZeroExitCode ..."""
    submitted_at: float | None = None
    """Of a requeued job: when it was requeued, for Slurm forgets the first time."""
    started_at: float | None = None
    """The present or last start; None while it waits."""
    ended_at: float | None = None
    """None until it has ended."""
    exit_code: int | None = None
    """Of the script, once it has ended; a signal n is -n."""
    restarts: int | None = None
    """How often it was started again; None where the source does not say."""
    hosts: tuple[str, ...] = ()
    command: str | None = None
    """The script that was submitted; None where the source does not say."""

    @property
    def is_waiting(self) -> bool:
        return self.state in WAITING

    @property
    def is_over(self) -> bool:
        """Whether it will not run any more, unless somebody requeues it."""
        return not self.is_waiting and self.state not in ALIVE

    @property
    def is_forgotten(self) -> bool:
        """Whether Slurm knows nothing of it any more."""
        return self.state == UNKNOWN

    @property
    def succeeded(self) -> bool:
        return self.state == "COMPLETED"

    def queue_time_s(self, now_s: float | None = None) -> float | None:
        """From the (last) submission to the start, or until now while it waits; None for a job that never started."""
        if self.submitted_at is None:
            return None
        if self.is_waiting:
            return max(0.0, (time.time() if now_s is None else now_s) - self.submitted_at)
        return None if self.started_at is None else max(0.0, self.started_at - self.submitted_at)


def unknown(job_id: str, reason: str) -> JobState:
    return JobState(job_id=job_id, state=UNKNOWN, reason=reason)


def why_lost(job: JobState, *, go_on: str) -> TurnaroundError | None:
    """The error of a job that ended before its program could say why; None while it lives, or when all is well.

    `go_on` is a sentence: how to go on. Who has the run's own record should believe that first: it has the cause.
    """
    on = f" on {', '.join(job.hosts)}" if job.hosts else ""
    stopped = {
        "CANCELLED": "was cancelled from outside",
        "TIMEOUT": "reached its time limit before it had saved and stopped; give it more time, or a longer warning "
        "(signal_lead_s)",
        "PREEMPTED": "was pre-empted and not put back into the queue",
        "NODE_FAIL": f"lost a node{on}",
        "BOOT_FAIL": f"could not start: a node{on} did not boot",
        "DEADLINE": "reached its deadline",
        "REVOKED": "was taken over by another cluster",
    }
    failed = {
        "OUT_OF_MEMORY": "ran out of memory; ask for more (memory_per_gpu)",
        "FAILED": f"failed with exit status {job.exit_code} ({job.reason})",
    }
    if job.state in stopped or (job.state == "FAILED" and job.exit_code == InterruptedRunError.exit_code):
        what = stopped.get(job.state, "was stopped and is not in the queue any more")
        return InterruptedRunError(f"Slurm job {job.job_id} {what}. {go_on}")
    if job.state in failed:
        return ProcessFailedError(f"Slurm job {job.job_id} {failed[job.state]}. {go_on}")
    return None


def from_scontrol(line: str) -> JobState:
    """One line of `scontrol show job -o`: KEY=VALUE, where only a value may hold spaces."""
    found = dict(re.findall(r"(?:^|\s)([A-Za-z/:]+)=(.*?)(?=\s[A-Za-z/:]+=|\s*$)", line))
    if "JobId" not in found or "JobState" not in found:
        raise InputError(
            f"This version of Slurm describes jobs in a way that turnaround does not know: {line[:100]!r}."
        )
    job = _job(
        job_id=found["JobId"],
        state=found["JobState"],
        reason=found.get("Reason"),
        times=[_instant(found.get(name)) for name in ("SubmitTime", "StartTime", "EndTime")],
        exit_code=_exit_code(found.get("ExitCode")),
        restarts=int(found["Restarts"]) if found.get("Restarts", "").isdecimal() else None,
        hosts=found.get("NodeList", ""),
    )
    return replace(job, command=found.get("Command"))


def from_json(text: str) -> list[JobState]:
    """The jobs of `squeue --json`, whichever of its shapes: plain values, or objects {"set": true, "number": 5}."""
    try:
        jobs = json.loads(text)["jobs"]
        return [_from_object(job) for job in jobs]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"squeue's JSON is not what turnaround knows ({type(error).__name__}: {error}).") from None


def from_sacct(line: str) -> JobState:
    """One line of `sacct -P` with client.SACCT_FIELDS."""
    values = line.split("|")
    if len(values) != 7:
        raise InputError(f"This version of sacct answers in a way that turnaround does not know: {line[:100]!r}.")
    job_id, state, submit, start, end, code, hosts = values
    times = [_instant(value) for value in (submit, start, end)]
    state = state.split()[0] if state else "UNKNOWN"  # "CANCELLED by 1000"
    return _job(
        job_id=job_id, state=state, reason=None, times=times, exit_code=_exit_code(code), restarts=None, hosts=hosts
    )


def _from_object(job: dict[str, Any]) -> JobState:
    word = job["job_state"]
    code = job.get("exit_code")
    if isinstance(code, dict) and "return_code" in code:  # since 23.11
        signal = _number((code.get("signal") or {}).get("id"))
        exit_code = -int(signal) if signal else _whole(code["return_code"])
    else:  # as wait() gives it
        raw = _whole(code)
        exit_code = None if raw is None else -(raw & 127) if raw & 127 else raw >> 8
    state = _job(
        job_id=str(job["job_id"]),
        state=word[0] if isinstance(word, list) else word,
        reason=job.get("state_reason"),
        times=[_number(job.get(name)) or None for name in ("submit_time", "start_time", "end_time")],
        exit_code=exit_code,
        restarts=_whole(job.get("restart_cnt")),
        hosts=job.get("nodes") or "",
    )
    return replace(state, command=job.get("command") or None)


def _job(
    *,
    job_id: str,
    state: str,
    reason: str | None,
    times: list[float | None],
    exit_code: int | None,
    restarts: int | None,
    hosts: str,
) -> JobState:
    """Slurm fills the start of a waiting job and the end of a running one with what it expects: those are no facts."""
    submitted_at, started_at, ended_at = times
    is_waiting = state in WAITING
    is_over = not is_waiting and state not in ALIVE
    names = () if is_waiting else expand(hosts)
    # A job that was cancelled in the queue has a "start" at its end, and no hosts.
    has_started = not is_waiting and bool(names)
    return JobState(
        job_id=job_id,
        state=state,
        reason=None if reason in (None, "", "None") else reason,
        submitted_at=submitted_at,
        started_at=started_at if has_started else None,
        ended_at=ended_at if is_over else None,
        exit_code=exit_code if is_over else None,
        restarts=restarts,
        hosts=names,
    )


def _instant(text: str | None) -> float | None:
    """Seconds since 1970 (SLURM_TIME_FORMAT=%s), or this machine's local time where Slurm does not know that format."""
    if not text or text in ("Unknown", "N/A", "None", "NONE", "0"):
        return None
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _exit_code(text: str | None) -> int | None:
    """STATUS:SIGNAL."""
    match = re.fullmatch(r"(\d+):(\d+)", text or "")
    return None if match is None else -int(match[2]) if int(match[2]) else int(match[1])


def _number(value: Any) -> float | None:
    if isinstance(value, dict):
        value = value.get("number") if value.get("set", True) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)
