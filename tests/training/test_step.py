"""One update: its gradient is that of one plain pass over the whole global batch, however it is computed."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from running import host_never_waits
from turnaround.data.augment import Augmentation, normalise
from turnaround.data.batches import StepBatch
from turnaround.data.inputs import Inputs
from turnaround.data.mixing import MixedLabels
from turnaround.model.network import Network
from turnaround.recipe import AugmentRecipe, TrainingRecipe
from turnaround.training import step as step_module
from turnaround.training.averages import EvaluatedWeights
from turnaround.training.checkpoint import is_finite
from turnaround.training.choices import Precision, choose_precision
from turnaround.training.clock import StepTimer
from turnaround.training.noise import NoiseMeter
from turnaround.training.position import TrainingPosition
from turnaround.training.step import Step, StepComponents, _dropout_seed, max_images_per_pass
from turnaround.workers.contract import Workers
from turnaround.workers.shares import even_shares, hosted_by
from turnaround.workers.single import Single

CPU = torch.device("cpu")
CLASSES, SIDE_PX = 5, 8
EQUAL, UNEQUAL = (4, 4, 4, 4), (4, 5, 4, 5)
MEASURED, UNMEASURED = 0, 1  # the noise meter takes step 0 apart
MIXED = AugmentRecipe(mixup=0.5, cutmix=1.0, cutout=0.3, flip=True)
VARIED = AugmentRecipe(rotation_degrees=20, shift=0.1, flip=True, brightness=0.2)
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These networks are too small to share out."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Tiny(nn.Module):
    """Two convolutions and a last layer; with batch norm or dropout on request."""

    def __init__(self, *, norm: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6) if norm else nn.Identity()
        self.second = nn.Conv2d(6, 8, 3, stride=2, padding=1)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.second(F.gelu(self.norm(self.first(x)))))
        return self.head(self.drop(y.mean(dim=(2, 3))))

    def get_classifier(self) -> nn.Module:
        return self.head


class Remembering(torch.optim.SGD):
    """Keeps the gradients that it was given."""

    seen: list[Tensor]

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.seen = [p.grad.clone() for group in self.param_groups for p in group["params"]]
        super().step(closure)


class OneOfSeveral(Single):
    """Process `rank` of `size`, in this process: what it would send stays here."""

    def __init__(self, *, rank: int, size: int, count: int) -> None:
        Workers.__init__(self, rank=rank, size=size, count=count, device=CPU)
        self.sent: list[Tensor] = []

    def sum(self, tensor: Tensor) -> None:
        self.sent.append(tensor.clone())


def network(device: torch.device = CPU, dtype: torch.dtype = torch.float64, **kind: object) -> Network:
    torch.manual_seed(0)
    module = Tiny(**kind).to(device, dtype, memory_format=torch.channels_last)  # type: ignore[arg-type, call-overload]
    made = Network(module=module, mean=MEAN, std=STD, fine_tune=True)
    made.train_mode()
    return made


def inputs(augment: AugmentRecipe, precision: Precision, device: torch.device) -> Inputs:
    varied = Augmentation(augment, seed=0)
    types = {"dtype": precision.parameters, "autocast": precision.autocast}
    return Inputs(varied, mean=MEAN, std=STD, num_train=1000, device=device, **types)


def made(
    net: Network,
    workers: Workers | None = None,
    *,
    precision: str = "fp64",
    augment: AugmentRecipe | None = None,
    **recipe: object,
) -> Step:
    workers = workers or Single(count=4, device=CPU)
    arithmetic = choose_precision(precision, workers.device).value
    components = StepComponents(
        network=net,
        learner=net.module,
        wrapped=workers.wrap(net.module, on_last_gradient=lambda: None),
        workers=workers,
        optimizer=Remembering(net.module.parameters(), lr=0.1),
        inputs=inputs(augment or AugmentRecipe(), arithmetic, workers.device),
        precision=arithmetic,
        recipe=TrainingRecipe(**recipe),  # type: ignore[arg-type]
        evaluated=EvaluatedWeights(net.module),
    )
    return Step(components, StepTimer(workers.device), NoiseMeter(window_steps=1))


def batch(sizes: tuple[int, ...] = EQUAL, device: torch.device = CPU) -> StepBatch:
    count = sum(sizes)
    generator = torch.Generator().manual_seed(3)
    images = torch.randint(0, 256, (count, SIDE_PX, SIDE_PX, 3), dtype=torch.uint8, generator=generator)
    return StepBatch(
        pixels=images.to(device),
        labels=(torch.arange(count) * 7 % CLASSES).to(device),
        ids=(torch.arange(count) * 13 + 5).to(device),
        worker_sizes=sizes,
        global_size=count,
    )


def slice_of(whole: StepBatch, hosted: range) -> StepBatch:
    """What a process that hosts these workers gets."""
    start, stop = sum(whole.worker_sizes[: hosted.start]), sum(whole.worker_sizes[: hosted.stop])
    return dataclasses.replace(
        whole,
        pixels=whole.images[start:stop],
        labels=whole.labels[start:stop],
        ids=whole.ids[start:stop],
        worker_sizes=whole.worker_sizes[hosted.start : hosted.stop],
    )


def at(global_step: int) -> TrainingPosition:
    """In the first epoch."""
    return TrainingPosition(step_in_epoch=global_step, global_step=global_step)


def gradients(step: Step, given: StepBatch, *, number: int = UNMEASURED) -> list[Tensor]:
    step(given, at(number), learning_rate=0.1)
    assert isinstance(step.components.optimizer, Remembering)
    return step.components.optimizer.seen


def assert_close(found: list[Tensor], wanted: list[Tensor], tolerance: float = 1e-12) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert float((a - b).abs().max()) <= tolerance * max(1e-3, float(b.abs().max()))


def plain_gradients(net: Network, given: StepBatch, recipe: TrainingRecipe, augment: AugmentRecipe) -> list[Tensor]:
    """As a textbook would: one pass, the mean of the losses."""
    pixels = Augmentation(augment, seed=0)(given.images, given.ids, epoch=1, dtype=torch.float64)
    logits = net.module(normalise(pixels, mean=MEAN, std=STD))
    if recipe.loss == "mse":
        loss = F.mse_loss(logits.softmax(dim=1), F.one_hot(given.labels, CLASSES).double())
    else:
        loss = F.cross_entropy(logits, given.labels, label_smoothing=recipe.label_smoothing or 0.0)
    return list(torch.autograd.grad(loss, list(net.module.parameters())))


def soft_targets(labels: MixedLabels) -> Tensor:
    """(N, classes), one row after the other."""
    targets = torch.zeros(len(labels), CLASSES, dtype=torch.float64)
    for row, (a, b, share) in enumerate(zip(labels.first, labels.second, labels.share, strict=True)):
        targets[row, a] += share
        targets[row, b] += 1 - share
    return targets


def mixed_gradients(
    net: Network, step: Step, given: StepBatch, weights: Tensor | None = None
) -> tuple[list[Tensor], Tensor]:
    """As a textbook would: one pass, the mean of the losses against soft targets; and how many are right."""
    images, labels = step.components.inputs.varied(given, epoch=1), step.components.inputs.labels(given, epoch=1)
    assert isinstance(labels, MixedLabels)
    logits, targets = net.module(images), soft_targets(labels)
    by_image = torch.ones(len(labels)) if weights is None else targets @ weights
    if step.components.recipe.loss == "mse":
        losses = by_image * (logits.softmax(dim=1) - targets).square().mean(dim=1)
    else:
        smoothing = step.components.recipe.label_smoothing or 0.0
        classes = torch.ones(CLASSES, dtype=torch.float64) if weights is None else weights
        # Smoothing spreads over all classes what each label has, and its class's weight with it.
        smooth = (1 - smoothing) * targets * classes + smoothing / CLASSES * (targets @ classes)[:, None]
        losses = -(smooth * logits.log_softmax(dim=1)).sum(dim=1)
    right = (logits.argmax(dim=1) == targets.argmax(dim=1)).sum()
    return list(torch.autograd.grad(losses.mean(), list(net.module.parameters()))), right


@pytest.mark.parametrize("number", [MEASURED, UNMEASURED])
@pytest.mark.parametrize("recipe", [{}, {"label_smoothing": 0.2}, {"loss": "mse"}])
@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 2.0, 1.0, 0.25, 3.0], dtype=torch.float64)])
@pytest.mark.parametrize("sizes", [UNEQUAL, (7,)])
def test_soft_labels_pass_through_loss_gradient_and_accuracy(
    sizes: tuple[int, ...], weights: Tensor | None, recipe: dict[str, object], number: int
) -> None:
    net, given = network(), batch(sizes)
    step = made(net, Single(count=len(sizes), device=CPU), augment=MIXED, **recipe)
    step.components = dataclasses.replace(step.components, class_weights=weights)
    wanted, right = mixed_gradients(copy.deepcopy(net), step, given, weights)
    assert_close(gradients(step, given, number=number), wanted)
    assert step.totals.sums[1:].tolist() == [int(right), sum(sizes)]


def test_mixed_images_of_processes_add_up_to_those_of_one() -> None:
    whole, wanted = batch(UNEQUAL), gradients(made(network(), augment=MIXED), batch(UNEQUAL))
    parts = []
    for rank in range(2):
        workers = OneOfSeveral(rank=rank, size=2, count=4)
        parts.append(gradients(made(network(), workers, augment=MIXED), slice_of(whole, workers.hosted)))
    assert_close([(a + b) / 2 for a, b in zip(*parts, strict=True)], wanted)


def test_the_noise_of_mixed_images_is_measured() -> None:
    """With a probe too: it takes the first labels of a step."""
    for net in (network(), network(norm=True)):
        step = made(net, Single(count=1, device=CPU), augment=MIXED)
        assert step.noise.needs_probe is bool(net.batch_norms())
        step(batch((16,)), at(MEASURED), learning_rate=0.1)
        (measured,) = step.meter.window(global_step=0)
        assert all(math.isfinite(value) for value in measured)


@pytest.mark.parametrize("number", [MEASURED, UNMEASURED])
@pytest.mark.parametrize("recipe", [{}, {"label_smoothing": 0.2}, {"loss": "mse"}])
@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL, (7,), (2, 3)])
def test_the_gradient_is_that_of_one_plain_pass(sizes: tuple[int, ...], recipe: dict[str, object], number: int) -> None:
    net, given = network(), batch(sizes)
    wanted = plain_gradients(copy.deepcopy(net), given, TrainingRecipe(**recipe), VARIED)
    step = made(net, Single(count=len(sizes), device=CPU), augment=VARIED, **recipe)
    assert_close(gradients(step, given, number=number), wanted)


@pytest.mark.parametrize("number", [MEASURED, UNMEASURED])
@pytest.mark.parametrize("recipe", [{}, {"label_smoothing": 0.2}, {"loss": "mse"}])
def test_class_weights_multiply_the_loss_of_each_image(recipe: dict[str, object], number: int) -> None:
    net, given = network(), batch(UNEQUAL)
    class_weights = torch.tensor([0.25, 0.5, 1.0, 2.0, 4.0], dtype=torch.float64)
    wanted = [torch.zeros_like(p) for p in net.module.parameters()]
    for i, label in enumerate(given.labels.tolist()):  # image by image
        one = dataclasses.replace(
            given, pixels=given.images[i : i + 1], labels=given.labels[i : i + 1], ids=given.ids[i : i + 1]
        )
        share = class_weights[label] / len(given.labels)
        for total, g in zip(wanted, plain_gradients(net, one, TrainingRecipe(**recipe), VARIED), strict=True):
            total += share * g
    step = made(net, augment=VARIED, **recipe)
    step.components = dataclasses.replace(step.components, class_weights=class_weights)
    assert_close(gradients(step, given, number=number), wanted)


@pytest.mark.parametrize("kind", [{}, {"norm": True}])
@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL])
@pytest.mark.parametrize("number", [MEASURED, UNMEASURED])
def test_the_fused_pass_equals_separate_passes(kind: dict[str, bool], sizes: tuple[int, ...], number: int) -> None:
    fused, separate = made(network(**kind)), made(network(**kind))
    assert fused.fuses_workers
    separate.fuses_workers = False
    assert_close(gradients(fused, batch(sizes), number=number), gradients(separate, batch(sizes), number=number))
    after = [dict(s.components.network.module.state_dict()) for s in (fused, separate)]
    assert all(torch.allclose(after[0][k], after[1][k], rtol=1e-12, atol=1e-14) for k in after[0])


@pytest.mark.parametrize("size", [8, 7])
def test_one_worker_with_batch_norm_is_probed_by_two_halves(size: int) -> None:
    """Each normalised by itself; and the probe leaves no trace in what is learnt."""
    net, given = network(norm=True), batch((size,))
    half, halves = size // 2, []
    for part in (slice(0, size // 2), slice(size // 2, None)):
        one = dataclasses.replace(given, pixels=given.images[part], labels=given.labels[part], ids=given.ids[part])
        found = plain_gradients(copy.deepcopy(net), one, TrainingRecipe(), AugmentRecipe())
        halves.append(torch.cat([g.flatten() for g in found]))
    apart = halves[0] - halves[1]
    wanted = [float(apart @ apart) / (1 / half + 1 / (size - half)), float(halves[0] @ halves[1])]
    steps = [made(copy.deepcopy(net), Single(count=1, device=CPU)) for _ in range(2)]
    learnt = [gradients(step, given, number=n) for step, n in zip(steps, (MEASURED, UNMEASURED), strict=True)]
    ((_, *measured),) = steps[0].meter.window(global_step=0)
    assert measured == pytest.approx(wanted, rel=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(*learnt, strict=True))
    states = [step.components.network.module.state_dict() for step in steps]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_many_workers_are_fused_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = made(network(norm=True))
    monkeypatch.setattr(step_module, "MAX_IMAGES_PER_FUSED_PASS", 10)  # two workers of four or five images
    portions = made(network(norm=True))
    assert [len(p.sizes) for p in portions._passes(batch(UNEQUAL), in_two=False)] == [2, 2]
    found = gradients(portions, batch(UNEQUAL))
    monkeypatch.undo()
    assert [len(p.sizes) for p in whole._passes(batch(UNEQUAL), in_two=False)] == [4]
    assert_close(found, gradients(whole, batch(UNEQUAL)))


@pytest.mark.parametrize("kind", [{}, {"norm": True}, {"dropout": 0.5}, {"norm": True, "dropout": 0.5}])
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("number", [MEASURED, UNMEASURED])
def test_workers_spread_over_processes_give_the_same_gradient(kind: dict[str, object], size: int, number: int) -> None:
    """Dropout included: it follows the worker."""
    wanted = gradients(made(network(**kind)), batch(UNEQUAL), number=number)
    found = []
    for rank in range(size):
        workers = OneOfSeveral(rank=rank, size=size, count=4)
        assert workers.hosted == hosted_by(rank, even_shares(workers=4, processes=size))
        step = made(network(**kind), workers)
        found.append(gradients(step, slice_of(batch(UNEQUAL), workers.hosted), number=number))
    assert_close([torch.stack(g).mean(dim=0) for g in zip(*found, strict=True)], wanted)  # as the engine averages


def test_dropout_differs_by_worker_update_and_seed() -> None:
    def found(number: int, seed: int = 0) -> list[Tensor]:
        return gradients(made(network(dropout=0.5), seed=seed), batch(), number=number)

    assert all(torch.equal(a, b) for a, b in zip(found(1), found(1), strict=True))
    assert not torch.equal(found(1)[0], found(2)[0])
    assert not torch.equal(found(1)[0], found(1, seed=1)[0])
    seeds = {_dropout_seed(seed, number, worker) for seed in range(3) for number in range(50) for worker in range(8)}
    assert len(seeds) == 3 * 50 * 8


def test_dropout_with_the_largest_seed_of_a_recipe() -> None:
    gradients(made(network(dropout=0.5), seed=2**31 - 1), batch())


@pytest.mark.parametrize("kind", [{}, {"norm": True}])
def test_one_worker_with_one_image(kind: dict[str, bool]) -> None:
    """batch_per_worker = 1 is a valid recipe."""
    gradients(made(network(**kind), Single(count=1, device=CPU)), batch((1,)), number=MEASURED)


def test_weights_move_against_the_gradient_at_the_given_rate() -> None:
    net = network()
    before = [p.detach().clone() for p in net.module.parameters()]
    step = made(net)
    step(batch(), at(1), learning_rate=0.25)
    seen = step.components.optimizer.seen
    for old, new, gradient in zip(before, net.module.parameters(), seen, strict=True):
        assert torch.allclose(new, old - 0.25 * gradient, rtol=1e-12)
    assert all(p.grad is None for p in net.module.parameters())


def test_totals_are_those_of_the_images_and_start_anew() -> None:
    net, given = network(), batch(UNEQUAL)
    pixels = normalise(given.images.permute(0, 3, 1, 2).double() / 255, mean=MEAN, std=STD)
    with torch.no_grad():
        logits = net.module(pixels)
    loss = float(F.cross_entropy(logits, given.labels, reduction="sum"))
    right = int((logits.argmax(dim=1) == given.labels).sum())
    step = made(net)
    step(given, at(1), learning_rate=0.0)
    step(given, at(2), learning_rate=0.0)
    assert step.totals.take().tolist() == pytest.approx([2 * loss, 2 * right, 2 * len(given.labels)])
    assert step.totals.take().tolist() == [0, 0, 0]


def test_totals_come_back_for_any_number_of_processes() -> None:
    rows = [[0.1, 2.0, 8.0], [0.7, 1.0, 8.0]]
    for rank in (0, 1):
        step = made(network(), OneOfSeveral(rank=rank, size=2, count=4))
        step.totals.restore(rows)
        assert step.totals.sums.tolist() == rows[rank]  # the same number: to the bit
    for rank, size, wanted in ((0, 1, [0.1 + 0.7, 3.0, 16.0]), (0, 3, [0.1 + 0.7, 3.0, 16.0]), (2, 3, [0.0, 0.0, 0.0])):
        step = made(network(), OneOfSeveral(rank=rank, size=size, count=4))
        step.totals.restore(rows)
        assert step.totals.sums.tolist() == pytest.approx(wanted)
    step.totals.restore([])  # a checkpoint after an epoch has none
    assert step.totals.sums.tolist() == [0, 0, 0]


def test_totals_of_a_checkpoint_stay_in_the_step() -> None:
    step = made(network())
    gradients(step, batch())
    (row,) = step.totals.by_process()
    assert row == step.totals.sums.tolist() == step.totals.take().tolist()
    assert row[2] == len(batch().labels)


def test_a_weight_that_is_no_number_is_seen() -> None:
    step = made(network())
    assert is_finite(step.components.network.module)
    with torch.no_grad():
        step.learning[-1].fill_(float("inf"))
    assert not is_finite(step.components.network.module)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("kind", [{}, {"norm": True}])
def test_every_precision_trains_on_a_cpu(precision: str, kind: dict[str, bool]) -> None:
    wanted = gradients(made(network(**kind)), batch(UNEQUAL))
    step = made(network(dtype=torch.float32, **kind), precision=precision)
    assert (step.scaler.get_scale() > 1) == (precision == "fp16")
    found = [g.double() for g in gradients(step, batch(UNEQUAL))]
    assert_close(found, wanted, tolerance=1e-5 if precision == "fp32" else 0.1)
    assert all(p.dtype == torch.float32 for p in step.components.network.module.parameters())
    losses = []
    for number in range(12):
        step(batch(UNEQUAL), at(number), learning_rate=0.5)
        loss_sum, _, images = step.totals.take().tolist()
        losses.append(loss_sum / images)
    assert losses[-1] < losses[1]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [{}, {"norm": True}, {"norm": True, "dropout": 0.2}])
@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
def test_every_precision_trains_on_a_gpu(kind: dict[str, object], precision: str) -> None:
    cuda = torch.device("cuda", 0)
    step = made(network(cuda, torch.float32, **kind), Single(count=4, device=cuda), precision=precision, augment=VARIED)
    losses = []
    for number in range(30):
        step(batch(UNEQUAL, cuda), at(number), learning_rate=0.3)
        loss_sum, _, images = step.totals.take().tolist()
        losses.append(loss_sum / images)
    assert all(torch.isfinite(p).all() for p in step.components.network.module.parameters())
    assert losses[-1] < losses[1]


@pytest.mark.gpu
@pytest.mark.parametrize("augment", [VARIED, MIXED], ids=["varied", "mixed"])
@pytest.mark.parametrize("kind", [{}, {"norm": True}])
def test_a_gpu_computes_the_gradient_of_a_cpu(kind: dict[str, bool], augment: AugmentRecipe) -> None:
    cuda = torch.device("cuda", 0)
    wanted = gradients(made(network(**kind), augment=augment), batch(UNEQUAL))
    step = made(network(cuda, **kind), Single(count=4, device=cuda), augment=augment)
    assert_close([g.cpu() for g in gradients(step, batch(UNEQUAL, cuda))], wanted, tolerance=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("augment", [VARIED, MIXED], ids=["varied", "mixed"])
def test_no_step_waits_for_the_host(augment: AugmentRecipe) -> None:
    cuda = torch.device("cuda", 0)
    net = network(cuda, torch.float32, norm=True)
    step = made(net, Single(count=4, device=cuda), precision="bf16", augment=augment)
    given = batch(UNEQUAL, cuda)
    for number in range(1, 4):
        step(given, at(number), learning_rate=0.1)
    torch.cuda.synchronize()
    with host_never_waits():
        step(given, at(5), learning_rate=0.1)


def test_a_pass_of_small_images_takes_more_of_them_on_a_gpu() -> None:
    gpu = torch.device("cuda")
    found = [max_images_per_pass(gpu, side_px=side_px) for side_px in (None, 8, 32, 64, 112, 224)]
    assert found == [512, 4_096, 4_096, 1_568, 512, 512]
    assert max_images_per_pass(CPU, side_px=32) == 512


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_features_come_without_pixels(device: str) -> None:
    """Of a frozen network the last layer learns on features that are kept."""
    there = torch.device(device)
    net = network(there, torch.float32)
    net = dataclasses.replace(net, module=net.module.head)
    step = made(net, Single(count=4, device=there), precision="fp32")
    features = torch.randn(16, 8, device=there)
    without = dataclasses.replace(batch(device=there), pixels=torch.empty(0, 0, 0, 3, device=there), features=features)
    before = net.module.weight.clone()
    step(without, at(UNMEASURED), learning_rate=0.1)
    assert not torch.equal(net.module.weight, before)
