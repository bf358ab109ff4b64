"""A fastai script with one added line."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.examples import example, run_script
from turnaround.analysis.workloads import survey
from turnaround.record.reader import Run

pytestmark = pytest.mark.frameworks


def test_one_added_line(tmp_path: Path) -> None:
    code = example("fastai") + "learner.validate(); learner.get_preds()\n"  # fits of another kind: no runs
    done = run_script(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["mine"]
    run = Run.load(tmp_path / "runs" / "mine")
    assert run.status.state == "finished"
    assert [(e.epoch, e.steps, e.images) for e in run.epochs] == [(n, 15, 300) for n in (1, 2, 3, 4)]
    assert all(e.train_loss > 0 and e.val_loss > 0 and 0 <= e.val_accuracy <= 1 for e in run.epochs)
    assert run.recipe["training"]["batch_per_worker"] == 20
    assert (run.recipe["training"]["epochs"], run.recipe["training"]["optimizer"]) == (4, "adam")
    assert (run.recipe["images"]["num_train"], run.recipe["images"]["num_validation"]) == (300, 100)
    assert all(span.compute_s > 0 and span.update_s > 0 for span in run.spans(0))
    assert survey([tmp_path]).workloads[0].configurations[0].bottleneck is not None


def test_an_error_rate_is_an_accuracy(tmp_path: Path) -> None:
    code = example("fastai").replace("import accuracy", "import accuracy, error_rate")
    done = run_script(
        code.replace("metrics=accuracy", "metrics=[error_rate]") + "print(learner.recorder.values[-1][2])", tmp_path
    )
    assert done.returncode == 0, done.stderr
    wrong = float(done.stdout.split()[-1])
    assert Run.load(tmp_path / "runs" / "mine").final == pytest.approx(1 - wrong)


def test_a_training_that_fails(tmp_path: Path) -> None:
    done = run_script(example("fastai").replace("learner.fit(4)", "learner.fit(4, lr=lambda: 0)"), tmp_path)
    assert done.returncode == 1
    assert not (tmp_path / "runs" / "mine").exists() or Run.load(tmp_path / "runs" / "mine").status.state == "failed"
