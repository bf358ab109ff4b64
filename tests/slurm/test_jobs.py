"""Scripts of `job_script` on a real cluster, with a stand-in for the training."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from slurm.cluster import CPUS_PER_NODE, Cluster
from slurm.conftest import Submit
from turnaround.errors import InterruptedRunError
from turnaround.launch.clusters.slurm import client
from turnaround.launch.clusters.slurm.states import why_lost
from turnaround.record.files import read_json
from turnaround.record.layout import RunDirectory
from turnaround.workers.engines import TORCH_AGENT

pytestmark = pytest.mark.slurm

FREE = ("n1", "n2", "n3", "n4")


def status(run: Path) -> str:
    return str(read_json(RunDirectory(run).status)["state"])


# --- where it runs


def test_one_host(submit: Submit, cluster: Cluster) -> None:
    done = submit("run", gpu="t4", gpus_per_host=2, cpus_per_gpu=1)
    state = done.wait(lambda state: state.is_over)
    assert (state.state, state.exit_code, state.restarts) == ("COMPLETED", 0, 0), done.printed()
    assert state.hosts[0] in ("n1", "n2")
    said = done.start()
    assert said["host"] == state.hosts[0]
    assert said["folder"] == str(done.job.working_directory)
    assert said["variables"]["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert said["variables"]["SLURM_CPUS_PER_TASK"] == "2"
    assert said["variables"]["GLOO_SOCKET_IFNAME"] == "lo"
    assert int(said["variables"]["OMP_NUM_THREADS"]) >= 1
    assert said["ignores_usr2"]
    words = said["arguments"]
    assert words[:2] == ["-m", TORCH_AGENT]
    assert words[words.index("--nproc-per-node") + 1] == "2"
    assert (
        words[-11:]
        == [
            *("-m", "turnaround", "train", "photos", "--workers", "2"),
            *("--processes", "2", "--device", "cuda", "--out", str(done.job.directory)),
        ][-11:]
    )


def test_two_hosts_meet_at_the_first(submit: Submit, cluster: Cluster) -> None:
    done = submit("run", gpu="v100", gpus_per_host=1, hosts=2)
    state = done.wait(lambda state: state.is_over)
    assert (state.state, state.hosts) == ("COMPLETED", ("n3", "n4")), done.printed()
    port = 20000 + int(done.job_id) % 10000
    for node, host in enumerate(("n3", "n4")):
        said = done.start(node=node)
        words, variables = said["arguments"], said["variables"]
        assert (said["host"], variables["SLURM_NODEID"], variables["SLURM_PROCID"]) == (host, str(node), str(node))
        assert variables["SLURM_NTASKS"] == "2"
        assert variables["CUDA_VISIBLE_DEVICES"] == "0"
        assert words[words.index("--nnodes") + 1] == "2"
        assert words[words.index("--rdzv-backend") + 1] == "static"
        assert words[words.index("--node-rank") + 1] == str(node)
        assert words[words.index("--master-addr") + 1] == "n3"
        assert words[words.index("--master-port") + 1] == str(port)
        assert variables["GLOO_SOCKET_IFNAME"] == "eth0"
        assert "NCCL_SOCKET_IFNAME" not in variables


def test_an_interface_of_the_users_choice(submit: Submit) -> None:
    done = submit("run", gpus_per_host=0, hosts=2, interface="ib0")
    done.wait(lambda state: state.is_over)
    variables = done.start(node=1)["variables"]
    assert (variables["GLOO_SOCKET_IFNAME"], variables["NCCL_SOCKET_IFNAME"]) == ("ib0", "ib0")


def test_a_single_process_needs_no_launcher(submit: Submit) -> None:
    done = submit("run", gpus_per_host=0)
    assert done.wait(lambda state: state.is_over).succeeded, done.printed()
    said = done.start()
    assert said["arguments"][:3] == ["-m", "turnaround", "train"]
    assert "CUDA_VISIBLE_DEVICES" not in said["variables"]


@pytest.mark.parametrize(
    "name", ["two words", "quo'te\"s", "line\nbreak\r\n", "-dash", "äöü 果物", "$(date)`x`\\ %j #", "a" * 200, "100%"]
)
def test_any_name_of_a_run(name: str, submit: Submit) -> None:
    done = submit(name, gpus_per_host=0)
    state = done.wait(lambda state: state.is_over)
    assert state.succeeded, done.printed()
    assert done.start()["arguments"][-1] == str(done.job.directory)
    assert status(done.job.directory) == "finished"
    assert done.printed() == ""


def test_setup_lines_run_first_and_may_use_unset_variables(submit: Submit) -> None:
    done = submit("run", gpus_per_host=0, setup=('export OMP_SET_UP="yes$NOT_SET"',))
    assert done.wait(lambda state: state.is_over).succeeded, done.printed()
    assert done.start()["variables"]["OMP_SET_UP"] == "yes"


def test_a_setup_line_that_fails_ends_the_job(submit: Submit) -> None:
    done = submit("run", gpus_per_host=0, setup=("module_that_is_not_there load cuda",))
    state = done.wait(lambda state: state.is_over)
    assert (state.state, state.exit_code) == ("FAILED", 127)
    assert "module_that_is_not_there" in done.printed()


# --- where it stands


def test_the_states_and_the_queue_time(submit: Submit, cluster: Cluster) -> None:
    begun_s = time.time()
    first = submit("first", do="deaf", gpus_per_host=0, hosts=4, cpus_per_gpu=CPUS_PER_NODE)
    first.wait_for_start(nodes=4)
    second = submit("second", gpus_per_host=0, hosts=4, cpus_per_gpu=CPUS_PER_NODE)
    waiting = second.wait(lambda state: state.reason is not None)
    assert (waiting.state, waiting.reason, waiting.hosts) == ("PENDING", "Resources", ())
    assert (waiting.started_at, waiting.ended_at, waiting.exit_code) == (None, None, None)
    assert waiting.submitted_at is not None
    assert begun_s - 2 <= waiting.submitted_at <= time.time()
    assert waiting.queue_time_s(waiting.submitted_at + 7) == 7
    running = first.state()
    assert (running.state, running.hosts, running.ended_at) == ("RUNNING", FREE, None)
    assert running.started_at is not None
    by_json = client.job_states()
    assert by_json[first.job_id] == running
    assert by_json[second.job_id].state == "PENDING"
    time.sleep(1.5)  # Slurm counts whole seconds
    client.cancel(first.job_id)
    ended = second.wait(lambda state: state.is_over)
    assert ended.succeeded, second.printed()
    assert ended.started_at is not None
    assert ended.ended_at is not None
    assert ended.ended_at >= ended.started_at
    queue_time_s = ended.queue_time_s()
    assert queue_time_s is not None
    assert 1 <= queue_time_s < 600
    assert client.job_states()[second.job_id] == ended


def test_cancelled_from_outside_stays_cancelled(submit: Submit, cluster: Cluster) -> None:
    """The program saves and ends when it is told to, and yet the job does not come back."""
    job = submit("run", do="save", gpus_per_host=0)
    job.wait_for_start()
    cluster.run("scancel", job.job_id)
    state = job.wait(lambda state: state.is_over)
    assert state.state == "CANCELLED"
    time.sleep(3)
    assert job.state().state == "CANCELLED"
    error = why_lost(state, go_on="Go on with `turnaround resume run`.")
    assert isinstance(error, InterruptedRunError)
    assert f"Slurm job {job.job_id} was cancelled from outside" in str(error)
    client.cancel(job.job_id)  # nothing happens to what has ended


def test_cancelled_after_the_warning_stays_cancelled(submit: Submit, cluster: Cluster) -> None:
    job = submit("run", do="late", gpus_per_host=0)
    job.wait_for_start()
    cluster.run("scancel", "--signal=USR2", "--batch", job.job_id)
    time.sleep(3)
    cluster.run("scancel", job.job_id)
    job.wait(lambda state: state.is_over)
    time.sleep(3)
    assert job.state().state == "CANCELLED", job.printed()
    assert "Go on with: turnaround resume" in job.printed()


def test_cancelled_in_the_queue(submit: Submit, cluster: Cluster) -> None:
    first = submit("first", do="deaf", gpus_per_host=0, hosts=4, cpus_per_gpu=CPUS_PER_NODE)
    first.wait_for_start(nodes=4)
    second = submit("second", gpus_per_host=0, cpus_per_gpu=CPUS_PER_NODE)
    client.cancel(second.job_id)
    state = second.wait(lambda state: state.is_over)
    assert (state.state, state.started_at, state.queue_time_s()) == ("CANCELLED", None, None)


def test_a_job_that_slurm_does_not_know(cluster: Cluster) -> None:
    """There is no accounting here either: nothing fails, the state is just unknown."""
    state = client.job_state("99999")
    assert state.state == "UNKNOWN"
    assert state.reason is not None
    assert "keeps no accounts (Slurm accounting storage is disabled)" in state.reason
    client.cancel("99999")


# --- how it goes on


@pytest.mark.fault(9, "Slurm's time limit: warned by SIGUSR2, saved, requeued, gone on")
def test_time_is_up_and_the_job_goes_on_by_itself(submit: Submit) -> None:
    """The whole promise: USR2 before the limit, saved, back into the queue, resumed, finished."""
    job = submit("run", do="save", gpu="t4", gpus_per_host=1, hosts=2, time="1", signal_lead_s=55)
    job.wait_for_start(nodes=2)
    waiting = job.wait(lambda state: state.is_waiting)
    assert waiting.hosts == ()
    state = job.wait(lambda state: state.is_over)
    assert (state.state, state.restarts) == ("COMPLETED", 1), job.printed()
    words = job.start(restart=1)["arguments"]
    assert words[words.index("turnaround") + 1 :] == [
        *("resume", "--processes", "2", "--device", "cuda"),
        str(job.job.directory),
    ]
    assert words[words.index("--rdzv-id") + 1] == f"{job.job_id}.1"
    assert status(job.job.directory) == "finished"


def test_no_requeues_left(submit: Submit) -> None:
    job = submit("run", do="save", gpus_per_host=0, max_requeues=0)
    job.wait_for_start()
    client.call("scancel", "--signal=USR2", "--batch", job.job_id)
    state = job.wait(lambda state: state.is_over)
    assert (state.state, state.exit_code) == ("FAILED", 75)
    assert "0 times (max_requeues)" in job.printed()
    assert f"Go on with: turnaround resume {job.job.directory}" in job.printed()
    assert isinstance(why_lost(state, go_on="x"), InterruptedRunError)


@pytest.mark.fault(10, "Slurm refuses to requeue: saved, resumable, and said how")
def test_slurm_refuses_to_requeue(submit: Submit) -> None:
    """`scontrol requeue` fails for a job that was submitted as one that must not be started again."""
    job = submit("run", do="save", gpus_per_host=0)
    job.wait_for_start()
    client.call("scontrol", "update", f"jobid={job.job_id}", "requeue=0")
    client.call("scancel", "--signal=USR2", "--batch", job.job_id)
    state = job.wait(lambda state: state.is_over)
    assert (state.state, state.exit_code) == ("FAILED", 75), job.printed()
    assert "has refused to put this job back" in job.printed()
    assert "Go on with: turnaround resume" in job.printed()


def test_requeued_by_hand(submit: Submit) -> None:
    job = submit("run", do="deaf", gpus_per_host=0)
    job.wait_for_start()
    client.requeue(job.job_id)
    state = job.wait(lambda state: state.is_over and state.restarts == 1)
    assert state.succeeded, job.printed()
    assert "resume" in job.start(restart=1)["arguments"]


@pytest.mark.fault(9, "pre-empted: the same")
def test_preempted_by_a_higher_partition(submit: Submit) -> None:
    """The warning comes with the pre-emption; the job makes room, waits, and goes on when the other has ended."""
    low = submit("low", do="save", partition="scavenge", gpu="v100", gpus_per_host=2, hosts=2)
    low.wait_for_start(nodes=2)
    high = submit("high", partition="gpu", gpu="v100", gpus_per_host=2, hosts=2)
    assert high.wait(lambda state: state.is_over).succeeded, high.printed()
    state = low.wait(lambda state: state.is_over and state.restarts == 1)
    assert state.succeeded, low.printed()
    assert "resume" in low.start(restart=1)["arguments"]


def test_preempted_on_a_cluster_that_sends_only_term(submit: Submit, cluster: Cluster) -> None:
    """Slurm requeues by itself only what is still there after the grace time: a job that obeys must do it itself."""
    with cluster.configured_without("SlurmctldParameters=preempt_send_user_signal"):
        low = submit("low", do="save", partition="scavenge", gpu="v100", gpus_per_host=2, hosts=2)
        low.wait_for_start(nodes=2)
        high = submit("high", partition="gpu", gpu="v100", gpus_per_host=2, hosts=2)
        assert high.wait(lambda state: state.is_over).succeeded, high.printed()
        state = low.wait(lambda state: state.is_over)
        assert (state.state, state.restarts) == ("COMPLETED", 1), low.printed()
        assert "resume" in low.start(restart=1)["arguments"]


def test_a_node_is_lost(submit: Submit, cluster: Cluster) -> None:
    """The lock of the lost host does not keep the job from going on elsewhere; Slurm says that host is done."""
    job = submit("run", do="lock", gpu="v100", gpus_per_host=1)
    job.wait_for_start()
    lost = job.state().hosts[0]
    job.wait(lambda state: RunDirectory(job.job.directory).lock.exists())
    cluster.run("scontrol", "update", f"nodename={lost}", "state=down", "reason=test")
    state = job.wait(lambda state: state.is_over and state.restarts == 1)
    assert state.succeeded, job.printed()
    assert state.hosts[0] != lost
    assert f"An earlier start of this job on {lost} was ended by Slurm" in job.printed()
    assert not RunDirectory(job.job.directory).lock.exists()


def test_the_lock_of_somebody_else_stays(submit: Submit) -> None:
    job = submit("run", do="deaf", gpus_per_host=0)
    job.wait_for_start()
    lock = RunDirectory(job.job.directory).lock
    lock.write_text('{"format": 1, "host": "login-node", "pid": 1}')
    client.requeue(job.job_id)
    job.wait_for_start(restart=1)
    assert lock.exists()
