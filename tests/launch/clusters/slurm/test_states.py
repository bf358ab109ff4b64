"""What scontrol, squeue and sacct print, as Slurm 22.05 and newer print it. On a real cluster: tests/slurm."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from turnaround.errors import InputError, InterruptedRunError, ProcessFailedError
from turnaround.launch.clusters.contract import JobState, unknown
from turnaround.launch.clusters.slurm.states import (
    from_json,
    from_sacct,
    from_scontrol,
    start_at_s,
    waits_from_sacct,
    why_lost,
)

RUNNING = (
    "JobId=7 JobName=a b=c JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=2 ExitCode=0:0 "
    "RunTime=00:00:01 TimeLimit=01:00:00 SubmitTime=1000 EligibleTime=1000 StartTime=1060 EndTime=4660 "
    "Partition=gpu ReqNodeList=(null) NodeList=n[1-2] BatchHost=n1 Command=/tmp/x y.sh StdOut=/tmp/ta out/slurm-1.out "
)


def test_scontrol() -> None:
    expected = {
        "submitted_at": 1000.0,
        "started_at": 1060.0,
        "restarts": 2,
        "hosts": ("n1", "n2"),
        "command": "/tmp/x y.sh",
    }
    assert from_scontrol(RUNNING) == JobState(job_id="7", state="RUNNING", **expected)
    assert from_scontrol(RUNNING).queue_time_s() == 60


def test_expected_times_of_a_waiting_job_are_no_facts() -> None:
    state = from_scontrol(RUNNING.replace("RUNNING Reason=None", "PENDING Reason=Resources"))
    assert (state.state, state.reason, state.is_waiting, state.is_over) == ("PENDING", "Resources", True, False)
    assert (state.started_at, state.ended_at, state.hosts, state.exit_code) == (None, None, (), None)
    assert state.queue_time_s(1007) == 7
    assert (state.queue_time_s() or 0) > 1e9


def test_dates_without_a_format() -> None:
    line = RUNNING.replace("SubmitTime=1000", "SubmitTime=2026-11-15T13:02:58").replace(
        "StartTime=1060", "StartTime=Unknown"
    )
    state = from_scontrol(line)
    assert state.submitted_at == datetime(2026, 11, 15, 13, 2, 58).timestamp()
    assert (state.started_at, state.queue_time_s()) == (None, None)
    assert from_scontrol(RUNNING.replace("SubmitTime=1000", "SubmitTime=soon")).submitted_at is None


def test_an_ended_job() -> None:
    state = from_scontrol(RUNNING.replace("RUNNING Reason=None", "FAILED Reason=NonZeroExitCode").replace("0:0", "3:0"))
    assert (state.exit_code, state.reason, state.ended_at, state.is_over) == (3, "NonZeroExitCode", 4660, True)
    assert from_scontrol(RUNNING.replace("RUNNING", "FAILED").replace("0:0", "0:9")).exit_code == -9


def old_json(**changes: Any) -> str:
    job = {"job_id": 7, "job_state": "FAILED", "state_reason": "None", "submit_time": 1000, "start_time": 1060}
    job |= {"end_time": 1090, "exit_code": 75 << 8, "restart_cnt": 1, "nodes": "n1"}
    return json.dumps({"jobs": [job | changes]})


def test_squeue_as_22_05_prints_it() -> None:
    (state,) = from_json(old_json())
    assert (state.state, state.exit_code, state.restarts, state.hosts) == ("FAILED", 75, 1, ("n1",))
    assert (state.submitted_at, state.started_at, state.ended_at) == (1000, 1060, 1090)
    assert from_json(old_json(exit_code=9))[0].exit_code == -9
    assert from_json(old_json(exit_code=None, nodes=None))[0].exit_code is None
    assert from_json('{"jobs": []}') == []


def test_squeue_as_newer_ones_print_it() -> None:
    def number(value: int) -> dict[str, Any]:
        return {"set": True, "infinite": False, "number": value}

    changes: dict[str, Any] = {"job_state": ["FAILED"], "submit_time": number(1000), "restart_cnt": number(4)}
    code = {"status": ["ERROR"], "return_code": number(75), "signal": {"id": {"set": False, "number": 0}}}
    (state,) = from_json(old_json(**changes, exit_code=code))
    assert (state.state, state.submitted_at, state.restarts, state.exit_code) == ("FAILED", 1000, 4, 75)
    code["signal"] = {"id": number(9)}
    assert from_json(old_json(exit_code=code))[0].exit_code == -9


def test_sacct() -> None:
    state = from_sacct("7|CANCELLED by 1000|1000|1060|1090|0:15|n[3-4]")
    assert (state.state, state.exit_code, state.hosts, state.restarts) == ("CANCELLED", -15, ("n3", "n4"), None)
    assert from_sacct("7||||||").state == "UNKNOWN"


def test_the_start_that_a_test_of_sbatch_plans() -> None:
    said = "sbatch: Job 7 to start at 1794839062 using 1 processors on nodes n3 in partition gpu"
    assert start_at_s(said) == 1794839062
    local = start_at_s(said.replace("1794839062", "2026-11-16T14:19:22"))  # a Slurm that does not know the format
    assert local == datetime(2026, 11, 16, 14, 19, 22).timestamp()
    assert start_at_s(said.replace("1794839062", "Unknown")) is None
    assert start_at_s("sbatch: something else") is None


def test_waits_in_the_accounts() -> None:
    lines = [
        "1000|1600|billing=8,cpu=8,gres/gpu:v100=4,gres/gpu=4,mem=64G,node=1",
        "1000|1030|cpu=8,gres/gpu=2,node=1",
        "1000|1000|cpu=8,node=1",
        "1000|Unknown|cpu=8,gres/gpu=2",  # it never started
        "1000|900|cpu=8",
        "nonsense",
    ]
    found = [(wait.gpus, wait.gpu, wait.wait_s) for wait in waits_from_sacct("\n".join(lines))]
    assert found == [(4, "v100", 600), (2, None, 30), (0, None, 0)]


@pytest.mark.parametrize("text", ["nonsense", "JobId=7", "{}"])
def test_what_nobody_knows(text: str) -> None:
    for read in (from_scontrol, from_json, from_sacct):
        with pytest.raises(InputError, match=r"turnaround (does not )?know"):
            read(text)


@pytest.mark.parametrize(
    ("state", "kind", "message"),
    [
        ("CANCELLED", InterruptedRunError, "Slurm job 7 was cancelled from outside. Go on so."),
        ("TIMEOUT", InterruptedRunError, r"reached its time limit before it had saved .*\(signal_lead_s\)"),
        ("PREEMPTED", InterruptedRunError, "was pre-empted and not put back"),
        ("NODE_FAIL", InterruptedRunError, "lost a node on n1, n2"),
        ("BOOT_FAIL", InterruptedRunError, "a node on n1, n2 did not boot"),
        ("DEADLINE", InterruptedRunError, "reached its deadline"),
        ("REVOKED", InterruptedRunError, "another cluster"),
        ("OUT_OF_MEMORY", ProcessFailedError, r"ran out of memory; ask for more \(memory_per_gpu\)"),
        ("FAILED", ProcessFailedError, r"failed with exit status 1 \(NonZeroExitCode\)"),
    ],
)
def test_why_a_job_was_lost(state: str, kind: type[Exception], message: str) -> None:
    job = JobState(job_id="7", state=state, reason="NonZeroExitCode", exit_code=1, hosts=("n1", "n2"))
    error = why_lost(job, go_on="Go on so.")
    assert isinstance(error, kind)
    with pytest.raises(kind, match=message):
        raise error


def test_no_loss() -> None:
    for state in ("RUNNING", "PENDING", "COMPLETING", "COMPLETED"):
        assert why_lost(JobState(job_id="7", state=state, exit_code=0), go_on="x") is None
    assert why_lost(unknown("7", "forgotten"), go_on="x") is None
    resumable = why_lost(JobState(job_id="7", state="FAILED", exit_code=75), go_on="x")
    assert isinstance(resumable, InterruptedRunError)
    assert JobState(job_id="7", state="RUNNING").queue_time_s() is None
