"""Flags that are short for keys of the recipe, and the lists of names that they take."""

from __future__ import annotations

import json
import tomllib

import pytest

from console import Console

Capture = pytest.CaptureFixture[str]


def test_flags_that_everybody_types(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    console = Console(monkeypatch, capsys)
    flags = ("--epochs", "3", "--batch", "7", "--lr", "0.25", "--model", "resnet18", "--from-scratch", "--size", "48")
    done = console("train", "fruitbowl", "--dry-run", *flags)
    assert done.code == 0, done.err
    recipe = tomllib.loads(done.out.split("# would decode")[0])
    assert recipe["data"]["size_px"] == 48
    assert (recipe["model"]["name"], recipe["model"]["weights"]) == ("resnet18", "none")
    training = recipe["training"]
    assert (training["epochs"], training["batch_per_worker"], training["learning_rate"]) == (3, 7, 0.25)
    pretrained = console("train", "fruitbowl", "--dry-run", "--model", "resnet18", "--pretrained")
    assert tomllib.loads(pretrained.out.split("# would decode")[0])["model"]["weights"] == "imagenet"
    tried = console("train", "fruitbowl", "--dry-run", "--batch", "auto")  # the largest that pays; nothing is tried
    assert tomllib.loads(tried.out.split("# would decode")[0])["training"]["batch_per_worker"] == 32
    for verb in ("train", "study", "bench", "estimate"):
        both = console(verb, "fruitbowl", "--pretrained", "--model", "resnet18", "--from-scratch")
        assert (both.code, both.out) == (2, "")
        assert "--pretrained and --from-scratch contradict each other: leave one of the two out." in both.err
    twice = console("train", "fruitbowl", "--dry-run", "--from-scratch", "--from-scratch")
    assert twice.code == 0, twice.err
    unclear = console("train", "fruitbowl", "--dry-run", "--batch", "many")
    assert (unclear.code, "Valid: auto, a number" in unclear.err) == (2, True)
    refused = console("train", "fruitbowl", "--dry-run", "--epochs", "0")
    assert (refused.code, "training.epochs must be from 1" in refused.err) == (2, True)


def test_the_names_of_networks(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    pytest.importorskip("timm")
    console = Console(monkeypatch, capsys)
    found = console("models", "efficientnet_lite")
    assert (found.code, "tf_efficientnet_lite0" in found.out.split()) == (0, True)
    assert all("efficientnet_lite" in line for line in found.out.splitlines())
    everything = console("models")
    assert everything.out.startswith("small  ")
    assert "more: turnaround models WORD" in everything.out
    assert "resnet50" in json.loads(console("models", "resnet", "--json").out)["models"]
    refused = console("models", "resnett50")
    assert (refused.code, "No network has 'resnett50' in its name. Near it: resnet" in refused.err) == (2, True)


def test_recipes_are_listed_by_either_name(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    console = Console(monkeypatch, capsys)
    assert console("recipes", "list").out == console("recipes").out != ""
