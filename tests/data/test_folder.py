"""folder.scan: layouts, hold-out, junk, links, and every refusal with its useful words. No image is read."""

import os
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from turnaround.data.folder import ImageTable, scan
from turnaround.errors import DataError, RecipeError


def plant(root: Path, *paths: str) -> Path:
    """Files with these relative paths; scan looks at names only."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"x")
    return root


def many(part: str, count: int) -> list[str]:
    return [f"{part}/{index:03d}.jpg" for index in range(count)]


def scanned(root: Path, *, holdout: float = 0.2, seed: int = 7) -> ImageTable:
    return scan(root, holdout=holdout, seed=seed)


def by_file(table: ImageTable) -> dict[str, str]:
    return {file: table.classes[label] for file, label in zip(table.files, table.labels.tolist(), strict=True)}


def refusal(root: Path) -> str:
    with pytest.raises(DataError) as caught:
        scanned(root)
    return str(caught.value)


def test_folders_below_a_class_may_be_the_classes(tmp_path: Path) -> None:
    plant(
        tmp_path, *many("train/cats/tabby", 3), *many("train/cats/siamese", 3), *many("train/dogs", 6), "val/cats/1.jpg"
    )
    (told,) = [warning for warning in scanned(tmp_path).warnings if "below it" in warning]
    assert "The images of 'cats' lie in folders below it ('siamese', 'tabby'), and all are taken for 'cats'" in told
    plant(tmp_path / "flat", *many("cats/tabby", 3), *many("dogs", 6))  # one folder more is only a detour
    assert not [warning for warning in scanned(tmp_path / "flat").warnings if "below it" in warning]


def test_three_images_and_one_image_in_a_class(tmp_path: Path) -> None:
    plant(tmp_path, *many("a", 2), *many("b", 1))
    text = "\n".join(scanned(tmp_path).warnings)
    assert "Only 2 training images in all: nothing can be learnt from so few. Bring some 20 of each class" in text
    assert "2 classes with a single training image: 'a', 'b'. Add images, or leave the class out" in text
    assert "1 class without a validation image, so no accuracy: 'b'" in text
    assert "Only 1 validation image: " in text


@pytest.mark.fault(46, "classes go by name and come from the training part alone")
@pytest.mark.parametrize("name", ["test", "val", "valid", "validation", "Test", "VAL"])
def test_parts_in_folders(tmp_path: Path, name: str) -> None:
    plant(
        tmp_path,
        "Train/pear/1.jpg",
        "Train/apple/2.PNG",
        f"{name}/apple/3.jpeg",
        f"{name}/pear/deep/er/4.tif",
    )
    table = scanned(tmp_path)
    assert table.classes == ("apple", "pear")
    assert table.files == (
        "Train/apple/2.PNG",
        "Train/pear/1.jpg",
        f"{name}/apple/3.jpeg",
        f"{name}/pear/deep/er/4.tif",
    )
    assert table.labels.tolist() == [0, 1, 0, 1]
    assert table.labels.dtype == np.int64
    assert (table.num_train, table.split) == (2, "folders")
    assert table.sizes_bytes.tolist() == [1, 1, 1, 1]
    assert table.mtimes_ns[0] == (tmp_path / "Train/apple/2.PNG").stat().st_mtime_ns


def test_val_wins_over_test_and_says_so(tmp_path: Path) -> None:
    plant(tmp_path, *(f"{part}/{name}/1.jpg" for part in ("train", "val", "test") for name in "ab"))
    table = scanned(tmp_path)
    assert [file.split("/")[0] for file in table.files] == ["train", "train", "val", "val"]
    assert any("Left alone: 'test'" in warning for warning in table.warnings)
    assert "test" in table.ignored


def test_all_extensions_in_any_case(tmp_path: Path) -> None:
    endings = ["jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff", "JPG", "Tiff"]
    plant(tmp_path, *(f"{name}/x.{ending}" for name in "ab" for ending in endings))
    assert len(scanned(tmp_path).files) == 2 * len(endings)


def test_hold_out_is_stratified_and_keyed_by_seed(tmp_path: Path) -> None:
    plant(tmp_path, *many("a", 50), *many("b", 10), *many("c", 2), *many("d", 1))
    table = scanned(tmp_path)
    assert table.split == "holdout 0.2, seed 7"
    assert np.bincount(table.labels[: table.num_train]).tolist() == [40, 8, 1, 1]
    assert np.bincount(table.labels[table.num_train :], minlength=4).tolist() == [10, 2, 1, 0]
    assert scanned(tmp_path).files == table.files
    assert scanned(tmp_path, seed=8).files != table.files
    assert len(set(table.files)) == len(table.files) == 63
    text = "\n".join(table.warnings)
    assert "2 classes with a single training image: 'c', 'd'" in text
    assert "without a validation image, so no accuracy: 'd'" in text


def test_hold_out_does_not_depend_on_the_file_system(tmp_path: Path) -> None:
    paths = many("a", 30) + many("b", 30)
    forward = scanned(plant(tmp_path / "one", *paths))
    backward = scanned(plant(tmp_path / "two", *reversed(paths)))
    assert forward.files == backward.files
    # One more class changes nothing in the others.
    more = scanned(plant(tmp_path / "two", *many("0", 9)))
    assert [file for file in more.files if file[0] != "0"] == list(forward.files)


def test_train_alone_is_held_out(tmp_path: Path) -> None:
    table = scanned(plant(tmp_path, *many("train/a", 10), *many("train/b", 10)))
    assert (table.num_train, len(table.files), table.classes) == (16, 20, ("a", "b"))


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    table = scanned(plant(tmp_path, *many("car", 5), *many("train", 5), *many("plane", 5)))
    assert table.classes == ("car", "plane", "train")


@pytest.mark.fault(47, "hidden and junk entries: no classes, and listed")
def test_junk_is_ignored_and_listed(tmp_path: Path) -> None:
    junk = [
        "a/._1.jpg",
        "a/Thumbs.db",
        "a/notes.txt",
        "a/sub/desktop.ini",
        "b/noextension",
    ]
    plant(tmp_path, "a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.jpg", "loose.jpg", *junk)
    plant(tmp_path, ".ipynb_checkpoints/1.jpg", "__MACOSX/a/1.jpg", ".DS_Store")
    (tmp_path / "empty").mkdir()
    table = scanned(tmp_path)
    assert table.classes == ("a", "b")
    assert len(table.files) == 4
    assert {*junk, ".ipynb_checkpoints", "__MACOSX", ".DS_Store", "empty", "loose.jpg"} == set(table.ignored)
    assert any("without images" in warning and "'empty'" in warning for warning in table.warnings)
    assert any("outside any class folder" in warning and "loose.jpg" in warning for warning in table.warnings)


@pytest.mark.fault(29, "file and class names with spaces, newlines, quotes, a leading dash: found as they are")
def test_awkward_names(tmp_path: Path) -> None:
    names = ["with space.jpg", "new\nline.jpg", "-dash.jpg", "quo'te\".jpg", "りんご.jpg", "x" * 251 + ".jpg"]
    plant(tmp_path, *(f"{folder}/{name}" for folder in ("äpfel", "a b\n") for name in names))
    assert sorted(by_file(scanned(tmp_path))) == sorted(
        f"{folder}/{name}" for folder in ("äpfel", "a b\n") for name in names
    )
    raw = os.fsencode(tmp_path / "äpfel") + b"/\xff.jpg"
    try:
        os.close(os.open(raw, os.O_CREAT | os.O_WRONLY))
    except OSError:
        pytest.skip("this file system takes no names that are not UTF-8")
    assert len(scanned(tmp_path).files) == 13


@pytest.mark.fault(29, "Unicode names in NFC and NFD: one class")
def test_composed_and_decomposed_names_are_one_class(tmp_path: Path) -> None:
    decomposed = unicodedata.normalize("NFD", "café")
    assert decomposed != "café"
    plant(tmp_path, "train/café/1.jpg", "train/tea/2.jpg", f"val/{decomposed}/3.jpg", "val/tea/4.jpg")
    table = scanned(tmp_path)
    assert table.classes == ("café", "tea")
    assert table.labels.tolist() == [0, 1, 0, 1]


@pytest.mark.fault(48, "links that loop end; links out of the folder are followed and said")
def test_symbolic_links(tmp_path: Path) -> None:
    outside = plant(tmp_path / "outside", "9.jpg", "8.jpg")
    root = plant(tmp_path / "root", "a/1.jpg", "a/2.jpg", "b/1.jpg", "b/deep/2.jpg")
    (root / "a" / "loop").symlink_to(root / "a")
    (root / "a" / "up").symlink_to(root)
    (root / "b" / "deep" / "higher").symlink_to(tmp_path)
    (root / "a" / "broken.jpg").symlink_to(root / "nowhere.jpg")
    (root / "a" / "self.jpg").symlink_to("self.jpg")
    (root / "a" / "inside.jpg").symlink_to("../b/1.jpg")
    (root / "b" / "far").symlink_to(outside)
    (root / "b" / "far.jpg").symlink_to(outside / "9.jpg")
    os.mkfifo(root / "a" / "pipe.jpg")
    table = scanned(root)
    assert by_file(table) == {
        **dict.fromkeys(["a/1.jpg", "a/2.jpg", "a/inside.jpg"], "a"),
        **dict.fromkeys(["b/1.jpg", "b/deep/2.jpg", "b/far/8.jpg", "b/far/9.jpg", "b/far.jpg"], "b"),
    }
    assert set(table.ignored) == {
        *("a/loop", "a/up", "b/deep/higher"),
        *("a/broken.jpg", "a/self.jpg", "a/pipe.jpg"),
    }
    assert any("Followed out of the folder: 2 links" in warning for warning in table.warnings)


def test_a_class_folder_may_itself_be_a_link(tmp_path: Path) -> None:
    store = plant(tmp_path / "store", *many("a", 5), *many("b", 5))
    (tmp_path / "root").mkdir()
    for name in "ab":
        (tmp_path / "root" / name).symlink_to(store / name)
    assert scanned(tmp_path / "root").files == scanned(store).files


@pytest.mark.fault(46, "a class without validation images: a warning, and no accuracy for it")
@pytest.mark.fault(50, "strong imbalance, one image in a class, few validation images: said, with the standard error")
def test_warnings_on_counts(tmp_path: Path) -> None:
    plant(tmp_path, *many("train/a", 110), *many("train/b", 10), *many("train/B", 11), *many("val/a", 100))
    text = "\n".join(scanned(tmp_path).warnings)
    assert "Strong imbalance: 110 training images of 'a', 10 of 'b'. `--set training.class_weights=balanced`" in text
    assert "100 validation images" in text
    assert "standard error of 4.0 points" in text
    assert "2 classes without a validation image, so no accuracy: 'B', 'b'" in text
    assert "differ only in upper and lower case: 'B', 'b'" in text


def test_missing_folder_suggests_near_names(tmp_path: Path) -> None:
    (tmp_path / "fruits").mkdir()
    message = refusal(tmp_path / "fruit")
    assert "no folder" in message
    assert f"Did you mean {str(tmp_path / 'fruits')!r}" in message
    assert "typing error" in refusal(tmp_path / "nowhere" / "at" / "all")


def test_path_is_a_file(tmp_path: Path) -> None:
    plant(tmp_path, "photo.jpg")
    assert "is a file" in refusal(tmp_path / "photo.jpg")


def test_no_images_draws_both_layouts(tmp_path: Path) -> None:
    plant(tmp_path, "a/1.txt", "a/2.txt", "b/3.npy")
    message = refusal(tmp_path)
    assert "No images" in message
    assert "2 x .txt" in message
    assert "FOLDER/train/apple/1.jpg" in message
    assert "FOLDER/apple/1.jpg" in message
    assert "jpeg" in message
    (tmp_path / "void").mkdir()
    assert "found: nothing" in refusal(tmp_path / "void")


@pytest.mark.parametrize("part", ["", "train/"])
def test_images_without_class_folders(tmp_path: Path, part: str) -> None:
    message = refusal(plant(tmp_path, f"{part}1.jpg", f"{part}2.jpg"))
    assert "2 images directly in" in message
    assert "one folder for each class" in message


def test_one_class(tmp_path: Path) -> None:
    message = refusal(plant(tmp_path / "flat", *many("apple", 3)))
    assert "Only one class, 'apple'" in message
    assert "Add a folder" in message
    unpacked = plant(tmp_path / "unpacked", *many("fruit/apple", 3), *many("fruit/pear", 3))
    assert f"did you mean {str(unpacked / 'fruit')!r}" in refusal(unpacked)


@pytest.mark.fault(46, "a class that only validation has: refused, labels never shift")
def test_class_only_in_validation(tmp_path: Path) -> None:
    plant(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg", "val/c/1.jpg")
    message = refusal(tmp_path)
    assert "1 class with images in 'val' but no training image" in message
    assert "'c'" in message
    assert "Training classes: 'a', 'b'" in message


def test_validation_folder_without_images(tmp_path: Path) -> None:
    plant(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "val/readme.txt")
    assert "holds no image" in refusal(tmp_path)


def test_validation_folder_without_train(tmp_path: Path) -> None:
    message = refusal(plant(tmp_path, "training/a/1.jpg", "training/b/1.jpg", "test/a/1.jpg", "test/b/1.jpg"))
    assert "no folder 'train'" in message
    assert "'test', 'training'" in message


def test_nothing_to_hold_out(tmp_path: Path) -> None:
    assert "single image" in refusal(plant(tmp_path, "a/1.jpg", "b/1.jpg"))


@pytest.mark.parametrize("holdout", [0.0, 1.0, -1, float("nan")])
def test_hold_out_out_of_range(tmp_path: Path, holdout: float) -> None:
    plant(tmp_path, *many("a", 3), *many("b", 3))
    with pytest.raises(RecipeError, match=r"data\.holdout is .* not between 0 and 1"):
        scanned(tmp_path, holdout=holdout)


def test_a_large_hold_out_leaves_something_to_train_on(tmp_path: Path) -> None:
    table = scanned(plant(tmp_path, *many("a", 3), *many("b", 2)), holdout=0.99)
    assert np.bincount(table.labels[: table.num_train]).tolist() == [1, 1]


def test_permission_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, *many("a", 3), *many("b", 3))
    closed = tmp_path / "b"
    closed.chmod(0)
    if os.geteuid() == 0:  # root may read it all the same: the refusal has to be played
        real_scandir = os.scandir

        def scandir(path: str) -> object:
            if os.fspath(path) == str(closed):
                raise PermissionError(13, "Permission denied", str(closed))
            return real_scandir(path)

        monkeypatch.setattr(os, "scandir", scandir)
    try:
        message = refusal(tmp_path)
    finally:
        closed.chmod(0o755)
    assert "No permission to read" in message
    assert str(closed) in message
    assert "chmod" in message


def test_other_system_errors_are_data_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scandir(path: str) -> object:
        raise OSError(5, "Input/output error", os.fspath(path))

    monkeypatch.setattr(os, "scandir", scandir)
    message = refusal(tmp_path)
    assert "Input/output error" in message
    assert str(tmp_path) in message
