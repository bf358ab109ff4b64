"""Constants that were chosen and not measured: what other values would have given. One small table for each.

    python bench/constants.py --photos CALTECH --weights mobilenetv2_100.safetensors --small-images CIFAR10
        [--only frozen,many,warmed,limit] [--device cuda] [--seeds 1]

    frozen   FROZEN_BELOW (launch/automatic.py): few photos, last layer against every layer
    many     MANY_IMAGES (launch/automatic.py): small images from scratch, `small` against resnet11
    warmed   WARMED_SHARE (training/plan.py): more epochs after the rate had fallen, from other shares of its peak;
             beside it as many epochs from the beginning
    limit    MARGIN (training/plan.py): how much of a time limit was used

All trainings run in this process, one after the other: imports are paid once. Accuracies are final ones, on the part of
the folder that is held out; a table with one seed has an uncertainty of about a point. Choose on one folder, and report
on another.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import numpy as np

from turnaround import recipes
from turnaround.data.folder import ImageTable, scan
from turnaround.errors import TurnaroundError
from turnaround.launch import lifecycle
from turnaround.launch.automatic import FROZEN_BELOW, MANY_IMAGES
from turnaround.launch.contract import LaunchPlan
from turnaround.launch.handshake import StartMessage
from turnaround.record.heartbeat import Heartbeat
from turnaround.record.reader import Run
from turnaround.reporting.progress import SilentProgress
from turnaround.training import plan as epoch_plan
from turnaround.training.run import Assignment, train
from turnaround.workers.environment import RankInfo

PHOTO_COUNTS = (250, 500, 1000, 2000)
SMALL_COUNTS = (1000, 2500, 5000, 10_000)
WARMED_SHARES = (0.05, 0.1, 0.3, 0.6, 1.0)
FIRST_EPOCHS, MORE_EPOCHS = 10, 16
SMALL = ("model.name=small", "model.weights=none", "augment.preset=light")
LARGE = (
    *("model.name=resnet11", "model.weights=none", "data.size_px=32", "augment.preset=light"),
    *("training.optimizer=muon", "training.label_smoothing=0.1"),
)
"""What launch/automatic.py chooses below and above MANY_IMAGES."""
LIMITS_S = (8.0, 12.0, 20.0)
MAX_VALIDATION = 2000
"""Images held out, at most: accuracies to about a point, and quickly."""


class Here:
    """A launcher that trains in this process, and its one process."""

    def __init__(self, plan: LaunchPlan | None = None) -> None:
        self.plan = plan

    def text(self, plan: LaunchPlan) -> str:
        return "in this process"

    @contextmanager
    def started(self, plan: LaunchPlan) -> Iterator[Here]:
        yield Here(plan)

    def run(self, message: StartMessage) -> None:
        assert self.plan is not None
        assert message.pixels_dir is not None
        assignment = Assignment(
            directory=self.plan.directory,
            pixels_dir=Path(message.pixels_dir),
            device=message.device,
            begun_at_s=message.begun_at_s,
        )
        train(
            assignment,
            RankInfo(),
            SilentProgress(),
            heartbeat=Heartbeat(),
            stop_asked=lambda: False,
            is_stable=lambda curve, num_validation: False,
        )


@dataclass(frozen=True, kw_only=True)
class Trials:
    """Where trainings are tried, and with what."""

    work: Path
    device: str
    seeds: int
    photos: Path | None
    weights: Path | None
    small_images: Path | None

    def request(self, out: Path) -> lifecycle.Request:
        return lifecycle.Request(
            out=out,
            show=lambda *_, **__: None,
            processes=1,
            device=self.device,
            shows_progress=False,
            launcher=Here(),
        )

    def train(self, folder: Path, name: str, *settings: str, seed: int = 0) -> Run:
        out = self.work / f"{name}-{seed}"
        asked = [f"training.seed={seed}", f"data.cache={self.work / 'cache'}", *settings]
        run = lifecycle.start(recipes.find(str(folder), asked), self.request(out))
        self.clean()
        return run

    def accuracy(self, folder: Path, name: str, *settings: str) -> tuple[float, float]:
        """Return the mean final accuracy in % and the mean seconds of the steady epochs."""
        runs = [self.train(folder, name, *settings, seed=seed) for seed in range(self.seeds)]
        seconds = [sum(epoch.epoch_time_s for epoch in run.epochs) for run in runs]
        return 100 * mean(run.epochs[-1].val_accuracy for run in runs), mean(seconds)

    def clean(self) -> None:
        gc.collect()
        if self.device == "cuda":
            import torch

            torch.cuda.empty_cache()

    def subset(self, source: Path, count: int) -> Path:
        """Return a folder with so many training images, of every class two or more, and one validation part for all."""
        folder = self.work / f"{source.name}-{count}"
        if not folder.exists():
            table = scan(source, holdout=0.2, seed=0)
            random = np.random.default_rng(0)
            train_part = _some(random.permutation(table.num_train), table, count)
            held_out = random.permutation(np.arange(table.num_train, len(table.files)))[:MAX_VALIDATION]
            for part, numbers in {"train": train_part, "test": held_out.tolist()}.items():
                for number in numbers:
                    name = Path(table.files[number])
                    target = folder / part / table.classes[table.labels[number]] / f"{number:07d}{name.suffix}"
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.link(table.root / name, target) if _same_disk(table.root, folder) else target.write_bytes(
                        (table.root / name).read_bytes()
                    )
        return folder


def _some(order: np.ndarray, table: ImageTable, count: int) -> list[int]:  # type: ignore[type-arg]
    """Return so many numbers: two of each class first, so that no class is missing."""
    first: list[int] = []
    taken = dict.fromkeys(range(len(table.classes)), 0)
    for number in order.tolist():
        if taken[int(table.labels[number])] < 2:
            taken[int(table.labels[number])] += 1
            first.append(number)
    chosen = set(first)
    return [*first, *(number for number in order.tolist() if number not in chosen)][: max(count, len(first))]


def _same_disk(one: Path, other: Path) -> bool:
    return one.stat().st_dev == next(p for p in (other, *other.parents) if p.exists()).stat().st_dev


def frozen(trials: Trials) -> Iterator[str]:
    assert trials.photos is not None
    yield f"FROZEN_BELOW = {FROZEN_BELOW}: {trials.photos.name}, {trials.weights and trials.weights.stem}, 10 epochs"
    yield f"{'images':>8}{'last layer %':>16}{'s':>7}{'every layer %':>16}{'s':>7}"
    for count in PHOTO_COUNTS:
        folder, weights = trials.subset(trials.photos, count), f"model.weights={trials.weights}"
        cells = []
        for learns, preset in (("false", "none"), ("true", "light")):
            settings = (weights, f"model.fine_tune={learns}", f"augment.preset={preset}")
            cells += [trials.accuracy(folder, f"frozen-{count}-{learns}", *settings)]
        yield f"{count:>8}" + "".join(f"{accuracy:>16.1f}{seconds:>7.1f}" for accuracy, seconds in cells)


def many(trials: Trials) -> Iterator[str]:
    assert trials.small_images is not None
    yield f"MANY_IMAGES = {MANY_IMAGES}: {trials.small_images.name} from scratch, 10 epochs"
    yield f"{'images':>8}{'small %':>16}{'s':>7}{'resnet11 %':>16}{'s':>7}"
    for count in SMALL_COUNTS:
        folder = trials.subset(trials.small_images, count)
        cells = [
            trials.accuracy(folder, f"many-{count}-{place}", *network) for place, network in enumerate((SMALL, LARGE))
        ]
        yield f"{count:>8}" + "".join(f"{accuracy:>16.1f}{seconds:>7.1f}" for accuracy, seconds in cells)


def warmed(trials: Trials) -> Iterator[str]:
    assert trials.small_images is not None
    folder = trials.subset(trials.small_images, max(SMALL_COUNTS))
    usual = epoch_plan.WARMED_SHARE
    yield f"WARMED_SHARE = {usual}: {folder.name}, {FIRST_EPOCHS} epochs, then on to {MORE_EPOCHS}"
    before = trials.accuracy(folder, "first", *LARGE, f"training.epochs={FIRST_EPOCHS}")[0]
    whole = trials.accuracy(folder, "whole", *LARGE, f"training.epochs={MORE_EPOCHS}")[0]
    yield f"{'share':>8}{'%':>9}    (before {before:.1f} %, {MORE_EPOCHS} epochs from the beginning {whole:.1f} %)"
    for share in WARMED_SHARES:
        epoch_plan.WARMED_SHARE = share
        found = []
        for seed in range(trials.seeds):
            name = f"on-{share}"
            run = trials.train(folder, name, *LARGE, f"training.epochs={FIRST_EPOCHS}", seed=seed)
            run = lifecycle.resume(replace(trials.request(run.path), epochs=MORE_EPOCHS))
            trials.clean()
            found.append(100 * run.epochs[-1].val_accuracy)
        yield f"{share:>8}{mean(found):>9.1f}"
    epoch_plan.WARMED_SHARE = usual


def limit(trials: Trials) -> Iterator[str]:
    source = trials.small_images or trials.photos
    assert source is not None
    folder = trials.subset(source, max(SMALL_COUNTS))
    yield f"MARGIN = {epoch_plan.MARGIN}: {folder.name}, 1,000 epochs asked for; imports are done already"
    yield f"{'limit s':>8}{'used s':>9}{'used %':>9}{'epochs':>9}"
    for limit_s in LIMITS_S:
        settings = ("training.epochs=1000", f"training.time_limit_s={limit_s}", "training.checkpoint_every_s=1e6")
        run = trials.train(folder, f"limit-{limit_s:.0f}", "model.weights=none", *settings)
        used_s = run.status.time_s["program"]
        yield f"{limit_s:>8.0f}{used_s:>9.2f}{100 * used_s / limit_s:>9.1f}{run.status.epochs_done:>9}"


EXPERIMENTS: dict[str, Callable[[Trials], Iterator[str]]] = {
    "frozen": frozen,
    "many": many,
    "warmed": warmed,
    "limit": limit,
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, help="a folder of photos, for `frozen`")
    parser.add_argument("--weights", type=Path, help="trained weights, named as timm's network, for `frozen`")
    parser.add_argument("--small-images", type=Path, help="a folder of small images, for the others")
    parser.add_argument("--only", default=",".join(EXPERIMENTS), help="with commas")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--seeds", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    options = parse()
    wanted = options.only.split(",")
    if "frozen" in wanted and not (options.photos and options.weights):
        wanted.remove("frozen")
        print("frozen is left out: it needs --photos and --weights", file=sys.stderr)
    if options.small_images is None:
        print("many, warmed and limit are left out: they need --small-images", file=sys.stderr)
        wanted = [name for name in wanted if name == "frozen"]
    with tempfile.TemporaryDirectory(prefix="constants-") as work:
        trials = Trials(
            work=Path(work),
            device=options.device,
            seeds=options.seeds,
            photos=options.photos and options.photos.resolve(),
            weights=options.weights and options.weights.resolve(),
            small_images=options.small_images and options.small_images.resolve(),
        )
        for name in wanted:
            try:
                for line in EXPERIMENTS[name](trials):
                    print(line, flush=True)
            except TurnaroundError as error:
                print(f"{name}: {error}", flush=True)
            print()


if __name__ == "__main__":
    main()
