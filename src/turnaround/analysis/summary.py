"""One run in a few dozen numbers, whether turnaround trained it or somebody's table tells of it."""

from __future__ import annotations

import itertools
import math
import ntpath
import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from turnaround.analysis.curves import Curve
from turnaround.analysis.gpu_kinds import is_cuda, kind_of
from turnaround.analysis.guessing import against_guessing
from turnaround.errors import RunDirectoryError
from turnaround.record.class_metrics import completed
from turnaround.record.importers.values import MAX_EPOCHS
from turnaround.record.reader import Run
from turnaround.record.schema import EpochRecord, Evaluation, Imported

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The figures of one run; None is "not known". Times of a rehearsal are this machine's, not its workers'."""

    directory: str
    name: str
    state: str
    is_imported: bool = False
    """Told by a table or a log of others, not measured by turnaround."""
    is_recorded: bool = True
    """False for a program that kept no record: how long it took and how it ended is all that is known."""
    exit_code: int | None = None
    """Exit code of a program of somebody else: -9 was killed by signal 9."""
    job: str = ""
    """Name of the workload, for people: the images, the network, what of it learns, the size."""
    workers: int
    processes: int
    hosts: int = 1
    is_rehearsal: bool
    device: str
    """The name that the driver gives."""
    gpu: str = "unknown"
    """Its kind: T4, V100, CPU."""
    batch_per_worker: int | None = None
    global_batch: int | None
    images_per_epoch: int | None = None
    num_validation: int | None = None
    epochs_planned: int | None = None
    epochs: int
    """Epochs that were done."""
    stopped_early: str | None = None
    """Why they are fewer than planned, in a sentence, of a run that has finished."""
    time_limit_s: float | None = None
    """The limit that the recipe sets for the whole run."""
    epoch_time_s: float | None
    """Median over the steady epochs: all but the first after each start; of a single epoch, that one."""
    images_per_s: float | None
    best_val_accuracy: float | None
    best_epoch: int | None
    final_val_accuracy: float | None
    final_top5_accuracy: float | None
    macro_precision: float | None = None
    """This and the next two: plain means over the classes with validation images, of the final evaluation."""
    macro_recall: float | None = None
    macro_f1: float | None = None
    calibration_error: float | None = None
    """Expected calibration error of the final evaluation, over 15 bins of equal width, as a fraction."""
    guessing_accuracy: float | None = None
    """Accuracy of always answering the largest class of the validation images."""
    is_better_than_guessing: bool | None = None
    """False where the 95 % interval of the final evaluation includes guessing, or lies below it."""
    final_train_accuracy: float | None = None
    """In evaluation mode where that was measured, else the running one."""
    noise_scale: float | None = None
    """The last one measured, in images."""
    job_time_s: float | None = None
    """Submit to finish."""
    turnaround_s: float | None
    turnaround_parts_s: dict[str, float]
    first_step_parts_s: dict[str, float] = field(default_factory=dict)
    """Seconds from the submission to the first step: queue, import, start_up; empty when it is not known."""
    curve: Curve = field(default_factory=Curve)
    """Empty when there is none. Of a run without evaluations of the training images, its training accuracy and loss
    are the running ones."""

    @property
    def outside_epochs_s(self) -> float | None:
        """The job's time less that of its epochs; negative where a table contradicts itself, None where not known."""
        if self.job_time_s is None or self.epoch_time_s is None or not self.epochs:
            return None
        return self.job_time_s - self.epochs * self.epoch_time_s


def summarise(run: Run) -> RunSummary:
    """Return the numbers of one run, as far as it got; RunDirectoryError names the file and the key that is damaged."""
    run.check_epochs()
    machine = _Content(run.directory.machine, run.machine)
    recipe = _Content(run.directory.recipe, run.recipe)
    epochs, told = _believable(run), run.imported or Imported(source="", format="")
    best = max((e for e in epochs if not math.isnan(e.val_accuracy)), key=lambda e: e.val_accuracy, default=None)
    parts = run.turnaround_parts()
    curve, images_per_epoch = curve_of(epochs), _images_per_epoch(recipe, epochs)
    # What somebody has stated goes before what can be read off the curve: both are there only where both were given.
    epoch_time_s = _first(told.epoch_time_s, _steady_median(epochs, "epoch_time_s"))
    evaluation = completed(run.evaluation) if run.evaluation and _is_of_the_end(run.evaluation, epochs) else None
    guessed = against_guessing(evaluation) if evaluation else None
    return RunSummary(
        directory=str(run.path),
        name=recipe.text("name") or run.path.name,
        state=run.status.state,
        is_imported=run.imported is not None,
        is_recorded=recipe.text("program") is None,
        exit_code=_exit_code(run),
        job=job_name(recipe, is_imported=run.imported is not None),
        workers=machine.count("workers"),
        processes=machine.count("processes"),
        hosts=_hosts(machine),
        is_rehearsal=run.is_rehearsal,
        device=device_name(run.machine),
        gpu=kind_of(device_name(run.machine)),
        batch_per_worker=recipe.whole("training", "batch_per_worker"),
        global_batch=_global_batch(recipe),
        images_per_epoch=images_per_epoch,
        num_validation=_first(
            recipe.whole("images", "num_validation", is_optional=True),
            evaluation.num_images if evaluation else None,
        ),
        epochs_planned=recipe.whole("training", "epochs"),
        epochs=_first(told.epochs, len(epochs)) or 0,
        stopped_early=run.status.stopped_early,
        time_limit_s=recipe.number("training", "time_limit_s"),
        epoch_time_s=epoch_time_s,
        images_per_s=_images_per_s(told, epochs, images_per_epoch, epoch_time_s),
        best_val_accuracy=run.best,
        # The run's own word, where it has one: of equal accuracies it takes the one of lower loss.
        best_epoch=run.status.best.epoch if run.status.best else best.epoch if best else None,
        final_val_accuracy=_first(run.final, told.val_accuracy),
        final_top5_accuracy=evaluation.top5 if evaluation else None,
        macro_precision=evaluation.macro_precision if evaluation else None,
        macro_recall=evaluation.macro_recall if evaluation else None,
        macro_f1=evaluation.macro_f1 if evaluation else None,
        calibration_error=evaluation.calibration_error if evaluation else None,
        guessing_accuracy=guessed.guessing if guessed else None,
        is_better_than_guessing=guessed.is_better if guessed else None,
        final_train_accuracy=_first(_last(curve.train_accuracy), told.train_accuracy),
        # The last one known: it grows as the loss falls (McCandlish 2018).
        noise_scale=next((e.noise_scale for e in reversed(epochs) if e.noise_scale is not None), None),
        # A record without parts sums up to 0, which is no time.
        job_time_s=_first(told.job_time_s, sum(parts.values()) or None),
        turnaround_s=sum(parts.values()) or None,
        turnaround_parts_s=parts,
        first_step_parts_s=run.first_step_parts(),
        curve=curve,
    )


def _believable(run: Run) -> list[EpochRecord]:
    """Return the epochs; refuse an epoch number so large that filling the curve up to it would take all memory."""
    if run.epochs and run.epochs[-1].epoch > MAX_EPOCHS:
        raise RunDirectoryError(
            f"{run.directory.epochs} is damaged: it names epoch {run.epochs[-1].epoch:,}; a run has at most "
            f"{MAX_EPOCHS:,}."
        )
    return run.epochs


def curve_of(epochs: list[EpochRecord]) -> Curve:
    """Return the columns of the epochs; the training ones in evaluation mode, or all running, never a mixture."""
    # The running accuracy is that of augmented images and of weights that still changed: beside one in evaluation mode
    # it would look like a jump of the training.
    is_evaluated = any(e.train_eval_accuracy is not None or e.train_eval_loss is not None for e in epochs)
    return Curve(
        epochs=tuple(e.epoch for e in epochs),
        val_accuracy=tuple(e.val_accuracy for e in epochs),
        train_accuracy=_column((e.train_eval_accuracy if is_evaluated else e.train_accuracy) for e in epochs),
        val_loss=tuple(e.val_loss for e in epochs),
        train_loss=_column((e.train_eval_loss if is_evaluated else e.train_loss) for e in epochs),
    )


def _column(values: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(math.nan if value is None else value for value in values)


def steady_epochs(epochs: list[EpochRecord]) -> list[EpochRecord]:
    """Return all epochs but the first of every start, which pays for compilation and cold caches."""
    return [now for before, now in itertools.pairwise(epochs) if before.segment == now.segment]


def _steady_median(epochs: list[EpochRecord], name: str) -> float | None:
    """Return the median over the steady epochs that have the value; without any of them, over all."""
    # The median: an epoch that was disturbed, by a checkpoint or a neighbour, is one of many.
    for some in (steady_epochs(epochs), epochs):
        known: list[float] = [value for e in some if not math.isnan(value := getattr(e, name))]
        if known:
            return median(known)
    return None


def _images_per_s(
    told: Imported, epochs: list[EpochRecord], images_per_epoch: int | None, epoch_time_s: float | None
) -> float | None:
    """Return the rate: the stated one, the measured one, or images / epoch time."""
    # A stated epoch time goes before the curve's times, so the rate must be that of the same epoch.
    measured = _steady_median(epochs, "images_per_s") if told.epoch_time_s is None else None
    known = _first(told.images_per_s, measured)
    if known is None and images_per_epoch and epoch_time_s:
        return images_per_epoch / epoch_time_s
    return known


def _first(*values: Value | None) -> Value | None:
    return next((value for value in values if value is not None), None)


def _last(values: tuple[float, ...]) -> float | None:
    return values[-1] if values and not math.isnan(values[-1]) else None


def device_name(machine: dict[str, Any]) -> str:
    """Return the GPU's name, or the processor's."""
    gpus, device = machine.get("gpus"), machine.get("device")
    if is_cuda(device) and isinstance(gpus, list) and gpus and isinstance(gpus[0], dict):
        return str(gpus[0].get("name"))
    return "unknown" if device is None else "CPU" if device == "cpu" else str(device)


def job_name(recipe: _Content, *, is_imported: bool) -> str:
    """Return the work in a few words: "photos, resnet50, fine-tuned, 224 px"."""
    source, network = recipe.text("data", "source"), recipe.text("model", "name")
    program = recipe.text("program")
    if program is not None:  # of others: what it trains on, it does not say
        return program
    fine_tune = recipe.value("model", "fine_tune", is_optional=True)
    learns = {True: "fine-tuned", False: "frozen"}.get(fine_tune) if isinstance(fine_tune, bool) else None
    if is_imported:
        return ", ".join(part for part in (source or network or "unknown images", learns) if part)
    if learns == "fine-tuned" and recipe.text("model", "weights") == "none":
        learns = "from scratch"
    size_px = recipe.whole("data", "size_px", is_optional=True)
    images = ntpath.basename((source or "").rstrip("/\\")) or source or "unknown images"  # of either kind of path
    return ", ".join(part for part in (images, network, learns, f"{size_px} px" if size_px else None) if part)


def job_of_recipe(recipe: dict[str, Any]) -> str:
    """Return the job's name that a run of this recipe will have."""
    return job_name(_Content(Path("recipe"), recipe), is_imported=False)


def _exit_code(run: Run) -> int | None:
    program = run.machine.get("program")
    code = program.get("exit_code") if isinstance(program, dict) else None
    return code if isinstance(code, int) else None


def _hosts(machine: _Content) -> int:
    """Return the number of hosts: the stated one, or that of the processes."""
    ranks = machine.value("ranks", is_optional=True)
    names = {str(rank.get("host")) for rank in ranks if isinstance(rank, dict)} if isinstance(ranks, list) else set()
    return machine.whole("hosts", is_optional=True) or len(names) or 1


def _is_of_the_end(evaluation: Evaluation, epochs: Sequence[EpochRecord]) -> bool:
    """False for a run that goes on with more epochs: what was evaluated at its first end is not its final state."""
    return not epochs or evaluation.epoch >= epochs[-1].epoch


def _images_per_epoch(recipe: _Content, epochs: list[EpochRecord]) -> int | None:
    measured = next((e.images for e in reversed(epochs) if e.images is not None), None)
    return _first(recipe.whole("images", "num_train", is_optional=True), measured)


def _global_batch(recipe: _Content) -> int | None:
    batch_total = recipe.whole("training", "batch_total", is_optional=True)
    per_worker, count = recipe.whole("training", "batch_per_worker"), recipe.whole("workers", "count")
    return batch_total or (per_worker * count if per_worker is not None and count is not None else None)


@dataclass(frozen=True)
class _Content:
    """The object in a file of a run. A key that must be there and is not, or is of another kind, is named."""

    path: Path
    content: dict[str, Any]

    def value(self, *keys: str, is_optional: bool = False) -> Any:
        """Return what stands under the keys; None for null, and for a key that need not be there."""
        value: Any = self.content
        for number, key in enumerate(keys, start=1):
            if not isinstance(value, dict):
                raise self._damaged(keys[: number - 1], "an object", value)
            if key not in value:
                if is_optional:
                    return None
                raise RunDirectoryError(f"{self.path} is damaged: {'.'.join(keys[:number])} is missing.")
            value = value[key]
        return value

    def whole(self, *keys: str, is_optional: bool = False) -> int | None:
        value = self.value(*keys, is_optional=is_optional)
        if value is not None and (not _is_whole(value) or value < 0):
            raise self._damaged(keys, "a whole number from 0, or null", value)
        return None if value is None else int(value)

    def number(self, *keys: str) -> float | None:
        value = self.value(*keys, is_optional=True)
        if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise self._damaged(keys, "a number or null", value)
        return None if value is None else float(value)

    def count(self, *keys: str) -> int:
        value = self.value(*keys)
        if not _is_whole(value) or value < 1:
            raise self._damaged(keys, "a whole number from 1", value)
        return int(value)

    def text(self, *keys: str) -> str | None:
        value = self.value(*keys, is_optional=True)
        return None if value is None else str(value)

    def _damaged(self, keys: tuple[str, ...], expected: str, received: object) -> RunDirectoryError:
        return RunDirectoryError(
            f"{self.path} is damaged: {'.'.join(keys)} must be {expected}, received {reprlib.repr(received)}."
        )


def _is_whole(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    # 2.0 is whole: a program of others may hold all its numbers as floats.
    return abs(value) < 2**53 and value == int(value)  # beyond, floats are not exact
