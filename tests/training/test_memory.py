"""Out of memory: what was tried, and what would fit."""

from __future__ import annotations

import pytest
import torch

from turnaround.errors import TrainingError
from turnaround.recipe import Recipe
from turnaround.record.heartbeat import Heartbeat
from turnaround.training.fitting import out_of_memory_explained, too_large
from turnaround.workers.single import Single

CPU = torch.device("cpu")


def recipe(batch: int = 48, **training: object) -> Recipe:
    values = {"data": {"size_px": 224}, "training": {"batch_per_worker": batch, **training}}
    return Recipe.from_dict(values).resolved()


@pytest.mark.parametrize(("batch", "smaller"), [(48, 32), (64, 32), (33, 32), (2, 1), (3, 2)])
def test_a_smaller_batch_is_named(batch: int, smaller: int) -> None:
    message = str(too_large(recipe(batch), CPU, hosted=1, step=900))
    assert f"out of memory at step 900 (batch_per_worker = {batch}, 1 worker on this process, 224 px" in message
    assert f"`--set training.batch_per_worker={smaller}`" in message


def test_what_else_helps_is_named_where_it_can() -> None:
    alone = str(too_large(recipe(1), CPU, hosted=1, step=0))
    assert "before the first step" in alone
    assert "batch_per_worker=" not in alone
    assert "more processes" not in alone
    several = str(too_large(recipe(precision="fp32"), CPU, hosted=4, step=0))
    assert "more processes, each with a GPU of its own" in several
    assert "training.precision=auto" in several


def test_inside_it_the_error_is_ours() -> None:
    heartbeat = Heartbeat()

    def fails() -> None:
        with out_of_memory_explained(recipe(), Single(count=2, device=CPU), heartbeat):
            heartbeat.beat("computes", 7)
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(TrainingError, match=r"out of memory at step 7 .*2 workers"):
        fails()


def test_a_process_with_no_more_than_its_equal_share_is_told_nothing_of_shares() -> None:
    def fails() -> None:
        with out_of_memory_explained(recipe(), Single(count=4, device=CPU), Heartbeat()):
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(TrainingError) as caught:
        fails()
    assert "share" not in str(caught.value)
