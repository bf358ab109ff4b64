"""The model card: what it says, and that names stay text."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from turnaround.record.reader import Run
from turnaround.record.schema import CalibrationBin, ClassResult, Evaluation
from turnaround.use.card import card, text
from turnaround.use.export import ExportAgreement
from turnaround.use.trained import Trained, load_trained

AGREED = ExportAgreement(num_images=48, pictures="validation images", same_top1=48, largest_difference=3e-7)


@pytest.fixture(scope="module")
def trained(trained_run: Path) -> Trained:
    return load_trained(trained_run)


def written(trained: Trained, format_: str = "onnx") -> str:
    return card(trained, file="fruit.onnx", format_=format_, agreement=AGREED)


def test_it_has_data_recipe_accuracy_and_limits(trained: Trained) -> None:
    told = written(trained)
    headings = [line for line in told.splitlines() if line.startswith("#")]
    assert headings[:6] == [
        "# fruit",
        "## How to use it",
        "## How well it does",
        "## What it must not be used for",
        "## Data",
        "## Recipe",
    ]
    evaluation = trained.run.evaluation
    assert f"{100 * evaluation.top1:.1f} % of 48 validation images" in told
    for result in evaluation.per_class:
        assert f"| {text(result.name)} | 8 (few) | {100 * result.accuracy:.0f} % | " in told
    assert "192 training and 48 validation images, split by holdout 0.2, seed 0" in told
    assert 'name = "small"' in told
    assert "always names one of them" in told
    assert "the same class for 48 of 48 validation images, logits within 3e-07" in told


def test_names_of_others_are_text(trained: Trained) -> None:
    assert text("a|b") == "a\\|b"
    assert text("<img src=x>\n# x") == "\\<img src=x\\>?\\# x"
    assert text("[x](javascript:1)") == "\\[x\\]\\(javascript:1\\)"
    assert text("fresh_apple") == "fresh\\_apple"
    odd = replace(trained, recipe=trained.recipe.replace("data", source="```\n# x"))
    assert "Source: `????# x`" in written(odd)
    assert "\n````toml\n" in written(odd)


def with_evaluation(trained: Trained, evaluation: Evaluation | None, folder: Path) -> Trained:
    run = Run.load(Path(shutil.copytree(trained.run.path, folder / "fruit")))
    run.__dict__["evaluation"] = evaluation
    return replace(trained, run=run)


def test_a_run_without_evaluation_says_so(trained: Trained, tmp_path: Path) -> None:
    assert "Do not rely on this network" in written(with_evaluation(trained, None, tmp_path))


def test_other_evaluations(trained: Trained, tmp_path: Path) -> None:
    classes = [f"c{number}" for number in range(201)]
    results = [ClassResult(name=name, num_images=40, accuracy=0.5) for name in classes]
    results[0] = ClassResult(name="c0", num_images=0, accuracy=None)
    evaluation = Evaluation(
        epoch=9, num_images=8000, top1=0.5, top5=0.9, loss=1.0, classes=classes, per_class=results, confusion=[]
    )
    told = written(with_evaluation(trained, evaluation, tmp_path))
    assert "measured after epoch 9, this file is from epoch 3" in told
    assert "| c0 | 0 (few) | no images | - | - |  |" in told
    assert "| and 1 more: `evaluation.json` of the run | | | | | |" in told
    assert "| right class among the first five | 90.0 % |" in told
    assert "precision, mean" not in told  # a record without counts of predictions has none
    assert "reliability diagram" not in told
    assert "c8 (50 %) and 192 more." in told
    assert "little more than a guess" in told


def test_every_metric_of_the_evaluation_is_there(trained: Trained) -> None:
    evaluation, told = trained.run.evaluation, written(trained)
    assert evaluation is not None
    for name in ("precision", "recall", "F1"):
        value = getattr(evaluation, f"macro_{name.lower()}")
        assert f"| {name}, mean over classes (macro) | {100 * value:.1f} % |" in told
    assert evaluation.calibration_error is not None
    assert f"| expected calibration error | {100 * evaluation.calibration_error:.1f} % |" in told
    assert "off on average (the calibration error above)" in told


def test_the_reliability_diagram_has_a_bar_for_every_bin_with_images(trained: Trained, tmp_path: Path) -> None:
    assert trained.run.evaluation is not None
    bins = [CalibrationBin(num_images=0) for _ in range(15)]
    bins[11] = CalibrationBin(num_images=40, confidence=0.75, accuracy=0.5)
    bins[14] = CalibrationBin(num_images=8, confidence=0.95, accuracy=1.0)
    evaluation = replace(trained.run.evaluation, calibration=bins)
    rows = [line for line in written(with_evaluation(trained, evaluation, tmp_path)).splitlines() if " to " in line]
    assert [row.split() for row in rows if "%" in row and "█" in row] == [
        ["73", "%", "to", "80", "%", "40", "75", "%", "50", "%", "██████████", "|"],
        ["93", "%", "to", "100", "%", "8", "95", "%", "100", "%", "███████████████████|"],
    ]


@pytest.mark.parametrize(
    ("weights", "fine_tune", "words"),
    [
        ("imagenet", False, "from ImageNet weights, only the last layer was trained"),
        ("x.safetensors", True, "from weights from a file, every layer was trained"),
        ("none", True, "from random weights, every layer was trained"),
    ],
)
def test_where_the_weights_came_from(trained: Trained, weights: str, fine_tune: bool, words: str) -> None:
    changed = replace(trained, recipe=trained.recipe.replace("model", weights=weights, fine_tune=fine_tune))
    assert words in written(changed)


def test_safetensors_must_be_normalised_by_the_user(trained: Trained) -> None:
    assert "It normalises itself." in written(trained)
    assert "Normalise yourself, as below." in written(trained, "safetensors")
