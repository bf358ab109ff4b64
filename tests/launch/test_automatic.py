"""What is chosen for a recipe that leaves it to us: by the images and by the weights that are at hand."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from turnaround import recipes
from turnaround.errors import RecipeError
from turnaround.launch import automatic
from turnaround.launch.automatic import (
    LARGE_BATCH_FROM,
    MANY_IMAGES,
    AutomaticChoice,
    decide,
    downloaded_networks,
    rate_warning,
    scale_warning,
)
from turnaround.recipe import AugmentRecipe


def folder(place: Path, *, images: int, side_px: int) -> Path:
    """Two classes and a validation part; all files are one file, linked: only names and headers are read."""
    place.mkdir()
    picture = place.parent / f"{side_px}.png"
    Image.new("RGB", (side_px + 9, side_px), "teal").save(picture)
    for part, count in {"train": images, "val": 2}.items():
        for name in ("a", "b"):
            (place / part / name).mkdir(parents=True)
        for i in range(count):
            os.link(picture, place / part / ("a" if i % 2 else "b") / f"{i}.png")
    return place


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of downloaded weights."""
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """These choices are those of a machine with a GPU, whatever machine this is."""
    monkeypatch.setattr(automatic, "describe_gpus", lambda: [{"index": 0}])


def download(hub: Path, name: str, file: str = "model.safetensors") -> None:
    snapshot = hub / f"models--timm--{name}" / "snapshots" / "0a1b"
    snapshot.mkdir(parents=True)
    (snapshot / file).touch()


def chosen(source: Path | str, *overrides: str, cache: Path = Path("nowhere"), device: str = "auto") -> AutomaticChoice:
    return decide(recipes.find(str(source), list(overrides)), cache=cache, device=device)


def test_many_small_images_get_the_network_for_them(tmp_path: Path) -> None:
    place = folder(tmp_path / "set", images=LARGE_BATCH_FROM, side_px=32)
    found = chosen(place)
    recipe = found.recipe.resolved()
    assert (recipe.model.name, recipe.model.weights, recipe.size_px) == ("resnet11", "none", 32)
    assert (recipe.training.optimizer, recipe.training.batch_per_worker) == ("muon", 512)
    assert recipe.training.learning_rate == pytest.approx(2e-3 * 4)  # the square root of 512 / 32
    assert (recipe.training.epochs, recipe.training.ema, recipe.augment.preset) == (30, 0.995, "strong")
    assert "20,000 training images of about 32 px" in found.reasons["model.name"]
    assert found.hint is None
    assert any(note.startswith("model.name = resnet11 was chosen: ") for note in found.notes())


@pytest.mark.parametrize(("name", "overrides"), [("cifar10", ()), ("cifar10-long", ("training.epochs=150",))])
def test_the_recipes_for_cifar10_say_what_is_chosen_for_it(
    name: str, overrides: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = automatic.ImageFacts(num_train=50_000, side_px=32)
    monkeypatch.setattr(automatic, "_image_facts", lambda recipe, *, cache: facts)
    ours, recipe = recipes.find(name).resolved(), chosen(tmp_path, *overrides).recipe.resolved()
    assert (ours.model, ours.training, ours.size_px) == (recipe.model, recipe.training, 32)
    assert vars(ours.augment) == {**vars(recipe.augment), "preset": "none"}


def test_what_a_recipe_says_stays(tmp_path: Path) -> None:
    place = folder(tmp_path / "set", images=MANY_IMAGES, side_px=60)
    found = chosen(place, "training.optimizer=sgd", "training.batch_per_worker=16", "training.label_smoothing=0")
    assert (found.recipe.model.name, found.recipe.data.size_px) == ("resnet11", 64)
    assert (found.recipe.training.optimizer, found.recipe.training.batch_per_worker) == ("sgd", 16)
    assert found.recipe.training.label_smoothing == 0
    assert set(found.reasons) == {"model.name", "data.size_px", "training.epochs", "training.ema", "augment.preset"}
    short = chosen(place, "training.epochs=5").recipe.resolved()
    assert (short.training.epochs, short.training.ema, short.augment.preset) == (5, 0, "light")
    named = chosen(place, "model.name=small")
    assert (named.recipe.model.name, set(named.reasons)) == ("small", {"augment.preset"})
    slow = chosen(place, device="cpu")
    assert slow.recipe.model.name == "small"
    assert "would take hours without a GPU" in slow.reasons["model.name"]


@pytest.mark.parametrize(
    ("overrides", "device", "preset", "reason"),
    [
        ((), "auto", "light", "10 epochs from scratch; strong is taken from 20 on"),
        (("training.epochs=30",), "auto", "strong", "better than light (30 epochs of CIFAR-10)"),
        (("training.epochs=30",), "cpu", "light", "hours without a GPU"),
        (("model.weights=w.safetensors", "training.epochs=30"), "auto", "light", "goes on from trained weights"),
        (("model.weights=w.safetensors", "model.fine_tune=false"), "auto", "none", "computed once and kept"),
    ],
)
def test_the_preset_of_a_network_that_was_named(
    overrides: tuple[str, ...], device: str, preset: str, reason: str, tmp_path: Path
) -> None:
    place = folder(tmp_path / "set", images=MANY_IMAGES, side_px=60)
    for asked in ((), ("augment.preset=auto",)):
        found = chosen(place, "model.name=resnet18", *asked, *overrides, device=device)
        assert found.recipe.resolved().augment.preset == preset
        assert set(found.reasons) == {"augment.preset"}
        assert reason in found.reasons["augment.preset"]
        notes = replace(found, recipe=found.recipe.resolved()).notes()
        assert any(note.startswith(f"augment.preset = {preset} was chosen: ") for note in notes)
    given = chosen(place, "model.name=resnet18", "augment.preset=none", *overrides, device=device)
    assert (given.recipe.resolved().augment.preset, given.reasons) == ("none", {})


def test_strong_is_for_what_it_was_tried_on(tmp_path: Path) -> None:
    long = ("model.name=resnet18", "training.epochs=30")
    for name, images, side_px in (("few", 40, 60), ("photos", MANY_IMAGES, 200)):
        found = chosen(folder(tmp_path / name, images=images, side_px=side_px), *long)
        assert found.recipe.augment.preset == "light"
        assert f"{images:,} training images of about {side_px} px: strong was tried" in found.reasons["augment.preset"]
    scratch = ("model.weights=none", "model.fine_tune=true", "augment.preset=auto")
    assert chosen("caltech256", *long, *scratch, cache=tmp_path).reasons == {
        "augment.preset": "the images are not here yet"
    }
    drawn = chosen("fruitbowl", *long, "augment.preset=auto")  # it has a size of its own
    assert (drawn.recipe.resolved().augment.preset, drawn.reasons) == ("none", {})


def test_a_recipe_file_that_names_a_network_varies_what_it_says(tmp_path: Path) -> None:
    """As it did before a preset was chosen for a named network."""
    place = folder(tmp_path / "set", images=40, side_px=60)
    file = tmp_path / "mine.toml"
    file.write_text('[data]\nsource = "set"\n[model]\nname = "small"\n[augment]\nflip = true\n')
    assert chosen(file).recipe.resolved().augment == AugmentRecipe(preset="none", flip=True).filled()
    assert chosen(file).reasons == {}
    assert chosen(file, "augment.preset=auto").recipe.augment.preset == "light"
    assert chosen(place, "model.name=small").recipe.augment.preset == "light"


def test_few_images_without_trained_weights_get_the_small_network_and_a_hint(tmp_path: Path) -> None:
    found = chosen(folder(tmp_path / "set", images=40, side_px=200))
    recipe = found.recipe.resolved()
    assert (recipe.model.name, recipe.size_px, recipe.training.optimizer) == ("small", 64, "adamw")
    assert recipe.training.batch_per_worker == 32
    assert found.hint is not None
    assert "--pretrained" in found.hint
    assert "92 % instead of 80 %" in found.hint


@pytest.mark.parametrize(("images", "epochs"), [(40, 60), (1_000, 40), (3_999, 11), (4_000, 10), (40_000, 10)])
def test_few_images_from_scratch_are_seen_more_often(
    images: int, epochs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = automatic.ImageFacts(num_train=images, side_px=200)
    monkeypatch.setattr(automatic, "_image_facts", lambda recipe, *, cache: facts)
    found = chosen(tmp_path, device="cpu")
    assert (found.recipe.model.name, found.recipe.resolved().training.epochs) == ("small", epochs)
    assert ("training.epochs" in found.reasons) is (epochs > 10)
    asked = chosen(tmp_path, "training.epochs=3", device="cpu")
    assert (asked.recipe.training.epochs, "training.epochs" in asked.reasons) == (3, False)


def test_many_photos_without_trained_weights(tmp_path: Path) -> None:
    found = chosen(folder(tmp_path / "set", images=MANY_IMAGES, side_px=200))
    assert (found.recipe.model.name, found.recipe.data.size_px) == ("resnet18", 128)


def test_without_a_gpu_only_the_last_layer_of_a_trained_network_learns(tmp_path: Path, hub: Path) -> None:
    download(hub, "mobilenetv2_100.ra_in1k")
    place = folder(tmp_path / "set", images=1000, side_px=200)
    found = chosen(place, device="cpu")
    assert (found.recipe.model.fine_tune, found.recipe.augment.preset) == (False, "none")
    assert "some 40 times as long" in found.reasons["model.fine_tune"]
    assert "--set model.fine_tune=true" in found.reasons["model.fine_tune"]
    assert chosen(place, "model.weights=mobilenetv2_100.safetensors", device="cpu").recipe.model.fine_tune is False
    asked = chosen(place, "model.fine_tune=true", device="cpu")
    assert (asked.recipe.model.fine_tune, "model.fine_tune" in asked.reasons) == (True, False)
    assert chosen(place, "augment.mixup=0.2", device="cpu").recipe.model.fine_tune is True  # it takes no mixed images
    assert chosen(place, device="mps").recipe.model.fine_tune is True


@pytest.mark.parametrize(("images", "fine_tunes"), [(40, False), (1000, True)])
def test_photos_get_weights_that_were_downloaded_before(
    tmp_path: Path, hub: Path, images: int, fine_tunes: bool
) -> None:
    download(hub, "resnet50.a1_in1k")
    download(hub, "mobilenetv2_100.ra_in1k", "pytorch_model.bin")
    (hub / "models--timm--mobilenetv3_large_100.ra_in1k").mkdir()  # a download that was interrupted
    download(hub, "vit_small_patch16_224.dino")  # not of ImageNet's classes
    assert downloaded_networks() == ["mobilenetv2_100.ra_in1k", "resnet50.a1_in1k"]
    found = chosen(folder(tmp_path / "set", images=images, side_px=200))
    recipe = found.recipe.resolved()
    assert (recipe.model.name, recipe.model.weights) == ("mobilenetv2_100.ra_in1k", "imagenet")
    assert (recipe.model.fine_tune, recipe.size_px) == (fine_tunes, 224)
    assert "downloaded before" in found.reasons["model.name"]
    assert chosen(tmp_path / "set", "model.weights=none").recipe.model.name == "small"
    mixed = chosen(tmp_path / "set", "augment.mixup=0.2")
    assert mixed.recipe.model.fine_tune is True
    assert mixed.reasons["model.fine_tune"] == "a frozen backbone takes no mixed images"


@pytest.mark.parametrize(
    "file", ["mobilenetv2_100.safetensors", "hub/models--timm--mobilenetv2_100.ra_in1k/snapshots/0/model.safetensors"]
)
def test_a_weights_file_names_its_network(tmp_path: Path, file: str) -> None:
    place = folder(tmp_path / "set", images=40, side_px=64)
    assert chosen(place, f"model.weights={file}").recipe.model.name == "mobilenetv2_100"


def test_generated_images_and_images_to_be_fetched_get_the_small_network(tmp_path: Path) -> None:
    assert chosen("fruitbowl", "model.name=auto").recipe.model.name == "small"
    later = ("model.name=auto", "model.weights=auto", "model.fine_tune=true")
    assert chosen("caltech256", *later, cache=tmp_path).recipe.model.name == "small"


def test_a_frozen_network_needs_weights(tmp_path: Path) -> None:
    place = folder(tmp_path / "set", images=40, side_px=64)
    with pytest.raises(RecipeError, match="fine_tune = false"):
        chosen(place, "model.fine_tune=false").recipe.resolved()


def test_more_images_a_step_than_the_optimizer_is_known_to_stand_warn() -> None:
    def warning(*overrides: str) -> str | None:
        return scale_warning(recipes.find("fruitbowl", list(overrides)).resolved())

    assert warning("workers.count=4") is None
    assert warning("workers.count=64") == (
        "sgd from scratch is not known to keep its accuracy with 2,048 images a step (known: up to 128). "
        "--set training.optimizer=muon is."
    )
    muon = ("workers.count=64", "training.batch_per_worker=128", "training.optimizer=muon")
    assert warning(*muon) is None
    assert warning(*muon, "augment.cutmix=1") == (
        "muon from scratch is not known to keep its accuracy with 8,192 images a step (known of mixed images: up to "
        "2,048). --set training.optimizer=muon is, without mixed images (--set augment.preset=light)."
    )
    assert "None of those offered is." in str(warning(*muon, "workers.count=512"))


def test_images_of_a_step_count_and_not_the_workers() -> None:
    def warns(count: int, each: int, *overrides: str, optimizer: str) -> bool:
        values = (f"workers.count={count}", f"training.batch_per_worker={each}", f"training.optimizer={optimizer}")
        return scale_warning(recipes.find("fruitbowl", [*values, *overrides]).resolved()) is not None

    assert warns(4, 2_048, optimizer="sgd")
    assert warns(1, 2_048, optimizer="sgd")
    assert not warns(64, 2, optimizer="adamw")
    assert not warns(64, 32, "training.batch_total=128", optimizer="sgd")
    assert warns(64, 32, "training.batch_total=8192", optimizer="sgd")
    assert not warns(64, 2_048, "model.weights=imagenet", "model.name=resnet18", optimizer="sgd")


def test_a_rate_of_interruptions_that_nothing_follows_is_said() -> None:
    def warning(*overrides: str) -> str | None:
        recipe = recipes.find("fruitbowl", list(overrides)).resolved()
        assert rate_warning(recipe) in (*AutomaticChoice(recipe=recipe).notes(), None)
        return rate_warning(recipe)

    assert warning() is None
    assert warning("training.interruptions_per_h=30", "training.checkpoint_every_s=auto") is None
    message = str(warning("training.interruptions_per_h=30"))
    assert message.startswith("training.interruptions_per_h=30 has no effect: checkpoints are saved every 60 s, as ")
    assert message.endswith("add --set training.checkpoint_every_s=auto.")
    assert "after each epoch" in str(warning("training.interruptions_per_h=30", "training.checkpoint_every_s=0"))
