"""What does a rehearsal cost? N workers in one fused pass against one worker with the same images per pass.

    python bench/rehearsal.py [--device cuda] [--model resnet50] [--workers 8,16] [--size-px 32,224]
        [--kinds frozen,fine-tuned] [--rounds 6]

Whole training steps (augmentation, passes, batch norm, update) on random pixels, the two variants taking turns so that
noise of the machine hits both. Each measures its noise scale as often as in a training: a plain run with batch norm one
step in 64, a rehearsal one in 8. So a round has 64 steps, and the ratio is that of the median rounds; the aim is at
most 1.1. Then steps one by one, each waited for: the medians of ordinary and of measured ones.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time

import torch

from turnaround.data.augment import Augmentation
from turnaround.data.batches import StepBatch
from turnaround.data.inputs import Inputs
from turnaround.model.network import build, classifier_of
from turnaround.optimizers import make_optimizer
from turnaround.recipe import AugmentRecipe, ModelRecipe, TrainingRecipe
from turnaround.training.averages import EvaluatedWeights
from turnaround.training.choices import choose_device, choose_precision
from turnaround.training.clock import StepTimer, synchronize
from turnaround.training.graph import GraphCapture, leave_default_stream
from turnaround.training.noise import MEASURE_EVERY_STEPS, PROBE_EVERY_STEPS, NoiseMeter, needs_probe
from turnaround.training.position import TrainingPosition
from turnaround.training.step import Step, StepComponents
from turnaround.workers.environment import RankInfo
from turnaround.workers.single import Single

BATCH_PER_WORKER = 32
CLASSES = 257
KINDS = {"frozen": False, "fine-tuned": True}
STEPS_PER_ROUND = PROBE_EVERY_STEPS
"""As many as a plain run takes for one measurement of the noise scale."""
WARM_UP_ROUNDS = 1 + GraphCapture.MIN_TIMES
"""Until libraries are loaded, kernels chosen, and the one measurement of a round is a CUDA graph too."""


def make_step(device: torch.device, model: str, *, fine_tune: bool, workers: int) -> Step:
    network = build(ModelRecipe(name=model, fine_tune=True), num_classes=CLASSES, seed=0)
    if not fine_tune:  # the recipe refuses a frozen random network; for a measurement of speed it will do
        network.module.requires_grad_(False)
        classifier_of(network.module).requires_grad_(True)
        network = type(network)(module=network.module, mean=network.mean, std=network.std, fine_tune=False)
    network.module.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    recipe = TrainingRecipe(optimizer="sgd", learning_rate=0.01)
    engine = Single(count=workers, device=device)
    timer = StepTimer(device)
    precision = choose_precision("auto", device).value
    components = StepComponents(
        network=network,
        learner=network.module,
        wrapped=engine.wrap(network.module, on_last_gradient=timer.last_gradient),
        workers=engine,
        optimizer=make_optimizer(network.module, recipe),
        evaluated=EvaluatedWeights(network.module),
        inputs=Inputs(
            Augmentation(AugmentRecipe(rotation_degrees=5, zoom=0.2, shift=0.2, flip=True), seed=0),
            mean=network.mean,
            std=network.std,
            num_train=workers * BATCH_PER_WORKER,
            device=device,
            dtype=precision.parameters,
            autocast=precision.autocast,
        ),
        precision=precision,
        recipe=recipe,
    )
    network.train_mode()
    every_steps = PROBE_EVERY_STEPS if needs_probe(network, engine) else MEASURE_EVERY_STEPS  # as training/assembly.py
    return Step(components, timer, NoiseMeter(window_steps=100, every_steps=every_steps))


def make_batch(device: torch.device, *, workers: int, size_px: int) -> StepBatch:
    count = workers * BATCH_PER_WORKER
    return StepBatch(
        pixels=torch.randint(0, 256, (count, size_px, size_px, 3), dtype=torch.uint8, device=device),
        labels=torch.randint(0, CLASSES, (count,), device=device),
        ids=torch.arange(count, device=device),
        worker_sizes=(BATCH_PER_WORKER,) * workers,
        global_size=count,
    )


def round_time_s(step: Step, batch: StepBatch, device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    for number in range(STEPS_PER_ROUND):
        step(batch, TrainingPosition(step_in_epoch=number, global_step=number), learning_rate=0.01)
    synchronize(device)
    return time.perf_counter() - start


def step_times_ms(step: Step, batch: StepBatch, device: torch.device) -> tuple[list[float], list[float]]:
    """Return the times of the ordinary and of the measured steps of a round, each waited for."""
    times_ms: tuple[list[float], list[float]] = ([], [])
    for number in range(STEPS_PER_ROUND):
        synchronize(device)
        start = time.perf_counter()
        step(batch, TrainingPosition(step_in_epoch=number, global_step=number), learning_rate=0.01)
        synchronize(device)
        times_ms[step.meter.is_due(number)].append(1000 * (time.perf_counter() - start))
    return times_ms


def compare(device: torch.device, model: str, *, fine_tune: bool, workers: int, size_px: int, rounds: int) -> None:
    batch = make_batch(device, workers=workers, size_px=size_px)
    plain_batch = StepBatch(**{**vars(batch), "worker_sizes": (batch.global_size,)})
    variants = {
        "plain": (make_step(device, model, fine_tune=fine_tune, workers=1), plain_batch),
        "rehearsal": (make_step(device, model, fine_tune=fine_tune, workers=workers), batch),
    }
    for step, its_batch in variants.values():
        step.warm_up(its_batch)
    times_s: dict[str, list[float]] = {name: [] for name in variants}
    singles: dict[str, list[str]] = {}
    for number in range(WARM_UP_ROUNDS + rounds):
        for name, (step, its_batch) in variants.items():
            elapsed_s = round_time_s(step, its_batch, device)
            if number >= WARM_UP_ROUNDS:
                times_s[name].append(elapsed_s)
    for name, (step, its_batch) in variants.items():
        rounds_ms = [step_times_ms(step, its_batch, device) for _ in range(rounds)]
        singles[name] = [f"{statistics.median(itertools.chain(*kind)):.2f}" for kind in zip(*rounds_ms, strict=True)]
    plain, rehearsal = (statistics.median(times_s[name]) for name in ("plain", "rehearsal"))
    ratios = sorted(r / p for p, r in zip(times_s["plain"], times_s["rehearsal"], strict=True))
    images = STEPS_PER_ROUND * batch.global_size
    print(
        f"{model:<22} {'fine-tuned' if fine_tune else 'frozen':<10} {workers:>3} workers  {size_px:>3} px  "
        f"plain {images / plain:>8,.0f} images/s  rehearsal {images / rehearsal:>8,.0f} images/s  "
        f"ratio {rehearsal / plain:.3f} ({ratios[0]:.3f}-{ratios[-1]:.3f})  "
        f"ordinary / measured step: plain {' / '.join(singles['plain'])} ms, rehearsal "
        f"{' / '.join(singles['rehearsal'])} ms",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--model", default="resnet50", help="names, separated by commas")
    parser.add_argument("--workers", default="8,16")
    parser.add_argument("--size-px", default="224", help="sizes, separated by commas")
    parser.add_argument("--rounds", type=int, default=6, help="of 64 steps, that count; five come before them")
    parser.add_argument("--kinds", default=",".join(KINDS), help="frozen, fine-tuned, or both, separated by a comma")
    options = parser.parse_args()
    device = choose_device(options.device, RankInfo()).value.device
    leave_default_stream(device)
    for model in options.model.split(","):
        for kind in options.kinds.split(","):
            for workers, size_px in itertools.product(
                map(int, options.workers.split(",")), map(int, options.size_px.split(","))
            ):
                its = {"fine_tune": KINDS[kind], "workers": workers, "size_px": size_px, "rounds": options.rounds}
                compare(device, model, **its)


if __name__ == "__main__":
    main()
