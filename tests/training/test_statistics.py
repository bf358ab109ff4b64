"""Batch-norm running statistics: the mean over workers, however they are spread over passes and processes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from turnaround.model.grouped_norm import by_worker
from turnaround.training.averages import RunningStatistics
from turnaround.workers.single import Single

CPU = torch.device("cpu")
SIZES = (4, 5, 4, 6)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 5), nn.BatchNorm1d(5))
    return made.double()


def norms(module: nn.Module) -> list[nn.Module]:
    return [m for m in module.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]


def images() -> list[torch.Tensor]:
    torch.manual_seed(1)
    return list(torch.split(torch.randn(sum(SIZES), 3, 8, 8, dtype=torch.float64), SIZES))


def expected(steps: int) -> dict[str, torch.Tensor]:
    """The definition: every worker on its own from the same start, then the mean."""
    module = network()
    for _ in range(steps):
        copies = []
        for part in images():
            own = copy.deepcopy(module)
            own(part)
            copies.append({k: b for k, b in own.named_buffers() if "running" in k})
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                if "running" in name:
                    buffer.copy_(torch.stack([c[name] for c in copies]).mean(dim=0))
    return {k: b for k, b in module.named_buffers() if "running" in k}


@pytest.mark.parametrize("passes", [(1, 1, 1, 1), (2, 2), (4,), (3, 1)])
def test_four_workers_leave_the_mean_of_what_each_would(passes: tuple[int, ...]) -> None:
    module = network()
    statistics = RunningStatistics(norms(module), Single(count=4, device=CPU))
    for _ in range(3):
        statistics.begin_step(is_one_pass=len(passes) == 1)
        first = 0
        for num_workers in passes:
            statistics.begin_pass()
            with by_worker(SIZES[first : first + num_workers]):
                module(torch.cat(images()[first : first + num_workers]))
            statistics.end_pass(num_workers=num_workers)
            first += num_workers
        statistics.end_step()
    found = dict(module.named_buffers())
    for name, wanted in expected(3).items():
        assert torch.allclose(found[name], wanted, rtol=1e-12, atol=1e-14), name
    assert all(int(m.num_batches_tracked) == 3 for m in norms(module))  # a step counts once


@pytest.mark.parametrize("is_one_pass", [True, False])
def test_one_worker_is_plain_batch_norm(is_one_pass: bool) -> None:
    module, plain = network(), network()
    statistics = RunningStatistics(norms(module), Single(count=1, device=CPU))
    for part in images():
        plain(part)
        statistics.begin_step(is_one_pass=is_one_pass)
        statistics.begin_pass()
        module(part)
        statistics.end_pass(num_workers=1)
        statistics.end_step()
    for found, wanted in zip(module.buffers(), plain.buffers(), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("module", [nn.Linear(3, 3), nn.BatchNorm2d(3, track_running_stats=False)])
def test_nothing_to_keep_is_fine(module: nn.Module) -> None:
    statistics = RunningStatistics(norms(module), Single(count=4, device=CPU))
    statistics.begin_step(is_one_pass=False)
    statistics.begin_pass()
    statistics.end_pass(num_workers=4)
    statistics.end_step()
