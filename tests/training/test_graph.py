"""A captured pass: when it is worth it, and that it computes what the ordinary pass computes."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from training.test_step import EQUAL, at, batch, made, network
from turnaround.choice import Choice
from turnaround.data.batches import StepBatch
from turnaround.data.mixing import Labels, overwrite
from turnaround.optimizers import make_optimizer
from turnaround.recipe import AugmentRecipe, TrainingRecipe
from turnaround.training import graph as graph_module
from turnaround.training import step as step_module
from turnaround.training.checkpoint import Manifest, restore, save
from turnaround.training.graph import PassRun, PassShape, UpdateGraph, worth_it
from turnaround.training.position import TrainingPosition
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


def test_of_several_passes_one_is_captured_with_its_own_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of more images than fit into one pass ended a training at its warm-up, where the host was the limit."""
    monkeypatch.setattr(step_module, "MAX_IMAGES_PER_FUSED_PASS", 2 * EQUAL[0])
    monkeypatch.setattr(step_module, "worth_it", lambda **_: Choice(True, "for the test"))
    step, captured = made(network(norm=True)), []

    def capture(shape: PassShape, run: PassRun, images: Tensor, labels: Tensor, _: object) -> None:
        run(images, labels)
        captured.append((shape.worker_sizes, len(images), len(labels)))

    monkeypatch.setattr(step, "can_capture_graph", lambda _: True)
    monkeypatch.setattr(step.graph, "capture", capture)
    step.warm_up(batch())
    assert captured == [(EQUAL[:2], sum(EQUAL[:2]), sum(EQUAL[:2]))]


def test_passes_are_as_equal_as_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that all of them are repetitions of one graph."""
    monkeypatch.setattr(step_module, "MAX_IMAGES_PER_FUSED_PASS", 12)
    step = made(network(norm=True), Single(count=8, device=torch.device("cpu")))
    assert step.pass_images(batch((2,) * 8)) == [8, 8]
    assert step.pass_images(batch((2,) * 6)) == [12]
    assert step.pass_images(batch((4,) * 4)) == [8, 8]
    assert step.pass_images(batch((4,) * 7)) == [12, 12, 4]


def capture_first_pass(step: Step, images: Tensor, given: StepBatch) -> None:
    first = step._passes(given, in_two=False)[0]
    step._capture(PassShape(first.sizes, given.global_size), images[first.own], given.labels[first.own])


class StandIn:
    """A captured pass for machines without a GPU: computed launch by launch, on memory of its own as there."""

    def __init__(self, run: PassRun, images: Tensor, labels: Labels, learning: list[nn.Parameter]) -> None:
        self.run, self.learning = run, learning
        self.images, self.labels = images.clone(), labels.clone()
        self.gradients: list[Tensor] = []
        self.num_replays = 0

    def __call__(self, images: Tensor, labels: Labels, *, is_only_pass: bool) -> Tensor | None:
        self.num_replays += 1
        self.images.copy_(images)
        overwrite(self.labels, labels)
        before = [p.grad for p in self.learning]
        for p in self.learning:
            p.grad = None
        result = self.run(self.images, self.labels)
        for p, sums in zip(self.learning, before, strict=True):
            assert sums is None or not is_only_pass
            if p.grad is not None and sums is not None:
                p.grad = sums.add_(p.grad)
            elif p.grad is None:
                p.grad = sums
        return result


@pytest.mark.parametrize("workers", [1, 4, 3])
@pytest.mark.parametrize("norm", [True, False])
def test_measured_passes_and_probes_are_captured_too(workers: int, norm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With replays stood in for: weights, totals and the noise scale are the same to the bit."""
    sizes = (4,) * workers if workers > 1 else (16,)
    results: list[list[Tensor]] = []
    for is_captured in (False, True):
        step = made(network(norm=norm), Single(count=workers, device=torch.device("cpu")))
        step.meter.every_steps = 2
        captured: dict[PassShape, StandIn] = {}
        if is_captured:
            monkeypatch.setattr(step, "can_capture_graph", lambda _: True)
            monkeypatch.setattr(step_module, "worth_it", lambda **_: Choice(True, "for the test"))
            monkeypatch.setattr(step.graph, "_captured", captured)

            def capture(
                shape: PassShape, run: PassRun, images: Tensor, labels: Labels, learning: list[nn.Parameter],
                *, captured: dict[PassShape, StandIn] = captured,
            ) -> None:  # fmt: skip
                captured[shape] = StandIn(run, images, labels, learning)

            monkeypatch.setattr(step.graph, "capture", capture)
        step.warm_up(batch(sizes))
        for number in range(24):  # the sixth step of an "epoch" is smaller
            given = batch(sizes if number % 6 else tuple(s - 1 for s in sizes))
            step(dataclasses.replace(given, labels=given.labels.roll(number)), at(number), learning_rate=0.1)
        noise = step.meter.window(global_step=24)
        assert len(noise) == 12
        state = step.components.network.module.state_dict()
        results.append([*state.values(), step.totals.take(), torch.tensor(noise)])
        if is_captured:
            assert {"learn", "probe" if norm and workers == 1 else "measure"} == {shape.purpose for shape in captured}
            assert all(stand_in.num_replays > 1 for stand_in in captured.values())
    for plain, replayed in zip(*results, strict=True):
        assert torch.equal(plain, replayed)


def test_a_capture_without_memory_leaves_the_ordinary_way(monkeypatch: pytest.MonkeyPatch) -> None:
    step, learnt = made(network(norm=True)), made(network(norm=True))

    def runs_out(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    first = PassShape((1,), 1)  # whatever the warm-up captured
    monkeypatch.setattr(step.graph, "_captured", {first: SimpleNamespace(graph=None)})
    monkeypatch.setattr(graph_module, "CapturedPass", runs_out)
    for number in range(12):
        for each in (step, learnt):
            each(batch(), at(number), learning_rate=0.1)
    assert list(step.graph._captured) == [first]
    assert {shape.purpose for shape in step.graph._refused} == {"learn"}
    states = zip(*(s.components.network.module.state_dict().values() for s in (step, learnt)), strict=True)
    assert all(torch.equal(tried, plain) for tried, plain in states)
    monkeypatch.setattr(step.graph, "_captured", {})
    with pytest.raises(torch.OutOfMemoryError):  # in the warm-up
        step._capture(first, torch.zeros(1), torch.zeros(1))


def full(device: torch.device, workers: int, sizes: tuple[int, ...] = EQUAL) -> StepBatch:
    return dataclasses.replace(batch(sizes, device), worker_sizes=sizes if workers > 1 else (sum(sizes),))


def trained(step: Step, device: torch.device) -> tuple[dict[str, Tensor], list[float]]:
    for number in range(STEPS):  # measured, full, and smaller ones among them
        given = full(device, step.components.workers.count, EQUAL if number % 5 else (5, 5, 5, 5))
        step(dataclasses.replace(given, labels=given.labels.roll(number)), at(number), learning_rate=0.1)
    return step.components.network.module.state_dict(), step.totals.take().tolist()


@pytest.mark.gpu
@pytest.mark.parametrize("augment", [AugmentRecipe(), AugmentRecipe(mixup=0.5, cutmix=1.0)], ids=["plain", "mixed"])
@pytest.mark.parametrize(("workers", "norm"), [(1, False), (4, False), (1, True), (4, True)])
def test_captured_passes_compute_what_ordinary_ones_do(workers: int, norm: bool, augment: AugmentRecipe) -> None:
    device = torch.device("cuda")
    results = []
    with torch.cuda.stream(torch.cuda.Stream()):
        for is_captured in (False, True):
            alone = Single(count=workers, device=device)
            step = made(network(device, torch.float32, norm=norm), alone, precision="fp32", augment=augment)
            first = full(device, workers)
            step.warm_up(first)
            if is_captured and not step.graph.is_captured:
                images, with_labels = step._inputs(first, epoch=1)
                capture_first_pass(step, images, with_labels)
            if not is_captured:
                step.graph.forget()
            step.meter.every_steps, step.graph.MIN_TIMES = 2, 1
            results.append((*trained(step, device), step.meter.window(global_step=STEPS)))
            shapes = {shape.purpose for shape in step.graph._captured}
            assert shapes == ({"learn", "probe" if norm and workers == 1 else "measure"} if is_captured else set())
    (plain, plain_totals, plain_noise), (captured, captured_totals, captured_noise) = results
    assert len(captured_noise) == STEPS // 2
    for wanted, found in zip(plain_noise, captured_noise, strict=True):
        assert found == pytest.approx(wanted, rel=1e-3, abs=1e-6)
    assert captured_totals == pytest.approx(plain_totals, rel=1e-5)
    for name, wanted in plain.items():
        assert torch.allclose(captured[name].float(), wanted.float(), rtol=1e-4, atol=1e-6), name


@pytest.mark.gpu
def test_captured_passes_of_one_step_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    device, sizes = torch.device("cuda"), (6, 6, 6, 6)
    monkeypatch.setattr(step_module, "MAX_SMALL_IMAGES_PER_FUSED_PASS", 12)  # two workers a pass
    results = []
    with torch.cuda.stream(torch.cuda.Stream()):
        for is_captured in (False, True):
            step = made(network(device, torch.float32), Single(count=4, device=device), precision="fp32")
            given = batch(sizes, device)
            step.warm_up(given)
            assert step.pass_images(given) == [12, 12]
            images, with_labels = step._inputs(given, epoch=1)
            capture_first_pass(step, images, with_labels)
            if not is_captured:
                step.graph.forget()
            for number in range(STEPS):
                step(given, at(number), learning_rate=0.1)
            results.append((step.components.network.module.state_dict(), step.totals.take().tolist()))
    (plain, plain_totals), (captured, captured_totals) = results
    assert captured_totals == pytest.approx(plain_totals, rel=1e-5)
    for name, wanted in plain.items():
        assert torch.allclose(captured[name].float(), wanted.float(), rtol=1e-4, atol=1e-6), name


def muon(module: nn.Module) -> torch.optim.Optimizer:
    return make_optimizer(module, TrainingRecipe(optimizer="muon", learning_rate=0.01))


def updated(module: nn.Module, updates: UpdateGraph, numbers: range) -> None:
    """Give the parameters gradients that are new tensors at every step, as an ordinary backward does."""
    for number in numbers:
        made_by = torch.Generator(next(module.parameters()).device).manual_seed(number)
        for parameter in module.parameters():
            parameter.grad = torch.empty_like(parameter).normal_(generator=made_by)
        updates.update(0.01 / (1 + number))
        module.zero_grad(set_to_none=True)


def test_an_update_on_a_cpu_is_the_optimizers_own_step() -> None:
    module = network().module
    plain = copy.deepcopy(module)
    optimizer = muon(plain)
    updates = UpdateGraph(muon(module))
    updated(module, updates, range(4))
    for number in range(4):
        made_by = torch.Generator().manual_seed(number)
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (1 + number)
        for parameter in plain.parameters():
            parameter.grad = torch.empty_like(parameter).normal_(generator=made_by)
        optimizer.step()
    assert not updates.is_captured
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), plain.parameters(), strict=True))


@pytest.mark.gpu
def test_a_captured_update_computes_what_an_ordinary_one_does(tmp_path: Path) -> None:
    device = torch.device("cuda")
    results, resumed = [], network(device, torch.float32).module
    with torch.cuda.stream(torch.cuda.Stream()):
        for is_captured in (False, True):
            module = network(device, torch.float32).module
            updates = UpdateGraph(muon(module))
            if not is_captured:
                updates.NUM_ORDINARY = 1000
            updated(module, updates, range(STEPS))
            assert updates.is_captured is is_captured
            results.append(list(module.parameters()))
            if is_captured:  # the middle of it from a checkpoint, with other tensors for the moments
                half = network(device, torch.float32).module
                before = UpdateGraph(muon(half))
                updated(half, before, range(STEPS // 2))
                manifest = Manifest(position=TrainingPosition(epochs_done=1, global_step=STEPS // 2))
                path = save(tmp_path / "checkpoint", module=half, optimizer=before.optimizer, manifest=manifest)
                optimizer = muon(resumed)
                restore(path, module=resumed, optimizer=optimizer)
                updated(resumed, UpdateGraph(optimizer), range(STEPS // 2, STEPS))
    torch.cuda.synchronize()  # they were computed on another stream than the one that compares them
    for plain, captured, again in zip(*results, resumed.parameters(), strict=True):
        assert torch.equal(plain, captured)
        assert torch.equal(plain, again)


@pytest.mark.gpu
def test_a_captured_update_goes_on_on_a_cpu(tmp_path: Path) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        module = network(torch.device("cuda"), torch.float32).module
        updates = UpdateGraph(muon(module))
        updated(module, updates, range(STEPS))
    position = TrainingPosition(epochs_done=1, global_step=STEPS)
    path = save(
        tmp_path / "checkpoint", module=module, optimizer=updates.optimizer, manifest=Manifest(position=position)
    )
    on_cpu = network(dtype=torch.float32).module
    optimizer = muon(on_cpu)
    restore(path, module=on_cpu, optimizer=optimizer)
    updated(on_cpu, UpdateGraph(optimizer), range(3))
    assert all(bool(p.isfinite().all()) for p in on_cpu.parameters())
