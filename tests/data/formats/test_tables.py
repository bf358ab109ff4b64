"""Tables of files and labels, as a source to train on; what is wrong with them is said, by file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data.formats.pictures import class_folders
from turnaround.data import folder
from turnaround.data.formats import scan
from turnaround.errors import DataError


def table(root: Path, text: str, name: str = "labels.csv") -> Path:
    (root / name).write_text(text)
    return root / name


def scanned(path: Path) -> tuple[dict[str, str], dict[str, str], str]:
    """Return the training part, the validation part, each by file, and the split."""
    found = scan(path, holdout=0.25, seed=0)
    labels = [found.classes[label] for label in found.labels]
    pairs = list(zip(found.files, labels, strict=True))
    return dict(pairs[: found.num_train]), dict(pairs[found.num_train :]), found.split


def rows(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def test_a_table_gives_the_table_of_the_folder(tmp_path: Path) -> None:
    """The same names: the same order, the same hold-out, so the same fingerprint."""
    class_folders(tmp_path, each=9)
    named = [f"{path.relative_to(tmp_path)},{path.parent.name}" for path in sorted(tmp_path.rglob("*.png"))]
    path = table(tmp_path, rows("label_of,file,label".replace("label_of,", ""), *reversed(named)))
    ours, theirs = scan(path, holdout=0.25, seed=3), folder.scan(tmp_path, holdout=0.25, seed=3)
    assert (ours.files, ours.classes, ours.num_train, ours.split) == (
        theirs.files,
        theirs.classes,
        theirs.num_train,
        theirs.split,
    )
    assert ours.labels.tolist() == theirs.labels.tolist()
    assert ours.sizes_bytes.tolist() == theirs.sizes_bytes.tolist()
    assert ours.mtimes_ns.tolist() == theirs.mtimes_ns.tolist()


def test_a_split_column(tmp_path: Path) -> None:
    class_folders(tmp_path)
    lines = [
        f"{name}/{k}.png,{name},{part}" for name in ("apple", "pear") for k, part in enumerate(["train", "Val", "TEST"])
    ]
    train, validation, split = scanned(table(tmp_path, rows("path,class,split", *lines)))
    assert (set(train), set(validation)) == ({"apple/0.png", "pear/0.png"}, {"apple/1.png", "pear/1.png"})
    assert split == "column 'split'"
    found = scan(tmp_path / "labels.csv", holdout=0.25, seed=0)
    assert "Left alone: 2 images of the part 'test'; only the other two are used." in found.warnings
    # Without a validation part, the test part is what there is.
    two = table(tmp_path, rows("path,class,split", *(line for line in lines if "Val" not in line)))
    assert set(scanned(two)[1]) == {"apple/2.png", "pear/2.png"}


def test_numbers_are_classes_in_the_order_of_their_values(tmp_path: Path) -> None:
    class_folders(tmp_path, each=6)
    lines = [f"{name}/{k}.png\t{2 if name == 'pear' else 10}" for name in ("apple", "pear") for k in range(6)]
    found = scan(table(tmp_path, rows("file\tlabel", *lines), "t.tsv"), holdout=0.25, seed=0)
    assert found.classes == ("2", "10")
    assert any("The labels are numbers (2 and 10)" in warning for warning in found.warnings)


def test_names_inside_the_folder_may_be_written_in_any_way(tmp_path: Path) -> None:
    class_folders(tmp_path)
    lines = [f"{tmp_path.absolute()}/apple/0.png,a", "./apple/1.png,a", "pear/../pear/0.png,b", "pear\\1.png,b"]
    train, validation, _ = scanned(table(tmp_path, rows("file,label", *lines)))
    assert {**train, **validation} == {"apple/0.png": "a", "apple/1.png": "a", "pear/0.png": "b", "pear/1.png": "b"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("file,label\n../x/1.png,a\n", "line 2: '../x/1.png' lies outside the table's folder"),
        ("file,label\n/etc/hostname,a\n", "line 2: '/etc/hostname' lies outside the table's folder"),
        ("file,label\napple/0.png,a\n./apple/0.png,b\n", "line 3: 'apple/0.png' is there already, in line 2."),
        ("file,label\napple/0.png,a\napple/gone.png,b\n", "are not there: 'apple/gone.png' (line 3)."),
        ("file,label\nhttps://x.org/1.png,a\n", "line 2: 'https://x.org/1.png' is an address, and nothing is fetched."),
        (
            "file,label,split\napple/0.png,a,tarin\n",
            "line 2: 'tarin' is no part of a split. Known: train, training, val",
        ),
        ("file,label,split\napple/0.png,a,\n", "line 2: '' is no part of a split"),
        ("file,label\napple/0.png,0.5\npear/0.png,2\n", "line 2: the label '0.5' is a number with a fraction"),
        ("file,label\napple/0.png,a\n", "only one class, 'a', has training images; two are needed"),
        (
            "file,label,split\napple/0.png,a,val\npear/0.png,b,val\n",
            "no image is to train on (column 'split' tells: val",
        ),
        (
            "file,label,split\napple/0.png,a,train\npear/0.png,b,train\npear/1.png,c,val\n",
            "1 label of the validation part without a training image: 'c'",
        ),
        ("file,label\napple/0.png,a\npear/0.png,b\n", "Each of the 2 classes has a single image"),
    ],
)
def test_what_is_wrong_with_a_table(text: str, said: str, tmp_path: Path) -> None:
    class_folders(tmp_path)
    with pytest.raises(DataError) as error:
        scan(table(tmp_path, text), holdout=0.25, seed=0)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"file": "apple/0.png", "label": "a"}\n{"file": \n', "t.jsonl, line 2: no JSON"),
        ("[1]\n", "t.jsonl, line 1: no object. Received: '[1]'"),
        ('{"file": "apple/0.png", "label": {"x": 1}}\n', "line 1: the file or the label is missing"),
    ],
)
def test_what_is_wrong_with_json_lines(text: str, said: str, tmp_path: Path) -> None:
    class_folders(tmp_path)
    with pytest.raises(DataError) as error:
        scan(table(tmp_path, text, "t.jsonl"), holdout=0.25, seed=0)
    assert said in str(error.value)


def test_an_image_folder_of_hugging_face(tmp_path: Path) -> None:
    for part in ("train", "test"):
        class_folders(tmp_path / part)
        images = sorted((tmp_path / part).rglob("*.png"))
        named = [{"file_name": str(p.relative_to(tmp_path / part)), "label": f"a {p.parent.name}"} for p in images]
        table(tmp_path / part, rows(*map(json.dumps, named)), "metadata.jsonl")
    train, validation, split = scanned(tmp_path)
    assert split == "folders"
    assert train["train/apple/0.png"] == "a apple"  # the table, not the folder
    assert (len(train), len(validation)) == (8, 8)
    # One file for all: the first folder of a name tells the part.
    for part in ("train", "test"):
        (tmp_path / part / "metadata.jsonl").unlink()
    lines = [f"{path.relative_to(tmp_path)},{path.parent.name}" for path in sorted(tmp_path.rglob("*.png"))]
    table(tmp_path, rows("file_name,label", *lines), "metadata.csv")
    assert len(scanned(tmp_path)[1]) == 8
    assert set(scanned(tmp_path)[0].values()) == {"apple", "pear"}


def test_metadata_without_labels_leaves_the_class_folders_in_charge(tmp_path: Path) -> None:
    class_folders(tmp_path)
    table(tmp_path, "file_name,text\napple/0.png,a photo\n", "metadata.csv")
    assert set(scanned(tmp_path)[0].values()) == {"apple", "pear"}
