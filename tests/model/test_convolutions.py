"""Convolutions computed in another way: the same numbers as torch, for any window, and only where it applies."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import depthwise_cases
from depthwise_cases import SAME_STRIDES, SIZES, WINDOWS, differences
from forking import ForkingParent
from interpreting import interpreted
from turnaround.model import convolutions
from turnaround.model.convolutions import (
    FullWindowConv2d,
    compute_depthwise_ourselves,
    leave_to_library,
    multiply_full_windows,
)

CLOSE = 1e-6
CASES = [*WINDOWS, *SAME_STRIDES]


@pytest.fixture(scope="module")
def by_case(forking_parent: ForkingParent) -> dict[str, list[float]]:
    """All cases on the CPU: the same kernels, in Triton's interpreter."""
    for package in ("triton", "timm"):
        pytest.importorskip(package)
    code = "import depthwise_cases; depthwise_cases.print_all_by_turnaround()"
    return dict(json.loads(interpreted(forking_parent.python, code)))


@pytest.mark.parametrize("case", CASES)
def test_output_and_gradients_are_those_of_torch(case: str, by_case: dict[str, list[float]]) -> None:
    assert len(by_case[case]) >= (6 if case in CASES[:2] else 3)  # an output and two gradients, at one size or two
    assert max(by_case[case]) < CLOSE


def test_of_no_images_gradients_are_zero(by_case: dict[str, list[float]]) -> None:
    assert by_case[depthwise_cases.NO_IMAGES] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [*SIZES, (96, 29, 28)])
@pytest.mark.gpu
def test_on_a_gpu_output_and_gradients_are_those_of_torch(case: str, size: tuple[int, int, int]) -> None:
    assert max(differences(case, size, images=7, device="cuda")) < CLOSE


@pytest.mark.parametrize("autocast", [torch.float32, torch.bfloat16])
@pytest.mark.gpu
def test_a_network_learns_as_with_cudnn_and_a_new_number_of_images_compiles_nothing(autocast: torch.dtype) -> None:
    """Both are held against float64: rounding in the layers behind moves a gradient by half its norm in bf16.

    On an H200 (2026-11-16) the medians over all parameters were 0.4716 (ours) and 0.4677 (cuDNN) in bf16, 0.1419 and
    0.1419 with TF32; the worst parameter had 1.29 times cuDNN's error, hence the factor 2.
    """
    import triton

    timm = pytest.importorskip("timm")
    torch.manual_seed(1)
    theirs = timm.create_model("mobilenetv2_100", num_classes=5).cuda().to(memory_format=torch.channels_last).eval()
    ours, exact = copy.deepcopy(theirs), copy.deepcopy(theirs).double()
    compute_depthwise_ourselves(ours)
    compiled: list[object] = []
    for count in (8, 3):
        images = torch.randn(count, 3, 96, 96, device="cuda").contiguous(memory_format=torch.channels_last)
        outputs = [exact(images.double())]
        outputs[0].square().sum().backward()
        for network in (theirs, ours):
            with torch.autocast("cuda", dtype=autocast, enabled=autocast != torch.float32):
                outputs.append(network(images).float())
            outputs[-1].square().sum().backward()
        assert (outputs[2] - outputs[0]).norm() < 2 * (outputs[1] - outputs[0]).norm()
        triton.knobs.runtime.jit_post_compile_hook = lambda **facts: compiled.append(facts)
    triton.knobs.runtime.jit_post_compile_hook = None
    assert not compiled
    for name, parameter in exact.named_parameters():
        mine, other = ours.get_parameter(name).grad, theirs.get_parameter(name).grad
        assert parameter.grad is not None
        assert mine is not None
        assert other is not None
        assert mine.dtype == torch.float32
        assert (mine - parameter.grad).norm() < 2 * (other - parameter.grad).norm(), name


def test_without_a_gpu_the_layer_takes_the_ordinary_way_to_the_bit() -> None:
    layer = nn.Conv2d(4, 4, 3, padding=1, groups=4)
    images = torch.randn(2, 4, 6, 6)
    before, names = layer(images), list(layer.state_dict())
    compute_depthwise_ourselves(layer)
    assert type(layer).__name__ == "DepthwiseConv2d"
    assert torch.equal(layer(images), before)
    assert list(layer.state_dict()) == names


def test_planned_numbers_of_images_are_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, padding=1, groups=4))
    compute_depthwise_ourselves(network)
    ours: list[int] = []

    def apply(images: Tensor, *_: object) -> Tensor:
        ours.append(len(images))
        return images

    kernels = SimpleNamespace(DepthwiseConvolution=SimpleNamespace(apply=apply))
    monkeypatch.setattr(convolutions, "_kernels_for", lambda _input, _weight: kernels)
    leave_to_library(network, [8, 32])
    for count in (8, 7, 32, 1):
        network(torch.randn(count, 3, 5, 5))
    assert ours == [7, 1]


def test_a_compiler_sees_the_ordinary_layer_as_a_whole() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, padding=1, groups=4))
    compute_depthwise_ourselves(network)
    leave_to_library(network, [2])
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True, dynamic=False)  # a break would be an error
    images = torch.randn(2, 3, 5, 5)
    torch.testing.assert_close(compiled(images), network(images))
    compiled(images).sum().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_an_exported_layer_takes_any_number_of_images() -> None:
    layer = nn.Conv2d(4, 4, 3, padding=1, groups=4)
    compute_depthwise_ourselves(layer)
    shapes = {"input": {0: torch.export.Dim("N", min=1, max=64)}}
    program = torch.export.export(layer, (torch.randn(2, 4, 5, 5),), dynamic_shapes=shapes)
    images = torch.randn(7, 4, 5, 5)
    torch.testing.assert_close(program.module()(images), layer(images))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 3),
        nn.Conv2d(4, 8, 3, groups=4),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(1, 1, 3),
        nn.Conv2d(4, 4, 3, stride=(1, 2), groups=4),
        nn.Conv2d(4, 4, 3, padding="same", groups=4),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect", groups=4),
        nn.ConvTranspose2d(4, 4, 3, groups=4),
    ],
    ids=lambda layer: str(layer),
)
def test_other_convolutions_stay_what_they_are(layer: nn.Module) -> None:
    kind = type(layer)
    compute_depthwise_ourselves(layer)
    assert type(layer) is kind


def test_the_networks_that_have_them_get_them() -> None:
    pytest.importorskip("timm")
    from turnaround.model.network import build
    from turnaround.recipe import ModelRecipe

    for name, count in (("mobilenetv2_100", 17), ("tf_efficientnet_lite0", 16), ("resnet18", 0)):
        module = build(ModelRecipe(name=name), num_classes=3, seed=0).module
        assert sum(type(m).__name__.startswith("Depthwise") for m in module.modules()) >= count, name
        assert (count == 0) == (not any(type(m).__name__.startswith("DepthwiseConv2d") for m in module.modules()))


# --- a window that is the whole picture


def twins() -> tuple[nn.Conv2d, nn.Conv2d]:
    torch.manual_seed(0)
    plain = nn.Conv2d(3, 5, kernel_size=4).double().to(memory_format=torch.channels_last)
    other = nn.Conv2d(3, 5, kernel_size=4).double().to(memory_format=torch.channels_last)
    other.load_state_dict(plain.state_dict())
    multiply_full_windows(other)
    assert isinstance(other, FullWindowConv2d)
    return plain, other


@pytest.mark.parametrize("side_px", [4, 6], ids=["the whole picture", "a larger picture"])
def test_the_same_numbers_and_gradients(side_px: int) -> None:
    plain, other = twins()
    images = torch.randn(7, 3, side_px, side_px, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    found = []
    for layer in (plain, other):
        taken = images.clone().requires_grad_()
        layer(taken).square().sum().backward()
        found.append([layer(images).detach(), taken.grad, layer.weight.grad, layer.bias.grad])
    for one, same in zip(*found, strict=True):
        torch.testing.assert_close(one, same, rtol=1e-12, atol=1e-12)


def test_names_and_shapes_stay() -> None:
    plain, other = twins()
    assert {k: v.shape for k, v in plain.state_dict().items()} == {k: v.shape for k, v in other.state_dict().items()}


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 1),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 8, stride=8),
    ],
    ids=["1x1", "padded", "grouped", "dilated", "patches"],
)
def test_other_convolutions_stay_as_they_are(layer: nn.Conv2d) -> None:
    module = nn.Sequential(layer)
    multiply_full_windows(module)
    assert type(layer) is nn.Conv2d
