"""Time, memory and epochs of a network that nobody has trained: against published figures, and their limits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from turnaround.analysis.gpu_kinds import GpuKind
from turnaround.forecast import prior
from turnaround.forecast.hardware import sheet_of
from turnaround.forecast.interval import Interval
from turnaround.forecast.prior import NetworkCount

RESNET50 = NetworkCount(
    activation_bytes_per_image=86_121_984,
    largest_activation_bytes=3_211_264,
    kept_tensors=213,
    weight_bytes=96e6,
    trained_bytes=96e6,
    forward_flops_per_image=8_175_325_184,
    is_frozen=False,
)
"""As training/bench.py counts timm's resnet50 at 224 px with 257 classes."""


@pytest.mark.parametrize(
    ("kind", "precision", "images_per_s"),
    [
        ("V100", "amp", 1180),  # NVIDIA's PyTorch example, one of a DGX-1
        ("V100", "fp32", 370),
        ("A100-80GB", "amp", 2461),
        ("A100-80GB", "tf32", 940),
        ("H200", "bf16", 4706),  # docs/LOG.md, not compiled: none of the figures that the factors come from
    ],
)
def test_resnet50_of_others(kind: str, precision: str, images_per_s: float) -> None:
    time_s = prior.image_time_s(RESNET50, sheet_of(kind), precision=precision)
    assert time_s.low <= 1 / images_per_s <= time_s.high


def test_kinds_that_were_not_learnt_from_have_more_room() -> None:
    known, other = (prior.image_time_s(RESNET50, sheet_of(kind), precision="amp") for kind in ("V100", "T4"))
    assert known.high / known.low == pytest.approx(math.exp(2 * prior.LAW_HALF_WIDTH))
    assert other.high / other.low > known.high / known.low
    assert other.value > known.value  # a third of the bandwidth
    bare = GpuKind(name="mine", bandwidth_gb_s=900)
    assert prior.image_time_s(RESNET50, bare, precision="amp").value < known.value  # no peak rate: bytes alone


def test_a_frozen_network_is_faster_and_keeps_nothing() -> None:
    frozen, sheet = replace(RESNET50, is_frozen=True, trained_bytes=2e6), sheet_of("V100")
    learns, rests = (prior.image_time_s(one, sheet, precision="amp") for one in (RESNET50, frozen))
    assert rests.value == pytest.approx(learns.value / prior.FROZEN_SPEEDUP.value)
    assert rests.high / rests.low > learns.high / learns.low
    assert prior.evaluation_time_s(RESNET50, learns).value == pytest.approx(rests.value)
    needs = [prior.memory_need(one, sheet, batch=256, precision="amp").need_bytes.value for one in (RESNET50, frozen)]
    assert needs[1] < needs[0] / 2


def test_small_steps_wait_for_launches() -> None:
    image_s = Interval.exact(1e-6)
    one, many = (prior.step_time_s(RESNET50, image_s, batch=batch) for batch in (1, 100_000))
    assert one.value == pytest.approx(213 * prior.LAUNCH_S.value, rel=0.01)
    assert many.value == pytest.approx(0.1, rel=0.05)
    assert one.high / one.low > many.high / many.low
    kept = replace(RESNET50, is_frozen=True, keeps_features=True)
    assert prior.step_time_s(kept, image_s, batch=100_000).value < one.value


@pytest.mark.parametrize(
    ("kind", "precision", "batch", "fits"),
    [
        ("V100", "amp", 256, "perhaps"),  # NVIDIA's examples train so on 16 GB
        ("V100", "fp32", 128, "perhaps"),
        ("V100", "amp", 32, "yes"),
        ("V100", "fp32", 1024, "no"),
        ("H200", "amp", 1024, "yes"),
    ],
)
def test_does_a_step_fit(kind: str, precision: str, batch: int, fits: str) -> None:
    need = prior.memory_need(RESNET50, sheet_of(kind), batch=batch, precision=precision)
    assert need.fits == fits
    assert need.largest_batch is not None
    sure = prior.memory_need(RESNET50, sheet_of(kind), batch=need.largest_batch, precision=precision)
    assert sure.fits == "yes"


def test_a_kind_without_memory_and_a_network_without_room() -> None:
    assert prior.memory_need(RESNET50, None, batch=32, precision="amp").fits == "not known"
    tiny = GpuKind(name="tiny", bandwidth_gb_s=100, memory_gb=1)
    assert prior.memory_need(RESNET50, tiny, batch=32, precision="amp").largest_batch == 0


def test_epochs_grow_with_the_batch_and_so_does_their_doubt() -> None:
    alone, many = (prior.epochs_to_stable(planned=30, batch=32, global_batch=32 * n) for n in (1, 32))
    assert (alone.low, alone.value, alone.high) == pytest.approx((4.5, 13.5, 25.5))
    assert many.value > alone.value
    assert many.high / many.low > alone.high / alone.low
    # The share of the lab's jobs and of our own on an H200, docs/LOG.md.
    assert all(alone.low <= 30 * share <= alone.high for share in (5 / 16, 15 / 30, 19.5 / 30, 25 / 30))
    assert prior.epochs_to_stable(planned=1, batch=32, global_batch=32).low == 1.0
