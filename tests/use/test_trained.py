"""A run directory as something that can be asked: what is checked, and what is said when it cannot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from console import Console
from http_client import ask
from turnaround.errors import RunDirectoryError
from turnaround.record.files import own_digest
from turnaround.record.layout import CheckpointFiles, CheckpointName, RunDirectory
from turnaround.record.reader import Run
from turnaround.use.predictor import Predictor
from turnaround.use.trained import load_trained
from use_helpers import serving


@pytest.fixture
def copied(trained_run: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be damaged."""
    return Path(shutil.copytree(trained_run, tmp_path / "copied"))


def changed(file: Path, **values: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_the_newest_weights_and_everything_needed_to_ask(trained_run: Path) -> None:
    trained = load_trained(trained_run)
    assert (trained.name, trained.epoch, trained.size_px, trained.passed_over) == ("fruit", 3, 32, ())
    assert trained.classes == tuple(Run.load(trained_run).evaluation.classes)
    assert not trained.module.training
    assert not any(parameter.requires_grad for parameter in trained.module.parameters())


def test_a_damaged_checkpoint_is_passed_over_by_name(copied: Path) -> None:
    newest = copied / "checkpoint" / "epoch-00003" / "weights.safetensors"
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    trained = load_trained(copied)
    assert trained.epoch == 2
    assert "epoch-00003 is damaged (weights.safetensors has another SHA-256" in trained.passed_over[0]
    shutil.rmtree(copied / "checkpoint" / "epoch-00002")
    with pytest.raises(RunDirectoryError, match=r"No checkpoint of .* can be used: epoch-00003 is damaged"):
        load_trained(copied)


@pytest.fixture
def within_epoch(copied: Path) -> Path:
    """A run whose newest checkpoint lies within its third epoch."""
    directory = RunDirectory(copied)
    shutil.rmtree(directory.checkpoints()[-1].path)
    whole = directory.checkpoints()[-1]
    part = CheckpointFiles(whole.path.with_name(str(CheckpointName(2, 1))))
    whole.path.rename(part.path)
    manifest = {**json.loads(part.manifest.read_text()), "step": 1}
    part.manifest.write_text(json.dumps({**manifest, "digest": own_digest(manifest)}))
    return copied


def test_weights_saved_within_an_epoch_can_be_used(
    within_epoch: Path,
    tmp_path: Path,
    fruit_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trained = load_trained(within_epoch)
    assert (trained.epoch, trained.position, trained.passed_over) == (2, (2, 1), ())
    call, image = Console(monkeypatch, capsys), next((fruit_folder / "fresh_apple").iterdir())
    done = call("classify", within_epoch, image, "--json", "--device", "cpu")
    assert (done.code, json.loads(done.out)["epoch"]) == (0, 2)
    assert call("export", within_epoch, "--to", "safetensors", "--out", tmp_path / "out.safetensors").code == 0
    with serving(Predictor.load(within_epoch, device="cpu")) as port:
        assert ask(port, "/about").json["epoch"] == 2


def test_a_run_without_checkpoint(copied: Path) -> None:
    shutil.rmtree(copied / "checkpoint")
    with pytest.raises(RunDirectoryError, match=r"has no checkpoint.*turnaround resume"):
        load_trained(copied)


def test_a_run_that_has_not_finished_needs_its_class_names(copied: Path, trained_run: Path) -> None:
    (copied / "evaluation.json").unlink()
    images = json.loads((copied / "recipe.json").read_text())["images"]
    changed(copied / "recipe.json", images={k: v for k, v in images.items() if k != "classes"})
    changed(copied / "status.json", state="interrupted")
    with pytest.raises(RunDirectoryError, match=r"has not finished \(interrupted\).*turnaround resume"):
        load_trained(copied)
    names = list(load_trained(trained_run).classes)
    changed(copied / "recipe.json", images={**images, "classes": names})
    assert load_trained(copied).classes == tuple(names)


def test_damaged_class_names(copied: Path) -> None:
    changed(copied / "evaluation.json", classes=["apple", "apple"])
    with pytest.raises(RunDirectoryError, match="its class names are damaged"):
        load_trained(copied)


def test_weights_that_do_not_fit_the_recipe(copied: Path) -> None:
    changed(copied / "evaluation.json", classes=["apple", "pear"])
    with pytest.raises(RunDirectoryError, match=r"epoch-00003 does not fit 'small' with 2 classes"):
        load_trained(copied)


def test_a_recipe_that_is_none(copied: Path) -> None:
    changed(copied / "recipe.json", training={"epochs": "many"})
    with pytest.raises(RunDirectoryError, match="is no recipe of this turnaround"):
        load_trained(copied)


def test_the_record_of_another_program_has_no_weights(copied: Path) -> None:
    changed(copied / "recipe.json", recorded_by="turnaround.Recorder")
    with pytest.raises(RunDirectoryError, match=r"is the record of another program: it has figures and no weights"):
        load_trained(copied)


def test_an_imported_run_has_no_weights(copied: Path) -> None:
    (copied / "imported.json").write_text('{"format": 1, "source": "runs.csv", "source_format": "table"}')
    with pytest.raises(RunDirectoryError, match=r"was imported from runs.csv: it has figures and no weights"):
        load_trained(copied)


def test_no_file_that_the_recipe_names_is_opened(copied: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap.pt"
    trap.write_bytes(b"\x80\x04cposix\nsystem\n")
    model = json.loads((copied / "recipe.json").read_text())["model"]
    changed(copied / "recipe.json", model={**model, "weights": str(trap)})
    assert load_trained(copied).epoch == 3
