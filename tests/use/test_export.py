"""Exported files answer as the trained network does, on every validation image; what does not is not kept."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from running import silent
from turnaround.data.decode import decode
from turnaround.errors import InputError, MissingPartError, ModelError, StorageError
from turnaround.model.network import build, classifier_of
from turnaround.recipe import ModelRecipe
from turnaround.use import formats
from turnaround.use.export import ExportAgreement, export_run, pictures_to_check, refuse_disagreement
from turnaround.use.formats import FORMATS
from turnaround.use.predictor import Predictor
from turnaround.use.trained import Trained, load_trained
from use_helpers import validation_images


@pytest.fixture(scope="module")
def trained(trained_run: Path) -> Trained:
    return load_trained(trained_run)


@pytest.fixture(scope="module")
def exported(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The run in every format."""
    folder = tmp_path_factory.mktemp("exported")
    paths = {name: folder / f"fruit{format_.ending}" for name, format_ in FORMATS.items()}
    for name, path in paths.items():
        export_run(trained, to=name, out=path, show=silent)
    return paths


@pytest.mark.parametrize("name", FORMATS)
def test_it_agrees_on_every_validation_image(name: str, exported: dict[str, Path], trained: Trained) -> None:
    files, _ = validation_images(trained.run.path)
    squares = [decode(file, size_px=32)[0] for file in files]
    ours = Predictor(trained, device="cpu").logits(squares)
    ask = FORMATS[name].read(trained, exported[name])
    with torch.inference_mode():
        theirs = ask(torch.from_numpy(np.stack(squares)))
        alone = torch.cat([ask(torch.from_numpy(square[None])) for square in squares[:3]])
    assert len(files) == 48
    assert torch.equal(ours.argmax(dim=1), theirs.argmax(dim=1))
    torch.testing.assert_close(theirs, ours, atol=1e-4, rtol=0)
    torch.testing.assert_close(alone, ours[:3], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", FORMATS)
def test_labels_and_preprocessing_are_in_the_file(name: str, exported: dict[str, Path], trained: Trained) -> None:
    told = FORMATS[name].describe(exported[name])
    assert told["classes"] == list(trained.classes)
    assert (told["model"], told["epoch"], told["run"]) == ("small", 3, "fruit")
    assert told["input"]["shape"] == ["N", 32, 32, 3]
    assert told["normalisation"] == {"scale": 255, "mean": list(trained.mean), "std": list(trained.std)}
    assert exported[name].stat().st_mode & 0o777 == 0o644


def test_nothing_but_files_and_cards_is_left(exported: dict[str, Path]) -> None:
    names = {path.name for path in exported.values()}
    assert {path.name for path in exported["onnx"].parent.iterdir()} == names | {f"{name}.md" for name in names}


def test_the_cards_own_examples_run_without_turnaround(
    exported: dict[str, Path], trained: Trained, tmp_path: Path
) -> None:
    Image.open(validation_images(trained.run.path)[0][7]).save(tmp_path / "picture.jpg", quality=95)
    code = "import sys; sys.modules['turnaround'] = None\n"
    for name in ("onnx", "torchscript", "torch-export"):
        shutil.copy(exported[name], tmp_path)
        card = exported[name].with_name(f"{exported[name].name}.md").read_text()
        code += card.partition("```python\n")[2].partition("```")[0]
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    ours = Predictor(trained, device="cpu").classify([tmp_path / "picture.jpg"], top=1)[0][0].name
    assert done.stdout.split() == [ours] * 3


def test_an_existing_file_or_card_is_not_touched(exported: dict[str, Path], trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"fruit.onnx already exists. Replace it with --force, or choose another"):
        export_run(trained, to="onnx", out=exported["onnx"], show=silent)
    (tmp_path / "own.safetensors.md").write_text("mine")
    done = export_run(trained, to="safetensors", out=tmp_path / "own.safetensors", show=silent)
    assert not done.card_is_new
    assert "already existed and was kept" in done.sentence()
    assert (tmp_path / "own.safetensors.md").read_text() == "mine"
    again = export_run(trained, to="safetensors", out=tmp_path / "own.safetensors", show=silent, force=True)
    assert again.card_is_new
    assert (tmp_path / "own.safetensors.md").read_text().startswith("# fruit")
    with pytest.raises(StorageError, match="is a folder"):
        export_run(trained, to="safetensors", out=tmp_path, show=silent, force=True)


def test_refusals(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Unknown --to 'onx'. Did you mean 'onnx'"):
        export_run(trained, to="onx", out=None, show=silent)
    with pytest.raises(StorageError, match="There is no folder"):
        export_run(trained, to="onnx", out=tmp_path / "no" / "a.onnx", show=silent)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(trained: Trained, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="permission denied"):
        export_run(trained, to="safetensors", out=tmp_path / "a.safetensors", show=silent)


class Wrong(nn.Module):
    """A network whose answer depends on how many are asked: tracing fixes it for one number."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.network(images) * (1.0 if len(images) == 2 else 2.0)


def test_a_file_that_answers_otherwise_is_not_kept(trained: Trained, tmp_path: Path) -> None:
    wrong = replace(trained, module=Wrong(trained.module).eval())
    with pytest.raises(ModelError, match=r"The torchscript file does not answer as the trained network does: logits"):
        export_run(wrong, to="torchscript", out=tmp_path / "a.pt", show=silent)
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_an_exporter_cannot_follow(trained: Trained, tmp_path: Path) -> None:
    class Untraceable(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("an operator of yesterday")

    broken = replace(trained, module=Untraceable().eval())
    with pytest.raises(ModelError, match=r"'small' cannot be exported to torchscript \(.*\). Other formats: onnx"):
        export_run(broken, to="torchscript", out=tmp_path / "a.pt", show=silent)
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_are_none_do_not_agree() -> None:
    refuse_disagreement(ExportAgreement(num_images=1, pictures="", same_top1=0, largest_difference=9e-5), "onnx")
    with pytest.raises(ModelError, match="logits differ by up to inf"):
        refuse_disagreement(
            ExportAgreement(num_images=1, pictures="", same_top1=1, largest_difference=float("inf")), "onnx"
        )


def test_without_the_runs_images_pictures_are_drawn(trained: Trained) -> None:
    gone = replace(trained, recipe=trained.recipe.replace("data", source="/nowhere"))
    squares, which = pictures_to_check(gone, silent)
    assert len(squares) == 48
    assert which.startswith("drawn pictures")
    for source, images in (("caltech256", 1800), ("fruitbowl", 9000)):  # no download, no hours of drawing
        far = replace(trained, recipe=trained.recipe.replace("data", source=source, images=images))
        assert pictures_to_check(far, silent)[1].startswith("drawn pictures")


def test_onnx_is_an_optional_part(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "onnxscript" else object())
    with pytest.raises(MissingPartError, match=r"ONNX needs onnxscript. Install with: pip install '.*\[onnx\]'"):
        export_run(trained, to="onnx", out=tmp_path / "a.onnx", show=silent)
    assert list(tmp_path.iterdir()) == []


def test_onnx_has_a_limit(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "MAX_ONNX_BYTES", 1000)
    with pytest.raises(ModelError, match=r"do not fit into one ONNX file. Use --to torch-export"):
        export_run(trained, to="onnx", out=tmp_path / "a.onnx", show=silent)


def test_the_description_is_plain_json(trained: Trained) -> None:
    odd = replace(trained, classes=("caf\udce9", "</script>", *trained.classes[2:]))
    assert json.loads(formats.described(odd))["classes"][:2] == ["caf\udce9", "</script>"]


@pytest.mark.photos
def test_a_network_of_timm_agrees_on_every_validation_photo(trained: Trained, samples: Path, tmp_path: Path) -> None:
    # timm's smallest network with depthwise layers, which are ours; the exporter takes 20 s for a MobileNet.
    model = ModelRecipe(name="test_efficientnet")
    network = build(model, num_classes=6, seed=0)
    assert any(type(layer).__name__ == "DepthwiseConv2d" for layer in network.module.modules())
    nn.init.normal_(classifier_of(network.module).weight, std=0.5)  # answers that differ from photo to photo
    data = replace(trained.recipe.data, source=str(samples / "data" / "fruit"), size_px=96)
    photos = replace(
        trained,
        recipe=replace(trained.recipe, data=data, model=model),
        module=network.module.eval().requires_grad_(False),
        mean=network.mean,
        std=network.std,
    )
    for name in ("onnx", "torchscript"):
        done = export_run(photos, to=name, out=tmp_path / f"photos{FORMATS[name].ending}", show=silent)
        agreed = done.agreement
        assert (agreed.num_images, agreed.same_top1, agreed.pictures) == (192, 192, "validation images")
        assert agreed.largest_difference < 1e-4
