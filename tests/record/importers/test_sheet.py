"""The bytes of a CSV, as spreadsheets of all countries write them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from turnaround.errors import InputError
from turnaround.record.importers import sheet
from turnaround.record.importers.sheet import read_sheet
from turnaround.record.importers.table import read_table


def written(tmp_path: Path, content: bytes) -> Path:
    file = tmp_path / "runs.csv"
    file.write_bytes(content)
    return file


@pytest.mark.parametrize(
    "content",
    [
        b"name,workers,val_accuracy\na,2,0.5\n",
        b"\xef\xbb\xbfname,workers,val_accuracy\r\na,2,0.5\r\n",
        b"name;workers;val_accuracy\r\na;2;0,5\r\n",
        b"name;workers;val_accuracy\na;2;0.5",
        b"name\tworkers\tval_accuracy\na\t2\t0,5\n",
        b"\n\nName , WORKERS, Val_Accuracy\n\na , 2 , 0.5\n,,\n",
        b'"name","workers","val_accuracy"\n"a","2","0.5"\n',
        b"name,workers,val_accuracy\ra,2,0.5\r",
        "name;workers;val_accuracy\na;2;0,5\n".encode("utf-16"),
        b"name,workers,val_accuracy,,\na,2,0.5,,\n",
    ],
)
def test_the_same_table_in_many_spellings(content: bytes, tmp_path: Path) -> None:
    (run,) = read_table(read_sheet(written(tmp_path, content))).runs
    assert (run.name, run.workers, run.val_accuracy) == ("a", 2, 0.5)


def test_quoted_cells_hold_separators_and_line_breaks(tmp_path: Path) -> None:
    content = b'name,workers,dataset\n"a,b",2,"apples,\npears ""and"" plums"\nc,3,\n'
    first, second = read_sheet(written(tmp_path, content)).rows
    assert first.cells == {"name": "a,b", "workers": "2", "dataset": 'apples,\npears "and" plums'}
    assert second.line == 4


def test_text_of_an_old_code_page(tmp_path: Path) -> None:
    (row,) = read_sheet(written(tmp_path, "name,workers\nFrüchte,1\n".encode("cp1252"))).rows
    assert row.cells["name"] == "Früchte"


def test_a_decimal_comma_needs_another_separator(tmp_path: Path) -> None:
    reading = read_table(read_sheet(written(tmp_path, b'name,workers,val_accuracy\na,1,"0,5"\nb,1,0.5\n')))
    assert [run.name for run in reading.runs] == ["b"]
    assert "received '0,5'" in reading.left_out[0].reason


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b" \r\n\n", "is empty"),
        (b"PK\x03\x04rest", "Save the table as CSV"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "is not text: it begins with"),
        (b"name,workers,name\na,1,b\n", "the header names 'name' more than once"),
        (b"name,workers\na," + b"x" * 200_000, "line 2: not a CSV file (field larger than"),
    ],
)
def test_what_is_no_table_says_what_it_is(content: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_sheet(written(tmp_path, content))
    assert words in str(caught.value)
    assert "runs.csv" in str(caught.value)


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    written(tmp_path, b"x")
    with pytest.raises(InputError, match=r"There is no file .*run\.csv\. Did you mean .*runs\.csv\?"):
        read_sheet(tmp_path / "run.csv")
    with pytest.raises(InputError, match=r"There is no file .*elsewhere/x\.csv\.$"):
        read_sheet(tmp_path / "elsewhere" / "x.csv")


def test_what_cannot_be_read_is_refused_without_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is neither a file nor a folder"):
        read_sheet(tmp_path / "pipe")
    with pytest.raises(InputError, match="cannot be read: File name too long"):
        read_sheet(tmp_path / ("x" * 300))
    with pytest.raises(InputError, match="cannot be read: embedded null"):
        read_sheet(Path("a\0b"))
    monkeypatch.setattr(sheet, "MAX_FILE_BYTES", 2**20)
    with pytest.raises(InputError, match="is larger than 1 MiB"):
        read_sheet(written(tmp_path, b"x" * (2**20 + 1)))
