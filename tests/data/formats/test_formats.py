"""The registry of source formats: what a source is taken for, and that all of them train as a folder does."""

from __future__ import annotations

import glob
import time
from pathlib import Path

import numpy as np
import pytest

from data.formats.pictures import CLASSES, class_folders, labelled_shard, picture, shard
from turnaround import recipes
from turnaround.data.formats import SUFFIXES, is_source, patterns, samples_of, scan
from turnaround.data.pixels import prepare
from turnaround.data.reading import DecodedRows
from turnaround.data.source import folder_here
from turnaround.errors import DataError, RecipeError
from turnaround.recipe import DataRecipe


def test_the_command_line_takes_the_suffixes_of_the_formats() -> None:
    assert set(recipes.DATA_FILES) == set(SUFFIXES)


def test_what_is_a_source(tmp_path: Path) -> None:
    labelled_shard(tmp_path / "a-000.tar")
    for name in (".", "a-000.tar", "a-*.tar", "a-{000..000}.tar"):
        assert is_source(tmp_path / name)
        samples = samples_of(tmp_path / name)
        assert samples is not None
        assert len(samples.files) == 8
    assert not is_source(tmp_path / "b-*.tar")
    assert samples_of(class_folders(tmp_path / "folder")) is None
    (tmp_path / "notes.md").write_text("x")
    with pytest.raises(DataError, match=r"is no source of images: \.md is none of \.csv"):
        scan(tmp_path / "notes.md", holdout=0.2, seed=0)


@pytest.mark.parametrize(
    "pattern",
    [
        "{0..99999}{0..99999}.tar",
        "{0..9}{0..9999}{0..9}.tar",
        "{0..999999}.tar",
        f"{{0..{'9' * 5000}}}.tar",
        "/*/*/*/*/*/*/*/*/*/*.tar",
        "many/*{0..99999}.tar",
    ],
    ids=range(6),
)
def test_a_pattern_that_stands_for_too_much(pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may come with the run of somebody else: refused in a moment, and no source of a report."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(patterns, "_MAX_FOLDERS", 1_000)
    monkeypatch.setattr(patterns, "_MAX_COMPARED", 1_000_000)
    (tmp_path / "many").mkdir()
    for number in range(200):
        (tmp_path / "many" / str(number)).touch()
    started_s = time.process_time()
    with pytest.raises(DataError, match=r"no range of at most 100,000 numbers|leads into more than 1,000 folders"):
        samples_of(Path(pattern))
    assert folder_here(DataRecipe(source=pattern), size_px=8, cache=tmp_path) is None
    assert time.process_time() - started_s < 20


def test_patterns_name_what_glob_names(tmp_path: Path) -> None:
    for name in ("a/x-00.tar", "a/x-01.tar", "b/x-02.tar", "b/.x-03.tar", ".c/x-04.tar", "b/x-1.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for name in ("*/x-*.tar", "*/.x-*.tar", "[ab]/x-0?.tar", "**/*.tar", "b/*", "c*/*", "*/x-0[!1].tar", "."):
        assert [str(path) for path in patterns.files_of(tmp_path / name)] == sorted(
            path for path in glob.glob(str(tmp_path / name)) if Path(path).is_file()
        )
    two = patterns.files_of(tmp_path / "?/x-{00..02}.tar")
    assert [path.name for path in two] == ["x-00.tar", "x-01.tar", "x-02.tar"]
    assert patterns.files_of(tmp_path / "{0..1}/{0..1}") == []


def test_a_recipe_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labelled_shard(tmp_path / "set-000.tar")
    monkeypatch.chdir(tmp_path)
    for source, name in (("set-000.tar", "set-000"), ("set-*.tar", "set"), ("set-{000..000}.tar", "set")):
        recipe = recipes.find(source)
        assert (recipe.name, recipe.data.source) == (name, str(tmp_path.resolve() / source))
    with pytest.raises(RecipeError, match="neither a folder"):
        recipes.find("gone.csv")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("s3://bucket/photos", "aws s3 sync s3://bucket/photos DIR; turnaround train DIR"),
        ("https://x.org/a.tar", "is an address, and nothing is fetched here. Bring the images to a disk"),
        ("hf://datasets/me/fruit", "hf download me/fruit --repo-type dataset --local-dir DIR"),
        ("gs://b/a", "gcloud storage rsync -r gs://b/a DIR"),
    ],
)
def test_addresses_are_refused_with_what_to_do(source: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as error:
        recipes.find(source)
    assert said in str(error.value)
    (tmp_path / "r.toml").write_text(f'[data]\nsource = "{source}"\n')
    with pytest.raises(RecipeError) as error:
        recipes.find(str(tmp_path / "r.toml"))
    assert said in str(error.value)
    with pytest.raises(RecipeError) as error:
        recipes.find("fruitbowl", [f"data.source={source}"])
    assert said in str(error.value)


def test_shards_and_folder_give_the_same_pixels_and_labels(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "folder", each=40)  # enough for decoding processes
    members = [
        pair
        for file in sorted(folder.rglob("*.png"))
        for key in [f"{file.parent.name}/{file.stem}"]
        for pair in ((f"{key}.png", file.read_bytes()), (f"{key}.cls", file.parent.name.encode()))
    ]
    path = shard(tmp_path / "shards" / "s.tar", members)
    ours, theirs = (
        prepare(scan(source, holdout=0.25, seed=0), size_px=8, cache=tmp_path / "cache", skip_bad=False)
        for source in (path, folder)
    )
    by_name = {name: row for row, name in enumerate(theirs.files)}
    rows = [by_name[name.removeprefix("s.tar/")] for name in ours.files]
    assert ours.images is not None
    assert theirs.images is not None
    assert np.array_equal(ours.images, theirs.images[rows])
    assert np.array_equal(ours.digests, theirs.digests[rows])
    assert [ours.classes[k] for k in ours.labels] == [theirs.classes[theirs.labels[row]] for row in rows]


def test_images_in_shards_are_decoded_when_needed_where_no_disk_holds_them(tmp_path: Path) -> None:
    path = labelled_shard(tmp_path / "s.tar", num=10)
    pixels = prepare(
        scan(path, holdout=0.2, seed=0), size_px=8, cache=tmp_path / "cache", skip_bad=False, keeps_pixels=False
    )
    rows = DecodedRows(pixels, num_processes=1)
    try:
        out = np.empty((3, 8, 8, 3), np.uint8)
        rows.take(np.array([7, 0, 4]), out)
        assert [int(image[0, 0, 0]) for image in out] == [int(pixels.files[k][-8:-4]) for k in (7, 0, 4)]
        labelled_shard(path, first=50, num=10)
        with pytest.raises(DataError, match="can no longer be read"):
            rows.take(np.array([7]), out[:1])
    finally:
        rows.close()


def test_two_classes_with_equal_keys_in_two_shards(tmp_path: Path) -> None:
    for number, name in enumerate(CLASSES):
        members = {
            f"{k}.{end}": content for k in range(4) for end, content in (("png", picture(k)), ("cls", name.encode()))
        }
        shard(tmp_path / f"{number}.tar", members)
    assert len(scan(tmp_path, holdout=0.25, seed=0).files) == 8


def test_arrow_files_are_refused_with_the_line_that_writes_parquet(tmp_path: Path) -> None:
    """What `datasets` saves to a disk, whole or by parts."""
    for place in (tmp_path / "set", tmp_path / "sets" / "train"):
        place.mkdir(parents=True)
        (place / "data-00000-of-00001.arrow").write_bytes(b"x")
        (place / "state.json").write_text("{}")
    for source, saved in ((tmp_path / "set", "set"), (tmp_path / "sets", "sets/train")):
        with pytest.raises(DataError) as error:
            scan(source, holdout=0.2, seed=0)
        assert f"datasets.load_from_disk('{tmp_path / saved}').to_parquet('train.parquet')" in str(error.value)
