"""One pass with statistics by worker = one pass for each worker."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from turnaround.model.grouped_norm import by_worker
from turnaround.model.small import SmallNetwork


def separate(
    network: nn.Module, images: Tensor, seed: Tensor, sizes: tuple[int, ...]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Outputs and mean running statistics of passes of their own, gradients added up in the network."""
    buffers = dict(network.named_buffers())
    before = {k: v.clone() for k, v in buffers.items()}
    outputs, states = [], []
    for part, gradient in zip(torch.split(images, sizes), torch.split(seed, sizes), strict=True):
        for name, buffer in buffers.items():
            buffer.copy_(before[name])
        outputs.append(network(part))
        outputs[-1].backward(gradient)
        states.append({k: v.clone() for k, v in buffers.items() if "running" in k})
    means = {k: torch.stack([s[k] for s in states]).mean(dim=0) for k in states[0]}
    return torch.cat(outputs), means


@pytest.mark.parametrize(
    ("device", "dtype", "tolerance"),
    [
        ("cpu", torch.float64, 1e-12),
        ("cpu", torch.float32, 1e-4),
        pytest.param("cuda", torch.float64, 1e-10, marks=pytest.mark.gpu),
        pytest.param("cuda", torch.float32, 1e-4, marks=pytest.mark.gpu),
    ],
)
@pytest.mark.parametrize("sizes", [(6, 6, 6, 6), (8, 8), (24,), (7, 6, 6, 5)])
def test_outputs_gradients_and_statistics_equal_separate_passes(
    sizes: tuple[int, ...], device: str, dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(1)
    torch.backends.cudnn.allow_tf32 = False
    one = SmallNetwork(num_classes=5).to(device, dtype, memory_format=torch.channels_last).train()
    other = copy.deepcopy(one)
    images = torch.randn(sum(sizes), 3, 32, 32, device=device, dtype=dtype) * 2 + 1
    images = images.contiguous(memory_format=torch.channels_last)
    seed = torch.randn(sum(sizes), 5, device=device, dtype=dtype)
    with by_worker(sizes):
        together = one(images)
    together.backward(seed)
    apart, running = separate(other, images, seed, sizes)
    close = {"rtol": tolerance, "atol": tolerance * 10}
    torch.testing.assert_close(together, apart, **close)
    for name, value in running.items():
        torch.testing.assert_close(one.state_dict()[name], value, **close, msg=lambda m, n=name: f"{n}: {m}")
    for (name, mine), theirs in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, **close, msg=lambda m, n=name: f"{n}: {m}")


def test_workers_really_have_statistics_of_their_own() -> None:
    norm = nn.BatchNorm2d(2).train()
    dark, bright = torch.zeros(4, 2, 3, 3), torch.full((4, 2, 3, 3), 10.0)
    with by_worker((4, 4)):
        output = norm(torch.cat([dark, bright]))
    assert output.abs().max() < 1e-3  # each worker's constant image is its own mean
    assert torch.allclose(norm.running_mean, torch.full((2,), 0.1 * 5.0))
    plain = nn.BatchNorm2d(2).train()(torch.cat([dark, bright]))
    assert plain.abs().max() > 0.9


def test_evaluation_mode_and_a_single_worker_are_untouched() -> None:
    norm = nn.BatchNorm2d(3)
    images = torch.randn(8, 3, 4, 4)
    with by_worker((4, 4)):
        evaluated = norm.eval()(images)
    assert torch.equal(evaluated, norm(images))
    alone, twin = nn.BatchNorm2d(3).train(), nn.BatchNorm2d(3).train()
    with by_worker((8,)):
        output = alone(images)
    assert torch.equal(output, twin(images))


def test_a_wrong_number_of_images_is_our_own_mistake() -> None:
    with by_worker((4, 4)), pytest.raises(AssertionError, match="batch of 9"):
        nn.BatchNorm2d(3).train()(torch.randn(9, 3, 4, 4))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(64, 48, 14, 14), (32, 256, 7, 7), (16, 7, 5, 3), (64, 2048, 1, 1), (48, 12)])
def test_triton_kernels_against_double_precision(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    norm = (nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d)(shape[1]).cuda().train()
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.normal_(norm.bias)
    exact = copy.deepcopy(norm).double()
    images = (torch.randn(*shape, device="cuda") * 2 + 30).to(dtype)  # a large mean: naive variances cancel
    seed = torch.randn(*shape, device="cuda").to(dtype)
    sizes = (shape[0] // 4,) * 4
    mine, theirs = images.clone().requires_grad_(), images.double().requires_grad_()
    with by_worker(sizes):
        output, reference = norm(mine), exact(theirs)
    output.backward(seed)
    reference.backward(seed.double())
    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    for got, wanted in (
        (output, reference),
        (mine.grad, theirs.grad),
        (norm.weight.grad, exact.weight.grad),
        (norm.bias.grad, exact.bias.grad),
        (norm.running_mean, exact.running_mean),
        (norm.running_var, exact.running_var),
    ):
        assert (got.double() - wanted).norm() / wanted.norm() < tolerance
