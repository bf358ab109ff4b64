"""Mistakes of a first hour, made on purpose: each answer says what is wrong, what was received and what to do next."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from turnaround.errors import InterruptedRunError
from user import User


@pytest.fixture
def user(tmp_path: Path, session_folder: Path) -> User:
    folder = tmp_path / "here"
    folder.mkdir()
    return User(folder, session_folder / "cache")


@pytest.fixture(scope="module")
def pictures(fruit_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of eight images."""
    folder = tmp_path_factory.mktemp("mistakes") / "pictures"
    for name in ("fresh_apple", "rotten_banana"):
        fill(folder / name, fruit_folder, name)
    return folder


def fill(folder: Path, fruit_folder: Path, name: str, count: int = 8) -> None:
    folder.mkdir(parents=True)
    for image in sorted((fruit_folder / name).iterdir())[:count]:
        shutil.copy2(image, folder)


def says(message: str, *words: str) -> None:
    together = " ".join(message.split())  # a terminal breaks lines anywhere
    assert [word for word in words if word not in together] == []


def test_a_near_folder_is_named(user: User, pictures: Path) -> None:
    shutil.copytree(pictures, user.folder / "photos")
    for verb in ("train", "bench", "study"):
        says(user.refused(verb, "photo"), "'photo' is neither a folder of images here", "Did you mean 'photos'?")
    says(user.refused("check", "photo"), "There is no folder 'photo'", "Did you mean 'photos'?")


def test_an_archive_in_place_of_the_folder(user: User) -> None:
    (user.folder / "photos.zip").write_bytes(b"PK\3\4")
    says(user.refused("train", "photos.zip"), "'photos.zip' is an archive", "Unpack it")
    (user.folder / "list.txt").write_text("a\n")
    says(user.refused("train", "list.txt"), "'list.txt' is a file", "the folder that holds the class folders.")


def test_class_folders_that_are_empty(user: User) -> None:
    for name in ("cats", "dogs"):
        (user.folder / "photos" / name).mkdir(parents=True)
    says(user.refused("train", "photos"), "No images in", "found: 2 x empty folder", "FOLDER/train/apple/1.jpg")


def test_one_image_in_every_class(user: User, fruit_folder: Path) -> None:
    for name in ("fresh_apple", "rotten_banana"):
        fill(user.folder / "photos" / name, fruit_folder, name, count=1)
    says(user.refused("train", "photos"), "Each of the 2 classes has a single image", "Add images: some 20")


def test_only_images_that_cannot_be_read(user: User) -> None:
    for name in ("cats", "dogs"):
        (user.folder / "photos" / name).mkdir(parents=True)
        for number in range(3):
            (user.folder / "photos" / name / f"{number}.jpg").write_bytes(b"<html>")
    says(user.refused("check", "photos"), "Without the 6 unreadable images", "'cats', 'dogs'", "Repair them")


def test_what_a_folder_has_that_is_not_used_is_said(user: User, pictures: Path) -> None:
    """What can be trained on is: the check says what is odd about it, in its first lines."""
    folder = user.folder / "photos"
    shutil.copytree(pictures / "fresh_apple", folder / "fruit" / "apple")
    shutil.copytree(pictures / "rotten_banana", folder / "Fruit" / "banana\n[old]")
    for number in range(2):
        (folder / "fruit" / "apple" / f"{number}.HEIC").write_bytes(b"ftypheic")
    done = user.call("check", "photos")
    assert done.returncode == 0, done.stderr
    says(done.stdout, "2 images of a format that is not read", "'fruit/apple/0.HEIC'", "Convert them to JPEG or PNG")
    says(done.stdout, "The images of 'Fruit' lie in folders below it ('banana", "move them up by one")
    says(done.stdout, "differ only in upper and lower case: 'Fruit', 'fruit'", "move the images into one folder")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "epochs=3"], ["section.key=value", "Received: 'epochs=3'", "Did you mean training.epochs=3?"]),
        (["--device", "cuda:1"], ["takes a kind, not a number", "'cuda:1'", "CUDA_VISIBLE_DEVICES=1"]),
        (["--device", "0"], ["takes a kind, not a number", "CUDA_VISIBLE_DEVICES=0"]),
        (["--device", "GPU"], ["--device cuda", "sees no CUDA device"]),
        (["--epochs", "0"], ["training.epochs must be from 1", "Received: 0"]),
        (["--lr", "-1"], ["training.learning_rate must be from 0", "Received: -1"]),
        (["--size", "4"], ["data.size_px must be from 16 to 1024", "Received: 4"]),
        (["--log", "comet"], ["'comet'", "tensorboard, mlflow, wandb, trackio"]),
        (["--notify", "no-such-program"], ["--notify: there is no program 'no-such-program'"]),
        (["--notify-idle", "10min"], ["--notify-idle 10min says when, and nothing says whom: add --notify"]),
        (["--notify", "true", "--notify-idle", "10"], ["--notify-idle takes a time with its unit", "'10'"]),
        (["--gpu", "v100"], ["--gpu is for clusters", "--on slurm"]),
        (["--on", "k8s"], ["'k8s'", "local, slurm"]),
        (["--time-limit", "10"], ["a time with its unit", "'10'", "10min"]),
        (["--show-batch", "page.txt"], ["a page is html", "'page.html'"]),
        (["--show-batch", "no/page.html"], ["there is no folder 'no'", "Make it first"]),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith("--") else "",
)
def test_a_flag_with_a_wrong_value(arguments: list[str], words: list[str], user: User) -> None:
    says(user.refused("train", "fruitbowl", *arguments, CUDA_VISIBLE_DEVICES=""), *words)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"[training\n", ["not valid TOML", "line 1", "recipes show"]), (b"\xff\xfe\0", ["text in UTF-8", "Save it"])],
)
def test_a_recipe_file_that_cannot_be_read(content: bytes, words: list[str], user: User) -> None:
    (user.folder / "mine.toml").write_bytes(content)
    says(user.refused("train", "mine.toml"), "'mine.toml'", *words)


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "nowhere"],
        ["predict", "nowhere", "--workers", "4"],
        ["classify", "nowhere", "x.jpg"],
        ["export", "nowhere", "--to", "onnx"],
        ["serve", "nowhere"],
        ["resume", "nowhere"],
    ],
    ids=lambda words: words[0],
)
def test_a_run_that_is_not_there(arguments: list[str], user: User, pictures: Path) -> None:
    shutil.copy2(next((pictures / "fresh_apple").iterdir()), user.folder / "x.jpg")
    says(user.refused(*arguments), "nowhere is not a run directory: no such directory", "Check the path", "runs/")


def test_the_picture_before_the_run(user: User, pictures: Path) -> None:
    shutil.copy2(next((pictures / "fresh_apple").iterdir()), user.folder / "x.jpg")
    says(user.refused("classify", "x.jpg", "runs/fruit"), "The run comes first", "'x.jpg', a file")


def test_a_page_where_none_can_be(user: User, pictures: Path) -> None:
    says(user.refused("check", str(pictures), "--page", "page.txt"), "a page is html", "Give 'page.html'")
    says(user.refused("check", str(pictures), "--page", "no/page.html"), "there is no folder 'no'", "Make it first")
    (user.folder / "page.html").mkdir()
    says(user.refused("check", str(pictures), "--page", "page.html"), "it is a folder", "Give the path of a file")


def test_a_measurement_that_was_stopped_cannot_be_resumed(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise InterruptedRunError("Stopped before the first step. Go on with `turnaround resume x`.")

    monkeypatch.setattr("turnaround.launch.lifecycle.measure", stopped)
    done = user.call("bench", "fruitbowl")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "Stopped. A measurement keeps nothing to go on with: start it again.\n"


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["train", "photos", "--learning-rate", "1"], "No such option: --learning-rate. Did you mean --lr?"),
        (["train", "photos", "--batch_size", "8"], "Did you mean --batch?"),
        (["train", "photos", "--imgsz", "64"], "Did you mean --size?"),
        (["train", "photos", "--optimizer", "sgd"], "Did you mean --set training.optimizer=VALUE?"),
        (["train", "photos", "--epoch", "3"], "Did you mean --epochs?"),
        (["train", "photos", "--zzz"], "No such option: --zzz. train --help lists them."),
        (["train", "photos", "--epochs", "three"], "Received: 'three'."),
        (["train", "photos", "--epochs=three"], "Received: 'three'."),
        (["serve", "run", "--port", "99999"], "Received: '99999'."),
        (["train", "my", "photos"], "(photos). A name with spaces in it needs quotes"),
        (["train"], "Missing argument 'SOURCE'. For example: turnaround train photos/"),
        (["export", "run"], "Missing option '--to'. For example: turnaround export runs/fruit --to onnx"),
        (["tarin", "photos"], "No such command 'tarin'. Did you mean 'train'?"),
        (["recipes", "kes"], "Did you mean 'keys'?"),
        (["predict", "run", "--gpus", "8"], "Did you mean --workers?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_use_names_the_right_one(words: list[str], answer: str, user: User) -> None:
    done = user.call(*words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert answer in " ".join(done.stderr.replace("│", "").split())
