"""The real programs train or log, and what they leave is imported: nothing here is written by us."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from turnaround.record.importers.read import read_runs
from turnaround.record.importers.values import ImportedRun, ImportOptions

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]  # theirs are theirs

LOGGED = """
for epoch in range(3):
    for step in range(4):
        run.log({"train/loss": 2.0 - 0.3 * epoch - 0.05 * step})
    run.log({"epoch": epoch, "val/acc": 0.5 + 0.1 * epoch, "lr": 0.1})
    time.sleep(0.05)
run.finish()
"""
WANDB = """
import time, wandb
settings = {"batch_size": 32, "architecture": "resnet18", "world_size": 2}
run = wandb.init(project="fruit", name="first", mode="offline", config=settings)
"""
TRACKIO = """
import time, trackio
settings = {"batch_size": 32, "architecture": "resnet18", "world_size": 2}
run = trackio.init(project="fruit", name="first", config=settings)
"""
DATA = """
import torch
draw = torch.Generator().manual_seed(0)
images, labels = torch.randn(48, 4, generator=draw), torch.randint(0, 3, (48,), generator=draw)
loss_of = torch.nn.functional.cross_entropy
"""
HUGGINGFACE = """
from transformers import Trainer, TrainingArguments
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
    def forward(self, x=None, labels=None):
        said = self.layer(x)
        return {"loss": loss_of(said, labels), "logits": said}
data = [{"x": image, "labels": label} for image, label in zip(images, labels)]
settings = TrainingArguments(output_dir="out", num_train_epochs=3, per_device_train_batch_size=8, eval_strategy="epoch",
    save_strategy="epoch", logging_steps=2, report_to=[], use_cpu=True, disable_tqdm=True)
right = lambda p: {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())}
Trainer(model=Model(), args=settings, train_dataset=data, eval_dataset=data[:20], compute_metrics=right).train()
"""
LIGHTNING = """
import lightning as L
from lightning.pytorch.loggers import CSVLogger
class Model(L.LightningModule):
    def __init__(self, batch_size=8):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(4, 3)
    def training_step(self, batch, number):
        loss = loss_of(self.layer(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss
    def validation_step(self, batch, number):
        said = self.layer(batch[0])
        self.log("val_loss", loss_of(said, batch[1]))
        self.log("val_acc", (said.argmax(-1) == batch[1]).float().mean())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
def loader():
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=8)
L.Trainer(max_epochs=3, accelerator="cpu", logger=CSVLogger("logs", name="mine"), log_every_n_steps=2,
    enable_progress_bar=False).fit(Model(), loader(), loader())
"""


def left_by(code: str, folder: Path) -> None:
    """Run the code in the folder."""
    environment = {**os.environ, "WANDB_DIR": str(folder), "TRACKIO_DIR": str(folder / "trackio"), "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def imported(path: Path) -> ImportedRun:
    (run,) = read_runs(path, options=ImportOptions()).runs
    assert [record.epoch for record in run.curve] == [1, 2, 3]
    return run


def test_a_run_that_wandb_kept_offline(tmp_path: Path) -> None:
    left_by(WANDB + LOGGED, tmp_path)
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    run = imported(folder)
    assert (run.name, run.format, run.workers, run.batch_per_worker, run.network) == (
        "first",
        "wandb",
        2,
        32,
        "resnet18",
    )
    assert [record.val_accuracy for record in run.curve] == pytest.approx([0.5, 0.6, 0.7])
    assert [record.train_loss for record in run.curve] == pytest.approx([1.925, 1.625, 1.325])
    assert 0.05 <= run.curve[1].epoch_time_s < 30
    assert run.curve[0].learning_rate == 0.1


def test_a_project_that_trackio_keeps(tmp_path: Path) -> None:
    left_by(TRACKIO + LOGGED, tmp_path)
    run = imported(tmp_path / "trackio" / "fruit.db")
    assert (run.name, run.format, run.workers, run.batch_per_worker) == ("first", "trackio", 2, 32)
    assert [record.val_accuracy for record in run.curve] == pytest.approx([0.5, 0.6, 0.7])
    assert [record.train_loss for record in run.curve] == pytest.approx([1.925, 1.625, 1.325])


def test_the_checkpoints_of_a_hugging_face_trainer(tmp_path: Path) -> None:
    left_by(DATA + HUGGINGFACE, tmp_path)
    run = imported(tmp_path / "out")
    assert (run.name, run.format, run.batch_per_worker, run.state) == ("out", "huggingface", 8, "finished")
    assert all(record.train_loss > 0 and record.val_loss > 0 and 0 <= record.val_accuracy <= 1 for record in run.curve)


def test_the_metrics_of_a_lightning_trainer(tmp_path: Path) -> None:
    left_by(DATA + LIGHTNING, tmp_path)
    run = imported(tmp_path / "logs" / "mine" / "version_0")
    assert (run.name, run.format, run.batch_per_worker) == ("mine-version_0", "lightning", 8)
    assert all(record.train_loss > 0 and record.val_loss > 0 and 0 <= record.val_accuracy <= 1 for record in run.curve)
