"""Two programs for test_conformance.py, started like any worker process, by every engine's own launcher.

    conformance_worker contract FOLDER ENGINE [DEVICE]   speaks to the others; FOLDER/RANK.json says what came of it
    conformance_worker RUN --pixels ...                  trains as in production, with the troubles asked for by:

ENGINE nccl is torch with a GPU for each process, also where there is one process only.

CONFORMANCE_OTHER_START=1       every process but 0 begins with other weights: the broadcast must replace them
CONFORMANCE_FAIL=RANK:EPOCH     raises in the first step of that epoch
CONFORMANCE_KILL_AFTER=EPOCH    process 0 SIGKILLs itself when the epoch's line is written, before its checkpoint
"""

import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

from running import largest_difference
from turnaround import worker
from turnaround.data.augment import Augmentation
from turnaround.data.batches import StepBatch
from turnaround.data.inputs import Inputs
from turnaround.errors import InputError
from turnaround.model.network import build
from turnaround.optimizers import make_optimizer
from turnaround.recipe import AugmentRecipe, ModelRecipe, Recipe, TrainingRecipe
from turnaround.training import assembly, run
from turnaround.training.averages import EvaluatedWeights
from turnaround.training.choices import choose_precision
from turnaround.training.clock import StepTimer
from turnaround.training.noise import NoiseMeter
from turnaround.training.position import TrainingPosition
from turnaround.training.recording import RunRecorder
from turnaround.training.step import Step, StepComponents
from turnaround.workers.contract import Workers
from turnaround.workers.engines import connect
from turnaround.workers.environment import place
from turnaround.workers.single import Single
from turnaround.workers.torch_ddp import TorchDDP

SUMMED = (torch.float64, torch.float32, torch.int64, torch.int32)
SENT = (*SUMMED, torch.uint8, torch.bool, torch.bfloat16)
LONG = 100_000


def contract(folder: Path, engine: str, device: torch.device) -> None:
    here = place()
    recipe = Recipe.from_dict({"workers": {"count": 2, "engine": "torch" if engine == "nccl" else engine}})
    if engine == "nccl":
        workers: Workers = TorchDDP(place=here, count=2, device=device, shares_device=False)
    else:
        workers = connect(recipe.workers.engine, place=here, count=2, device=device, shares_device=True)
    found = {
        "place": [workers.rank, workers.size, workers.count, list(workers.hosted)],
        "sums": {str(d): sums(workers, d) for d in SUMMED},
        "broadcasts": {str(d): broadcasts(workers, d) for d in SENT},
        "gathered": workers.gather(f"process {workers.rank}: " + "ä" * workers.rank),
        "gathered_lengths": [len(text) for text in workers.gather("x" * LONG * workers.rank)],
        "averaging": averaging(workers),
        "disagreements": disagreements(workers, recipe),
        "backend": workers.backend or None,
        "steps": steps_against_single(workers) if workers.size == 1 else None,
    }
    workers.barrier()
    (folder / f"{workers.rank}.json").write_text(json.dumps(found))
    workers.close()


def sums(workers, dtype):
    """Of plain, scalar, strided and channels-last tensors; process r contributes r + 1 and its multiples."""
    plain = torch.arange(1, 4, dtype=dtype, device=workers.device) * (workers.rank + 1)
    scalar = torch.tensor(workers.rank + 1, dtype=dtype, device=workers.device)
    strided = plain.repeat(2, 1).t()
    images = plain.view(1, 3, 1, 1).repeat(1, 1, 2, 2).contiguous(memory_format=torch.channels_last)
    for tensor in (plain, scalar, strided, images):
        workers.sum(tensor)
    return [plain.tolist(), scalar.item(), strided[:, 1].tolist(), images[0, :, 1, 1].tolist()]


def broadcasts(workers, dtype):
    plain = (torch.arange(3) + 10 * workers.rank).to(workers.device, dtype)
    scalar = torch.tensor(workers.rank, dtype=dtype, device=workers.device)
    images = plain.view(1, 3, 1, 1).repeat(1, 1, 2, 2).contiguous(memory_format=torch.channels_last)
    for tensor in (plain, scalar, images):
        workers.broadcast(tensor)
    return [plain.tolist(), scalar.item(), images[0, :, 1, 1].tolist()]


def network(device: torch.device) -> nn.Module:
    """Convolutions in channels-last layout, and a frozen layer in the middle."""
    torch.manual_seed(1)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 2, 3), nn.Flatten(), nn.Linear(32, 3))
    module[1].requires_grad_(False)
    return module.to(device, torch.float64, memory_format=torch.channels_last)


def loss(module, *, rank, step):
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(100 * step + rank), dtype=torch.float64)
    images = images.to(next(module.parameters()).device, memory_format=torch.channels_last)
    return module(images).square().mean()


def gradients(module):
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def difference(one, other):
    assert one.keys() == other.keys()
    return max(float((one[k] - other[k]).abs().max()) for k in one)


def averaging(workers):
    """Three steps of two passes, the first deferred; against the mean of all processes' gradients, computed here."""
    calls = []
    module, plain = network(workers.device), network(workers.device)
    wrapped = workers.wrap(module, on_last_gradient=lambda: calls.append(len(gradients(module))))
    local, mean, num_calls = [], [], []
    for step in range(3):
        for m in (module, plain):
            m.zero_grad(set_to_none=True)
        with workers.deferred(wrapped):
            loss(wrapped, rank=workers.rank, step=step).backward()
        loss(plain, rank=workers.rank, step=step).backward()
        local.append(difference(gradients(module), gradients(plain)))
        loss(wrapped, rank=workers.rank, step=step + 10).backward()
        plain.zero_grad(set_to_none=True)
        for rank in range(workers.size):
            for s in (step, step + 10):
                (loss(plain, rank=rank, step=s) / workers.size).backward()
        mean.append(difference(gradients(module), gradients(plain)))
        num_calls.append(len(calls))
    layouts = [list(p.grad.stride()) == list(p.stride()) for p in module.parameters() if p.grad is not None]
    return {
        "local": max(local),
        "mean": max(mean),
        "calls": num_calls,
        "gradients_at_call": calls,
        "same_layout": all(layouts),
        "frozen_has_gradient": module[1].weight.grad is not None,
    }


def steps_against_single(workers):
    """The largest difference, relative to each tensor, that two training steps with batch norm leave between these
    workers and `Single`. The first step is measured for the noise scale, so it has a deferred pass."""
    results = []
    for engine in (workers, Single(count=workers.count, device=workers.device)):
        made = build(ModelRecipe(name="small"), num_classes=3, seed=0)
        made.module.to(workers.device, torch.float64, memory_format=torch.channels_last)
        step = training_step(engine, made)
        for number in (0, 1):
            position = TrainingPosition(step_in_epoch=number, global_step=number)
            step(two_slices(workers.device), position, learning_rate=0.05)
        results.append(made.module.state_dict())
    return largest_difference(*results)


def training_step(workers, made):
    timer, recipe = StepTimer(workers.device), TrainingRecipe(optimizer="sgd", learning_rate=0.05)
    made.train_mode()
    components = StepComponents(
        network=made,
        learner=made.module,
        wrapped=workers.wrap(made.module, on_last_gradient=timer.last_gradient),
        workers=workers,
        optimizer=make_optimizer(made.module, recipe),
        evaluated=EvaluatedWeights(made.module),
        inputs=Inputs(
            Augmentation(AugmentRecipe(rotation_degrees=15, flip=True), seed=0),
            mean=made.mean,
            std=made.std,
            num_train=12,
            device=workers.device,
            dtype=torch.float64,
        ),
        precision=choose_precision("fp64", workers.device).value,
        recipe=recipe,
    )
    return Step(components, timer, NoiseMeter(window_steps=1))


def two_slices(device):
    pixels = torch.randint(0, 256, (12, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    labels, ids = torch.arange(12, device=device) % 3, torch.arange(12, device=device)
    return StepBatch(pixels=pixels.to(device), labels=labels, ids=ids, worker_sizes=(6, 6), global_size=12)


def disagreements(workers, recipe):
    """What each process says when process 1 has another recipe, or other images."""
    other = recipe.replace("training", seed=workers.rank)
    cases = {
        "nothing": (recipe, "same"),
        "recipe": (other, "same"),
        "images": (recipe, f"fingerprint-{workers.rank}"),
    }
    said = {}
    for what, (mine, fingerprint) in cases.items():
        try:
            run.agree(workers, mine, SimpleNamespace(fingerprint=fingerprint))
            said[what] = None
        except InputError as error:
            said[what] = str(error)
    return said


def add_troubles() -> None:
    plain_build, plain_step, plain_epoch_done = assembly.build, Step.__call__, RunRecorder.epoch_done
    fail = [int(n) for n in os.environ.get("CONFORMANCE_FAIL", "").split(":") if n]
    kill_after = int(os.environ.get("CONFORMANCE_KILL_AFTER", "0"))

    def build(*arguments, **named):
        network = plain_build(*arguments, **named)
        if place().rank > 0 and "CONFORMANCE_OTHER_START" in os.environ:
            for tensor in network.module.state_dict().values():
                tensor.add_(3)
        return network

    def step(self, batch, position, **named):
        if fail == [self.components.workers.rank, position.epoch]:
            raise RuntimeError(f"told to fail in epoch {position.epoch}")
        plain_step(self, batch, position, **named)

    def epoch_done(self, record):
        plain_epoch_done(self, record)
        if record.epoch == kill_after and place().rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    assembly.build, Step.__call__, RunRecorder.epoch_done = build, step, epoch_done


if __name__ == "__main__":
    if sys.argv[1] == "contract":
        contract(Path(sys.argv[2]), sys.argv[3], torch.device(sys.argv[4] if len(sys.argv) > 4 else "cpu"))
        worker.leave(0)
    add_troubles()
    worker.leave(worker.main())
