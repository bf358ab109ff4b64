"""A run directory as something that can be asked: what is checked, and what is said when it cannot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from console import Console
from http_client import ask
from turnaround.errors import InputError, ModelError, RunDirectoryError
from turnaround.record.coding import own_digest
from turnaround.record.layout import CheckpointFiles, CheckpointName, RunDirectory
from turnaround.record.reader import Run
from turnaround.record.schema import BestEpoch
from turnaround.training.saving import BestWeights, write_best
from turnaround.use.card import card
from turnaround.use.export import ExportAgreement
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
    trained = load_trained(copied, weights="last")
    assert trained.epoch == 2
    assert "epoch-00003 is damaged (weights.safetensors has another SHA-256" in trained.passed_over[0]
    shutil.rmtree(copied / "checkpoint" / "epoch-00002")
    with pytest.raises(RunDirectoryError, match=r"No checkpoint of .* can be used: epoch-00003 is damaged"):
        load_trained(copied, weights="last")


@pytest.fixture
def within_epoch(copied: Path) -> Path:
    """A run whose newest checkpoint lies within its third epoch, and that has kept no best."""
    directory = RunDirectory(copied)
    shutil.rmtree(directory.best)
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
    shutil.rmtree(copied / "best")
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


def test_a_network_that_is_far_larger_than_its_weights(copied: Path) -> None:
    """Seven billion numbers, named by the recipe of a run of 1 MB: they are not made."""
    pytest.importorskip("timm")
    model = json.loads((copied / "recipe.json").read_text())["model"]
    changed(copied / "recipe.json", model={**model, "name": "vit_7b_patch16_dinov3"})
    with pytest.raises(ModelError, match="far larger than the weights that are kept of it"):
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


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def earlier_best(run: Path) -> CheckpointFiles:
    """The same run, had its first epoch been the best: other weights than the last."""
    directory = RunDirectory(run)
    newest = CheckpointFiles.all_in(directory.best)[-1].path
    tensors = {name: tensor + 1 for name, tensor in load_file(CheckpointFiles(newest).weights).items()}
    shutil.rmtree(directory.best)
    found = BestEpoch(epoch=1, val_accuracy=0.75, val_loss=0.5)
    return CheckpointFiles(write_best(directory.best, BestWeights(best=found, weights=tensors)))


def test_the_best_weights_are_used_and_the_last_on_request(copied: Path) -> None:
    best = load_file(earlier_best(copied).weights)
    trained, last = load_trained(copied), load_trained(copied, weights="last")
    assert torch.equal(trained.module.state_dict()["head.weight"], best["head.weight"])
    assert (trained.epoch, last.epoch) == (1, 3)
    assert torch.equal(last.module.state_dict()["head.weight"] + 1, best["head.weight"])
    assert trained.which.startswith("weights of epoch 1, the best of 3 by validation accuracy (75.0 %: chosen on these")
    assert last.which == "weights after epoch 3, the last that are saved"
    assert (trained.val_accuracy, last.val_accuracy) == (0.75, Run.load(copied).final)
    with serving(Predictor.load(copied, device="cpu")) as port:
        about = ask(port, "/about").json
    assert (about["epoch"], about["weights"], about["val_accuracy"]) == (1, "best", 0.75)
    with pytest.raises(InputError, match="--weights"):
        load_trained(copied, weights="worst")


@pytest.mark.parametrize("file", ["weights", "manifest"])
def test_damaged_best_weights_give_way_to_the_last(file: str, copied: Path) -> None:
    flipped(getattr(earlier_best(copied), file))
    trained = load_trained(copied)
    assert (trained.epoch, trained.best) == (3, None)
    assert trained.notes()[0].startswith("the best weights, epoch-00001, are damaged (")
    assert trained.notes()[0].endswith("; epoch-00003 is used")


def test_a_run_that_kept_no_best_has_its_last_used(copied: Path) -> None:
    shutil.rmtree(RunDirectory(copied).best)
    assert load_trained(copied).which == "weights after epoch 3, the last that are saved"
    assert load_trained(copied).notes() == []


def test_the_card_says_that_the_best_is_optimistic(copied: Path) -> None:
    earlier_best(copied)
    agreement = ExportAgreement(num_images=1, pictures="pictures", same_top1=1, largest_difference=0.0)
    text = card(load_trained(copied), file="a.onnx", format_="onnx", agreement=agreement)
    assert "this file is from epoch 1, which had 75.0 % and was chosen by that" in text
    assert "a little optimistic" in text
