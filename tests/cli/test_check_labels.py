"""`turnaround check --run` and `--folds`: labels that look wrong, on the terminal, in JSON and on the page."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from turnaround import cli

Check = Callable[..., tuple[int, str, str]]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Check:
    """The command in this process: exit code, stdout, stderr."""
    monkeypatch.setenv("COLUMNS", "100")

    def check(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["turnaround", "check", *map(str, arguments), "--device", "cpu"])
        with pytest.raises(SystemExit) as end:
            cli.main()
        told = capsys.readouterr()
        return int(end.value.code or 0), told.out, told.err

    return check


def test_labels_that_a_run_contradicts(check: Check, trained_run: Path, fruit_folder: Path, tmp_path: Path) -> None:
    """Of its own images a run is asked about those that it was not trained on: 48 of 240."""
    page = tmp_path / "page.html"
    _, out, _ = check(fruit_folder, "--run", trained_run, "--json", "--page", page)
    labels = json.loads(out)["labels"]
    assert (labels["num_asked"], labels["by"], labels["note"]) == (48, f"the network of {trained_run}", "")
    probabilities = [one["label_probability"] for one in labels["suspects"]]
    assert probabilities == sorted(probabilities)
    for one in labels["suspects"]:
        assert one["file"].startswith(f"{one['label']}/")
        assert one["suggested"] != one["label"]
    assert ("Labels that look wrong" in page.read_text()) == bool(labels["suspects"])


def test_a_swapped_label_is_found_in_other_images(
    check: Check, trained_run: Path, fruit_folder: Path, tmp_path: Path
) -> None:
    """Copies elsewhere: the network was trained on most, so it is sure of them; one has the wrong folder."""
    for folder in (folder for folder in fruit_folder.iterdir() if folder.is_dir()):
        (tmp_path / "photos" / folder.name).mkdir(parents=True)
        for file in sorted(folder.iterdir())[:10]:  # comparing all 240 with each other takes 2 s, twice
            shutil.copy2(file, tmp_path / "photos" / folder.name)
    first = sorted((tmp_path / "photos" / "fresh_banana").iterdir())[0]
    wrong = tmp_path / "photos" / "rotten_apple" / f"moved-{first.name}"
    first.rename(wrong)
    _, out, _ = check(tmp_path / "photos", "--run", trained_run)
    assert "contradicted by the network of" in out
    _, out, _ = check(tmp_path / "photos", "--run", trained_run, "--json")
    labels = json.loads(out)["labels"]
    assert labels["num_asked"] == 60
    assert f"rotten_apple/{wrong.name}" in [one["file"] for one in labels["suspects"]]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--run", "runs/x", "--folds", "5"), "--run asks a network that is there, --folds trains others."),
        (("--folds", "1"), "--folds must be between 2 and 100. Received: 1."),
        (("--set", "model.name=small"), "--set chooses the network of --folds"),
    ],
)
def test_options_that_contradict(options: tuple[str, ...], said: str, check: Check, tmp_path: Path) -> None:
    code, _, err = check(tmp_path, *options)
    assert code == 2
    assert said in " ".join(err.split())


def test_a_run_that_saw_everything(check: Check, trained_run: Path, fruit_folder: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    from turnaround.data.formats import scan

    table = scan(fruit_folder, holdout=0.2, seed=0)
    for file in table.files[: table.num_train : 6]:  # comparing all 192 with each other takes 4 s
        (seen / file).parent.mkdir(parents=True, exist_ok=True)
        (seen / file).symlink_to(fruit_folder / file)
    code, _, err = check(seen, "--run", trained_run)
    assert code == 2
    assert "was trained on all images of" in " ".join(err.split())


def test_folds_without_weights_are_trained(
    few_fruit_folder: Path, forking: object, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from turnaround.launch import folds, lifecycle

    def start(recipe: lifecycle.Recipe, request: lifecycle.Request) -> lifecycle.Run:
        from dataclasses import replace

        return lifecycle.start(recipe, replace(request, launcher=forking))  # type: ignore[arg-type]

    monkeypatch.setattr(folds, "start", start)
    settings = ("model.name=small", "model.weights=none", "data.size_px=16", "training.epochs=1")
    words = [word for one in settings for word in ("--set", one)]
    arguments = ["turnaround", "check", str(few_fruit_folder), "--folds", "2", "--json", *words, "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit):
        cli.main()
    out = capfd.readouterr().out
    labels = json.loads(out)["labels"]
    assert labels["num_asked"] == 120
    assert labels["by"] == "2 trainings of small, each without the images that it was asked about"
