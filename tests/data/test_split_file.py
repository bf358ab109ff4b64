"""A split that was decided beforehand: written, read, and refused when it is not one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from turnaround.data.split_file import read_split, write_split
from turnaround.errors import DataError, StorageError


def test_what_is_written_is_read(tmp_path: Path) -> None:
    files = {"a/1.png": "train", "a/ü 2.png": "validation", "a/\udcff.png": "train"}
    write_split(tmp_path / "split.json", files, holdout=0.2, seed=3)
    assert read_split(tmp_path / "split.json") == files
    assert [path.name for path in tmp_path.iterdir()] == ["split.json"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is no JSON object"),
        ("[]", r"is no JSON object \(a list"),
        ("[" * 200_000, r"is no JSON object \(nested too deeply\)"),
        ('{"files": {}}', 'has no "files"'),
        ('{"files": {"a": "test"}}', "puts 'a' into 'test'. The parts are 'train' and 'validation'"),
        ('{"format_version": 2, "files": {"a": "train"}}', "format version 2, not 1"),
    ],
)
def test_what_is_no_split(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    path.write_text(content)
    with pytest.raises(DataError, match=words):
        read_split(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be read: No such file.*--split-by-photo"):
        read_split(tmp_path / "nosuch.json")
    with pytest.raises(StorageError, match="Cannot write the split"):
        write_split(tmp_path / "no" / "such.json", {"a": "train"}, holdout=0.2, seed=0)


@pytest.mark.parametrize("kind", ["device", "pipe", "hole"])
def test_what_a_record_may_name_as_its_split(kind: str, tmp_path: Path) -> None:
    """None of them is waited for, or read without end."""
    path = tmp_path / "split.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.touch()
        os.truncate(path, 300 << 30)
    with pytest.raises(DataError, match="cannot be read: not a plain file" if kind != "hole" else "larger than"):
        read_split(path)
    (tmp_path / "link.json").symlink_to(tmp_path / "whole.json")  # a link to the user's own file is followed
    write_split(tmp_path / "whole.json", {"a": "train"}, holdout=0.2, seed=0)
    assert read_split(tmp_path / "link.json") == {"a": "train"}
