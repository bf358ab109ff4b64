"""Images with known labels: class folders, and tables of files and labels; what is wrong with them is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnaround.data.labelled import LabelledImages, labelled_images, refuse_unknown_labels
from turnaround.errors import DataError

RUN = Path("runs/my fruit")


def touched(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")
    return root


def table(root: Path, text: str | bytes, name: str = "labels.csv") -> Path:
    path = root / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_class_folders(tmp_path: Path) -> None:
    touched(tmp_path, "apple/1.jpg", "apple/more/2.PNG", "pear/3.jpg", "pear/notes.txt", ".git/4.jpg", "loose.jpg")
    found = labelled_images(tmp_path, run=RUN)
    assert dict(zip(found.files, found.labels, strict=True)) == {
        "apple/1.jpg": "apple",
        "apple/more/2.PNG": "apple",
        "pear/3.jpg": "pear",
    }
    assert found.notes == ("1 image outside any class folder left out, e.g. 'loose.jpg'.",)
    assert all(path.is_file() for path in found.paths)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    touched(tmp_path, "train/1.jpg", "plane/2.jpg")
    assert set(labelled_images(tmp_path, run=RUN).labels) == {"train", "plane"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "label,split,file\nred apple,test,a/1.jpg\npear,test,2.jpg\n"),
        ("t.csv", "\ufeffPath; Class\na/1.jpg; red apple\n2.jpg; pear\n"),
        ("t.tsv", "file\tlabel\na/1.jpg\tred apple\n\n2.jpg\tpear\r\n"),
        ("t.txt", 'image,target\n"a/1.jpg","red apple"\n2.jpg,pear\n'),
    ],
)
def test_a_table(name: str, text: str, tmp_path: Path) -> None:
    touched(tmp_path, "a/1.jpg", "2.jpg")
    found = labelled_images(table(tmp_path, text, name), run=RUN)
    assert (found.files, found.labels) == (("a/1.jpg", "2.jpg"), ("red apple", "pear"))
    assert found.root == tmp_path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no column for the files. Known headings: file, filename"),
        ("picture,label\n1.jpg,a\n", "has no column for the files. Known headings: file, filename"),
        ("file,what\n1.jpg,a\n", "no column for the labels. Known headings: label, class"),
        ("file,label\n", "names no image: there is nothing below its headings"),
        ("file,label\n1.jpg,a\n2.jpg\n", "line 3: the file or the label is missing. Received: '2.jpg'"),
        ("file,label\n1.jpg, \n", "line 2: the file or the label is missing"),
        ("file,label\n1.jpg,a\n1.jpg,b\n", "line 3: '1.jpg' is there already, in line 2. Name it once."),
        ("file,label\ns3://b/1.jpg,a\n", "line 2: 's3://b/1.jpg' is an address, and nothing is fetched. Download"),
        ("file,label\n1.jpg,a\ngone.jpg,a\n", "1 of the 2 files of"),
        (f"file,label\n{300 * 'x'}.jpg,a\n", "1 of the 1 files of"),  # longer than any name of a file
        ("file,label\nx\0.jpg,a\n", "1 of the 1 files of"),
        ("file,label\n1.jpg,a\ngone.jpg,a\n", "are not there: 'gone.jpg' (line 3)."),
        (b"PAR1\xff\xfe\x00\x01", "cannot be read as a table: line 1 is not text in UTF-8. Give a folder"),
        ("file,label\n1.jpg,a\n2.jpg,Äpfel\n".encode("latin-1"), "as a table: line 3 is not text in UTF-8"),
        ("epoch,loss\n1,0.5\n", "If it is the log of a training: turnaround import"),
        ("file,label\n1.jpg," + 200_000 * "x", "no CSV (field larger than field limit"),
    ],
)
def test_what_is_wrong_with_a_table(text: str | bytes, said: str, tmp_path: Path) -> None:
    touched(tmp_path, "1.jpg", "2.jpg")
    with pytest.raises(DataError) as error:
        labelled_images(table(tmp_path, text), run=RUN)
    assert said in str(error.value)


def test_what_is_wrong_with_a_folder(tmp_path: Path) -> None:
    def message(source: Path) -> str:
        with pytest.raises(DataError) as error:
            labelled_images(source, run=RUN)
        return str(error.value)

    assert "There is no folder and no table" in message(tmp_path / "gone")
    assert "There is no folder and no table" in message(tmp_path / (300 * "x"))
    (tmp_path / "empty").mkdir()
    assert "holds no image. Looked for class folders with bmp, gif" in message(tmp_path / "empty")
    plain = touched(tmp_path / "plain", "1.jpg", "2.jpg")
    assert "holds 2 images and no class folders, so nothing says what they show" in message(plain)
    assert f"turnaround classify 'runs/my fruit' {plain}" in message(plain)
    assert "is one image, and nothing says what it shows. What the network makes" in message(plain / "1.jpg")
    parts = touched(tmp_path / "set", "train/a/1.jpg", "Test/a/2.jpg")
    assert "holds the parts Test and train of a set, not class folders" in message(parts)
    assert message(parts).endswith(f"best one that was not trained on: {str(parts / 'Test')!r}")


def test_labels_that_a_run_does_not_know() -> None:
    def message(*labels: str) -> str:
        files = tuple(str(number) for number in range(len(labels)))
        images = LabelledImages(source=Path("t.csv"), root=Path(), files=files, labels=labels)
        with pytest.raises(DataError) as error:
            refuse_unknown_labels(images, ("fresh_apple", "pear"), run=RUN)
        return str(error.value)

    said = message("pear", "fresh_apples", "fresh_apples")
    assert said.startswith(
        "2 images of 't.csv' have a label that runs/my fruit does not know. Unknown class 'fresh_app"
    )
    assert "Did you mean 'fresh_apple'? Valid: fresh_apple, pear." in said
    assert "(1 other label besides)" in message("kiwi", "plum")
    assert "The labels are numbers: a run knows its classes by name" in message("0", "1")
    many = LabelledImages(source=Path("t.csv"), root=Path(), files=("1",), labels=("x",))
    with pytest.raises(DataError, match=r"c19, \.\.\.\."):
        refuse_unknown_labels(many, [f"c{number:02}" for number in range(30)], run=RUN)
