"""The training loops that people write today, measured. side_by_side.py starts this, once for each contender.

    python bench/plain_loops.py CONTENDER TASK.json RESULT.json

    torchvision   ImageFolder, v2 transforms and a DataLoader, as in PyTorch's tutorials
    timm          timm's data set and loader with its prefetcher; crop and flip, since it has no plain affine map
    keras         the lab's: ImageDataGenerator's arithmetic, image by image, in the one thread of fit()'s default

All get the same files, the network that turnaround builds from the same weights, channels-last memory and the precision
that turnaround chooses. A loop is measured with the network and without it.
"""

from __future__ import annotations

import json
import math
import queue
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from turnaround.model.network import IMAGENET_MEAN, IMAGENET_STD, build
from turnaround.recipe import ModelRecipe
from turnaround.training.clock import synchronize

ROTATION_DEGREES, ZOOM, SHIFT = 5, 0.2, 0.2
"""And a flip: the lab's variations of Caltech-256, the same for all."""
LEARNING_RATE = 1e-4
WARM_UP_SHARE = 0.25
"""Of the seconds that are measured: queues that were filled beforehand are empty then, and kernels are chosen."""
KERAS_QUEUE = 10
MAX_WAIT_S = 60

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a contender is to do."""

    folder: str
    """Class folders of training images."""
    num_train: int
    num_classes: int
    model: str
    weights: str
    modes: list[str]
    """frozen, fine-tuned, or both: each is measured."""
    size_px: int
    batch: int
    device: str
    loaders: int
    """Processes that read images, where a contender has any."""
    seconds: float
    """Of each measurement."""
    begun_at_s: float
    """When this process was started, by the wall clock."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was measured of one contender."""

    input_images_per_s: float
    training_images_per_s: dict[str, float]
    """By mode."""
    first_epoch_end_s: dict[str, float]
    """From the start of the program: imports, first batch, first step, and all other images at the steady rate."""


def torchvision_batches(task: Task) -> Iterator[Batch]:
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    # On Pillow's images until the end: a quarter less time at 224 px than on tensors.
    bilinear = v2.InterpolationMode.BILINEAR
    scale = (1 - ZOOM, 1 + ZOOM)
    transforms = [
        v2.Resize((task.size_px, task.size_px)),
        v2.RandomAffine(ROTATION_DEGREES, translate=(SHIFT, SHIFT), scale=scale, interpolation=bilinear),
        v2.RandomHorizontalFlip(),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(IMAGENET_MEAN, IMAGENET_STD),
    ]
    loader = DataLoader(
        ImageFolder(task.folder, transform=v2.Compose(transforms)),
        batch_size=task.batch,
        shuffle=True,
        num_workers=task.loaders,
        pin_memory=task.device == "cuda",
        persistent_workers=True,
    )
    while True:
        yield from loader


def timm_batches(task: Task) -> Iterator[Batch]:
    from timm.data import create_dataset, create_loader  # type: ignore[attr-defined]

    loader = create_loader(
        create_dataset("", root=task.folder, split="train", is_training=True),
        input_size=(3, task.size_px, task.size_px),
        batch_size=task.batch,
        is_training=True,
        scale=((1 - ZOOM) ** 2, 1.0),  # shares of the area
        hflip=0.5,
        color_jitter=0.0,
        interpolation="bilinear",
        num_workers=task.loaders,
        pin_memory=task.device == "cuda",
        persistent_workers=True,
        device=torch.device(task.device),
    )
    while True:
        yield from loader


def keras_batches(task: Task) -> Iterator[Batch]:
    """fit(workers=1): one thread fills a queue of ten batches."""
    ready: queue.Queue[Batch] = queue.Queue(KERAS_QUEUE)

    def produce() -> None:
        random = np.random.default_rng(0)
        folders = sorted(folder for folder in Path(task.folder).iterdir())
        files = [(file, label) for label, folder in enumerate(folders) for file in sorted(folder.iterdir())]
        while True:
            order = random.permutation(len(files))
            for start in range(0, len(order), task.batch):
                chosen = [files[i] for i in order[start : start + task.batch]]
                images = np.stack([keras_image(file, task.size_px, random) for file, _ in chosen])
                ready.put((torch.from_numpy(images).permute(0, 3, 1, 2), torch.tensor([label for _, label in chosen])))

    threading.Thread(target=produce, daemon=True).start()
    while True:
        yield ready.get(timeout=MAX_WAIT_S)  # the thread may have died; its reason is in the log


def keras_image(path: Path, size_px: int, random: np.random.Generator) -> NDArray[np.float32]:
    """One image (H, W, 3) in 0..1 as ImageDataGenerator gives it: nearest neighbour to size, a random map, rescaled."""
    from scipy import ndimage

    with Image.open(path) as file:
        small = file.convert("RGB").resize((size_px, size_px), Image.Resampling.NEAREST)
    pixels = np.asarray(small, dtype=np.float32)
    matrix, offset = keras_map(size_px, random)
    channels = [
        ndimage.affine_transform(pixels[..., channel], matrix, offset, order=1, mode="nearest") for channel in range(3)
    ]
    varied = np.stack(channels, axis=-1)
    if random.random() < 0.5:
        varied = varied[:, ::-1]
    return np.ascontiguousarray(varied * np.float32(1 / 255))


def keras_map(size_px: int, random: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rotation, shift and zoom (each axis its own) about the centre, from output to input positions (row, column)."""
    angle = math.radians(random.uniform(-ROTATION_DEGREES, ROTATION_DEGREES))
    shift = random.uniform(-SHIFT, SHIFT, 2) * size_px
    zoom = random.uniform(1 - ZOOM, 1 + ZOOM, 2)
    rotation = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    matrix = rotation * zoom
    centre = np.full(2, size_px / 2 - 0.5)
    return matrix, rotation @ shift + centre - matrix @ centre


CONTENDERS: dict[str, Callable[[Task], Iterator[Batch]]] = {
    "torchvision": torchvision_batches,
    "timm": timm_batches,
    "keras": keras_batches,
}


def on_device(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    for images, labels in batches:
        yield (
            images.to(device, non_blocking=True, memory_format=torch.channels_last),
            labels.to(device, non_blocking=True),
        )


def make_step(task: Task, mode: str) -> Callable[[Batch], None]:
    """One update of the network, as everybody writes it."""
    device = torch.device(task.device)
    recipe = ModelRecipe(name=task.model, weights=task.weights, fine_tune=mode == "fine-tuned")
    network = build(recipe, num_classes=task.num_classes, seed=0)
    module = network.module.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    network.train_mode()
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=LEARNING_RATE)

    def step(batch: Batch) -> None:
        images, labels = batch
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            loss = F.cross_entropy(module(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def no_step(batch: Batch) -> None:
    """The input alone."""


def images_per_s(batches: Iterator[Batch], step: Callable[[Batch], None], task: Task) -> float:
    """After the warm-up, over whole rounds of the loader processes, which deliver in bursts."""
    device = torch.device(task.device)
    warm_at_s = time.perf_counter() + WARM_UP_SHARE * task.seconds
    while time.perf_counter() < warm_at_s:
        step(next(batches))
    synchronize(device)
    start_s, images = time.perf_counter(), 0
    while time.perf_counter() - start_s < task.seconds:
        for batch in (next(batches) for _ in range(task.loaders)):
            step(batch)
            images += len(batch[1])
    synchronize(device)
    return images / (time.perf_counter() - start_s)


def measure(name: str, task: Task) -> Result:
    device = torch.device(task.device)
    batches = on_device(CONTENDERS[name](task), device)
    first = next(batches)
    synchronize(device)
    first_batch_s = time.time() - task.begun_at_s
    rates, first_epoch_end_s = {}, {}
    for mode in task.modes:
        begun_s = time.perf_counter()
        step = make_step(task, mode)
        step(first)
        synchronize(device)
        first_step_s = time.perf_counter() - begun_s
        rates[mode] = images_per_s(batches, step, task)
        first_epoch_end_s[mode] = first_batch_s + first_step_s + (task.num_train - len(first[1])) / rates[mode]
    input_rate = images_per_s(batches, no_step, task)
    return Result(input_images_per_s=input_rate, training_images_per_s=rates, first_epoch_end_s=first_epoch_end_s)


def main(name: str, task_file: str, result_file: str) -> None:
    warnings.filterwarnings("ignore", category=UserWarning)  # of the loaders, about more processes than cores
    if torch.cuda.is_available():
        torch.backends.cudnn.benchmark = True  # the sizes never change, so the fastest kernels are looked for once
    result = measure(name, Task(**json.loads(Path(task_file).read_text())))
    Path(result_file).write_text(json.dumps(asdict(result)))


if __name__ == "__main__":
    main(*sys.argv[1:])
