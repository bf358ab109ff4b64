"""Device and precision: what is chosen, why, and what is refused."""

from __future__ import annotations

import pytest
import torch

from turnaround.errors import MissingPartError
from turnaround.training.choices import (
    DepthwiseKernels,
    agreed_precision,
    choose_backbone_precision,
    choose_depthwise,
    choose_device,
    choose_precision,
)
from turnaround.workers.environment import RankInfo
from turnaround.workers.single import Single

CPU = torch.device("cpu")


def gpus(monkeypatch: pytest.MonkeyPatch, count: int, *, capability: tuple[int, int] = (8, 0)) -> list[torch.device]:
    """As if this machine had some; the devices that were made current."""
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    return current


def test_the_cpu_when_asked_for_and_when_there_is_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    asked, auto = choose_device("cpu", RankInfo()), choose_device("auto", RankInfo())
    assert asked.value.device == auto.value.device == CPU
    assert asked.reason == "asked for"
    assert auto.reason == "the best device here"


def test_missing_devices_are_refused_with_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(MissingPartError, match=r"sees no CUDA device here\. Use --device cpu or auto"):
        choose_device("cuda", RankInfo())
    with pytest.raises(MissingPartError, match=r"there is no Apple GPU here\. Use --device cpu or auto"):
        choose_device("mps", RankInfo())


def test_every_process_gets_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    current = gpus(monkeypatch, 2)
    for rank in (0, 1):
        found = choose_device("auto", RankInfo(rank=rank, size=2, local_rank=rank, local_size=2))
        assert found.value.device == torch.device("cuda", rank)
        assert not found.value.shares_device
        assert "2 GPU" in found.reason
    assert current == [torch.device("cuda", 0), torch.device("cuda", 1)]


def test_each_process_its_own_kind_of_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hosts of two processes: the GPUs of each are counted there, and all speak over Gloo."""
    gpus(monkeypatch, 2)
    kinds, found = "cpu,cuda,cuda,cuda", []
    for rank in range(4):
        place = RankInfo(rank=rank, size=4, local_rank=rank % 2, local_size=2)
        found.append(choose_device(kinds, place).value)
    assert [each.device for each in found] == [CPU, *(torch.device("cuda", number) for number in (0, 0, 1))]
    assert all(each.shares_device for each in found)


class Peers(Single):
    """One of several processes; the others say what they are told to."""

    def __init__(self, *others: str) -> None:
        super().__init__(count=1, device=CPU)
        self.others = others

    def gather(self, value: str) -> list[str]:
        return [value, *self.others]


@pytest.mark.parametrize(
    ("mine", "others", "together"),
    [
        ("bf16", ["bf16"], "bf16"),
        ("bf16", ["fp16", "bf16"], "fp16"),  # a V100 has no bf16, an A100 has both
        ("fp16", ["bf16"], "fp16"),
        ("bf16", ["fp32"], "fp32"),  # a CPU beside a GPU
        ("fp32", ["fp16", "bf16"], "fp32"),
    ],
)
def test_all_processes_compute_in_one_precision(mine: str, others: list[str], together: str) -> None:
    found = agreed_precision(choose_precision(mine, CPU), Peers(*others))
    assert found.value == choose_precision(together, CPU).value
    assert ("differ" in found.reason) == (len({mine, *others}) > 1)


def test_more_processes_than_gpus_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 2)
    found = [choose_device("cuda", RankInfo(rank=r, size=4, local_rank=r, local_size=4)) for r in range(4)]
    assert [c.value.device.index for c in found] == [0, 1, 0, 1]
    assert all(c.value.shares_device for c in found)


@pytest.mark.parametrize(
    ("capability", "name", "words"),
    [((9, 0), "bf16", "Some GPU computes bf16"), ((8, 0), "bf16", "bf16"), ((7, 5), "fp16", "no bf16 ones")],
)
def test_the_precision_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], name: str, words: str
) -> None:
    gpus(monkeypatch, 1, capability=capability)
    found = choose_precision("auto", torch.device("cuda", 0))
    assert found.value.name == name
    assert words in found.reason
    assert found.value.scales_loss == (name == "fp16")


def test_the_precision_of_a_cpu() -> None:
    found = choose_precision("auto", CPU)
    assert (found.value.name, found.value.parameters, found.value.autocast) == ("fp32", torch.float32, None)
    assert "reproducible" in found.reason


@pytest.mark.parametrize(
    ("abilities", "name"),
    [
        ({"amx_bf16": True, "avx512_bf16": True}, "bf16"),
        ({"amx_bf16": False, "avx512_bf16": True}, "fp32"),
        ({"avx2": True}, "fp32"),
    ],
)
def test_a_processor_with_matrix_units_for_bf16_uses_them_for_a_frozen_backbone(
    monkeypatch: pytest.MonkeyPatch, abilities: dict[str, bool], name: str
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: abilities, raising=False)
    training = choose_precision("auto", CPU).value
    assert training.name == "fp32"  # what learns is the same on any number of processes
    assert choose_backbone_precision("auto", CPU, training).value.name == name
    for asked in ("fp32", "fp64"):
        of_training = choose_precision(asked, CPU).value
        assert choose_backbone_precision(asked, CPU, of_training).value == of_training


def test_a_torch_that_does_not_know_the_processor_computes_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert choose_backbone_precision("auto", CPU, choose_precision("auto", CPU).value).value.name == "fp32"


@pytest.mark.parametrize(
    ("asked", "parameters", "autocast"),
    [
        ("fp32", torch.float32, None),
        ("fp64", torch.float64, None),
        ("bf16", torch.float32, torch.bfloat16),
        ("fp16", torch.float32, torch.float16),
    ],
)
def test_what_is_asked_for_is_taken(asked: str, parameters: torch.dtype, autocast: torch.dtype | None) -> None:
    found = choose_precision(asked, CPU)
    assert (found.value.name, found.value.parameters, found.value.autocast) == (asked, parameters, autocast)
    assert found.reason == "asked for"
    assert found.value.scales_loss == (asked == "fp16")


@pytest.mark.parametrize(
    ("steps", "images", "can_capture", "by_library"),
    [
        (1_999, 63_968, False, False),
        (2_000, 64_000, False, True),
        (30_000, 960_000, True, False),
        (31_250, 1_000_000, True, True),
        (100, 1_000_000, False, True),
    ],
)
def test_cudnn_plans_depthwise_layers_where_that_pays(
    steps: int, images: int, can_capture: bool, by_library: bool
) -> None:
    found = choose_depthwise(steps=steps, images=images, can_capture=can_capture)
    assert (found.value is DepthwiseKernels.CUDNN) == by_library
    assert str(found.value) == ("cuDNN for full passes" if by_library else "our kernels")
    assert ("would not pay" in found.reason) != by_library
    assert f"{steps:,} steps" in found.reason or f"{images:,} images" in found.reason
