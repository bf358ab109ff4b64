"""Processes of one srun find each other without a launcher."""

from __future__ import annotations

import pytest

from turnaround.errors import InputError
from turnaround.launch import clusters
from turnaround.launch.clusters.slurm import step
from turnaround.launch.clusters.slurm.step import step_environment

STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}


def test_where_the_processes_of_a_step_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "towards", lambda hosts: f"towards {' '.join(hosts)}")
    assert step_environment(STEP) == {
        "RANK": "3",
        "WORLD_SIZE": "5",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "n1",
        "MASTER_PORT": "20009",
        "GLOO_SOCKET_IFNAME": "towards n1 n2 n3",
    }
    assert step_environment(STEP | {"SLURM_NODEID": "2"})["LOCAL_WORLD_SIZE"] == "1"
    assert "GLOO_SOCKET_IFNAME" not in step_environment(STEP | {"GLOO_SOCKET_IFNAME": "ib0"})


@pytest.mark.parametrize(
    "variables",
    [{}, {"RANK": "0"} | STEP, {"SLURM_JOB_ID": "7"}, STEP | {"SLURM_STEP_NUM_TASKS": "1"}],
    ids=["no Slurm", "another launcher", "a batch script", "alone"],
)
def test_who_needs_no_meeting_point(variables: dict[str, str]) -> None:
    assert step_environment(variables) == {}


def test_whoever_asks_the_clusters_finds_the_step() -> None:
    alone = STEP | {"SLURM_STEP_NODELIST": "n1", "SLURM_STEP_TASKS_PER_NODE": "5", "SLURM_NODEID": "0"}
    assert clusters.step_environment(alone) == step_environment(alone) != {}
    assert clusters.step_environment({}) == {}


@pytest.mark.parametrize(
    "change", [{"SLURM_STEP_TASKS_PER_NODE": "many"}, {"SLURM_NODEID": "9"}, {"SLURM_PROCID": "x"}]
)
def test_a_step_that_cannot_be_read(change: dict[str, str]) -> None:
    with pytest.raises(InputError, match=r"a step of Slurm whose variables cannot be read: .*Start it with srun"):
        step_environment(STEP | change)
