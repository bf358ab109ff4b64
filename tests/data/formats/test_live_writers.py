"""What the real webdataset and the real `datasets` write is read as they read it themselves: nothing here is ours."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data.formats.pictures import CLASSES, class_folders, picture
from turnaround.data.decode import read_file
from turnaround.data.folder import ImageTable
from turnaround.data.formats import scan
from turnaround.data.formats.parquet import EMBEDDED
from turnaround.data.pixels import prepare
from turnaround.errors import DataError

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]  # theirs are theirs
NUM = 24


@pytest.fixture(autouse=True)
def their_files_are_closed() -> Iterator[None]:
    """Theirs leave files to the garbage: the warning of one must not meet somebody else's test."""
    yield
    gc.collect()


def pixels_of(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(data)).convert("RGB"))


def labels_of(table: ImageTable) -> dict[str, str]:
    return {file: table.classes[label] for file, label in zip(table.files, table.labels, strict=True)}


# --- webdataset


def test_shards_of_webdataset(tmp_path: Path) -> None:
    """Its writer encodes, numbers and closes the shards; its reader and ours give the same bytes and labels."""
    import webdataset

    for part, first in (("train", 0), ("val", NUM)):
        with webdataset.ShardWriter(f"{tmp_path}/{part}-%06d.tar", maxcount=10, verbose=0) as writer:
            for k in range(first, first + NUM):
                image = pixels_of(picture(k))
                writer.write({"__key__": f"{k:06}", "png": image, "cls": k % 2, "json": {"seen": k, "by": "me"}})
    shards = sorted(tmp_path.glob("*.tar"))
    assert len(shards) == 6
    table = scan(tmp_path, holdout=0.25, seed=0)
    assert (table.num_train, len(table.files), table.split) == (NUM, 2 * NUM, "names of the shards")
    labels = labels_of(table)
    for shard in shards:
        for sample in webdataset.WebDataset(str(shard), shardshuffle=False):
            name = f"{shard.name}/{sample['__key__']}.png"
            assert read_file(tmp_path / name) == sample["png"]
            assert labels.pop(name) == sample["cls"].decode()
    assert labels == {}


def test_a_shard_of_webdataset_with_names_and_folders(tmp_path: Path) -> None:
    import webdataset

    with webdataset.TarWriter(str(tmp_path / "set.tar")) as writer:
        for k in range(NUM):
            name = CLASSES[k % 2]
            writer.write({"__key__": f"{name}/photo {k}", "png": picture(k), "json": {"label": name}})
    table = scan(tmp_path / "set.tar", holdout=0.25, seed=0)
    assert table.classes == CLASSES
    assert set(table.files) == {f"set.tar/{CLASSES[k % 2]}/photo {k}.png" for k in range(NUM)}
    images = prepare(table, size_px=8, cache=tmp_path / "cache", skip_bad=False).images
    assert images is not None
    assert {int(image[0, 0, 0]) for image in images} == set(range(NUM))


def test_a_compressed_shard_of_webdataset_is_refused(tmp_path: Path) -> None:
    import webdataset

    with webdataset.TarWriter(str(tmp_path / "set.tar.gz")) as writer:
        writer.write({"__key__": "0", "png": picture(0), "cls": 0})
    (tmp_path / "set.tar.gz").rename(tmp_path / "set.tar")
    with pytest.raises(DataError, match=r"set\.tar is compressed \(gzip\)"):
        scan(tmp_path / "set.tar", holdout=0.25, seed=0)


def test_a_shard_whose_writer_was_not_closed_is_named(tmp_path: Path) -> None:
    import webdataset

    with (tmp_path / "set.tar").open("wb") as file:
        writer = webdataset.TarWriter(file)
        for k in range(4):
            writer.write({"__key__": str(k), "png": picture(k), "cls": k % 2})
        file.flush()
        with pytest.raises(DataError, match=r"set\.tar is cut off: it lacks the two empty blocks"):
            scan(tmp_path / "set.tar", holdout=0.25, seed=0)
        writer.close()
    assert len(scan(tmp_path / "set.tar", holdout=0.25, seed=0).files) == 4


# --- datasets


def dataset_of(folder: Path) -> Any:
    """The image folder as the library reads it."""
    import datasets

    cache = str(folder.with_name("theirs"))
    return datasets.load_dataset("imagefolder", data_dir=str(folder), split="train", cache_dir=cache)


def assert_same(table: ImageTable, theirs: Any, cache: Path) -> None:
    """Every row of a Parquet file has the label and the pixels that the library gives it."""
    images = prepare(table, size_px=8, cache=cache, skip_bad=False).images
    assert images is not None
    for row, file in enumerate(table.files):
        sample = theirs[int(file[-7:])]
        assert CLASSES[sample["label"]] == table.classes[table.labels[row]]
        assert np.array_equal(images[row], np.asarray(sample["image"].convert("RGB")))


def test_parquet_of_datasets(tmp_path: Path) -> None:
    """The bytes of an Image feature and the names of a ClassLabel are in the file, as our guide says to write it."""
    import datasets.table

    theirs = dataset_of(class_folders(tmp_path / "photos", each=NUM // 2)).shuffle(seed=1)
    assert theirs.features["label"].names == list(CLASSES)
    data = tmp_path / "set" / "data"
    data.mkdir(parents=True)
    embedded = eval(EMBEDDED, {"set": theirs, "datasets": datasets})
    embedded.to_parquet(str(data / "train-00000-of-00001.parquet"), batch_size=7)
    embedded.select(range(6)).to_parquet(str(data / "test-00000-of-00001.parquet"))
    table = scan(tmp_path / "set", holdout=0.25, seed=0)
    assert (table.classes, table.num_train, len(table.files)) == (CLASSES, NUM, NUM + 6)
    assert_same(table, theirs, tmp_path / "cache")


def test_parquet_of_datasets_without_bytes(tmp_path: Path) -> None:
    """`to_parquet` leaves the files of an image folder where they are: they are read from there, if they lie below."""
    theirs = dataset_of(class_folders(tmp_path / "set" / "photos", each=NUM // 2))
    theirs.to_parquet(str(tmp_path / "set" / "set.parquet"))
    table = scan(tmp_path / "set" / "set.parquet", holdout=0.25, seed=0)
    assert labels_of(table) == {f"photos/{name}/{k}.png": name for name in CLASSES for k in range(NUM // 2)}
    (tmp_path / "elsewhere").mkdir()
    theirs.to_parquet(str(tmp_path / "elsewhere" / "set.parquet"))
    with pytest.raises(DataError, match=r"row 0: .* lies outside the table's folder.*embed_table_storage"):
        scan(tmp_path / "elsewhere", holdout=0.25, seed=0)


def test_an_image_folder_of_datasets_with_metadata(tmp_path: Path) -> None:
    """A table beside the images says more than the names of their folders, to the library and to us."""
    class_folders(tmp_path / "set" / "train", each=NUM // 2)
    files = sorted((tmp_path / "set" / "train").rglob("*.png"))
    lines = [f"{file.relative_to(tmp_path / 'set' / 'train')},kind {k % 3}" for k, file in enumerate(files)]
    (tmp_path / "set" / "train" / "metadata.csv").write_text("\n".join(["file_name,label", *lines]) + "\n")
    theirs = dataset_of(tmp_path / "set")
    ours = scan(tmp_path / "set", holdout=0.25, seed=0)
    labels = labels_of(ours)
    assert len(theirs) == len(labels) == NUM
    for sample in theirs:
        name = Path(sample["image"].filename).relative_to(tmp_path / "set").as_posix()
        assert labels[name] == sample["label"]


def test_a_set_that_datasets_saved_to_disk_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """The line of the message writes a file that is read."""
    theirs = dataset_of(class_folders(tmp_path / "photos", each=NUM // 2))
    theirs.save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(DataError, match="is an Arrow file, as `datasets` saves a set") as error:
        scan(tmp_path / "saved", holdout=0.25, seed=0)
    line = str(error.value).partition('python -c "')[2].removesuffix('"')
    exec(line.replace("train.parquet", str(tmp_path / "set.parquet")))
    assert_same(scan(tmp_path / "set.parquet", holdout=0.25, seed=0), theirs, tmp_path / "cache")
