"""A captured pass: when it is worth it, and that it computes what the ordinary pass computes."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from training.test_step import EQUAL, at, batch, made, network
from turnaround.data.batches import StepBatch
from turnaround.recipe import AugmentRecipe
from turnaround.training.graph import worth_it
from turnaround.training.step import Step
from turnaround.workers.single import Single

STEPS = 12


def test_the_host_is_the_limit_when_it_queues_most_of_the_time() -> None:
    assert worth_it(queueing_s=0.020, whole_s=0.021).value
    choice = worth_it(queueing_s=0.005, whole_s=0.021)
    assert not choice.value
    assert choice.reason == "the host queues a pass in 5.0 ms, the GPU is done after 21.0 ms: the GPU is the limit"


def test_nothing_is_captured_on_a_cpu() -> None:
    step = made(network())
    before = {k: v.clone() for k, v in step.components.network.module.state_dict().items()}
    step.warm_up(batch())
    assert not step.graph.is_captured
    assert not step.graph.choice.value
    assert all(torch.equal(v, before[k]) for k, v in step.components.network.module.state_dict().items())
    assert step.totals.take().tolist() == [0, 0, 0]
    assert all(p.grad is None for p in step.learning)


def full(device: torch.device, workers: int, sizes: tuple[int, ...] = EQUAL) -> StepBatch:
    return dataclasses.replace(batch(sizes, device), worker_sizes=sizes if workers > 1 else (sum(sizes),))


def trained(step: Step, device: torch.device) -> tuple[dict[str, Tensor], list[float]]:
    for number in range(STEPS):  # measured, full, and smaller ones among them
        given = full(device, step.components.workers.count, EQUAL if number % 5 else (5, 5, 5, 5))
        step(dataclasses.replace(given, labels=given.labels.roll(number)), at(number), learning_rate=0.1)
    return step.components.network.module.state_dict(), step.totals.take().tolist()


@pytest.mark.gpu
@pytest.mark.parametrize("augment", [AugmentRecipe(), AugmentRecipe(mixup=0.5, cutmix=1.0)], ids=["plain", "mixed"])
@pytest.mark.parametrize("workers", [1, 4])
def test_captured_passes_compute_what_ordinary_ones_do(workers: int, augment: AugmentRecipe) -> None:
    device = torch.device("cuda")
    results = []
    with torch.cuda.stream(torch.cuda.Stream()):
        for is_captured in (False, True):
            alone = Single(count=workers, device=device)
            step = made(network(device, torch.float32), alone, precision="fp32", augment=augment)
            first = full(device, workers)
            step.warm_up(first)
            if is_captured and not step.graph.is_captured:
                images, with_labels = step._inputs(first, epoch=1)
                step._capture_graph(first.worker_sizes, images, with_labels)
            if not is_captured:
                step.graph.forget()
            results.append(trained(step, device))
    (plain, plain_totals), (captured, captured_totals) = results
    assert captured_totals == pytest.approx(plain_totals, rel=1e-5)
    for name, wanted in plain.items():
        assert torch.allclose(captured[name].float(), wanted.float(), rtol=1e-4, atol=1e-6), name
