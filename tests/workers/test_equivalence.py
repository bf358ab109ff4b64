"""A worker is mathematics, a process is hardware: 4 workers on 1, 2 and 4 processes are the same training.

On the CPU the processes are forked; on a GPU they share it and speak over Gloo. With one process the batch
norm of its four workers is computed in one pass, by our kernels in single precision and slice by slice in double; with
four processes it is torch's own.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path

import pytest
from safetensors.torch import save_file
from torch import Tensor

from forking import ForkingLauncher
from running import largest_difference, traced, train, weights
from turnaround import fruitbowl
from turnaround.model.network import build
from turnaround.recipe import ModelRecipe
from turnaround.record.reader import Run
from turnaround.training.checkpoint import averages_of, newest_valid

BATCH_PER_WORKER = 4
SHARED = (
    "workers.count=4",
    f"training.batch_per_worker={BATCH_PER_WORKER}",
    "training.optimizer=sgd",
    "training.learning_rate=0.005",
    "training.scaling=none",
    "training.warmup_epochs=0",
    "training.checkpoint_every_s=0",
    "augment.rotation_degrees=15",
    "augment.zoom=0.1",
    "augment.shift=0.1",
    "augment.flip=true",
    "augment.brightness=0.2",
)
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
# 78 training images make four steps of 16 and one of 14. At 16 px the batch norm of a worker's few images multiplies
# rounding errors too much for the tests with the smallest batches, which take 32 px therefore.
NETWORKS = {
    "with batch norm": {
        "cpu": ("model.name=small", "data.size_px=32"),
        "cuda": ("model.name=small", "data.size_px=32"),
    },
    # timm's smallest vision transformer is made for 160 px: there 1, 2 and 4 processes agree to 1e-12 in float64, at
    # 32 px to 4e-11 only. That takes a CPU half a minute, so there it is timm's smallest ConvNeXt.
    "without batch norm": {
        "cpu": ("model.name=test_convnext3", "data.size_px=32"),
        "cuda": ("model.name=test_vit", "data.size_px=160"),
    },
}


@pytest.fixture(scope="module")
def five_steps_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fruitbowl.generate(tmp_path_factory.mktemp("images") / "five", images=96, size_px=32, seed=5)


RunOn = Callable[..., Run]


@pytest.fixture
def run_on(five_steps_folder: Path, tmp_path: Path, forking: ForkingLauncher) -> RunOn:
    """Trains on so many processes."""

    def run(
        processes: int,
        *overrides: str,
        device: str = "cpu",
        folder: Path = five_steps_folder,
        share: str | None = None,
    ) -> Run:
        launcher = forking if device == "cpu" else None
        out, settings = tmp_path / f"{processes}-{share}", (*SHARED, *overrides, "data.holdout=0.2")
        # Numbers of workers for each process are also the number of processes.
        count = processes if share is None else None
        run = train(folder, out, *settings, processes=count, device=device, launcher=launcher, share=share)
        assert run.machine["engine"] == ("Single" if processes == 1 else "torch gloo")
        assert run.machine["choices"]["device"]["value"].startswith(device)
        assert (run.machine["workers"], run.machine["processes"]) == (run.recipe["workers"]["count"], processes)
        return run

    return run


def steps(folder: Path) -> list[dict[str, object]]:
    """What each step consumed over all processes, in the order of the workers."""
    by_rank = [[json.loads(line) for line in p.read_text().splitlines()] for p in sorted(folder.glob("*.jsonl"))]
    joined = []
    for parts in zip(*by_rank, strict=True):
        joined.append(
            {
                "update": parts[0]["update"],
                "worker_sizes": [n for p in parts for n in p["worker_sizes"]],
                "ids": [i for p in parts for i in p["ids"]],
                "draws": [d for p in parts for d in p["draws"]],
                "pixels": sum(p["pixels"] for p in parts),
            }
        )
    return joined


@pytest.mark.fault(18, "any number of processes has the same global batch and the same steps")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("network", NETWORKS)
def test_same_steps_and_weights_in_float32(
    network: str, device: str, run_on: RunOn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch lets a GPU's convolutions round their input to TF32, 10 bits: weights near zero then agree to a few per cent
    # only, all together to 1e-5 (docs/LOG.md).
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    settings = (*NETWORKS[network][device], "training.epochs=1", "training.precision=fp32")
    runs, traces = {}, {}
    for processes in (1, 2, 4):
        trace = tmp_path / f"trace-{processes}"
        trace.mkdir()
        traced(monkeypatch, steps=str(trace))
        runs[processes] = run_on(processes, *settings, device=device)
        traces[processes] = steps(trace)
    assert [len(step["ids"]) for step in traces[1]] == [16] * 4 + [14]  # type: ignore[arg-type]
    assert traces[1] == traces[2] == traces[4]
    for processes in (2, 4):
        assert largest_difference(weights(runs[1]), weights(runs[processes])) < 1e-5
        assert runs[processes].final == runs[1].final
        assert runs[processes].evaluation is not None
        assert runs[1].evaluation is not None
        assert runs[processes].evaluation.confusion == runs[1].evaluation.confusion


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("network", NETWORKS)
def test_same_weights_in_float64(network: str, device: str, run_on: RunOn) -> None:
    """After ten steps; a CPU takes half a second for one of the ConvNeXt, and has five of it."""
    epochs = 1 if (network, device) == ("without batch norm", "cpu") else 2
    settings = (*NETWORKS[network][device], f"training.epochs={epochs}", "training.precision=fp64")
    runs = {n: run_on(n, *settings, device=device) for n in (1, 2, 4)}
    assert [e.steps for e in runs[1].epochs] == [5] * epochs
    for processes in (2, 4):
        assert largest_difference(weights(runs[1]), weights(runs[processes])) < 1e-12
        assert [e.val_accuracy for e in runs[processes].epochs] == [e.val_accuracy for e in runs[1].epochs]


NOT_VARIED = ("augment.rotation_degrees=0", "augment.zoom=0", "augment.shift=0", "augment.flip=false")


@pytest.mark.parametrize(
    ("augment", "features"),
    [((), "4 steps at once"), ((*NOT_VARIED, "augment.brightness=0"), "computed once")],
    ids=["varied", "not varied"],
)
def test_a_frozen_backbone_is_the_same_training_too(
    augment: tuple[str, ...], features: str, run_on: RunOn, tmp_path: Path
) -> None:
    """Its features are computed for several steps at once, or once for all: by one process, or a share by each."""
    backbone = tmp_path / "backbone.safetensors"
    network = build(ModelRecipe(name="small"), num_classes=3, seed=1)
    save_file({name: tensor.contiguous() for name, tensor in network.module.state_dict().items()}, backbone)
    frozen = ("model.name=small", f"model.weights={backbone}", "model.fine_tune=false")
    settings = (*frozen, "training.epochs=2", "training.precision=fp64")
    runs = {n: run_on(n, *settings, *augment, "data.size_px=16") for n in (1, 2)}
    assert runs[1].machine["choices"]["features"]["value"] == features
    assert largest_difference(weights(runs[1]), weights(runs[2])) < 1e-12
    assert [e.val_accuracy for e in runs[1].epochs] == [e.val_accuracy for e in runs[2].epochs]


def test_muon_is_the_same_training_too(run_on: RunOn) -> None:
    """It orthogonalises in bf16, but after the gradients were averaged: every process computes the same update."""
    if find_spec("timm") is None:  # not imported: the forked processes have it
        pytest.skip("no timm here")
    muon = ("training.optimizer=muon", "training.learning_rate=0.002", "data.size_px=16")
    # Two steps an epoch: a core takes 0.4 s for the bf16 products of one.
    few = ("workers.count=2", "training.batch_per_worker=20", "training.epochs=1")
    settings = (*muon, *few, "training.precision=fp64")
    one, two = run_on(1, *settings), run_on(2, *settings)
    assert [e.steps for e in one.epochs] == [2]
    assert largest_difference(weights(one), weights(two)) < 1e-12
    assert [e.val_accuracy for e in one.epochs] == [e.val_accuracy for e in two.epochs]


def averages(run: Run) -> dict[str, Tensor]:
    newest, _ = newest_valid(run.directory.checkpoint)
    assert newest is not None
    return averages_of(newest)


def test_what_small_images_are_trained_with_is_the_same_training_too(run_on: RunOn) -> None:
    """Muon, averaged weights, mixed images and an early end at once, as 1 x 4, 2 x 2 and 4 x 1."""
    if find_spec("timm") is None:  # not imported: the forked processes have it
        pytest.skip("no timm here")
    settings = (
        *("training.optimizer=muon", "training.learning_rate=0.002", "training.ema=0.9", "augment.mixup=0.4"),
        *("augment.cutmix=1", "training.label_smoothing=0.1", "training.epochs=5", "training.patience=1"),
        *("training.batch_per_worker=10", "training.precision=fp64", "data.size_px=16"),  # two steps an epoch
    )
    one, *several = [run_on(n, *settings) for n in (1, 2, 4)]
    assert one.status.stopped_early
    assert averages(one)
    assert 2 <= len(one.epochs) < 5
    for run in several:
        assert largest_difference(weights(one), weights(run)) < 1e-12
        assert largest_difference(averages(one), averages(run)) < 1e-12
        assert run.status.stopped_early == one.status.stopped_early
        assert [e.val_accuracy for e in run.epochs] == [e.val_accuracy for e in one.epochs]
        assert run.epochs[-1].train_loss == pytest.approx(one.epochs[-1].train_loss, abs=1e-12)


def test_mixed_images_of_weighed_classes_are_the_same_training_too(
    five_steps_folder: Path, tmp_path: Path, forking: ForkingLauncher
) -> None:
    """1 x 4, 2 x 2 and 4 x 1: a partner is in the worker's own slice, a weight belongs to an image, whoever has it."""
    uneven = tmp_path / "uneven"
    shutil.copytree(five_steps_folder, uneven)
    rare = sorted(folder for folder in uneven.iterdir() if folder.is_dir())[0]
    for picture in sorted(rare.iterdir())[4:]:
        picture.unlink()
    mixed = ("augment.mixup=0.4", "augment.cutmix=1", "augment.cutout=0.4", "augment.crop=0.4", "augment.colour=0.3")
    exact = ("training.epochs=1", "training.precision=fp64", "data.size_px=16", "data.holdout=0.2")
    settings = {
        "mixed": (*SHARED, *exact, *mixed, "training.label_smoothing=0.1"),
        "weighed": (*SHARED, *exact, "training.class_weights=balanced"),
    }
    both = (*settings["mixed"], "training.class_weights=balanced")
    runs = [train(uneven, tmp_path / f"{n}", *both, processes=n, launcher=forking) for n in (1, 2, 4)]
    for run in runs[1:]:
        assert largest_difference(weights(runs[0]), weights(run)) < 1e-12
        assert run.epochs[0].train_loss == pytest.approx(runs[0].epochs[0].train_loss, abs=1e-12)
        assert run.epochs[0].train_accuracy == runs[0].epochs[0].train_accuracy
    for name, fewer in settings.items():  # each of the two makes a difference
        other = train(uneven, tmp_path / name, *fewer, launcher=forking)
        assert largest_difference(weights(runs[0]), weights(other)) > 1e-4


def test_unequal_shares_are_the_same_training_too(run_on: RunOn) -> None:
    """3 processes host 1, 1 and 2 of 4 workers, and 7 images a worker leave a smaller last step."""
    settings = ("training.batch_per_worker=7", "training.epochs=1", "training.precision=fp64", "data.size_px=16")
    one, three = run_on(1, *settings), run_on(3, *settings)
    assert one.epochs[0].images == 78
    assert largest_difference(weights(one), weights(three)) < 1e-12
    assert one.final == three.final


@pytest.mark.parametrize("device", DEVICES)
def test_shares_that_were_asked_for_are_the_same_training_too(device: str, run_on: RunOn) -> None:
    """Sixteen workers as 11 and 5 instead of 8 and 8."""
    settings = ("training.batch_per_worker=2", "training.epochs=1", "training.precision=fp64", "data.size_px=32")
    equal = run_on(2, *settings, "workers.count=16", device=device)
    uneven = run_on(2, *settings, "workers.count=16", device=device, share="11,5")
    assert [len(rank["workers"]) for rank in equal.machine["ranks"]] == [8, 8]
    assert [len(rank["workers"]) for rank in uneven.machine["ranks"]] == [11, 5]
    assert (equal.epochs[0].shares, uneven.epochs[0].shares) == (None, [11, 5])
    assert largest_difference(weights(equal), weights(uneven)) < 1e-12
    assert uneven.epochs[0].train_loss == pytest.approx(equal.epochs[0].train_loss, abs=1e-12)
    assert uneven.final == equal.final


@pytest.mark.gpu
def test_a_gpu_beside_a_cpu_is_the_same_training_too(five_steps_folder: Path, tmp_path: Path) -> None:
    """Three workers on the one, one on the other: their convolutions round differently, so not to 1e-12."""
    exact = ("training.epochs=1", "training.precision=fp64", "model.name=small", "data.size_px=32", "data.holdout=0.2")
    settings = (*SHARED, *exact)
    alone = train(five_steps_folder, tmp_path / "alone", *settings)
    both = train(five_steps_folder, tmp_path / "both", *settings, processes=None, device="cuda,cpu", share="3,1")
    assert [rank["device"] for rank in both.machine["ranks"]] == ["cuda:0", "cpu"]
    assert both.machine["engine"] == "torch gloo"
    assert largest_difference(weights(alone), weights(both)) < 1e-9


def test_eight_workers_on_any_number_of_processes(run_on: RunOn, tmp_path: Path) -> None:
    """1 x 8, 2 x 4, 4 x 2 and 8 x 1 are one training, of three steps: fifteen processes take turns on the cores."""
    folder = fruitbowl.generate(tmp_path / "three", images=60, size_px=32, seed=5)
    settings = ("training.batch_per_worker=2", "training.epochs=1", "training.precision=fp64", "data.size_px=32")
    one, *several = [run_on(n, *settings, "workers.count=8", folder=folder) for n in (1, 2, 4, 8)]
    assert one.epochs[0].steps == 3
    for run in several:
        assert largest_difference(weights(one), weights(run)) < 1e-12
        assert run.final == one.final
        assert run.epochs[0].images == one.epochs[0].images


@pytest.mark.fault(31, "at a large rate 1 and 2 processes drift apart by rounding, and no further than two seeds do")
def test_drift_between_processes_stays_within_the_spread_of_seeds(
    five_steps_folder: Path, tmp_path: Path, forking: ForkingLauncher
) -> None:
    def losses(processes: int, seed: int) -> list[float]:
        settings = (
            *("workers.count=2", "training.batch_per_worker=8", "training.epochs=2", "data.size_px=16"),
            *("model.name=small", "training.learning_rate=0.01", f"training.seed={seed}", "data.holdout=0.2"),
        )
        out = tmp_path / f"{processes}-{seed}"
        run = train(five_steps_folder, out, *settings, processes=processes, launcher=forking)
        return [loss for record in run.epochs for loss in (record.train_loss, record.val_loss)]

    def apart(one: list[float], other: list[float]) -> float:
        return max(abs(a - b) for a, b in zip(one, other, strict=True))

    alone = [losses(1, seed) for seed in range(4)]
    spread = max(apart(one, other) for one, other in combinations(alone, 2))
    assert apart(alone[0], losses(2, 0)) <= spread
