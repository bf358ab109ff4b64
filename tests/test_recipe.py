"""A recipe is valid as a whole, or one RecipeError lists what is wrong, what was received and what is valid."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnaround.errors import RecipeError
from turnaround.optimizers import OPTIMIZERS
from turnaround.recipe import AUTO, PRESETS, SECTIONS, Recipe


def refused(values: dict[str, Any]) -> str:
    with pytest.raises(RecipeError) as caught:
        Recipe.from_dict(values)
    return str(caught.value)


WRONG: list[tuple[dict[str, Any], list[str]]] = [
    ({"trainin": {}}, ["section 'trainin'", "Did you mean 'training'?", "data, model, training, augment, workers"]),
    ({"data": 5}, ["[data] must be a section", "Received: 5"]),
    ({"training": {"epoch": 5}}, ["key in [training] 'epoch'", "Did you mean 'epochs'?", "batch_per_worker"]),
    ({"training": {"epochs": "five"}}, ["training.epochs must be of type int", "'five'"]),
    ({"training": {"epochs": 2.5}}, ["training.epochs must be of type int", "2.5"]),
    ({"training": {"epochs": True}}, ["training.epochs must be of type int", "True"]),
    ({"model": {"fine_tune": 1}}, ["model.fine_tune must be of type bool", "Received: 1"]),
    ({"training": {"compile": "often"}}, ["training.compile", "'often'", "auto, on, off"]),
    ({"training": {"learning_rate": "fast"}}, ["training.learning_rate must be of type float | none", "'fast'"]),
    ({"training": {"seed": None}}, ["training.seed must be of type int", "None"]),
    ({"data": {"source": 7}}, ["data.source must be of type str", "Received: 7"]),
    ({"data": {"source": "  "}}, ["data.source must not be empty", "a folder of images"]),
    ({"model": {"name": ""}}, ["model.name must not be empty", "timm"]),
    ({"training": {"epochs": 0}}, ["training.epochs must be from 1 to 100000", "Received: 0"]),
    ({"training": {"learning_rate": -0.1}}, ["training.learning_rate must be from 0 to 10000", "-0.1"]),
    ({"training": {"learning_rate": float("nan")}}, ["training.learning_rate must be from 0 to", "nan"]),
    ({"training": {"learning_rate": float("inf")}}, ["training.learning_rate must be from 0 to", "inf"]),
    ({"training": {"learning_rate": 10**400}}, ["training.learning_rate", "Received: 1000"]),
    ({"data": {"size_px": 8}}, ["data.size_px must be from 16 to 1024", "Received: 8"]),
    ({"data": {"holdout": 1}}, ["data.holdout must be from 0.01 to 0.9", "Received: 1.0"]),
    ({"augment": {"zoom": 1.5}}, ["augment.zoom must be from 0 to 0.9", "1.5"]),
    ({"augment": {"preset": "storng"}}, ["augment.preset 'storng'", "'strong'", "none, light, strong, auto"]),
    ({"augment": {"preset": None}}, ["augment.preset must be of type str"]),
    ({"augment": {"crop": 1.5}}, ["augment.crop must be from 0 to 1", "1.5"]),
    ({"augment": {"crop": -0.1}}, ["augment.crop must be from 0 to 1", "-0.1"]),
    ({"augment": {"cutout": 2}}, ["augment.cutout must be from 0 to 1", "Received: 2.0"]),
    ({"augment": {"colour": 1}}, ["augment.colour must be from 0 to 0.9", "Received: 1.0"]),
    ({"augment": {"mixup": -1}}, ["augment.mixup must be from 0 to 100", "Received: -1.0"]),
    ({"augment": {"cutmix": 1000}}, ["augment.cutmix must be from 0 to 100", "Received: 1000.0"]),
    ({"augment": {"cutmix": True}}, ["augment.cutmix must be of type float | none", "True"]),
    (
        {"augment": {"mixup": 0.2}, "model": {"fine_tune": False, "weights": "imagenet"}},
        ["augment.mixup = 0.2", "model.fine_tune = false", "Set augment.mixup = 0, or model.fine_tune = true"],
    ),
    (
        {"augment": {"cutmix": 1}, "model": {"fine_tune": False, "weights": "imagenet"}},
        ["augment.cutmix = 1 ", "Set augment.cutmix = 0"],
    ),
    ({"augment": {"flip": "often"}}, ["augment.flip must be of type bool | none", "'often'"]),
    ({"workers": {"count": 0}}, ["workers.count must be from 1", "Received: 0"]),
    ({"training": {"optimizer": "adm"}}, ["training.optimizer 'adm'", "Did you mean 'adam'?", *OPTIMIZERS]),
    ({"training": {"schedule": "linear"}}, ["training.schedule 'linear'", "constant, cosine, one_cycle, step"]),
    ({"training": {"scaling": "square"}}, ["training.scaling 'square'", "none, linear, sqrt, auto"]),
    ({"training": {"loss": "hinge"}}, ["training.loss 'hinge'", "cross_entropy, mse"]),
    ({"training": {"precision": "int8"}}, ["training.precision 'int8'", "auto, fp32, bf16, fp16, fp64"]),
    ({"workers": {"engine": "mpi"}}, ["workers.engine 'mpi'", "Valid: torch"]),
    (
        {"training": {"batch_total": 10}, "workers": {"count": 4}},
        ["training.batch_total = 10", "evenly by 4 workers", "8 or 12", "another number of workers"],
    ),
    ({"training": {"batch_total": 65_537}}, ["more than 65536 images a worker with workers.count = 1", "more workers"]),
    ({"training": {"batch_total": 3}, "workers": {"count": 4}}, ["Use 4, or another number of workers"]),
    (
        {"model": {"name": "small", "fine_tune": False}},
        ["model.fine_tune = false", "model.weights = 'none'", "a file or 'imagenet'"],
    ),
    (
        {"training": {"loss": "mse", "label_smoothing": 0.1}},
        ["label_smoothing", "'cross_entropy' only", "Set it to 0, or change the loss"],
    ),
    (
        {"training": {"epochs": 2, "warmup_epochs": 2.5}},
        ["warmup_epochs = 2.5", "training.epochs = 2", "Lower warmup_epochs"],
    ),
]


@pytest.mark.fault(38, "an impossible recipe: refused before anything starts")
@pytest.mark.parametrize(("values", "words"), WRONG, ids=[words[0][:40] for _, words in WRONG])
def test_a_wrong_value_is_refused_in_words(values: dict[str, Any], words: list[str]) -> None:
    message = refused(values)
    assert [word for word in words if word not in message] == []
    assert "\n" not in message  # one problem, one sentence


@pytest.mark.fault(38, "all its problems are listed at once")
@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"datta": {}, "training": {"epoch": 5, "epochs": "x"}}, ["'datta'", "'epoch'", "'x'"]),
        (
            {"training": {"epochs": 0, "optimizer": "x"}, "augment": {"zoom": 2}},
            ["training.epochs", "optimizer", "zoom"],
        ),
        (
            {"model": {"name": "small", "fine_tune": False}, "training": {"epochs": 1, "warmup_epochs": 2}},
            ["fine_tune", "warmup"],
        ),
    ],
    ids=["names and types", "ranges", "rules across keys"],
)
def test_several_problems_are_listed_at_once(values: dict[str, Any], parts: list[str]) -> None:
    heading, *lines = refused(values).splitlines()
    assert heading == "The recipe has several problems:"
    assert len(lines) == len(parts)
    for line, part in zip(lines, parts, strict=True):
        assert line.startswith("- ")
        assert part in line


def test_a_changed_copy_is_checked_again() -> None:
    with pytest.raises(RecipeError, match=r"training\.epochs must be from 1"):
        Recipe().replace("training", epochs=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe().training.epochs = 3  # type: ignore[misc]


def test_every_key_has_a_meaning_and_a_valid_default() -> None:
    fields = [field for section in SECTIONS.values() for field in dataclasses.fields(section)]
    assert all(field.metadata["doc"] for field in fields)
    assert Recipe.from_dict({}) == Recipe()


def test_whole_numbers_and_floats_make_the_same_recipe() -> None:
    one = Recipe.from_dict({"training": {"learning_rate": 1, "warmup_epochs": 0}})
    other = Recipe.from_dict({"training": {"learning_rate": 1.0, "warmup_epochs": 0.0}})
    assert one == other
    assert isinstance(one.training.learning_rate, float)


def test_plain_values_and_back() -> None:
    recipe = Recipe.from_dict(
        {"name": "mine", "data": {"source": "/x", "size_px": 48}, "augment": {"flip": True}, "workers": {"count": 3}}
    )
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    recorded = {"format": 1, **recipe.to_dict(), "images": {"fingerprint": "abc"}, "command": ["turnaround"]}
    assert Recipe.from_record(recorded) == recipe
    with pytest.raises(RecipeError, match="section 'images'"):
        Recipe.from_dict(recorded | {"format": {}})


@pytest.mark.parametrize(
    ("name", "size_px", "expected"), [("small", None, 64), ("resnet50", None, 224), ("small", 96, 96)]
)
def test_resolving_chooses_the_size(name: str, size_px: int | None, expected: int) -> None:
    recipe = Recipe.from_dict({"model": {"name": name}, "data": {"size_px": size_px}})
    assert recipe.resolved().size_px == expected


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_resolving_chooses_the_learning_rate(optimizer: str) -> None:
    def rate(**model: object) -> float | None:
        values = {"model": model, "training": {"optimizer": optimizer}}
        return Recipe.from_dict(values).resolved().training.learning_rate

    chosen = rate(), rate(weights="imagenet", fine_tune=False), rate(weights="imagenet", fine_tune=True)
    assert chosen == OPTIMIZERS[optimizer].learning_rates
    given_rate = Recipe.from_dict({"training": {"learning_rate": 0.3}}).resolved().training.learning_rate
    assert given_rate == 0.3


def test_resolving_shares_the_total_batch() -> None:
    recipe = Recipe.from_dict({"training": {"batch_total": 96}, "workers": {"count": 4}})
    assert (recipe.global_batch, recipe.resolved().training.batch_per_worker) == (96, 24)
    assert recipe.resolved().global_batch == 96
    plain = Recipe.from_dict({"training": {"batch_per_worker": 8}, "workers": {"count": 3}})
    assert plain.resolved().global_batch == 24
    assert recipe.resolved().resolved() == recipe.resolved()


def augmented(**augment: object) -> dict[str, object]:
    """What is on in a resolved recipe."""
    resolved = Recipe.from_dict({"augment": augment}).resolved()
    assert resolved.resolved() == resolved
    assert None not in vars(resolved.augment).values()
    return {key: value for key, value in vars(resolved.augment).items() if value}


def test_a_preset_gives_the_keys_that_are_not_given() -> None:
    assert augmented(preset="light") == {"preset": "light", **PRESETS["light"]}
    assert augmented(preset="strong") == {"preset": "strong", **PRESETS["strong"]}
    mine = augmented(preset="light", flip=False, shift=0, cutout=0.5, rotation_degrees=10)
    assert mine == {"preset": "light", "cutout": 0.5, "rotation_degrees": 10.0, "whole_pixels": True}


def test_a_preset_does_not_mix_the_images_of_a_frozen_backbone() -> None:
    frozen = {"model": {"fine_tune": False, "weights": "imagenet"}, "augment": {"preset": "strong", "mixup": 0}}
    augment = Recipe.from_dict(frozen).resolved().augment
    assert (augment.preset, augment.mixup, augment.cutmix, augment.flip) == ("strong", 0, 0, True)
    assert Recipe.from_dict({"augment": {"preset": "strong"}}).resolved().augment.cutmix == PRESETS["strong"]["cutmix"]


def test_a_preset_that_nobody_decides_is_none() -> None:
    assert augmented() == augmented(preset="auto") == augmented(preset="none") == {"preset": "none"}
    assert augmented(flip=True, zoom=0.1) == {"preset": "none", "flip": True, "zoom": 0.1}


def test_a_run_from_before_presets_has_none() -> None:
    """And what it did not know is off, whatever the presets of another day say."""
    recorded = Recipe().resolved().to_dict()
    recorded["augment"] = {"flip": True, "shift": 0.1}
    recipe = Recipe.from_record(recorded)
    assert recipe.augment.preset == "none"
    assert (
        recipe.augment.filled()
        == Recipe.from_dict({"augment": {"preset": "none", **recorded["augment"]}}).augment.filled()
    )
    assert Recipe.from_record({"name": "old"}).augment.preset == "none"


@pytest.mark.parametrize("preset", PRESETS)
def test_the_values_of_a_preset_are_allowed(preset: str) -> None:
    given = {"preset": preset, **PRESETS[preset]}
    assert (
        Recipe.from_dict({"augment": given}).resolved() == Recipe.from_dict({"augment": {"preset": preset}}).resolved()
    )


def test_the_size_of_an_unresolved_recipe_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="resolve"):
        _ = Recipe().size_px


KEYS = [(section, field.name) for section, kind in SECTIONS.items() for field in dataclasses.fields(kind)]
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-10, 400), st.floats(), st.text(max_size=12), st.just(10**400)
)
PLAIN = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner), max_leaves=4
)
NEARLY_RIGHT = st.dictionaries(st.sampled_from(KEYS), SCALARS, max_size=6).map(
    lambda flat: {s: {name: value for (of, name), value in flat.items() if of == s} for s, _ in flat}
)
ANYTHING = st.dictionaries(st.sampled_from([*SECTIONS, "name"]) | st.text(max_size=5), PLAIN, max_size=4)


@settings(max_examples=300, deadline=None)
@given(NEARLY_RIGHT | ANYTHING)
def test_whatever_values_come_in_a_recipe_or_a_recipe_error_comes_out(values: dict[str, Any]) -> None:
    try:
        recipe = Recipe.from_dict(values)
    except RecipeError:
        pass
    else:
        assert Recipe.from_dict(recipe.to_dict()) == recipe
        # Whether a frozen network that is still to be chosen has weights is known later (launch/automatic.py).
        if recipe.model.fine_tune is not False or recipe.model.name != AUTO:
            assert recipe.resolved().global_batch % recipe.workers.count == 0
