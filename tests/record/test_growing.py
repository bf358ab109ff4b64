"""Files that grow, are cut, replaced, torn, hostile, or not yet there: read on, and never twice."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from turnaround.errors import RunDirectoryError
from turnaround.record import growing as files
from turnaround.record.coding import NewerFormatError
from turnaround.record.files import FOLDER, folder_below
from turnaround.record.growing import JsonFile, LinesFile

ALL = 10**9


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, FOLDER)
    yield descriptor
    os.close(descriptor)


def number(line: dict[str, Any]) -> int:
    if line.get("format", 1) > 1:
        raise NewerFormatError("written by a newer turnaround")
    if not isinstance(line.get("n"), int):
        raise RunDirectoryError("n: missing")
    return int(line["n"])


def lines(*numbers: int) -> bytes:
    return b"".join(json.dumps({"n": n}).encode() + b"\n" for n in numbers)


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


def test_what_is_appended_is_read_and_nothing_twice(tmp_path: Path, folder: int) -> None:
    path, file = tmp_path / "x.jsonl", LinesFile("x.jsonl", number, max_records=100)
    assert (file.look(folder, ALL), file.records) == (0, [])
    append(path, lines(1, 2))
    assert file.look(folder, ALL) == len(lines(1, 2))
    assert file.look(folder, ALL) == 0
    append(path, lines(3)[:-4])
    assert (file.look(folder, ALL), file.records, file.is_torn) == (0, [1, 2], True)
    append(path, lines(3)[-4:] + lines(4))
    assert file.look(folder, ALL) == len(lines(3, 4))
    assert (file.records, file.is_torn, file.bad_lines) == ([1, 2, 3, 4], False, 0)


def test_a_torn_line_that_is_cut_and_written_anew_between_two_looks(tmp_path: Path, folder: int) -> None:
    path, file = tmp_path / "x.jsonl", LinesFile("x.jsonl", number, max_records=100)
    append(path, lines(1) + b'{"n": 99999')
    file.look(folder, ALL)
    os.truncate(path, len(lines(1)))
    append(path, lines(2, 3, 4))
    file.look(folder, ALL)
    assert (file.records, file.bad_lines) == ([1, 2, 3, 4], 0)


def test_of_a_long_file_only_the_last_lines_are_read_and_then_what_comes(tmp_path: Path, folder: int) -> None:
    path, file = tmp_path / "x.jsonl", LinesFile("x.jsonl", number, tail_bytes=len(lines(8, 9)) + 3)
    append(path, lines(*range(10)))
    assert file.look(folder, ALL) == len(lines(8, 9))
    append(path, lines(10, 11, 12))
    file.look(folder, ALL)
    assert (file.records, file.bad_lines) == ([8, 9, 10, 11, 12], 0)


@pytest.mark.parametrize("how", ["shorter", "replaced", "rewritten"])
def test_a_file_that_was_cut_or_replaced_begins_anew(tmp_path: Path, folder: int, how: str) -> None:
    path, file = tmp_path / "x.jsonl", LinesFile("x.jsonl", number, max_records=100)
    path.write_bytes(lines(1, 2, 3))
    file.look(folder, ALL)
    revision = file.revision
    if how == "shorter":
        os.truncate(path, len(lines(1)))
        wanted = [1]
    elif how == "replaced":
        (tmp_path / "new").write_bytes(lines(1, 7, 8, 9))
        (tmp_path / "new").rename(path)
        wanted = [1, 7, 8, 9]
    else:  # in place, and longer than before
        path.write_bytes(lines(5, 6, 7, 8, 9))
        wanted = [5, 6, 7, 8, 9]
    file.look(folder, ALL)
    assert file.records == wanted
    assert file.revision > revision
    path.unlink()
    file.look(folder, ALL)
    assert file.records == []


def test_a_budget_is_kept_and_what_is_behind_is_said(
    tmp_path: Path, folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "CHUNK_BYTES", 1000)
    path, file = tmp_path / "x.jsonl", LinesFile("x.jsonl", number, max_records=10**6)
    path.write_bytes(lines(*range(1000)))
    assert file.look(folder, 0) == 0
    assert file.has_more
    assert 2000 <= file.look(folder, 2000) <= 3000
    assert file.has_more
    while file.has_more:
        file.look(folder, 2000)
    assert file.records == list(range(1000))


def test_more_records_than_wanted_are_thinned_evenly(tmp_path: Path, folder: int) -> None:
    path, file = tmp_path / "x.jsonl", LinesFile("x.jsonl", number, max_records=10)
    path.write_bytes(lines(*range(100)))
    file.look(folder, ALL)
    assert file.stride == 16
    assert file.records == list(range(0, 100, 16))


def test_large_records_are_thinned_before_they_fill_the_memory(
    tmp_path: Path, folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_KEPT_BYTES", 10_000)
    path, file = tmp_path / "x.jsonl", LinesFile("x.jsonl", number, max_records=10**6)
    path.write_bytes(b"".join(json.dumps({"n": n, "x": "y" * 1000}).encode() + b"\n" for n in range(200)))
    file.look(folder, ALL)
    assert len(file.records) <= 10
    assert file.records == list(range(0, 200, file.stride))
    assert list(file.latest)[-1] == 199


def test_damage_is_counted_and_a_monstrous_line_is_passed_over(tmp_path: Path, folder: int) -> None:
    path, file = tmp_path / "x.jsonl", LinesFile("x.jsonl", number, max_records=100)
    nested = b"[" * 100_000 + b"\n"
    path.write_bytes(
        lines(1) + b"\xff\xfe\n{\n[]\n7\n" + b'{"n": "x"}\n' + nested + b"9" * 5000 + b"\n" + b"y" * 3_000_000 + b"\n"
    )
    append(path, lines(2))
    file.look(folder, ALL)
    assert file.records == [1, 2]
    assert file.bad_lines == 8


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path: Path, folder: int) -> None:
    path, file = tmp_path / "x.jsonl", LinesFile("x.jsonl", number, max_records=100)
    path.write_bytes(b"y" * 5_000_000)
    for _ in range(10):
        file.look(folder, 10**6)
    assert not file.has_more
    append(path, b"\n" + lines(1))
    for _ in range(10):
        file.look(folder, 10**6)
    assert (file.records, file.bad_lines) == ([1], 1)


def test_only_the_first_gibibyte_is_read(tmp_path: Path, folder: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LINES_BYTES", 1000)
    path, file = tmp_path / "x.jsonl", LinesFile("x.jsonl", number, max_records=10**6)
    path.write_bytes(lines(*range(1000)))
    assert file.look(folder, ALL) <= 1000
    assert (file.is_too_large, file.has_more) == (True, False)
    assert file.look(folder, ALL) == 0


def test_content_that_comes_later_than_its_length(tmp_path: Path, folder: int) -> None:
    """Network file systems show zeros where the other host's bytes have not arrived."""
    path, file = tmp_path / "x.jsonl", LinesFile("x.jsonl", number, max_records=100)
    now_s = 0.0
    file._now_s = lambda: now_s
    late = lines(2)
    path.write_bytes(lines(1) + b"\0" * len(late) + lines(3))
    file.look(folder, ALL)
    assert (file.records, file.bad_lines) == ([1], 0)
    with path.open("r+b") as there:
        there.seek(len(lines(1)))
        there.write(late)
    file.look(folder, ALL)
    assert (file.records, file.bad_lines) == ([1, 2, 3], 0)
    append(path, b"\0\0\0\n" + lines(4))
    file.look(folder, ALL)
    assert file.records == [1, 2, 3]
    now_s = files.LATE_S + 1  # they do not come any more: damage
    file.look(folder, ALL)
    assert (file.records, file.bad_lines) == ([1, 2, 3, 4], 1)


def test_lines_of_a_newer_turnaround_are_not_passed_over(tmp_path: Path, folder: int) -> None:
    file = LinesFile("x.jsonl", number, max_records=100)
    (tmp_path / "x.jsonl").write_bytes(b'{"format": 2, "n": 1}\n' + lines(2))
    file.look(folder, ALL)
    assert str(file.failure) == "x.jsonl: written by a newer turnaround"


REFUSALS = {
    **dict.fromkeys(("link", "dangling", "device"), "{} is a symbolic link; put the file itself there."),
    **dict.fromkeys(("fifo", "folder"), "{} is not a plain file."),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_what_is_no_plain_file_is_not_opened(tmp_path: Path, folder: int, kind: str) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.write_bytes(b'{"n": 1, "secret": true}\n')
    for name in ("x.jsonl", "x.json"):
        path = tmp_path / name
        if kind == "link":
            path.symlink_to(outside)
        elif kind == "dangling":
            path.symlink_to(tmp_path.parent / "nowhere")
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to("/dev/zero")
    growing, small = LinesFile("x.jsonl", number, max_records=10), JsonFile("x.json", max_bytes=1000)
    growing.look(folder, ALL)
    small.look(folder)
    assert growing.records == []
    assert str(growing.failure) == REFUSALS[kind].format("x.jsonl")
    assert str(small.content) == REFUSALS[kind].format("x.json")


def test_a_small_file_is_read_when_it_has_changed(tmp_path: Path, folder: int) -> None:
    path, file = tmp_path / "x.json", JsonFile("x.json", max_bytes=100)
    assert (file.look(folder), file.content) == (False, None)
    path.write_text('{"format": 1, "a": NaN}')
    assert (file.look(folder), file.content) == (True, {"a": None})
    assert not file.look(folder)
    path.write_text("{" * 50)
    assert file.look(folder)
    assert str(file.content).startswith("x.json is damaged: not JSON (")
    path.write_text('{"a": "' + "x" * 200 + '"}')
    assert file.look(folder)
    assert "is larger than" in str(file.content)
    path.write_text('{"format": 99}')
    assert file.look(folder)
    assert "Upgrade turnaround" in str(file.content)
    path.unlink()
    assert (file.look(folder), file.content) == (True, None)


def test_a_folder_is_reached_without_links(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with folder_below(tmp_path, ("a", "b")) as descriptor:
        assert os.fstat(descriptor).st_ino == (tmp_path / "a" / "b").stat().st_ino
    with pytest.raises(OSError), folder_below(tmp_path, ("link", "b")):  # noqa: PT011
        pass
