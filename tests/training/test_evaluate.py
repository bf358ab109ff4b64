"""Evaluation is exact: counts equal those of a plain loop, however the images are cut up and spread."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from turnaround.data.augment import Augmentation
from turnaround.data.batches import EvaluationBatch
from turnaround.data.inputs import Inputs
from turnaround.model.network import Network
from turnaround.recipe import AugmentRecipe, TrainingRecipe
from turnaround.training import evaluate as evaluate_module
from turnaround.training.averages import EvaluatedWeights
from turnaround.training.choices import choose_precision
from turnaround.training.evaluate import Counts, evaluate, final_evaluation
from turnaround.training.step import StepComponents
from turnaround.workers.contract import Workers
from turnaround.workers.single import Single

CPU = torch.device("cpu")
NUM_IMAGES = 101


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """This network is too small to share out."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Guessing(nn.Module):
    """A random linear map, with a batch norm and a dropout that would show in training mode."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.norm, self.drop, self.head = nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Linear(48, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.norm(x)).flatten(1))

    def get_classifier(self) -> nn.Module:
        return self.head


class Others(Single):
    """One of two processes; `sum` adds what the other one has counted."""

    def __init__(self, rank: int, theirs: list[Tensor]) -> None:
        Workers.__init__(self, rank=rank, size=2, count=2, device=CPU)
        self.mine: list[Tensor] = []
        self.theirs = theirs

    def sum(self, tensor: Tensor) -> None:
        self.mine.append(tensor.clone())
        if self.theirs:
            tensor += self.theirs.pop(0)


def parts(
    num_classes: int, workers: Workers | None = None, precision: str = "fp32", **recipe: object
) -> StepComponents:
    torch.manual_seed(0)
    network = Network(module=Guessing(num_classes), mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2), fine_tune=True)
    arithmetic = choose_precision(precision, CPU).value
    network.module.to(arithmetic.parameters)
    network.train_mode()
    return StepComponents(
        network=network,
        learner=network.module,
        wrapped=network.module,
        workers=workers or Single(count=1, device=CPU),
        optimizer=torch.optim.SGD(network.module.parameters(), lr=0.1),
        evaluated=EvaluatedWeights(network.module),
        inputs=Inputs(
            Augmentation(AugmentRecipe(flip=True), seed=0),
            mean=network.mean,
            std=network.std,
            num_train=NUM_IMAGES,
            device=CPU,
            dtype=arithmetic.parameters,
            autocast=arithmetic.autocast,
        ),
        precision=arithmetic,
        recipe=TrainingRecipe(**recipe),  # type: ignore[arg-type]
    )


def images(num_classes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    pixels = torch.randint(0, 256, (NUM_IMAGES, 4, 4, 3), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, num_classes, (NUM_IMAGES,), generator=generator)
    return pixels, labels


def batches(num_classes: int, size: int, part: slice = slice(None)) -> Iterator[EvaluationBatch]:
    pixels, labels = (t[part] for t in images(num_classes))
    for i in range(0, len(labels), size):
        ids = torch.arange(NUM_IMAGES)[part][i : i + size]
        yield EvaluationBatch(pixels=pixels[i : i + size], labels=labels[i : i + size], ids=ids)


def plain(made: StepComponents, num_classes: int) -> dict[str, object]:
    """Image by image."""
    pixels, labels = images(num_classes)
    module = made.network.module.eval()
    top1 = top5 = 0
    loss, confusion = 0.0, [[0] * num_classes for _ in range(num_classes)]
    mean, std = (torch.tensor(v)[:, None, None] for v in (made.network.mean, made.network.std))
    for image, label in zip(pixels, labels.tolist(), strict=True):
        x = ((image.permute(2, 0, 1).float() / 255 - mean) / std)[None]
        logits = module(x).detach()[0]
        ranking = logits.argsort(descending=True).tolist()
        top1 += ranking[0] == label
        top5 += label in ranking[:5]
        loss += float(F.cross_entropy(logits, torch.tensor(label)))
        confusion[label][ranking[0]] += 1
    made.network.train_mode()
    return {"top1": top1, "top5": top5, "loss": loss, "confusion": confusion}


def counted(made: StepComponents, num_classes: int, size: int = 16, part: slice = slice(None)) -> Counts:
    return evaluate(made, batches(num_classes, size, part), num_classes=num_classes, with_confusion=True)


@pytest.mark.parametrize("num_classes", [2, 5, 12])
@pytest.mark.parametrize("size", [1, 16, 1000])
def test_counts_are_those_of_a_plain_loop(num_classes: int, size: int) -> None:
    made = parts(num_classes)
    wanted, found = plain(made, num_classes), counted(made, num_classes, size)
    assert found.num_images == NUM_IMAGES
    assert (found.num_top1, found.num_top5) == (wanted["top1"], wanted["top5"])
    assert found.loss_sum == pytest.approx(wanted["loss"], rel=1e-5)
    assert found.confusion is not None
    assert found.confusion.tolist() == wanted["confusion"]
    assert found.top1 == found.num_top1 / NUM_IMAGES
    assert found.top5 == found.num_top5 / NUM_IMAGES
    assert 0 < found.num_top1 < NUM_IMAGES


def test_rows_of_the_confusion_are_the_classes_counts() -> None:
    found = counted(parts(12), 12)
    assert found.confusion is not None
    assert found.confusion.sum(dim=1).tolist() == torch.bincount(images(12)[1], minlength=12).tolist()
    assert int(found.confusion.diagonal().sum()) == found.num_top1


def test_shares_of_processes_add_up() -> None:
    whole = counted(parts(5), 5)
    first = Others(0, [])
    counted(parts(5, first), 5, part=slice(0, 37))
    second = Others(1, list(first.mine))
    together = counted(parts(5, second), 5, part=slice(37, None))
    assert (together.num_images, together.num_top1) == (whole.num_images, whole.num_top1)
    assert together.loss == pytest.approx(whole.loss, rel=1e-6)
    assert whole.confusion is not None
    assert together.confusion is not None
    assert torch.equal(together.confusion, whole.confusion)


@pytest.mark.parametrize("size", [7, 16])
def test_the_surest_mistakes_are_those_of_a_plain_loop(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnaround.training.evaluate.MAX_MISTAKES", 9)
    made, (pixels, labels) = parts(5), images(5)
    counts = counted(made, 5, size)
    module = made.network.module.eval()
    mean, std = (torch.tensor(v)[:, None, None] for v in (made.network.mean, made.network.std))
    shares = module((pixels.permute(0, 3, 1, 2).float() / 255 - mean) / std).softmax(dim=1).detach()
    wrong = [
        (float(share.max()), place, int(label), int(share.argmax()))
        for place, (share, label) in enumerate(zip(shares, labels, strict=True))
        if int(share.argmax()) != int(label)
    ]
    wrong.sort(reverse=True)
    assert [(m.image, m.label, m.predicted) for m in counts.mistakes] == [one[1:] for one in wrong[:9]]
    assert [m.confidence for m in counts.mistakes] == pytest.approx([one[0] for one in wrong[:9]], rel=1e-5)
    files = [f"{place}.jpg" for place in range(NUM_IMAGES)]
    first, *_ = final_evaluation(counts, epoch=1, classes=tuple("abcde"), files=files).mistakes
    assert (first.file, first.true, first.predicted) == (
        f"{wrong[0][1]}.jpg",
        "abcde"[wrong[0][2]],
        "abcde"[wrong[0][3]],
    )


def test_the_mistakes_of_processes_are_put_together() -> None:
    class Two(Single):
        def gather(self, value: str) -> list[str]:
            return [value, "[[0.999, 3, 1, 0], [0.0, 4, 1, 0]]"]

    mistakes = counted(parts(5, Two(count=2, device=CPU)), 5).mistakes
    assert mistakes[0] == (0.999, 3, 1, 0)
    assert list(mistakes) == sorted(mistakes, key=lambda one: (-one.confidence, one.image))


def test_a_process_without_images_counts_nothing() -> None:
    found = counted(parts(5), 5, part=slice(0, 0))
    assert (found.num_images, found.num_top1, found.loss_sum) == (0, 0, 0.0)
    assert found.confusion is not None
    assert int(found.confusion.sum()) == 0


def test_it_changes_nothing_and_training_goes_on() -> None:
    made = parts(5)
    before = {k: v.clone() for k, v in made.network.module.state_dict().items()}
    counted(made, 5)
    assert all(torch.equal(v, before[k]) for k, v in made.network.module.state_dict().items())
    assert all(m.training for m in made.network.module.modules())
    assert all(p.grad is None for p in made.network.module.parameters())


def test_no_confusion_unless_asked_for() -> None:
    assert evaluate(parts(5), batches(5, 16), num_classes=5).confusion is None


@pytest.mark.parametrize("num_classes", [3, 12])
def test_too_many_classes_for_a_matrix_keep_their_figures(num_classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    names = tuple(f"class {i}" for i in range(num_classes))
    full = final_evaluation(counted(parts(num_classes), num_classes), epoch=3, classes=names)
    monkeypatch.setattr(evaluate_module, "MAX_CLASSES_IN_CONFUSION", 2)
    found = counted(parts(num_classes), num_classes)
    assert found.confusion is not None
    assert found.confusion.shape == (num_classes, 2)
    short = final_evaluation(found, epoch=3, classes=names)
    assert short.confusion == []
    assert short.per_class == full.per_class
    assert (short.top1, short.top5, short.num_images) == (full.top1, full.top5, full.num_images)


def test_the_final_evaluation_says_what_was_counted() -> None:
    counts = Counts(
        num_images=10,
        loss_sum=5.0,
        num_top1=7,
        num_top5=10,
        confusion=torch.tensor([[4, 1, 0], [0, 0, 0], [1, 1, 3]]),
        num_predicted=torch.tensor([5, 2, 3]),
    )
    found = final_evaluation(counts, epoch=4, classes=("a", "b", "c"))
    assert [(c.name, c.num_images, c.accuracy) for c in found.per_class] == [
        ("a", 5, 0.8),
        ("b", 0, None),
        ("c", 5, 0.6),
    ]
    assert (found.top1, found.loss, found.epoch, found.num_images) == (0.7, 0.5, 4, 10)
    assert found.top5 is None  # with three classes it says nothing
    assert found.classes == ["a", "b", "c"]
    assert found.confusion == [[4, 1, 0], [0, 0, 0], [1, 1, 3]]
    assert [(c.num_predicted, c.precision, c.recall) for c in found.per_class] == [
        (5, 0.8, 0.8),
        (2, 0.0, None),
        (3, 1.0, 0.6),
    ]
    assert [c.f1 for c in found.per_class] == [0.8, None, 0.75]
    assert (found.macro_precision, found.macro_recall, found.macro_f1) == pytest.approx((0.9, 0.7, 0.775))
    assert (found.calibration_error, found.calibration) == (None, [])


def brute_force(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Class by class and bin by bin, image masks only: as the textbooks have it."""
    predicted, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
    by_class = []
    for one in range(probabilities.shape[1]):
        hits = int(np.sum((labels == one) & (predicted == one)))
        misses, alarms = np.sum((labels == one) & (predicted != one)), np.sum((labels != one) & (predicted == one))
        recall = hits / (hits + misses) if np.any(labels == one) else None
        precision = hits / (hits + alarms) if np.any(predicted == one) else None
        f1 = 0.0 if not hits else 2 * precision * recall / (precision + recall)
        by_class.append((precision, recall, f1 if recall is not None else None))
    error = 0.0
    for low, high in itertools.pairwise(np.linspace(0.0, 1.0, 16)):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            gap = abs(np.mean(predicted[inside] == labels[inside]) - np.mean(confidence[inside]))
            error += float(np.mean(inside) * gap)
    with_images = [row for row in by_class if row[1] is not None]
    macro = tuple(float(np.mean([row[i] or 0.0 for row in with_images])) for i in range(3))
    return {"by_class": by_class, "macro": macro, "error": error}


def probabilities(made: StepComponents, num_classes: int) -> np.ndarray:
    made.network.module.eval()
    with torch.no_grad():
        rows = [made.learner(made.inputs.plain(batch)).softmax(dim=1) for batch in batches(num_classes, 1)]
    made.network.train_mode()
    return torch.cat(rows).double().numpy()


@pytest.mark.parametrize("is_too_large", [False, True])
@pytest.mark.parametrize("num_classes", [2, 5, 60])  # of 60 some have no image, and some are never predicted
def test_class_metrics_and_calibration_are_those_of_brute_force(
    num_classes: int, is_too_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_too_large:
        monkeypatch.setattr(evaluate_module, "MAX_CLASSES_IN_CONFUSION", 2)
    made, names = parts(num_classes), tuple(map(str, range(num_classes)))
    wanted = brute_force(probabilities(made, num_classes), images(num_classes)[1].numpy())
    found = final_evaluation(counted(made, num_classes, size=7), epoch=1, classes=names)
    for one, (precision, recall, f1) in zip(found.per_class, wanted["by_class"], strict=True):
        for value, expected in ((one.precision, precision), (one.recall, recall), (one.f1, f1)):
            assert value == (None if expected is None else pytest.approx(expected))
    assert (found.macro_precision, found.macro_recall, found.macro_f1) == pytest.approx(wanted["macro"])
    assert found.calibration_error == pytest.approx(wanted["error"], abs=1e-6)
    assert 0.001 < wanted["error"] < 0.999
    assert sum(one.num_images for one in found.calibration) == NUM_IMAGES
    assert len(found.calibration) == 15
    assert bool(found.confusion) != (is_too_large and num_classes > 2)


def test_the_calibration_of_processes_adds_up_to_the_bit() -> None:
    whole = counted(parts(5), 5, size=1)
    first = Others(0, [])
    counted(parts(5, first), 5, size=1, part=slice(0, 37))
    second = Others(1, list(first.mine))
    together = counted(parts(5, second), 5, size=1, part=slice(37, None))
    names = tuple("abcde")
    one, other = (final_evaluation(counts, epoch=1, classes=names) for counts in (whole, together))
    assert one.calibration_error == other.calibration_error
    assert (one.calibration, one.per_class) == (other.calibration, other.per_class)


def test_top5_is_told_from_six_classes_on() -> None:
    for num_classes, has_failures in [(5, False), (6, True)]:
        names = tuple(map(str, range(num_classes)))
        found = final_evaluation(counted(parts(num_classes), num_classes), epoch=1, classes=names)
        assert (found.top5 is not None) == has_failures


@pytest.mark.parametrize("precision", ["bf16", "fp64"])
def test_other_precisions_count_every_image_too(precision: str) -> None:
    found = counted(parts(5, precision=precision), 5)
    assert found.num_images == NUM_IMAGES
    assert found.loss == pytest.approx(counted(parts(5), 5).loss, rel=0.02)
