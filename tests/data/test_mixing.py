"""Mixup and cutmix: pixels and labels by brute force, and pairs that no number of processes changes."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from scipy.special import betaincinv
from scipy.stats import beta, kstest
from torch import Tensor

from turnaround.data import mixing
from turnaround.data.augment import LANES, Augmentation, uniforms
from turnaround.data.batches import StepBatch
from turnaround.data.inputs import Inputs
from turnaround.data.mixing import MixedLabels, dominant, overwrite, partners
from turnaround.recipe import AugmentRecipe

CPU, SIDE_PX, NUM_TRAIN = torch.device("cpu"), 20, 60
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
MIXED = {
    "mixup": AugmentRecipe(mixup=0.4),
    "cutmix": AugmentRecipe(cutmix=1.0),
    "both": AugmentRecipe(mixup=0.4, cutmix=0.7),
    "everything": AugmentRecipe(mixup=0.4, cutmix=0.7, cutout=0.4, crop=0.5, colour=0.3, flip=True, rotation_degrees=9),
}
SIZES = (4, 5, 4, 5)


def inputs(recipe: AugmentRecipe, dtype: torch.dtype = torch.float64) -> Inputs:
    made = Augmentation(recipe, seed=3)
    return Inputs(made, mean=MEAN, std=STD, num_train=NUM_TRAIN, device=CPU, dtype=dtype)


def batch(ids: Tensor | None = None, sizes: tuple[int, ...] = SIZES) -> StepBatch:
    """Images and labels are those of their sample numbers."""
    ids = torch.arange(sum(sizes)) * 7 % NUM_TRAIN if ids is None else ids
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (NUM_TRAIN, SIDE_PX, SIDE_PX, 3), dtype=torch.uint8, generator=generator)
    labels = ids * 3 % 11
    return StepBatch(pixels=images[ids], labels=labels, ids=ids, worker_sizes=sizes, global_size=sum(sizes))


def mixed(make: Inputs, given: StepBatch, epoch: int = 2) -> tuple[Tensor, MixedLabels]:
    labels = make.labels(given, epoch=epoch)
    assert isinstance(labels, MixedLabels)
    return make.varied(given, epoch=epoch), labels


def without_mixing(recipe: AugmentRecipe) -> AugmentRecipe:
    return AugmentRecipe(**{**vars(recipe), "mixup": 0.0, "cutmix": 0.0})


def weight_by_hand(alpha: float, number: float) -> float:
    return float(beta(alpha, alpha).ppf((math.floor(number * 4096) + 0.5) / 4096))


@pytest.mark.parametrize("name", MIXED)
def test_pixels_and_labels_by_brute_force(name: str) -> None:
    recipe, given = MIXED[name], batch()
    found, labels = mixed(inputs(recipe), given)
    single = inputs(without_mixing(recipe)).varied(given, epoch=2).numpy()  # each image by itself
    draws = uniforms(seed=3, epoch=2, ids=given.ids).tolist()
    start, kinds = 0, set()
    for size in (2, 2, 2, 3, 2, 2, 2, 3):  # halves of the slices
        for i in range(start, start + size):
            partner = i + 1 if i + 1 < start + size else start
            lanes = dict(zip(LANES, draws[i], strict=True))
            is_cut = bool(recipe.cutmix) and (not recipe.mixup or lanes["mix_kind"] < 0.5)
            kinds.add(is_cut)
            wanted = single[i].copy()
            if is_cut:
                weight = weight_by_hand(recipe.cutmix or 0.0, lanes["mix_weight"])
                side = math.floor(SIDE_PX * math.sqrt(1 - weight))
                left = math.floor(lanes["mix_x"] * SIDE_PX) - side // 2
                top = math.floor(lanes["mix_y"] * SIDE_PX) - side // 2
                pixels = 0
                for row in range(max(0, top), min(SIDE_PX, top + side)):
                    for column in range(max(0, left), min(SIDE_PX, left + side)):
                        wanted[:, row, column] = single[partner][:, row, column]
                        pixels += 1
                share = 1 - pixels / SIDE_PX**2
            else:
                share = weight_by_hand(recipe.mixup or 0.0, lanes["mix_weight"])
                wanted = share * single[i] + (1 - share) * single[partner]
            assert np.allclose(found[i].numpy(), wanted, atol=1e-12)
            assert float(labels.share[i]) == pytest.approx(share, abs=1e-12)
            assert (labels.first[i], labels.second[i]) == (given.labels[i], given.labels[partner])  # type: ignore[index]
        start += size
    assert kinds == ({True, False} if recipe.mixup and recipe.cutmix else {bool(recipe.cutmix)})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_split_over_processes_gives_the_same_to_the_bit(dtype: torch.dtype) -> None:
    """1 x 4, 2 x 2 and 4 x 1, and 1 and 3: a process has the slices of its workers."""
    make, whole = inputs(MIXED["everything"], dtype), batch()
    images, labels = mixed(make, whole)
    for parts in ((2, 2), (1, 1, 1, 1), (1, 3)):
        worker, start = 0, 0
        for hosted in parts:
            sizes = SIZES[worker : worker + hosted]
            mine = slice(start, start + sum(sizes))
            some, their_labels = mixed(make, batch(whole.ids[mine], sizes))
            assert torch.equal(some, images[mine])
            assert torch.equal(their_labels.first, labels.first[mine])
            assert torch.equal(their_labels.second, labels.second[mine])
            assert torch.equal(their_labels.share, labels.share[mine])
            worker, start = worker + hosted, mine.stop


def test_another_epoch_mixes_otherwise_and_the_same_one_does_not() -> None:
    make, given = inputs(MIXED["both"]), batch()
    (one, _), (again, _), (other, _) = (mixed(make, given, epoch=epoch) for epoch in (2, 2, 3))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_partners_stay_within_a_half_of_a_workers_slice() -> None:
    assert partners((3, 2, 1), CPU).tolist() == [1, 2, 0, 4, 3, 5]  # too few to be halved
    assert partners((7,), CPU).tolist() == [1, 2, 0, 4, 5, 6, 3]
    found = partners(SIZES, CPU)
    assert sorted(found.tolist()) == list(range(sum(SIZES)))  # each is once a partner
    assert bool((found != torch.arange(sum(SIZES))).all())


def test_a_worker_with_one_image_keeps_it() -> None:
    make, given = inputs(MIXED["both"]), batch(sizes=(1, 1))
    images, labels = mixed(make, given)
    plain = inputs(AugmentRecipe()).varied(given, epoch=2)
    assert torch.allclose(images, plain, atol=1e-12)
    assert torch.equal(labels.first, labels.second)


def test_the_gathered_and_the_resident_pixels_are_mixed_alike() -> None:
    make, given = inputs(MIXED["everything"]), batch()
    rows = torch.randperm(sum(SIZES), generator=torch.Generator().manual_seed(4))
    resident = StepBatch(
        pixels=given.pixels[rows.argsort()],
        rows=rows,
        labels=given.labels,
        ids=given.ids,
        worker_sizes=SIZES,
        global_size=given.global_size,
    )
    assert torch.equal(make.varied(resident, epoch=2), make.varied(given, epoch=2))


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_weights_are_beta_distributed(alpha: float) -> None:
    shares = Augmentation(AugmentRecipe(mixup=alpha), seed=0).mixing(
        torch.arange(20_000), epoch=1, side_px=32, dtype=torch.float64
    )
    assert (
        kstest(shares.shares.numpy(), beta(alpha, alpha).cdf).statistic < 0.015
    )  # of true draws 1 in 4,000 would be further off


def test_uniform_weights_are_those_of_scipy_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """And cutmix as the strong preset has it does not load scipy."""
    middles = (np.arange(mixing.QUANTILES) + 0.5) / mixing.QUANTILES
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    mixing._quantiles.cache_clear()
    for alpha in (1, 1.0):
        assert mixing._quantiles(alpha, torch.device("cpu")).numpy().tolist() == betaincinv(1, 1, middles).tolist()
    with pytest.raises(ImportError):
        mixing._quantiles(0.4, torch.device("cpu"))


def test_both_take_half_of_the_samples_each() -> None:
    ids = torch.arange(10_000)
    both = Augmentation(MIXED["both"], seed=0).mixing(ids, epoch=1, side_px=32, dtype=torch.float32)
    empty = (both.boxes[:, 2] == both.boxes[:, 0]) | (both.boxes[:, 3] == both.boxes[:, 1])
    is_mixup = both.weights < 1
    assert 4800 < int(is_mixup.sum()) < 5200
    assert bool(empty[is_mixup].all())
    assert bool(((both.shares >= 0) & (both.shares <= 1)).all())


@pytest.mark.parametrize("alpha", [1e-6, 0.001, 100.0])
def test_extreme_alphas_give_numbers(alpha: float) -> None:
    made = Augmentation(AugmentRecipe(mixup=alpha, cutmix=alpha), seed=0)
    found = made.mixing(torch.arange(1000), epoch=1, side_px=16, dtype=torch.float32)
    assert bool(found.shares.isfinite().all())
    assert bool(((found.boxes >= 0) & (found.boxes <= 16)).all())


def test_the_dominant_label() -> None:
    labels = MixedLabels(torch.tensor([1, 2, 3]), torch.tensor([7, 8, 9]), torch.tensor([0.9, 0.5, 0.2]))
    assert dominant(labels).tolist() == [1, 2, 9]
    assert dominant(labels[1:]).tolist() == [2, 9]
    assert dominant(labels.first).tolist() == [1, 2, 3]
    assert len(labels[1:]) == 2


def test_labels_are_written_into_memory_that_stays() -> None:
    labels = MixedLabels(torch.tensor([1, 2]), torch.tensor([3, 4]), torch.tensor([0.3, 0.6]))
    memory = labels.clone()
    other = MixedLabels(torch.tensor([5, 6]), torch.tensor([7, 8]), torch.tensor([0.1, 0.2]))
    addresses = [t.data_ptr() for t in vars(memory).values()]
    overwrite(memory, other)
    assert [t.data_ptr() for t in vars(memory).values()] == addresses
    assert all(torch.equal(a, b) for a, b in zip(vars(memory).values(), vars(other).values(), strict=True))
    assert labels.share.tolist() == pytest.approx([0.3, 0.6])  # a clone is a copy
    with pytest.raises(ValueError, match="zip"):
        overwrite(memory, torch.tensor([1, 2]))


def test_without_mixing_labels_are_the_batchs_own() -> None:
    given = batch()
    assert inputs(AugmentRecipe(cutout=0.5)).labels(given, epoch=1) is given.labels
