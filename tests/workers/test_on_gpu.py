"""What test_conformance.py asks of every engine, on one GPU: over Gloo by two processes that share it, and over NCCL by
one that has it to itself, like every process of a real job. Trainings on a GPU are in test_equivalence.py."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from running import contract_told
from turnaround.workers.engines import TORCH_AGENT

pytestmark = pytest.mark.gpu

PROCESSES = {"gloo": 2, "nccl": 1}
LONG = 100_000


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, Any]]]:
    """What the processes told, by rank; each backend is started once."""

    @functools.cache
    def of(backend: str) -> list[dict[str, Any]]:
        processes, engine = PROCESSES[backend], "nccl" if backend == "nccl" else "torch"
        start = ["-m", TORCH_AGENT, "--nproc-per-node", str(processes), "-m"]
        folder = tmp_path_factory.mktemp(backend)
        return contract_told(folder, engine, "cuda:0", start=start, processes=processes)

    return of


@pytest.mark.parametrize("backend", PROCESSES)
def test_sums_broadcasts_and_texts_on_the_gpu(backend: str, contract: Callable[[str], list[dict[str, Any]]]) -> None:
    processes = PROCESSES[backend]
    total = processes * (processes + 1) // 2
    vector = [total, 2 * total, 3 * total]
    for told in contract(backend):
        assert told["backend"] == backend
        assert all(found == [vector, total, vector, vector] for found in told["sums"].values())
        assert told["broadcasts"].pop("torch.bool") == [[False, True, True], False, [False, True, True]]
        assert all(found == [[0, 1, 2], 0, [0, 1, 2]] for found in told["broadcasts"].values())
        assert told["gathered"] == ["process 0: ", "process 1: ä"][:processes]
        assert told["gathered_lengths"] == [0, LONG][:processes]


@pytest.mark.parametrize("backend", PROCESSES)
def test_gradients_on_the_gpu_are_averaged_once_a_step(
    backend: str, contract: Callable[[str], list[dict[str, Any]]]
) -> None:
    for told in contract(backend):
        averaging = told["averaging"]
        assert max(averaging["local"], averaging["mean"]) < 1e-14  # of gradients up to about 1; cuDNN may reorder sums
        assert averaging["calls"] == [1, 2, 3]
        assert averaging["gradients_at_call"] == [6, 6, 6]
        assert averaging["same_layout"]
        assert not averaging["frozen_has_gradient"]


def test_one_process_over_nccl_trains_as_without_an_engine(contract: Callable[[str], list[dict[str, Any]]]) -> None:
    (told,) = contract("nccl")
    assert told["place"] == [0, 1, 2, [0, 1]]
    assert told["steps"] < 1e-12
