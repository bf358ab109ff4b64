"""Bad input: one message, exit code 2, nothing left half-written.

Through a process of its own where it is about processes, disks and locks; the others are called in this process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from forking import ForkingParent
from turnaround.record.layout import RunDirectory
from turnaround.record.lock import RunLock
from user import User

QUICK = ("--device", "cpu", "--set", "data.size_px=32", "--set", "training.epochs=1")
NO_NETWORK = {
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"), ""),
    "HF_ENDPOINT": "http://127.0.0.1:9",
}


@pytest.fixture
def user(tmp_path: Path, session_folder: Path, forking_parent: ForkingParent) -> User:
    folder = tmp_path / "here"
    folder.mkdir()
    return User(folder, session_folder / "cache", forking_parent.python)


@pytest.fixture(scope="module")
def pictures(fruit_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of eight images: twelve to train on."""
    folder = tmp_path_factory.mktemp("bad-input") / "pictures"
    for name in ("fresh_apple", "rotten_banana"):
        fill(folder / name, fruit_folder, name)
    return folder


def fill(folder: Path, fruit_folder: Path, name: str = "fresh_apple", count: int = 8) -> None:
    folder.mkdir(parents=True)
    for image in sorted((fruit_folder / name).iterdir())[:count]:
        shutil.copy2(image, folder)


def says(message: str, *words: str) -> None:
    assert [word for word in words if word not in message] == []


# --- images


def test_missing_folder(user: User) -> None:
    message = user.refused("train", "photos", "--out", "out", is_real=True)
    says(message, "'photos' is neither a folder of images", "recipe file (.toml)", "fruitbowl")
    (user.folder / "fotos").mkdir()
    message = user.refused("train", "fruitbowl", "--set", "data.source=photos", "--out", "out")
    says(message, "There is no folder", str(user.folder / "photos"), "Did you mean", "fotos")


@pytest.mark.parametrize("source", ["~no-such-user/photos", "x" * 300, ""])
def test_impossible_folder(source: str, user: User) -> None:
    says(user.refused("train", source, "--out", "out"), repr(source))


def test_folder_with_no_images(user: User) -> None:
    (user.folder / "photos" / "cats").mkdir(parents=True)
    (user.folder / "photos" / "cats" / "list.txt").write_text("1\n")
    message = user.refused("train", "photos", "--out", "out")
    says(message, "No images in", "1 x .txt", "jpg", "FOLDER/train/apple/1.jpg")


def test_one_class(user: User, fruit_folder: Path) -> None:
    fill(user.folder / "photos" / "cats", fruit_folder)
    says(user.refused("train", "photos", "--out", "out"), "Only one class, 'cats'", "two are needed")


def test_class_only_in_validation(user: User, fruit_folder: Path) -> None:
    for name in ("train/cats", "train/dogs", "val/cats", "val/owls"):
        fill(user.folder / "photos" / name, fruit_folder, count=2)
    message = user.refused("train", "photos", "--out", "out")
    says(message, "'val'", "no training image", "'owls'", "Training classes: 'cats', 'dogs'", "remove")


def test_unreadable_image_is_listed_by_name(user: User, pictures: Path) -> None:
    shutil.copytree(pictures, user.folder / "photos")
    (user.folder / "photos" / "fresh_apple" / "broken.jpg").write_bytes(b"not a picture")
    message = user.refused("train", "photos", "--out", "out", *QUICK, is_real=True)
    says(message, "1 of 17 images", "'fresh_apple/broken.jpg'", "--set data.skip_bad=true")


def test_more_workers_than_images(user: User, pictures: Path) -> None:
    message = user.refused("train", str(pictures), "--workers", "7", "--processes", "1", "--out", "out", *QUICK)
    says(message, "7 workers need at least 14 training images", "there are 12", "fewer workers or more images")


def test_known_sets_without_their_data(user: User, tmp_path: Path) -> None:
    message = user.refused("train", "fruit", "--out", "out")
    says(message, "Kaggle", "kaggle datasets download", "--set data.source=FOLDER")
    proxy = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    own_cache = ("--set", f"data.cache={tmp_path / 'cache'}")
    message = user.refused("train", "caltech256", "--out", "out", *own_cache, **proxy)
    says(message, "Caltech-256 could not be fetched", "Without a network", "--set data.source=FOLDER")
    assert not any(tmp_path.glob("cache/**/256_ObjectCategories"))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("photos/cats", ["There is no folder 'photos/cats'", "Check the path"]),
        (r"C:\Users\me\photos", [r"There is no folder 'C:\Users\me\photos' here", "/mnt/c/Users/me/photos"]),
        ("D:/photos", ["'D:/photos'", "/mnt/d/photos"]),
    ],
)
def test_a_path_that_leads_nowhere_is_named(source: str, words: list[str], user: User) -> None:
    says(user.refused("train", source, "--out", "out"), *words)


def test_a_file_in_place_of_the_folder(user: User, pictures: Path) -> None:
    picture = next((pictures / "fresh_apple").iterdir())
    message = user.refused("train", str(picture), "--out", "out")
    says(message, f"{str(picture)!r} is a file", "the folder that holds the class folders", repr(str(pictures)))


def test_class_folders_that_are_nested(user: User, pictures: Path) -> None:
    shutil.copytree(pictures, user.folder / "photos" / "fruit")
    for verb in (("train", "photos", "--out", "out"), ("check", "photos")):
        says(user.refused(*verb), "Only one class, 'fruit'", "It holds folders: did you mean", "photos/fruit")


# --- recipe


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fruitbow"], ["'fruitbow'", "Did you mean 'fruitbowl'?"]),
        (["fruitbowl", "--set", "trainin.epochs=1"], ["section 'trainin'", "Did you mean 'training'?", "augment"]),
        (["fruitbowl", "--set", "training.epoch=1"], ["key in [training] 'epoch'", "'epochs'", "learning_rate"]),
        (["fruitbowl", "--set", "training.epochs=two"], ["training.epochs", "int", "'two'"]),
        (["fruitbowl", "--set", "training.optimizer=adm"], ["'adm'", "'adam'", "lamb"]),
        (["fruitbowl", "--set", "training.epochs"], ["section.key=value", "training.epochs=5"]),
        (
            ["fruitbowl", "--set", "training.epochs=0", "--set", "augment.zoom=2"],
            ["several problems", "- training.epochs must be from 1", "- augment.zoom must be from 0 to 0.9"],
        ),
        (["fruitbowl", "--workers", "0"], ["workers.count must be from 1", "Received: 0"]),
        (["fruitbowl", "--workers", "2", "--processes", "3"], ["--processes", "from 1", "workers (2)", "Received: 3"]),
        (["fruitbowl", "--workers", "2", "--processes", "0"], ["--processes", "Received: 0"]),
        (["fruitbowl", "--workers", "4", "--share", "fast"], ["--share takes auto, even, or", "Received: 'fast'"]),
        (["fruitbowl", "--workers", "4", "--share", "4,0"], ["--share 4,0: a process without a worker"]),
        (["fruitbowl", "--workers", "4", "--share", "3,2"], ["--share 3,2 places 5 workers, and there are 4."]),
        (
            ["fruitbowl", "--workers", "4", "--processes", "3", "--share", "3,1"],
            ["--share 3,1 is for 2 processes, and there are 3."],
        ),
        (["fruitbowl", "--workers", "2", "--device", "cpu,mps"], ["cpu or cuda each, as cuda,cpu. Received: 'mps'"]),
        (
            ["fruitbowl", "--workers", "2", "--device", "cuda,cpu", "--on", "kubernetes", "--gpu", "t4"],
            ["--device cuda,cpu is for processes of this machine or of your own launcher. Leave --on out."],
        ),
        (["fruitbowl", "--device", "tpu"], ["--device", "'tpu'", "auto, cpu, cuda, mps"]),
        (["mine.toml"], ["no recipe file 'mine.toml'", "turnaround recipes copy"]),
    ],
    ids=lambda value: " ".join(value) if value and "fruit" in value[0] else None,
)
def test_wrong_recipe(arguments: list[str], words: list[str], user: User) -> None:
    says(user.refused("train", *arguments, "--out", "out"), *words)


@pytest.mark.parametrize("arguments", [["trian"], ["train"], ["train", "fruitbowl", "--workers", "two"], ["--nosuch"]])
def test_wrong_use_is_answered_by_usage(arguments: list[str], user: User) -> None:
    done = user.run(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "Usage:" in done.stderr
    assert "Error" in done.stderr


def test_recipes_show_and_copy(user: User) -> None:
    says(user.refused("recipes", "show", "fruitbow"), "Unknown recipe 'fruitbow'", "'fruitbowl'", "lab10-fruit")
    says(user.refused("recipes", "copy", "nosuch"), "Unknown recipe 'nosuch'")
    mine = user.folder / "fruitbowl.toml"
    mine.write_text("# mine\n")
    says(user.refused("recipes", "copy", "fruitbowl"), "'fruitbowl.toml' already exists", "copy fruitbowl FILE")
    assert mine.read_text() == "# mine\n"
    says(user.refused("recipes", "copy", "fruitbowl", "no/such/x.toml"), "Cannot copy the recipe", "no/such/x.toml")


# --- network and device


def test_unknown_model(user: User, pictures: Path) -> None:
    pytest.importorskip("timm")
    message = user.refused("train", str(pictures), "--model", "resnet5O", "--out", "out", *QUICK)
    says(message, "Unknown model.name 'resnet5O'", "resnet50", "Valid: small, resnet11, or one of timm's")
    says(message, "turnaround models WORD")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["--model", "resnet5O"], ["Unknown model.name 'resnet5O'"]),
        (["--set", "model.weights=/etc/passwd"], ["'/etc/passwd' cannot be read as weights", ".safetensors"]),
        (["--set", "model.weights=nosuch.pt"], ["There is no weights file", "nosuch.pt"]),
        (["--device", "cuda"], ["--device cuda", "sees no CUDA device", "--device cpu or auto"]),
        (["--device", "gpu"], ["--device cuda", "sees no CUDA device"]),
        (["--device", "mps"], ["--device mps", "no Apple GPU"]),
    ],
)
def test_it_is_said_before_anything_is_decoded(wrong: list[str], words: list[str], user: User, pictures: Path) -> None:
    """The image that cannot be read would be the first thing said, if they were decoded."""
    pytest.importorskip("timm")
    shutil.copytree(pictures, user.folder / "photos")
    (user.folder / "photos" / "fresh_apple" / "broken.jpg").write_bytes(b"not a picture")
    message = user.refused("train", "photos", "--out", "out", *wrong, CUDA_VISIBLE_DEVICES="")
    says(message, *words)
    assert "broken.jpg" not in message


def test_imagenet_weights_without_a_network(user: User, pictures: Path, tmp_path: Path) -> None:
    network = ("--set", "model.name=test_vit", "--set", "model.weights=imagenet")
    offline = {**NO_NETWORK, "HF_HOME": str(tmp_path / "hub")}
    message = user.refused("train", str(pictures), *network, "--out", "out", *QUICK, is_real=True, **offline)
    says(message, "ImageNet weights of 'test_vit' could not be had", "model.weights=FILE", "model.weights=none")


@pytest.mark.parametrize("kind", ["missing", "garbage", "not fitting", "no ImageNet weights"])
def test_weights_that_cannot_be_used(kind: str, user: User, pictures: Path) -> None:
    file, processes = user.folder / "weights.safetensors", "1"
    if kind == "missing":
        words = ["There is no weights file", str(file), "a file, imagenet, or none"]
    elif kind == "garbage":
        file = file.with_suffix(".pt")
        file.write_bytes(b"not weights at all")
        words = [str(file), "cannot be read as weights", ".safetensors file"]
    elif kind == "not fitting":
        processes = "2"  # each of two processes fails, one message comes out
        save_file({"stem.weight": np.zeros((1, 2), np.float32), "extra": np.zeros(3, np.float32)}, file)
        words = [str(file), "does not fit model.name = 'small'", "stem.weight", "unexpected (such as extra)"]
    else:
        file, words = Path("imagenet"), ["no ImageNet weights for `small`", "none or to a file"]
    how = ("--workers", processes, "--processes", processes, "--model", "small", "--set", f"model.weights={file}")
    says(user.refused("train", str(pictures), *how, "--out", "out", *QUICK, is_real=True), *words)


def test_a_device_that_is_not_here(user: User, pictures: Path) -> None:
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    message = user.refused("train", str(pictures), *QUICK, "--device", "cuda", "--out", "out", is_real=True, **hidden)
    says(message, "--device cuda", "sees no CUDA device", "--device cpu or auto")


# --- directories


def test_an_output_directory_that_cannot_be_used(user: User) -> None:
    (user.folder / "file").write_text("mine")
    says(user.refused("train", "fruitbowl", "--out", "file"), "file is a file, not a directory", "--out")
    (user.folder / "mine").mkdir()
    (user.folder / "mine" / "thesis.tex").write_text("mine")
    message = user.refused("train", "fruitbowl", "--out", "mine")
    says(message, "mine is not empty", "thesis.tex", "Empty it", "--out")


def test_an_empty_directory_of_the_users_stays(user: User) -> None:
    (user.folder / "mine").mkdir()
    user.refused("train", "fruit", "--out", "mine")  # fails after the directory was taken
    assert list((user.folder / "mine").iterdir()) == []


def test_new_folders_above_the_run_go_too(user: User) -> None:
    user.refused("train", "fruit", "--out", "new/deeper/out")
    user.refused("train", "fruit")  # into runs/, which was not there


@pytest.mark.fault(24, "a run is starting in the same directory: refused")
def test_a_directory_where_another_run_is_starting(user: User) -> None:
    directory = RunDirectory.create(user.folder / "out")
    with RunLock(directory.lock):  # it is still decoding: there is no recipe.json yet
        held = directory.lock.read_bytes()
        message = user.refused("train", "fruit", "--out", "out", is_real=True)
        says(message, "in use by another run", f"process {os.getpid()}", "--out")
        assert directory.lock.read_bytes() == held
    assert directory.logs.is_dir()


@pytest.fixture
def small_disk(user: User) -> Iterator[Path]:
    """A disk of one megabyte."""
    place = user.folder.with_name("small-disk")
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_no_space_for_the_cache(user: User, pictures: Path, small_disk: Path) -> None:
    """Pixels that the disk has no room for are decoded on the way, which is said; generated images need the room."""
    where = ("--set", f"data.cache={small_disk}", "--out", "out")
    done = user.run("train", str(pictures), *QUICK, "--set", "data.size_px=224", *where)
    assert done.returncode == 0, done.stderr
    says(done.stderr, "do not fit into the cache", "decoded again at every start", "--set data.cache=DIR")
    shutil.rmtree(user.folder / "out")
    for entry in small_disk.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    message = user.refused("train", "fruitbowl", *where, is_real=True)
    says(message, "Cannot write the generated images", "No space left", "Free some space")
    assert list(small_disk.iterdir()) == []


@pytest.mark.fault(19, "a real disk without room for the checkpoints: refused before the first step")
def test_no_space_for_the_run(user: User, pictures: Path, small_disk: Path) -> None:
    message = user.refused("train", str(pictures), *QUICK, "--out", str(small_disk / "out"), is_real=True)
    says(message, "1 MiB free", "the checkpoints of this network need up to", "Free some space")
    assert list(small_disk.iterdir()) == []


# --- a run that is there already


@pytest.fixture(scope="module")
def finished(
    pictures: Path, tmp_path_factory: pytest.TempPathFactory, session_folder: Path, forking_parent: ForkingParent
) -> tuple[User, subprocess.CompletedProcess[str]]:
    """A finished run `out` on `photos`, which has an unreadable image, skipped on request."""
    user = User(tmp_path_factory.mktemp("finished") / "here", session_folder / "cache", forking_parent.python)
    shutil.copytree(pictures, user.folder / "photos")
    (user.folder / "photos" / "fresh_apple" / "broken.jpg").write_bytes(b"not a picture")
    return user, user.run("train", "photos", "--set", "data.skip_bad=true", "--out", "out", *QUICK)


def test_an_unreadable_image_may_be_skipped(finished: tuple[User, subprocess.CompletedProcess[str]]) -> None:
    user, done = finished
    assert done.returncode == 0, done.stderr
    assert "left out: fresh_apple/broken.jpg" in done.stderr
    images = json.loads((user.folder / "out" / "recipe.json").read_text())["images"]
    (skipped,) = images["skipped"]
    assert skipped.startswith("fresh_apple/broken.jpg: ")
    assert images["num_train"] + images["num_validation"] == 16


def test_a_directory_that_holds_another_run(finished: tuple[User, subprocess.CompletedProcess[str]]) -> None:
    user, _ = finished
    message = user.refused("train", "photos", "--out", "out", *QUICK)
    says(message, "out already holds a run", "state finished", "photos with small", "turnaround resume out", "--out")


def test_resuming_a_finished_run_does_nothing(finished: tuple[User, subprocess.CompletedProcess[str]]) -> None:
    user, _ = finished
    before = {p: p.stat().st_mtime_ns for p in (user.folder / "out").rglob("*")}
    done = user.run("resume", "out")
    said = "out is finished: there is nothing to go on with; --epochs N gives it more. This is its result:\n"
    assert (done.returncode, done.stderr) == (0, said)
    assert "final accuracy" in done.stdout
    assert {p: p.stat().st_mtime_ns for p in (user.folder / "out").rglob("*")} == before


def test_resuming_what_is_not_a_run(finished: tuple[User, subprocess.CompletedProcess[str]]) -> None:
    user, _ = finished
    says(user.refused("resume", "nosuch"), "nosuch is not a run directory", "no such directory")
    says(user.refused("resume", "photos"), "photos is not a run directory", "no recipe.json")
    says(user.refused("resume", "."), "Runs below it: out")
    says(user.refused("resume", "out/recipe.json"), "it is a file", "Did you mean out?")


def test_resuming_what_was_imported(user: User) -> None:
    (user.folder / "runs.csv").write_text("name,workers,gpu,epoch_time_s\na,1,T4,20\n")
    assert user.call("import", "runs.csv", "--out", "lab").returncode == 0
    says(user.refused("resume", "lab/a"), "lab/a was imported from runs.csv", "no weights to go on with")


@pytest.fixture
def interrupted(user: User, finished: tuple[User, subprocess.CompletedProcess[str]]) -> Path:
    """The finished run in another place, as if it had been stopped."""
    theirs, _ = finished
    shutil.copytree(theirs.folder / "out", user.folder / "out")
    status = json.loads((user.folder / "out" / "status.json").read_text())
    (user.folder / "out" / "status.json").write_text(json.dumps({**status, "state": "interrupted"}))
    return user.folder / "out"


def test_resuming_on_no_processes(user: User, interrupted: Path) -> None:
    for processes in ("0", "2"):
        message = user.refused("resume", str(interrupted), "--processes", processes)
        says(message, "--processes must be from 1", f"Received: {processes}")


@pytest.mark.fault(30, "images were changed between start and resume: refused, the files are named")
def test_resuming_after_the_images_changed(
    user: User, interrupted: Path, finished: tuple[User, subprocess.CompletedProcess[str]], fruit_folder: Path
) -> None:
    theirs, _ = finished
    added = theirs.folder / "photos" / "fresh_apple" / "one-more.bmp"
    shutil.copy2(next((fruit_folder / "fresh_apple").iterdir()), added)
    before = (interrupted / "status.json").read_bytes()
    try:
        message = user.refused("resume", str(interrupted), "--device", "cpu")
    finally:
        added.unlink()
    says(
        message,
        "not those that the run began with",
        "fingerprint",
        "Put them back, start a new run",
        "--accept-data-change",
    )
    says(message, "1 added ('fresh_apple/one-more.bmp')")
    assert (interrupted / "status.json").read_bytes() == before
