"""Parquet: tables of files, tables of bytes as the `datasets` library writes them, and what is wrong with them."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

from data.formats.pictures import CLASSES, class_folders, picture
from turnaround.data.decode import UnreadableImage, read_file
from turnaround.data.formats import parquet as ours
from turnaround.data.formats import scan
from turnaround.data.labelled import labelled_images
from turnaround.data.pixels import prepare
from turnaround.errors import DataError, MissingPartError

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (pip install 'turnaround[parquet]')")
pq = pytest.importorskip("pyarrow.parquet")


def write(
    path: Path, columns: dict[str, Any], *, metadata: dict[str, Any] | None = None, rows_in_group: int = 5
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    if metadata is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps(metadata)})
    pq.write_table(table, path, row_group_size=rows_in_group)
    return path


def with_bytes(path: Path, first: int = 0, num: int = 12, **columns: Any) -> Path:
    """As datasets.Dataset.to_parquet: a struct of bytes and path, and a ClassLabel."""
    images = [{"bytes": picture(k), "path": f"{k}.png"} for k in range(first, first + num)]
    names = {"label": {"names": list(CLASSES), "_type": "ClassLabel"}, "image": {"_type": "Image"}}
    labels = [k % 2 for k in range(first, first + num)]
    return write(path, {"image": images, "label": labels, **columns}, metadata={"info": {"features": names}})


def message(source: Path) -> str:
    with pytest.raises(DataError) as error:
        scan(source, holdout=0.25, seed=0)
    return str(error.value)


def test_a_file_with_bytes_is_a_source(tmp_path: Path) -> None:
    found = scan(with_bytes(tmp_path / "set.parquet"), holdout=0.25, seed=0)
    assert found.classes == CLASSES
    assert sorted(found.files) == [f"set.parquet/{k:07}" for k in range(12)]
    for file, label in zip(found.files, found.labels, strict=True):
        assert int(file[-7:]) % 2 == label
        assert read_file(found.root / file) == picture(int(file[-7:]))


def test_pixels_are_decoded_in_the_order_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes alternate, so the table's order jumps; each row group is begun once all the same, and all are right."""
    begun: list[int] = []
    real = ours._Cursor.read

    def read(cursor: Any, row: int) -> bytes:
        before = cursor._group
        content = real(cursor, row)
        begun.extend([cursor._group] if cursor._group != before else [])
        return content

    monkeypatch.setattr(ours._Cursor, "read", read)
    table = scan(with_bytes(tmp_path / "set.parquet"), holdout=0.25, seed=0)
    pixels = prepare(table, size_px=8, cache=tmp_path / "cache", skip_bad=False)
    assert begun == [0, 1, 2]
    assert pixels.images is not None
    assert [int(image[0, 0, 0]) for image in pixels.images] == [int(name[-7:]) for name in pixels.files]


def test_a_bad_row_is_named_and_left_out_on_request(tmp_path: Path) -> None:
    images = [{"bytes": picture(k) if k != 3 else b"x", "path": None} for k in range(12)]
    path = write(tmp_path / "s.parquet", {"image": images, "label": [CLASSES[k % 2] for k in range(12)]})
    table = scan(path, holdout=0.25, seed=0)
    with pytest.raises(DataError, match=r"s\.parquet/0000003': not an image"):
        prepare(table, size_px=8, cache=tmp_path / "cache", skip_bad=False)
    pixels = prepare(table, size_px=8, cache=tmp_path / "cache", skip_bad=True)
    assert len(pixels.files) == 11
    assert pixels.images is not None
    assert [int(image[0, 0, 0]) for image in pixels.images] == [int(name[-7:]) for name in pixels.files]


def test_names_of_files_or_a_column_tell_the_parts(tmp_path: Path) -> None:
    with_bytes(tmp_path / "a" / "data" / "train-00000-of-00001.parquet")
    with_bytes(tmp_path / "a" / "data" / "validation-00000-of-00001.parquet", num=4)
    found = scan(tmp_path / "a", holdout=0.25, seed=0)
    assert (found.num_train, len(found.files), found.split) == (12, 16, "names of the files")
    path = with_bytes(tmp_path / "b.parquet", split=["train"] * 8 + ["val"] * 4)
    found = scan(path, holdout=0.25, seed=0)
    assert (found.num_train, found.split) == (8, "column 'split'")
    assert len(labelled_images(path, run=Path("runs/x")).files) == 4


def test_a_table_of_files(tmp_path: Path) -> None:
    class_folders(tmp_path)
    files = [f"{name}/{k}.png" for name in CLASSES for k in range(4)]
    path = write(tmp_path / "t.parquet", {"file": files, "label": [file.partition("/")[0] for file in files]})
    found = scan(path, holdout=0.25, seed=0)
    assert set(found.files) == set(files)
    binary = write(tmp_path / "u.parquet", {"jpg": [picture(k) for k in range(8)], "class": ["a", "b"] * 4})
    assert scan(binary, holdout=0.25, seed=0).classes == ("a", "b")


def test_rows_that_name_files_instead_of_holding_bytes(tmp_path: Path) -> None:
    """As `datasets` writes an image folder: the struct is there, its bytes are not."""
    class_folders(tmp_path)
    names = [f"{name}/{k}.png" for name in CLASSES for k in range(4)]
    labels = [name.partition("/")[0] for name in names]
    images = [{"bytes": None, "path": str(tmp_path.absolute() / name)} for name in names]
    types = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    path = write(tmp_path / "t.parquet", {"image": pa.array(images, types), "label": labels})
    found = scan(path, holdout=0.25, seed=0)
    assert dict(zip(found.files, (found.classes[k] for k in found.labels), strict=True)) == dict(
        zip(names, labels, strict=True)
    )
    images[2]["path"] = "gone.png"
    write(path, {"image": pa.array(images, types), "label": labels})
    assert "are not there: 'gone.png' (row 2)" in message(path)
    assert "embed_table_storage" in message(path)
    write(path, {"image": pa.array([*images[:2], {}], types), "label": labels[:3]})
    assert f"{path}, row 2: the file or the label is missing." in message(path)
    write(path, {"image": pa.array([None] * 2, types), "label": ["a", "b"]})
    assert f"{path}, row 0: the file or the label is missing." in message(path)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"image": [{"bytes": b"x"}], "what": ["a"]}, "has no column for the labels. Known headings: label, class"),
        ({"picture": ["1.png"], "label": ["a"]}, "has no column for the files. Known headings: file, filename"),
        ({"image": [{"bytes": b"x"}], "label": [None]}, "row 0: the label is missing"),
        ({"file": ["gone.png"], "label": ["a"]}, "are not there: 'gone.png' (row 0)"),
        ({"image": [{"bytes": b"x"}], "label": [0.5]}, "row 0: the label '0.5' is a number with a fraction"),
        ({"image": [{"bytes": b"x"}], "label": ["a"], "split": ["tarin"]}, "row 0: 'tarin' is no part of a split"),
    ],
)
def test_what_is_wrong_with_a_file(columns: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = write(tmp_path / "s.parquet", columns)
    assert said in message(path)
    assert str(path) in message(path)


def test_a_label_that_the_schema_does_not_know(tmp_path: Path) -> None:
    path = with_bytes(tmp_path / "s.parquet", num=2)
    table = pq.read_table(path).set_column(1, "label", pa.array([0, -1]))
    pq.write_table(table, path)
    assert f"{path}, row 1: the label -1 is none of the 2 classes that the file names." in message(path)


def test_a_file_that_is_cut_off(tmp_path: Path) -> None:
    path = with_bytes(tmp_path / "s.parquet")
    whole = path.read_bytes()
    for content in (whole[:100], whole[:-20], b"", b"no parquet at all"):
        path.write_bytes(content)
        assert message(path).startswith(f"{path} is cut off, damaged or no Parquet")


def test_damage_inside_is_a_bad_image(tmp_path: Path) -> None:
    path = with_bytes(tmp_path / "s.parquet")
    content = bytearray(path.read_bytes())
    content[4:40] = bytes(36)  # the head of the first page
    path.write_bytes(content)
    with pytest.raises(UnreadableImage):
        read_file(path / "0000000")
    with pytest.raises(UnreadableImage, match="the file has 12 rows"):
        read_file(path / "0000012")


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = with_bytes(tmp_path / "s.parquet")
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingPartError, match=r"pip install 'turnaround\[parquet\]'"):
        scan(path, holdout=0.25, seed=0)
