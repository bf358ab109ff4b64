"""What launchers say about a process, in both dialects."""

from __future__ import annotations

import json

import pytest

from turnaround.errors import InputError
from turnaround.workers.engines import ENGINES
from turnaround.workers.environment import (
    RankInfo,
    anywhere,
    has_rank,
    is_run_by_others,
    local_rank_in,
    place,
    rank_in,
)

TORCH = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
HOROVOD = {"HOROVOD_RANK": "3", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2"}


def test_without_a_launcher_a_process_is_alone() -> None:
    assert place({}) == RankInfo()
    assert place({}).is_alone


@pytest.mark.parametrize(
    ("variables", "engines"), [(TORCH, ("torch",)), (HOROVOD, ("horovod",)), (HOROVOD | TORCH, ("torch", "horovod"))]
)
def test_both_dialects(variables: dict[str, str], engines: tuple[str, ...]) -> None:
    here = place(variables)
    assert (here.rank, here.size, here.local_rank, here.local_size) == (3, 4, 1, 2)
    assert here.engines == engines
    assert not here.is_alone


def test_processes_of_one_start_share_a_word() -> None:
    meeting = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "x"}
    one, other = place(TORCH | meeting), place(TORCH | meeting | {"RANK": "2"})
    assert one.start == other.start
    assert one.start != place(TORCH | meeting | {"MASTER_PORT": "29501"}).start
    ports = [{"HOROVOD_GLOO_RENDEZVOUS_PORT": port} for port in ("1", "2")]
    assert place(HOROVOD | ports[0]).start != place(HOROVOD | ports[1]).start


@pytest.mark.parametrize("changed", [{"HOROVOD_RANK": "2"}, {"HOROVOD_SIZE": "5"}])
def test_two_launchers_that_contradict_each_other(changed: dict[str, str]) -> None:
    with pytest.raises(InputError, match="Two launchers contradict each other: RANK=3, WORLD_SIZE=4 against HOROVOD_"):
        place(TORCH | HOROVOD | changed)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "0"}, "RANK and WORLD_SIZE must both be whole numbers .*torch.distributed.run"),
        ({"WORLD_SIZE": "2"}, "RANK and WORLD_SIZE must both be whole numbers"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "must both be whole numbers"),
        ({"HOROVOD_SIZE": "2"}, "HOROVOD_RANK and HOROVOD_SIZE must both be whole numbers .*horovodrun"),
        (TORCH | {"RANK": "4"}, "RANK=4 of WORLD_SIZE=4 with .* cannot be"),
        (HOROVOD | {"HOROVOD_LOCAL_SIZE": "9"}, "HOROVOD_LOCAL_RANK=1 of HOROVOD_LOCAL_SIZE=9 cannot be"),
    ],
)
def test_what_cannot_be(variables: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        place(variables)


# --- the launchers of programs that only record themselves

OMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "job1",
}
SRUN = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
}
BATCH_SCRIPT = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "7"}


@pytest.mark.parametrize(
    ("variables", "launcher"),
    [
        (TORCH, "torch"),
        (HOROVOD | OMPI, "horovod"),
        (OMPI | SRUN | {"SLURM_PROCID": "0"}, "mpirun"),  # Open MPI has started its daemon through srun
        ({"PMI_RANK": "3", "PMI_SIZE": "4"}, "mpiexec"),
        (SRUN, "srun"),
        (SRUN | TORCH, "torch"),
    ],
)
def test_other_launchers(variables: dict[str, str], launcher: str) -> None:
    here = anywhere(variables)
    assert (here.rank, here.size, here.engines[0]) == (3, 4, launcher)


def test_tensorflow_has_a_variable_of_its_own() -> None:
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
    variables = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}})}
    assert (anywhere(variables).rank, anywhere(variables).size) == (2, 3)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        BATCH_SCRIPT,
        {"OMPI_COMM_WORLD_RANK": "0"},
        {"PMI_RANK": "5", "PMI_SIZE": "2"},
        {"PMI_RANK": "x", "PMI_SIZE": "2"},
        {"TF_CONFIG": "{"},
        {"TF_CONFIG": "[]"},
        {"TF_CONFIG": json.dumps({"cluster": {"worker": []}, "task": {"type": "worker", "index": 0}})},
    ],
)
def test_what_means_nothing_leaves_a_process_alone(variables: dict[str, str]) -> None:
    assert anywhere(variables) == RankInfo()


def test_starts_of_other_launchers_differ() -> None:
    assert anywhere(SRUN).start == anywhere(SRUN | {"SLURM_PROCID": "1"}).start
    assert anywhere(SRUN).start != anywhere(SRUN | {"SLURM_STEP_ID": "1"}).start


def test_our_own_command_line_does_not_listen_to_them() -> None:
    assert place(OMPI | SRUN) == RankInfo()


@pytest.mark.parametrize("engine", ENGINES)
def test_the_rank_is_read_of_every_engines_variables(engine: str) -> None:
    variables = dict(zip(ENGINES[engine].rank_variables, ("3", "4", "1", "2"), strict=True))
    assert has_rank(variables)
    assert is_run_by_others(variables)
    assert (rank_in(variables), local_rank_in(variables)) == (3, 1)


def test_variables_that_are_no_numbers_give_no_rank() -> None:
    assert (rank_in({}), local_rank_in({})) == (None, 0)
    assert (rank_in({"RANK": "\N{SUPERSCRIPT TWO}"}), local_rank_in({"LOCAL_RANK": "first"})) == (None, 0)
    assert rank_in({"RANK": "", "HOROVOD_RANK": "2"}) == 2
    assert has_rank({"RANK": "first"})


def test_a_step_of_slurm_is_run_by_others_and_a_batch_script_is_not() -> None:
    assert is_run_by_others(SRUN)
    assert not has_rank(SRUN)
    assert not is_run_by_others(BATCH_SCRIPT)
