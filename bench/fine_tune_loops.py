"""How others fine-tune, as their own documents say it. good_models.py starts this, once for each program and seed.

    python bench/fine_tune_loops.py PROGRAM TASK.json RESULT.json

    fastai       its pets tutorial: `Resize(460)`, `aug_transforms(size=...)`, batch 64, `fine_tune(epochs)`, `to_fp16`
    timm         its `train.py --pretrained --epochs E --warmup-epochs 1 --sched-on-updates --amp`, all else by default:
                 batch 128, SGD 0.1 for 256 images, cosine, crops of 8 % and more, colour 0.4, label smoothing 0.1
    torchvision  `references/classification/train.py --lr-scheduler cosineannealinglr --amp`, all else by default: batch
                 32, SGD, the rate 0.1 of its 8 GPUs divided by 8, weight decay 1e-4, crop and flip
    tutorial     PyTorch's transfer-learning tutorial: batch 4, SGD 0.001, a tenth every 7 epochs, crop and flip, fp32

All get the same files, timm's network and the same weights file. Where a default could not suit ten epochs (five of
warm-up, a first step of the rate after 30), the program's own flag for short trainings is taken instead.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FASTAI_BATCH, FASTAI_FIRST_PX = 64, 460
TIMM_BATCH, TIMM_RATE_FOR_256 = 128, 0.1
REFERENCE_BATCH, REFERENCE_RATE, REFERENCE_GPUS = 32, 0.1, 8
TUTORIAL_BATCH, TUTORIAL_RATE, TUTORIAL_STEP_EPOCHS = 4, 1e-3, 7
RESIZED_SHARE = 256 / 224
"""Of the shorter side to the centre that is looked at, in both of torchvision's programs."""


@dataclass(frozen=True, kw_only=True)
class FineTuneTask:
    """What a program is to do."""

    folder: str
    """Class folders under train/ and test/."""
    num_classes: int
    model: str
    weights: str
    size_px: int
    epochs: int
    seed: int
    device: str
    loaders: int
    begun_at_s: float
    """When this process was started, by the wall clock."""

    def elapsed_s(self) -> float:
        return time.time() - self.begun_at_s


@dataclass(kw_only=True)
class FineTuneResult:
    """What became of it; seconds count from the start of the process."""

    imports_s: float = 0.0
    first_batch_s: float = 0.0
    curve: list[tuple[float, float]] = field(default_factory=list)
    """After each epoch: seconds, top-1 accuracy on all test images, 0 to 1."""


def make_network(task: FineTuneTask, **changes: Any) -> Any:
    import timm

    overlay = {"file": task.weights}
    options = {"num_classes": task.num_classes, **changes}
    return timm.create_model(task.model, pretrained=True, pretrained_cfg_overlay=overlay, **options)


@dataclass(frozen=True, kw_only=True)
class PlainLoop:
    """The parts of a training loop written out; `run` puts them together."""

    train: Iterable[Any]
    test: Iterable[Any]
    module: Any
    optimizer: Any
    loss: Callable[[Any, Any], Any]
    after_step: Callable[[int], None] = lambda updates: None
    after_epoch: Callable[[], None] = lambda: None
    half: bool = True
    """fp16 autocast with a scaled loss, on a GPU."""

    def run(self, task: FineTuneTask, result: FineTuneResult) -> None:
        import torch

        device = torch.device(task.device)
        self.module.to(device)
        half = self.half and device.type == "cuda"
        scaler = torch.amp.GradScaler(device.type, enabled=half)
        updates = 0
        for _ in range(task.epochs):
            self.module.train()
            for images, labels in self.train:
                result.first_batch_s = result.first_batch_s or task.elapsed_s()
                images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
                self.optimizer.zero_grad()
                with torch.autocast(device.type, dtype=torch.float16, enabled=half):
                    loss = self.loss(self.module(images), labels)
                scaler.scale(loss).backward()
                scaler.step(self.optimizer)
                scaler.update()
                updates += 1
                self.after_step(updates)
            self.after_epoch()
            accuracy = self.accuracy(device, torch.autocast(device.type, dtype=torch.float16, enabled=half))
            result.curve.append((task.elapsed_s(), accuracy))

    def accuracy(self, device: Any, autocast: AbstractContextManager[Any]) -> float:
        import torch

        self.module.eval()
        right = total = 0
        with torch.inference_mode(), autocast:
            for images, labels in self.test:
                answers = self.module(images.to(device, non_blocking=True)).argmax(1)
                right += int((answers == labels.to(device)).sum())
                total += len(labels)
        return right / total


def fastai(task: FineTuneTask, result: FineTuneResult) -> None:
    from fastai.vision.all import Callback, ImageDataLoaders, Resize, accuracy, aug_transforms, set_seed, vision_learner

    result.imports_s = task.elapsed_s()
    set_seed(task.seed)

    class Curve(Callback):  # type: ignore[misc]
        """Keeps the accuracy of every epoch; fastai computes it anyway."""

        order = 60  # after the recorder, which is 50

        def before_batch(self) -> None:
            result.first_batch_s = result.first_batch_s or task.elapsed_s()

        def after_epoch(self) -> None:
            result.curve.append((task.elapsed_s(), float(self.recorder.log[3])))  # epoch, two losses, accuracy

    images = ImageDataLoaders.from_folder(
        task.folder,
        train="train",
        valid="test",
        item_tfms=Resize(FASTAI_FIRST_PX),
        batch_tfms=aug_transforms(size=task.size_px),
        bs=FASTAI_BATCH,
        num_workers=task.loaders,
        device=task.device,
    )
    learner = vision_learner(
        images, task.model, metrics=accuracy, cbs=[Curve()], pretrained_cfg_overlay={"file": task.weights}
    )
    learner = learner.to_fp16() if task.device == "cuda" else learner
    with learner.no_bar(), learner.no_logging():
        learner.fine_tune(task.epochs)


def timm(task: FineTuneTask, result: FineTuneResult) -> None:
    import torch
    from timm.data import create_dataset, create_loader, resolve_data_config  # type: ignore[attr-defined]
    from timm.loss import LabelSmoothingCrossEntropy  # type: ignore[attr-defined]
    from timm.optim import create_optimizer_v2  # type: ignore[attr-defined]
    from timm.scheduler import create_scheduler_v2  # type: ignore[attr-defined]
    from timm.utils import random_seed  # type: ignore[attr-defined]

    result.imports_s = task.elapsed_s()
    random_seed(task.seed)
    device = torch.device(task.device)
    module = make_network(task).to(device)
    data = resolve_data_config({"input_size": (3, task.size_px, task.size_px)}, model=module)
    common = {
        "input_size": data["input_size"],
        "mean": data["mean"],
        "std": data["std"],
        "num_workers": task.loaders,
        "pin_memory": task.device == "cuda",
        "device": device,
    }
    train_set, test_set = (create_dataset("", root=f"{task.folder}/{part}") for part in ("train", "test"))
    train = create_loader(
        train_set,
        batch_size=min(TIMM_BATCH, len(train_set)),
        is_training=True,
        color_jitter=0.4,
        interpolation="random",
        **common,
    )
    test = create_loader(
        test_set, batch_size=TIMM_BATCH, interpolation=data["interpolation"], crop_pct=data["crop_pct"], **common
    )
    rate = TIMM_RATE_FOR_256 * TIMM_BATCH / 256
    optimizer = create_optimizer_v2(module, opt="sgd", lr=rate, weight_decay=2e-5, momentum=0.9)
    scheduler, _ = create_scheduler_v2(
        optimizer,
        num_epochs=task.epochs,
        warmup_epochs=1,
        warmup_lr=1e-5,
        step_on_epochs=False,
        updates_per_epoch=len(train),
    )
    loss = LabelSmoothingCrossEntropy(smoothing=0.1)
    loop = PlainLoop(
        train=train, test=test, module=module, optimizer=optimizer, loss=loss, after_step=scheduler.step_update
    )
    loop.run(task, result)


def torchvision_loaders(task: FineTuneTask, *, batch: int) -> dict[str, Any]:
    from timm.data import resolve_data_config  # type: ignore[attr-defined]
    from torch.utils.data import DataLoader
    from torchvision import datasets, transforms

    data = resolve_data_config({}, model=make_network(task))
    normal = [transforms.ToTensor(), transforms.Normalize(data["mean"], data["std"])]
    varied = [transforms.RandomResizedCrop(task.size_px), transforms.RandomHorizontalFlip(), *normal]
    plain = [transforms.Resize(round(task.size_px * RESIZED_SHARE)), transforms.CenterCrop(task.size_px), *normal]
    parts = {"train": varied, "test": plain}
    return {
        part: DataLoader(
            datasets.ImageFolder(f"{task.folder}/{part}", transforms.Compose(steps)),
            batch_size=batch,
            shuffle=part == "train",
            num_workers=task.loaders,
            pin_memory=task.device == "cuda",
        )
        for part, steps in parts.items()
    }


def torchvision(task: FineTuneTask, result: FineTuneResult) -> None:
    import torch
    import torchvision.datasets  # noqa: F401

    result.imports_s = task.elapsed_s()
    torch.manual_seed(task.seed)
    loaders = torchvision_loaders(task, batch=REFERENCE_BATCH)
    module = make_network(task)
    rate = REFERENCE_RATE / REFERENCE_GPUS
    optimizer = torch.optim.SGD(module.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=task.epochs)
    loss = torch.nn.CrossEntropyLoss()
    loop = PlainLoop(**loaders, module=module, optimizer=optimizer, loss=loss, after_epoch=scheduler.step)
    loop.run(task, result)


def tutorial(task: FineTuneTask, result: FineTuneResult) -> None:
    import torch
    import torchvision.datasets  # noqa: F401

    result.imports_s = task.elapsed_s()
    torch.manual_seed(task.seed)
    loaders = torchvision_loaders(task, batch=TUTORIAL_BATCH)
    module = make_network(task)
    optimizer = torch.optim.SGD(module.parameters(), lr=TUTORIAL_RATE, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=TUTORIAL_STEP_EPOCHS, gamma=0.1)
    loss = torch.nn.CrossEntropyLoss()
    loop = PlainLoop(**loaders, module=module, optimizer=optimizer, loss=loss, after_epoch=scheduler.step, half=False)
    loop.run(task, result)


PROGRAMS: dict[str, Callable[[FineTuneTask, FineTuneResult], None]] = {
    "fastai": fastai,
    "timm": timm,
    "torchvision": torchvision,
    "tutorial": tutorial,
}
NEEDS = {
    "fastai": ("fastai", "timm"),
    "timm": ("timm",),
    "torchvision": ("timm", "torchvision"),
    "tutorial": ("timm", "torchvision"),
}
"""Packages without which a program is left out."""


def main(name: str, task_file: str, result_file: str) -> None:
    warnings.filterwarnings(
        "ignore"
    )  # of loaders, about more processes than cores; of schedulers, about a skipped step
    result = FineTuneResult()
    PROGRAMS[name](FineTuneTask(**json.loads(Path(task_file).read_text())), result)
    Path(result_file).write_text(json.dumps(asdict(result)))


if __name__ == "__main__":
    main(*sys.argv[1:])
