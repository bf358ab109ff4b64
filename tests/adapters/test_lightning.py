"""A Lightning script with one added line."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.examples import example, page_of, run_script
from turnaround.analysis.workloads import survey
from turnaround.record.reader import Run

pytestmark = pytest.mark.frameworks


def check(run: Run) -> None:
    assert run.status.state == "finished"
    assert [(e.epoch, e.steps, e.images) for e in run.epochs] == [(n, 15, 300) for n in (1, 2, 3, 4)]
    assert all(e.val_loss > 0 and 0 <= e.val_accuracy <= 1 and e.train_loss > 0 for e in run.epochs)
    assert all(e.learning_rate == 1e-3 and e.evaluation_time_s for e in run.epochs)
    assert run.recipe["training"]["batch_per_worker"] == 20
    assert (run.recipe["training"]["epochs"], run.recipe["training"]["optimizer"]) == (4, "adamw")
    assert (run.recipe["images"]["num_train"], run.recipe["images"]["num_validation"]) == (300, 100)
    assert run.recipe["model"]["name"] == "Small"
    assert run.machine["cost"]["trainable_parameters"] == 192 * 16 + 16 + 16 * 2 + 2
    assert all(span.compute_s > 0 and span.update_s > 0 for span in run.spans(0))


@pytest.mark.parametrize("package", ["lightning", "pytorch_lightning"])
def test_one_added_line(tmp_path: Path, package: str) -> None:
    code = example("lightning").replace("import lightning\n", f"import {package} as lightning\n")
    done = run_script(code, tmp_path)
    assert done.returncode == 0, done.stderr
    check(Run.load(tmp_path / "runs" / "mine"))
    assert survey([tmp_path]).workloads[0].configurations[0].bottleneck is not None
    assert "script.py, Small" in page_of(tmp_path)


def test_accumulated_gradients_and_rare_validation(tmp_path: Path) -> None:
    code = example("lightning").replace(
        "max_epochs=4", "max_epochs=4, accumulate_grad_batches=3, check_val_every_n_epoch=2"
    )
    done = run_script(code, tmp_path)
    assert done.returncode == 0, done.stderr
    run = Run.load(tmp_path / "runs" / "mine")
    assert run.recipe["training"]["batch_per_worker"] == 60
    assert [(e.steps, e.images) for e in run.epochs] == [(5, 300)] * 4
    assert [e.val_accuracy == e.val_accuracy for e in run.epochs] == [False, True, False, True]  # NaN: not measured


def test_a_training_that_fails_and_the_error_is_caught(tmp_path: Path) -> None:
    code = example("lightning").replace(
        "        return loss\n", "        assert self.current_epoch < 2, 'too far'\n        return loss\n"
    )
    code = code.replace("trainer.fit(", "try:\n    trainer.fit(") + "except AssertionError:\n    print('caught')\n"
    done = run_script(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "caught" in done.stdout
    status = Run.load(tmp_path / "runs" / "mine").status
    assert (status.state, status.cause, status.epochs_done) == ("failed", "AssertionError: too far", 2)


def test_two_processes(tmp_path: Path) -> None:
    """Lightning starts the second itself; each takes its place from its trainer."""
    code = example("lightning").replace('accelerator="cpu"', 'accelerator="cpu", devices=2, strategy="ddp"')
    code = code.replace("images = torch", 'if __name__ == "__main__":\n    images = torch', 1)
    head, _, tail = code.partition('if __name__ == "__main__":\n')
    body = "\n".join(
        f"    {line}" if line.strip() and not line.startswith("    images") else line for line in tail.split("\n")
    )
    done = run_script(f'{head}if __name__ == "__main__":\n{body}', tmp_path, GLOO_SOCKET_IFNAME="lo")
    assert done.returncode == 0, done.stderr
    run = Run.load(tmp_path / "runs" / "mine")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["mine"]
    assert run.ranks == [0, 1]
    assert (run.machine["workers"], run.machine["processes"]) == (2, 2)
    assert run.recipe["workers"]["engine"] == "lightning ddp"
    assert [e.images for e in run.epochs] == [300] * 4
