"""From what a user types to a checked recipe: built-in names, files, folders, and --set."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnaround import recipes
from turnaround.errors import RecipeError
from turnaround.recipe import SECTIONS, Recipe

KEYS = [f"{section}.{field.name}" for section, kind in SECTIONS.items() for field in dataclasses.fields(kind)]


def refused(source: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        recipes.find(source, list(overrides))
    return str(caught.value)


def write(folder: Path, text: str, name: str = "mine.toml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


# --- built-in recipes


def test_the_built_in_recipes() -> None:
    small_images, lab = ("cifar10", "cifar10-long", "cifar10-quick"), ("lab10-caltech256", "lab10-fruit")
    assert recipes.names() == ("caltech256", *small_images, "fruit", "fruitbowl", *lab)


@pytest.mark.parametrize("name", recipes.names())
def test_a_built_in_recipe_loads_and_is_headed_by_its_command(name: str) -> None:
    recipe = recipes.find(name)
    assert recipe.name == name
    assert recipe.resolved().training.learning_rate
    heading = recipes.text(name).split("\n\n", 1)[0]
    assert all(line.startswith("#") for line in heading.splitlines())
    assert f"turnaround train {name}" in heading
    assert recipes.headline(name).endswith(".")
    assert "HEADER_FIGURES" not in heading  # a placeholder


@pytest.mark.parametrize("name", recipes.names())
def test_no_preset_changes_a_built_in_recipe(name: str) -> None:
    assert recipes.find(name).augment.preset == "none"


def test_an_unknown_recipe_is_answered_with_the_names() -> None:
    with pytest.raises(RecipeError, match=r"Unknown recipe 'fruitbowel'\. Did you mean 'fruitbowl'\?.*lab10-fruit"):
        recipes.text("fruitbowel")


LAB = {  # the table in the lab report: 32 images a GPU, no schedule, learning rate x GPUs
    "lab10-fruit": {
        "training": {"epochs": 10, "batch_per_worker": 32, "batch_total": None, "optimizer": "adam"},
        "rate": 0.1,
        "fine_tune": True,
        "augment": {"rotation_degrees": 0.0, "zoom": 0.01, "shift": 0.01, "flip": False, "brightness": 0.0},
    },
    "lab10-caltech256": {
        "training": {"epochs": 30, "batch_per_worker": 32, "batch_total": None},
        "rate": 1.0,
        "fine_tune": False,
        "augment": {"rotation_degrees": 5.0, "zoom": 0.2, "shift": 0.2, "flip": True, "brightness": 0.0},
    },
}


@pytest.mark.parametrize("name", LAB)
def test_the_lab_recipes_hold_the_labs_settings(name: str) -> None:
    lab: Any = LAB[name]
    recipe = recipes.find(name, ["workers.count=8"])
    training = dataclasses.asdict(recipe.training)
    assert {key: training[key] for key in lab["training"]} == lab["training"]
    assert (training["learning_rate"], training["scaling"]) == (lab["rate"], "linear")
    assert (training["schedule"], training["warmup_epochs"], training["weight_decay"]) == ("constant", 0.0, 0.0)
    assert (training["loss"], training["label_smoothing"]) == ("cross_entropy", None)
    assert recipe.model.fine_tune is lab["fine_tune"]
    assert recipe.model.weights == "imagenet"
    used = {key: value for key, value in vars(recipe.resolved().augment).items() if value or key in lab["augment"]}
    assert used == {"preset": "none", **lab["augment"]}
    assert recipe.data.source == name.removeprefix("lab10-")
    assert recipe.global_batch == 8 * 32
    if name == "lab10-caltech256":
        assert recipe.data.holdout == 0.2


# --- what SOURCE may be


def test_a_folder_is_a_recipe_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    recipe = recipes.find("photos")
    assert (recipe.name, recipe.data.source) == ("photos", str(tmp_path / "photos"))
    assert recipe == recipes.find(str(tmp_path / "photos") + os.sep)
    assert recipes.find("/").name == "folder"


def test_a_slash_makes_a_built_in_name_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fruit").mkdir()
    monkeypatch.chdir(tmp_path)
    assert recipes.find("fruit").data.source == "fruit"
    assert recipes.find("./fruit").data.source == str(tmp_path / "fruit")


@pytest.mark.parametrize("source", ["nosuch", "", "x" * 300, "~no-such-user/photos"])
def test_something_that_is_not_there(source: str) -> None:
    message = refused(source)
    assert repr(source) in message
    if not source.startswith("~"):
        for word in ("neither a folder of images", "recipe file (.toml)", *recipes.names()):
            assert word in message


def test_of_a_path_it_is_said_how_far_it_leads(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    source = str(tmp_path / "photos" / "cats" / "tabby")
    assert refused(source) == (
        f"There is no folder {source!r}: {str(tmp_path / 'photos')!r} is there, but nothing of that name in it. Check "
        "the path."
    )
    (tmp_path / "photos" / "cat.jpg").touch()
    assert f"Give the folder that holds the class folders: {str(tmp_path)!r}?" in refused(
        str(tmp_path / "photos" / "cat.jpg")
    )


def test_a_near_name_is_suggested() -> None:
    assert "Did you mean 'fruitbowl'?" in refused("fruitbow")


# --- recipe files


def test_paths_in_a_file_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    file = write(tmp_path, '[data]\nsource = "photos"\ncache = "kept"\n[model]\nweights = "w/mine.safetensors"\n')
    recipe = recipes.find(file)
    assert recipe.name == "mine"
    assert recipe.data.source == str(tmp_path / "photos")
    assert recipe.data.cache == str(tmp_path / "kept")
    assert recipe.model.weights == str(tmp_path / "w" / "mine.safetensors")
    assert recipes.find("../mine.toml") == recipe
    flagged = recipes.find(file, ["data.source=photos", "data.cache=off", "model.weights=/abs/w.pt"])
    assert flagged.data.source == str(tmp_path / "elsewhere" / "photos")
    assert (flagged.data.cache, flagged.model.weights) == ("off", "/abs/w.pt")


KNOWN = ("fruitbowl", "caltech256", "cifar10", "fruit")


@pytest.mark.parametrize("known", KNOWN)
def test_known_words_are_not_paths(known: str, tmp_path: Path) -> None:
    file = write(tmp_path, f'[data]\nsource = "{known}"\ncache = "off"\n[model]\nweights = "imagenet"\n')
    recipe = recipes.find(file)
    assert (recipe.data.source, recipe.data.cache, recipe.model.weights) == (known, "off", "imagenet")


def test_a_folder_called_cifar10_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipe files named it before there was a set of that name; the recipe trains on it, too."""
    monkeypatch.chdir(tmp_path)
    assert recipes.find("cifar10-quick").data.source == "cifar10"
    (tmp_path / "cifar10").mkdir()
    file = write(tmp_path, '[data]\nsource = "cifar10"\n')
    assert recipes.find(file).data.source == str(tmp_path / "cifar10")
    assert recipes.find("cifar10-quick").data.source == str(tmp_path / "cifar10")


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert recipes.find("fruitbowl", ["data.source=~/photos"]).data.source == str(tmp_path / "photos")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[training\nepochs = 5", ["not valid TOML", "line 1"]),
        ("a = " + "[" * 100_000, ["nested too deeply"]),
        ("[training]\nepochs = five", ["not valid TOML", "line 2"]),
        ("epochs = 5", ["section 'epochs'", "training"]),
        ("[training]\nepoch = 5", ["Did you mean 'epochs'?"]),
        ("training = 5", ["[training] must be a section"]),
        ("[training]\nepochs = [1]", ["training.epochs must be of type int", "[1]"]),
        (f"[training]\nlearning_rate = 1{'0' * 400}", ["training.learning_rate"]),
        ('[data]\nsource = "~no-such-user/x"', ["'~no-such-user/x'"]),
    ],
)
def test_a_wrong_file(text: str, words: list[str], tmp_path: Path) -> None:
    message = refused(write(tmp_path, text))
    assert [word for word in words if word not in message] == []


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert "There is no recipe file" in refused(str(tmp_path / "x.toml"))
    assert "`turnaround recipes copy NAME` makes one" in refused("x.toml")
    (tmp_path / "folder.toml").mkdir()
    assert "cannot be read: Is a directory" in refused(str(tmp_path / "folder.toml"))
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    assert "not valid TOML" in refused(str(tmp_path / "latin.toml"))


# --- --set


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.epochs=5", 5),
        (" training.epochs = 5 ", 5),
        ("training.learning_rate=1e-3", 0.001),
        ("training.learning_rate=1", 1.0),
        ("training.learning_rate=none", None),
        ("training.learning_rate=Auto", None),
        ("training.learning_rate=", None),
        ("data.size_px=none", None),
        ("data.size_px=48", 48),
        ("model.fine_tune=true", True),
        ("model.fine_tune=YES", True),
        ("augment.flip=off", False),
        ("augment.flip=No", False),
        ("model.name=007", "007"),
        ("data.cache=off", "off"),
        ("training.optimizer=sgd", "sgd"),
    ],
)
def test_a_value_gets_the_type_of_its_key(override: str, expected: object) -> None:
    section, _, name = override.partition("=")[0].strip().partition(".")
    value = getattr(getattr(recipes.find("fruitbowl", [override]), section), name)
    assert value == expected
    assert type(value) is type(expected)


def test_the_last_of_two_counts_and_a_value_may_hold_an_equals_sign() -> None:
    recipe = recipes.find("fruitbowl", ["training.epochs=5", "training.epochs=6", "data.source=/a=b"])
    assert (recipe.training.epochs, recipe.data.source) == (6, "/a=b")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.epochs", ["section.key=value", "for example training.epochs=5", "'training.epochs'"]),
        ("epochs=5", ["section.key=value", "'epochs=5'"]),
        ("=", ["section.key=value"]),
        ("trainin.epochs=5", ["section 'trainin'", "Did you mean 'training'?", "augment"]),
        ("training.epoch=5", ["key in [training] 'epoch'", "Did you mean 'epochs'?", "optimizer"]),
        ("training.epochs=five", ["training.epochs must be of type int", "'five'"]),
        ("training.epochs=2.5", ["training.epochs must be of type int", "'2.5'"]),
        ("workers.count=", ["workers.count must be of type int", "''"]),
        ("model.fine_tune=maybe", ["model.fine_tune must be of type bool", "'maybe'"]),
        ("training.learning_rate=nan", ["training.learning_rate must be from", "nan"]),
        ("training.optimizer=adm", ["Did you mean 'adam'?", "lars"]),
        ("data.source=", ["data.source must not be empty"]),
        ("data.cache=~no-such-user/x", ["~no-such-user/x"]),
        ("model.weights=~no-such-user/x", ["~no-such-user/x"]),
    ],
)
def test_a_wrong_override(override: str, words: list[str]) -> None:
    message = refused("fruitbowl", override)
    assert [word for word in words if word not in message] == []


SET_TEXT = st.one_of(
    st.text(max_size=30),
    st.builds("{}={}".format, st.sampled_from(KEYS), st.text(max_size=15)),
    st.builds("{}={}".format, st.sampled_from(KEYS), st.floats() | st.integers() | st.booleans() | st.none()),
    st.builds("{}=~{}".format, st.sampled_from(KEYS), st.text(max_size=5)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(SET_TEXT, max_size=3))
def test_whatever_is_set_a_recipe_or_a_recipe_error_comes_out(overrides: list[str]) -> None:
    try:
        recipe = recipes.find("fruitbowl", overrides)
    except RecipeError:
        pass
    else:
        assert Path(recipe.data.source).is_absolute() or recipe.data.source in KNOWN


# --- a recipe as text


@pytest.mark.parametrize("name", recipes.names())
@pytest.mark.parametrize("resolves", [False, True])
def test_a_recipe_as_toml_is_the_same_recipe(name: str, resolves: bool, tmp_path: Path) -> None:
    recipe = recipes.find(name, ["training.learning_rate=1e-05", 'data.cache=/tmp/a "quoted" \'é\\path'])
    recipe = recipe.resolved() if resolves else recipe
    assert recipes.find(write(tmp_path, recipes.as_toml(recipe), f"{name}.toml")) == recipe


def test_a_copied_recipe_is_the_same_recipe(tmp_path: Path) -> None:
    for name in recipes.names():
        assert recipes.find(write(tmp_path, recipes.text(name), f"{name}.toml")) == recipes.find(name)


def test_every_key_is_documented() -> None:
    text = recipes.keys_text()
    values = tomllib.loads("\n".join(line for line in text.splitlines() if " = none " not in line))
    assert Recipe.from_dict(values) == Recipe()  # the defaults, as they stand there
    for key in KEYS:
        assert f"\n{key.partition('.')[2]} = " in text
    assert "adadelta" in text


def test_settings_from_python_are_written_as_set_takes_them() -> None:
    settings = {"a.b": True, "a.c": None, "a.d": 3, "a.e": 0.5, "a.f": "adam"}
    assert recipes.overrides_of(settings) == ["a.b=true", "a.c=none", "a.d=3", "a.e=0.5", "a.f=adam"]
