"""A script with the Trainer of Hugging Face and one added line."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.examples import example, run_script
from turnaround.analysis.workloads import survey
from turnaround.record.reader import Run

pytestmark = pytest.mark.frameworks


def test_one_added_line(tmp_path: Path) -> None:
    done = run_script(example("huggingface"), tmp_path)
    assert done.returncode == 0, done.stderr
    run = Run.load(tmp_path / "runs" / "mine")
    assert run.status.state == "finished"
    assert [(e.epoch, e.steps, e.images) for e in run.epochs] == [(n, 10, 200) for n in (1, 2, 3, 4)]
    assert all(e.train_loss > 0 and e.val_loss > 0 and 0 <= e.val_accuracy <= 1 for e in run.epochs)
    assert all(e.evaluation_time_s for e in run.epochs)
    assert run.epochs[0].learning_rate > run.epochs[3].learning_rate
    assert run.recipe["model"]["name"] == "ViTForImageClassification"
    assert run.recipe["training"]["batch_per_worker"] == 20
    assert (run.recipe["training"]["optimizer"], run.recipe["training"]["schedule"]) == ("adamw", "linear")
    images = run.recipe["images"]
    assert (images["num_train"], images["num_validation"], images["num_classes"]) == (200, 100, 2)
    assert all(span.compute_s > 0 and span.update_s > 0 for span in run.spans(0))
    assert survey([tmp_path]).workloads[0].configurations[0].bottleneck is not None


def test_a_training_that_fails(tmp_path: Path) -> None:
    code = example("huggingface").replace("compute_metrics=lambda said: {", "compute_metrics=lambda said: 1 / 0 or {")
    done = run_script(code, tmp_path)
    assert done.returncode == 1
    status = Run.load(tmp_path / "runs" / "mine").status
    assert (status.state, status.cause) == ("failed", "ZeroDivisionError: division by zero")
