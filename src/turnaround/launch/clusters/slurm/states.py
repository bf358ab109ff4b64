"""Parsers for the job states that scontrol, squeue and sacct print, and for Slurm's short form of host lists."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from datetime import datetime
from typing import Any

from turnaround.errors import InputError, InterruptedRunError, ProcessFailedError, TurnaroundError
from turnaround.launch.clusters.contract import ALIVE, WAITING, JobState, PastWait

MAX_HOSTS = 100_000
"""More is no cluster but a damaged text."""


def why_lost(job: JobState, *, go_on: str) -> TurnaroundError | None:
    """Return the error of a job that ended before its program could say why; None while it lives, or when all is well.

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
    """Parse one line of `scontrol show job -o`: KEY=VALUE, where only a value may hold spaces."""
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
    """Parse the jobs of `squeue --json`, in either of its shapes: plain values, or {"set": true, "number": 5}."""
    try:
        jobs = json.loads(text)["jobs"]
        return [_from_object(job) for job in jobs]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"squeue's JSON is not what turnaround knows ({type(error).__name__}: {error}).") from None


def from_sacct(line: str) -> JobState:
    """Parse one line of `sacct -P` with client.SACCT_FIELDS."""
    values = line.split("|")
    if len(values) != 7:
        raise InputError(f"This version of sacct answers in a way that turnaround does not know: {line[:100]!r}.")
    job_id, state, submit, start, end, code, hosts = values
    times = [_instant(value) for value in (submit, start, end)]
    state = state.split()[0] if state else "UNKNOWN"  # "CANCELLED by 1000"
    return _job(
        job_id=job_id, state=state, reason=None, times=times, exit_code=_exit_code(code), restarts=None, hosts=hosts
    )


def start_at_s(said: str) -> float | None:
    """Return the start that `sbatch --test-only` plans, in seconds since 1970; None where it names none."""
    found = re.search(r"\bto start at (\S+)", said)
    return None if found is None else _instant(found[1])


def waits_from_sacct(text: str) -> list[PastWait]:
    """Parse the lines of `sacct -P` with client.WAIT_FIELDS; jobs that never started, and lines of others, are left
    out."""
    found = []
    for line in text.splitlines():
        submit, start, wanted = [*line.split("|"), "", "", ""][:3]
        submitted_at, started_at = _instant(submit), _instant(start)
        if submitted_at is None or started_at is None or started_at < submitted_at:
            continue
        # billing=8,cpu=8,gres/gpu:v100=4,gres/gpu=4,mem=64G,node=1: the total may stand beside its kinds.
        kinds = re.findall(r"gres/gpu(?::([^=,]+))?=(\d+)", wanted)
        gpu, count = max(((name, int(number)) for name, number in kinds), key=lambda k: (k[1], k[0]), default=("", 0))
        found.append(PastWait(gpus=count, gpu=gpu or None, wait_s=started_at - submitted_at))
    return found


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
    """Parse seconds since 1970 (SLURM_TIME_FORMAT=%s), or local time where Slurm does not know that format."""
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


# --- n[1-3,07],gpu-a -> n1, n2, n3, n07, gpu-a


def expand(short: str) -> tuple[str, ...]:
    """Return the hosts by name; none for Slurm's (null) and for an empty text."""
    if short.strip() in ("", "(null)", "None assigned", "None"):
        return ()
    # commas between hosts, not those inside brackets
    words = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", short.strip())
    hosts = itertools.chain.from_iterable(_expand_word(word) for word in words)
    return tuple(itertools.islice(hosts, MAX_HOSTS))


def _expand_word(word: str) -> itertools.chain[str]:
    """n[1-2]-r[0,5]: every bracket with every other."""
    parts = re.split(r"\[([^\]]*)\]", word)
    choices = [_host_numbers(part) if index % 2 else [part] for index, part in enumerate(parts)]
    return itertools.chain("".join(choice) for choice in itertools.product(*choices))


def _host_numbers(text: str) -> list[str]:
    """08-10,12 -> 08, 09, 10, 12: leading zeros stay."""
    numbers: list[str] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if last.isdecimal() and first.isdecimal():
            end = min(int(last), int(first) + MAX_HOSTS)
            numbers += [str(number).zfill(len(first)) for number in range(int(first), end + 1)]
        else:
            numbers.append(part)
    return numbers
