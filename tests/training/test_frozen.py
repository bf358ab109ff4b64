"""A frozen network: its two parts are the whole, and features ahead or once are those of one step at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from turnaround.data.augment import Augmentation
from turnaround.data.batches import Batches, Slicing
from turnaround.data.inputs import Inputs
from turnaround.data.pixels import Pixels
from turnaround.model.network import Network, build
from turnaround.recipe import AugmentRecipe, ModelRecipe
from turnaround.training.choices import choose_precision
from turnaround.training.clock import SPAN_AT_STEP, StepTimer
from turnaround.training.feed import Feed
from turnaround.training.frozen import FrozenBackbone, FrozenFeed, split
from turnaround.training.position import TrainingPosition
from turnaround.workers.contract import Workers
from turnaround.workers.single import Single

CPU = torch.device("cpu")
NUM_TRAIN, NUM_VALIDATION, SIDE_PX, GLOBAL_BATCH = 90, 37, 8, 12
VARIED, PLAIN = AugmentRecipe(rotation_degrees=30, flip=True), AugmentRecipe()


class Counting(nn.Module):
    """A backbone that knows how many passes and images it has seen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Conv2d(3, 5, 3, dtype=torch.float64)
        self.passes: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        self.passes.append(len(images))
        return self.layer(images).mean(dim=(2, 3))


@pytest.fixture(scope="module")
def pixels(tmp_path_factory: pytest.TempPathFactory) -> Pixels:
    path, count = tmp_path_factory.mktemp("pixels") / "images.npy", NUM_TRAIN + NUM_VALIDATION
    np.save(path, np.random.default_rng(0).integers(0, 256, (count, SIDE_PX, SIDE_PX, 3), dtype=np.uint8))
    return Pixels(
        images=np.load(path, mmap_mode="r"),
        labels=np.arange(count, dtype=np.int64) % 5,
        num_train=NUM_TRAIN,
        classes=tuple("abcde"),
        files=tuple(map(str, range(count))),
        fingerprint="0",
        skipped=(),
        cache_dir=path.parent,
        from_cache=True,
        decode_time_s=0.0,
    )


def backbone_for(images_per_step: int) -> FrozenBackbone:
    precision = choose_precision("fp64", CPU).value
    return FrozenBackbone(Counting(), device=CPU, precision=precision, size_px=SIDE_PX, images_per_step=images_per_step)


def test_a_backbone_in_bf16_gives_the_same_features_in_any_company_for_a_layer_in_fp32() -> None:
    network = build(ModelRecipe(name="small"), num_classes=5, seed=1).module.eval()
    images = torch.rand(24, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    found = []
    for images_per_step in (24, 7):
        backbone = FrozenBackbone(
            Pooled(network),
            device=CPU,
            precision=choose_precision("bf16", CPU).value,
            learns_in=choose_precision("fp32", CPU).value,
            size_px=32,
            images_per_step=images_per_step,
        )
        found.append(torch.cat([backbone(part) for part in images.split(images_per_step)]))
    assert found[0].dtype == torch.float32
    assert torch.equal(*found)
    exact = Pooled(network)(images)
    assert 0 < float((found[0] - exact).norm() / exact.norm()) < 0.02  # it did compute in bf16


class Pooled(nn.Module):
    """What the last layer of our own network sees."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        return self.network.forward_head(self.network.forward_features(images), pre_logits=True)  # type: ignore[operator]


def made(pixels: Pixels, augment: AugmentRecipe, workers: Workers | None = None) -> FrozenFeed:
    workers = workers or Single(count=1, device=CPU)
    feed = FrozenFeed(
        Batches(pixels, device=CPU, residency="host"),
        Slicing(seed=4, global_batch=GLOBAL_BATCH, workers=workers.count, hosted=workers.hosted),
        workers,
        inputs=Inputs(
            Augmentation(augment, seed=1),
            mean=(0.5, 0.5, 0.5),
            std=(0.2, 0.2, 0.2),
            num_train=NUM_TRAIN,
            device=CPU,
            dtype=torch.float64,
        ),
        timer=StepTimer(CPU),
        backbone=backbone_for(GLOBAL_BATCH),
    )
    passes_of(feed).clear()
    return feed


def at(epoch: int, step: int = 0) -> TrainingPosition:
    """Epochs have eight steps."""
    return TrainingPosition(epochs_done=epoch - 1, step_in_epoch=step, global_step=8 * (epoch - 1) + step)


def passes_of(feed: FrozenFeed) -> list[int]:
    module = feed.backbone.module
    assert isinstance(module, Counting)
    return module.passes


# --- features, ahead or once


def test_steps_ahead_have_the_features_of_single_steps(pixels: Pixels) -> None:
    feed = made(pixels, VARIED)
    found = list(feed.steps(at(3)))
    assert passes_of(feed) == [60, 30]  # five steps of 12 at once, then what is left
    plain = Feed(feed.batches, feed.slicing, feed.workers)
    for step, alone in zip(found, plain.steps(at(3)), strict=True):
        wanted = feed.backbone.module(feed.inputs.varied(alone, epoch=3))
        assert step.features is not None
        assert torch.allclose(step.features, wanted, rtol=1e-12)
        assert torch.equal(step.ids, alone.ids)
        assert (step.worker_sizes, step.global_size) == (alone.worker_sizes, alone.global_size)


def test_images_that_do_not_vary_are_computed_once(pixels: Pixels) -> None:
    feed = made(pixels, PLAIN)
    assert feed.choice.value == "computed once"
    first = list(feed.steps(at(1)))
    assert sum(passes_of(feed)) == NUM_TRAIN
    second = list(feed.steps(at(2)))
    assert sum(passes_of(feed)) == NUM_TRAIN  # no more
    by_id = {i: f for b in first for i, f in zip(b.ids.tolist(), b.features, strict=True)}  # type: ignore[arg-type]
    for batch in second:
        assert batch.features is not None
        assert torch.equal(batch.features, torch.stack([by_id[i] for i in batch.ids.tolist()]))
    ahead = made(pixels, PLAIN)
    ahead.keeps_training = False
    for kept, computed in zip(second, ahead.steps(at(2)), strict=True):
        assert torch.allclose(kept.features, computed.features, rtol=1e-12)  # type: ignore[arg-type]


def test_evaluation_features_are_computed_once(pixels: Pixels) -> None:
    feed = made(pixels, VARIED)
    first = list(feed.validation())
    seen = sum(passes_of(feed))
    assert seen == NUM_VALIDATION
    second = list(feed.validation())
    assert sum(passes_of(feed)) == seen
    assert torch.equal(torch.cat([b.labels for b in first]), torch.from_numpy(pixels.labels[NUM_TRAIN:]))
    assert all(torch.equal(a.features, b.features) for a, b in zip(first, second, strict=True))  # type: ignore[arg-type]
    sample = list(feed.train_sample())
    assert sum(len(b.labels) for b in sample) == NUM_VALIDATION
    feed.keeps_evaluation = False
    feed._evaluation_features.clear()
    again = list(feed.validation())
    assert torch.equal(torch.cat([b.features for b in again]), torch.cat([b.features for b in first]))  # type: ignore[misc]


class OneOfTwo(Single):
    """Process `rank` of two, in this process: what the other one would send is added."""

    def __init__(self, rank: int, theirs: list[Tensor]) -> None:
        Workers.__init__(self, rank=rank, size=2, count=2, device=CPU)
        self.sent: list[Tensor] = []
        self.theirs = theirs

    def sum(self, tensor: Tensor) -> None:
        self.sent.append(tensor.clone())
        if self.theirs:
            tensor += self.theirs.pop(0)


def test_two_processes_share_the_computation_of_all_features(pixels: Pixels) -> None:
    one = OneOfTwo(1, [])
    feed = made(pixels, PLAIN, one)
    list(feed.steps(at(1)))
    assert sum(passes_of(feed)) == NUM_TRAIN // 2
    other = OneOfTwo(0, one.sent)
    feed = made(pixels, PLAIN, other)
    list(feed.steps(at(1)))
    alone = made(pixels, PLAIN)
    list(alone.steps(at(1)))
    assert feed._table is not None
    assert alone._table is not None
    assert torch.allclose(feed._table, alone._table, atol=1e-6)  # sent in single precision


def test_passes_have_one_size_when_compiled(pixels: Pixels) -> None:
    feed = made(pixels, VARIED)
    wanted = [b.features for b in feed.steps(at(1))]
    passes_of(feed).clear()
    feed.backbone._has_fixed_shape = True
    found = [b.features for b in feed.steps(at(1))]
    assert passes_of(feed) == [60, 60]
    assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(found, wanted, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("images_per_step", "steps_at_once", "pass_images"),
    [(1, 64, 64), (12, 5, 60), (64, 1, 64), (65, 1, 33), (200, 1, 50)],
)
def test_passes_hold_whole_steps_or_steps_whole_passes(
    images_per_step: int, steps_at_once: int, pass_images: int
) -> None:
    backbone = backbone_for(images_per_step)
    assert (backbone.steps_at_once, backbone.pass_images) == (steps_at_once, pass_images)


def test_work_done_for_several_steps_is_shared_by_them(pixels: Pixels) -> None:
    feed, sampled = made(pixels, VARIED), SPAN_AT_STEP
    spans = []
    first = sampled - 3  # the sampled step is the fourth of the first five
    for _ in _begun(feed, first):
        feed.timer.mark("wait")
        feed.timer.mark("compute")
        feed.timer.mark("update")
        spans += feed.timer.spans()
    [span] = spans
    assert span.step == sampled + 1
    assert span.compute_s > 0
    assert span.copy_s > 0


def _begun(feed: FrozenFeed, first: int):  # type: ignore[no-untyped-def]
    steps = feed.steps(TrainingPosition(global_step=first))
    for number in range(first, first + 8):
        feed.timer.begin(TrainingPosition(global_step=number))
        yield next(steps)


@pytest.mark.parametrize("augment", [VARIED, PLAIN], ids=["ahead", "computed once"])
@pytest.mark.parametrize("first_step", [0, 1, 4, 5, 7])
def test_an_epoch_begins_anywhere_with_the_same_features_to_the_bit(
    augment: AugmentRecipe, first_step: int, pixels: Pixels
) -> None:
    """Also in the middle of steps whose features are computed together."""
    whole = list(made(pixels, augment).steps(at(2)))
    rest = list(made(pixels, augment).steps(at(2, first_step)))
    assert len(rest) == len(whole) - first_step
    for one, other in zip(rest, whole[first_step:], strict=True):
        assert torch.equal(one.ids, other.ids)
        assert torch.equal(one.features, other.features)  # type: ignore[arg-type]


# --- split


def frozen(tmp_path: Path, name: str) -> Network:
    """With weights of its own: a recipe refuses to freeze a network without."""
    weights = tmp_path / f"{name}.safetensors"
    made = build(ModelRecipe(name=name), num_classes=7, seed=1).module.state_dict()
    save_file({k: v.contiguous().clone() for k, v in made.items()}, weights)
    return build(ModelRecipe(name=name, weights=str(weights), fine_tune=False), num_classes=7, seed=2)


@pytest.mark.parametrize("name", ["small", "resnet18", "mobilenetv2_100", "vit_tiny_patch16_224"])
def test_the_parts_are_the_whole(tmp_path: Path, name: str) -> None:
    network = frozen(tmp_path, name)
    size_px = 64 if name == "small" else 224
    parts = split(network, size_px=size_px)
    assert parts is not None
    images = torch.randn(3, 3, size_px, size_px, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        together, whole = parts.head(parts.backbone(images)), network.module(images)
    assert torch.allclose(together, whole, atol=1e-4)
    assert not any(
        p.requires_grad for p in network.module.parameters() if id(p) not in set(map(id, parts.head.parameters()))
    )
    assert all(p.requires_grad for p in parts.head.parameters())


def test_a_network_with_two_heads_stays_whole(tmp_path: Path) -> None:
    assert split(frozen(tmp_path, "deit_tiny_distilled_patch16_224"), size_px=224) is None


def test_a_network_that_learns_stays_whole() -> None:
    assert split(build(ModelRecipe(name="small"), num_classes=7, seed=0), size_px=64) is None


def test_trying_leaves_no_trace(tmp_path: Path) -> None:
    network = frozen(tmp_path, "small")
    torch.manual_seed(3)
    wanted = torch.rand(1)
    torch.manual_seed(3)
    before = {k: v.clone() for k, v in network.module.state_dict().items()}
    split(network, size_px=64)
    assert torch.equal(torch.rand(1), wanted)
    assert all(torch.equal(v, before[k]) for k, v in network.module.state_dict().items())
    assert not network.module.stages.training
    assert network.module.head.training
