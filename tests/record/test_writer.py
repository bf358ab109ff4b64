"""Files are whole after every failure that can be made to happen here."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

from turnaround import patience
from turnaround.errors import PassingStorageError, RunDirectoryError, StorageError
from turnaround.record import files
from turnaround.record.files import is_temporary, read_json
from turnaround.record.growing import read_lines
from turnaround.record.writer import Lines, remove_leftovers, truncate_epochs, write_json


def refuse(number):
    def function(*_arguments, **_keywords):
        raise OSError(number, os.strerror(number))

    return function


def sealed(line):
    """The line as it is written: with the CRC-32 of what stands before it."""
    return line[:-1] + b',"crc":"%08x"}\n' % zlib.crc32(line[:-1])


def test_a_file_is_written_with_its_version_and_replaced(tmp_path):
    path = tmp_path / "status.json"
    write_json(path, {"state": "queued", "loss": float("nan")})
    write_json(path, {"state": "running", "matrix": [[1, 2], [3, 4]]})
    body = '{\n "format": 1,\n "state": "running",\n "matrix": [[1, 2], [3, 4]]'
    assert path.read_text() == f'{body},\n "crc": "{zlib.crc32(body.encode()):08x}"\n}}\n'
    assert read_json(path) == {"state": "running", "matrix": [[1, 2], [3, 4]]}
    assert os.listdir(tmp_path) == ["status.json"]


def test_a_new_file_can_be_read_by_the_group(tmp_path):
    write_json(tmp_path / "a.json", {})
    (tmp_path / "plain").touch()
    assert (tmp_path / "a.json").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "quota is full .*GiB free.*Free some space"),
        (errno.EDQUOT, "quota is full"),
        (errno.EROFS, "read-only.*--out"),
        (errno.EACCES, "permission denied.*--out"),
        (errno.EIO, "Input/output error, 4 times within 0.0 s. Look at the disk or the network file system"),
    ],
)
@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_disk_that_refuses_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch, number, words, call):
    monkeypatch.setattr(patience, "PAUSES_S", (0.0, 0.0, 0.0))
    path = tmp_path / "status.json"
    write_json(path, {"state": "running"})
    before = path.read_bytes()
    monkeypatch.setattr(os, call, refuse(number))
    with pytest.raises(StorageError, match=f"Cannot write .*status.json: .*{words}"):
        write_json(path, {"state": "finished"})
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["status.json"]


def test_an_interrupt_leaves_no_temporary_file(tmp_path, monkeypatch):
    def interrupt(_descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_json(tmp_path / "status.json", {})
    assert os.listdir(tmp_path) == []


@pytest.mark.fault(26, "the folder has vanished: said plainly")
def test_a_vanished_folder_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match="its folder is not there"):
        write_json(tmp_path / "gone" / "status.json", {})
    with pytest.raises(StorageError, match="Cannot open"):
        Lines(tmp_path / "gone" / "epochs.jsonl", sync=True)


def test_a_file_system_that_cannot_sync_folders_is_fine(tmp_path, monkeypatch):
    real = os.fsync

    def fsync(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write_json(tmp_path / "a.json", {"a": 1})
    assert json.loads((tmp_path / "a.json").read_text())["a"] == 1


def test_a_synced_line_is_there_at_once(tmp_path):
    with Lines(tmp_path / "epochs.jsonl", sync=True) as lines:
        lines.write({"epoch": 1, "val_loss": float("inf")})
        assert (tmp_path / "epochs.jsonl").read_bytes() == sealed(b'{"epoch":1,"val_loss":null}')


def test_buffered_lines_come_by_number_by_age_and_at_the_end(tmp_path):
    path = tmp_path / "spans-0.jsonl"
    lines = Lines(path, sync=False, max_lines=3, max_age_s=60)
    lines.write({"step": 1})
    lines.write({"step": 2})
    assert path.read_bytes() == b""
    lines.write({"step": 3})
    assert path.read_bytes().count(b"\n") == 3
    lines.write({"step": 4})
    lines.close()
    lines.close()
    assert path.read_bytes().count(b"\n") == 4
    with pytest.raises(ValueError, match="closed"):
        lines.write({"step": 5})
    with Lines(path, sync=False, max_lines=1000, max_age_s=0.01) as lines:
        lines.write({"step": 5})
        time.sleep(0.02)
        lines.write({"step": 6})
        assert path.read_bytes().count(b"\n") == 6


@pytest.mark.fault(20, "the disk is full while the record grows: lost lines are an error or kept, never half a line")
def test_a_full_disk_stops_a_synced_file_and_is_only_kept_for_a_buffered_one(tmp_path, monkeypatch):
    full = tmp_path / "full.jsonl"
    monkeypatch.setattr(os, "write", refuse(errno.ENOSPC))
    with (
        Lines(full, sync=True) as lines,
        pytest.raises(StorageError, match=r"Cannot append to .*full.jsonl: .*full"),
    ):
        lines.write({"epoch": 1})
    with Lines(full, sync=False, max_lines=2) as lines:
        for step in range(5):
            lines.write({"step": step})
    assert "quota is full" in str(lines.failure)


def fails(times, number):
    """Trouble for files.trouble_on_purpose: so many accesses fail."""
    left = [number] * times

    def trouble():
        if left:
            raise OSError(left.pop(), "on purpose")

    return trouble


@pytest.fixture
def impatient(monkeypatch):
    """A file system that fails when a test puts trouble into the list; nobody sleeps between two tries."""
    monkeypatch.setattr(patience, "PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(files, "trouble_on_purpose", troubles := [])
    return troubles


@pytest.mark.fault(26, "ESTALE or EIO for a moment: every reader and writer of a run tries again")
@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ETIMEDOUT])
def test_what_fails_for_a_moment_is_tried_again(tmp_path, impatient, number):
    path, folder = tmp_path / "status.json", tmp_path / "checkpoint"
    write_json(path, {"state": "running"})
    (tmp_path / ".new").mkdir()
    lines = Lines(tmp_path / "epochs.jsonl", sync=True)
    lines.write({"epoch": 1})
    attempts = [
        lambda: write_json(path, {"state": "finished"}),
        lambda: read_json(path),
        lambda: files.sha256_of(path),
        lambda: files.names_in(tmp_path, must_answer=True),
        lambda: files.make_folder(folder),
        lambda: files.move(tmp_path / ".new", tmp_path / "new"),
        lambda: os.close(files.open_for_appending(tmp_path / "log")),
        lambda: lines.write({"epoch": 2}),
    ]
    for attempt in attempts:
        impatient[:] = [fails(99, number)]
        with pytest.raises((PassingStorageError, RunDirectoryError, OSError), match="on purpose"):
            attempt()
        impatient[:] = [fails(3, number)]
        attempt()
        impatient[0]()  # the trouble has struck three times: nothing is left of it
    impatient[:] = []
    assert [line["epoch"] for line in read_lines(lines.path, dict).records] == [1, 2]
    assert read_json(path) == {"state": "finished"}
    assert sorted(os.listdir(tmp_path)) == ["checkpoint", "epochs.jsonl", "log", "new", "status.json"]


def test_a_forgotten_handle_is_opened_again_and_a_half_written_line_taken_back(tmp_path, impatient, monkeypatch):
    path, real = tmp_path / "epochs.jsonl", os.write
    with Lines(path, sync=True) as lines:
        lines.write({"epoch": 1})
        gone = lines._descriptor

        def forgotten(descriptor, content):
            if descriptor == gone:
                real(descriptor, bytes(content)[:7])
                raise OSError(errno.ESTALE, "Stale file handle")
            return real(descriptor, content)

        monkeypatch.setattr(os, "ftruncate", refuse(errno.ESTALE))  # through the old handle, not even that
        monkeypatch.setattr(os, "write", forgotten)
        with pytest.raises(PassingStorageError, match="Stale file handle, 4 times"):
            lines.write({"epoch": 2})
        monkeypatch.undo()
        monkeypatch.setattr(patience, "PAUSES_S", (0.0, 0.0, 0.0))
        lines.write({"epoch": 2})
    assert path.read_bytes() == sealed(b'{"epoch":1}') + sealed(b'{"epoch":2}')


@pytest.mark.fault(20, "a line that fitted by half is taken back")
def test_half_a_line_is_taken_back(tmp_path, monkeypatch):
    path, real, calls = tmp_path / "epochs.jsonl", os.write, []

    def short_write(descriptor, content):
        calls.append(1)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, bytes(content)[:5])

    with Lines(path, sync=True) as lines:
        lines.write({"epoch": 1})
        monkeypatch.setattr(os, "write", short_write)
        with pytest.raises(StorageError):
            lines.write({"epoch": 2})
        assert path.read_bytes() == sealed(b'{"epoch":1}')
        monkeypatch.undo()
        lines.write({"epoch": 2})  # there is space again
    assert path.read_bytes() == sealed(b'{"epoch":1}') + sealed(b'{"epoch":2}')


@pytest.mark.fault(21, "a torn last line: removed before the next writer appends")
@pytest.mark.parametrize(
    ("before", "kept"),
    [
        (b"", b""),
        (b'{"a":1', b""),
        (b'{"a":1}\n', b'{"a":1}\n'),
        (b'{"a":1}\n{"a":2}', b'{"a":1}\n'),
        (b'{"a":1}\n' + b"\0" * 200_000, b'{"a":1}\n'),
        (b"x" * 100_000, b""),
        (b"x" * 65_535 + b"\n" + b"y" * 65_536, b"x" * 65_535 + b"\n"),
    ],
)
def test_a_new_writer_removes_the_torn_line(tmp_path, before, kept):
    path = tmp_path / "epochs.jsonl"
    path.write_bytes(before)
    with Lines(path, sync=True) as lines:
        lines.write({"a": 9})
    assert path.read_bytes() == kept + sealed(b'{"a":9}')


@pytest.mark.fault(22, "a line whose checksum is wrong: skipped and counted, whichever bit was flipped")
def test_any_flipped_bit_of_a_line_is_noticed(tmp_path):
    path, record = tmp_path / "epochs.jsonl", {"epoch": 3, "val_accuracy": 0.875, "note": None}
    with Lines(path, sync=True) as lines:
        lines.write(record)
    content = path.read_bytes()
    for bit in range(8 * (len(content) - 1)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        found = read_lines(path, dict)
        # What hits the name of the checksum leaves a line of which every value is as it was.
        values = [{key: line.get(key) for key in record} for line in found.records]
        assert values == [record] or (values == [] and found.bad_lines >= 1), flipped
    path.write_bytes(b'{"epoch": 3}\n')
    assert read_lines(path, dict).records == ({"epoch": 3},)  # of an earlier version, or of another program


def test_a_resume_keeps_a_damaged_line_as_evidence(tmp_path):
    path = tmp_path / "epochs.jsonl"
    damaged = sealed(b'{"epoch":2}').replace(b"2}", b"9}").replace(b":2,", b":9,")
    path.write_bytes(sealed(b'{"epoch":1}') + damaged)
    assert truncate_epochs(path, 1) == 0
    assert path.read_bytes().endswith(damaged)


WRITER = """
import sys
from pathlib import Path
from turnaround.record.writer import Lines
lines = Lines(Path(sys.argv[1]), sync=sys.argv[2] == "sync", max_lines=50, max_age_s=60)
number = 0
while True:
    number += 1
    lines.write({"epoch": number, "text": "x" * (number % 3000)})
"""


@pytest.mark.fault(21, "killed while it writes: whole lines and at most one torn one")
@pytest.mark.parametrize("mode", ["sync", "buffered"])
def test_kill_leaves_whole_lines_and_at_most_one_torn_one(tmp_path, mode):
    path = tmp_path / "epochs.jsonl"
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(path), mode])
        size_before = path.stat().st_size if path.exists() else 0
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s and (not path.exists() or path.stat().st_size <= size_before + 10_000):
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        file = read_lines(path, dict)
        assert file.bad_lines == 0
        assert [line["epoch"] for line in file.records][-1] > 1
    with path.open("ab") as torn:  # a kill rarely hits inside a write: make sure of one
        torn.write(b'{"epoch": 77')
    assert read_lines(path, dict).is_torn
    count = len(read_lines(path, dict).records)
    with Lines(path, sync=True) as lines:
        lines.write({"epoch": 0})
    assert len(read_lines(path, dict).records) == count + 1
    assert read_lines(path, dict).bad_lines == 0


def test_resume_drops_the_epochs_after_the_checkpoint(tmp_path):
    path = tmp_path / "epochs.jsonl"
    garbage = b"\xff\xfe garbage \r here\n"
    path.write_bytes(b'{"epoch":1}\n' + garbage + b'{"epoch":2}\n{"epoch":3}\n[4]\n{"epoch":4')
    assert truncate_epochs(path, 2) == 1
    assert path.read_bytes() == b'{"epoch":1}\n' + garbage + b'{"epoch":2}\n[4]\n'
    assert truncate_epochs(path, 2) == 0
    assert truncate_epochs(path, 0) == 2
    assert os.listdir(tmp_path) == ["epochs.jsonl"]


def test_resume_before_the_first_epoch_finds_nothing_to_drop(tmp_path):
    assert truncate_epochs(tmp_path / "epochs.jsonl", 0) == 0
    assert os.listdir(tmp_path) == []
    with pytest.raises(RunDirectoryError, match="is not a plain file"):
        truncate_epochs(tmp_path, 0)


@pytest.mark.fault(3, "temporary files of killed writers go at the next start; other files and links stay")
def test_leftovers_of_killed_writers_go(tmp_path, monkeypatch):
    run, mine = tmp_path / "run", tmp_path / "mine"
    mine.mkdir()
    (run / "logs").mkdir(parents=True)
    left = [".status.json.12-0123abcd.tmp", "logs/.processes.log.7-00ff00ff.tmp", "logs/.pulse-0.json.7-00ff00ff.tmp"]
    kept = ["status.json", ".hidden.tmp", "logs/processes.log"]
    for name in (*left, *kept):
        (run / name).write_text("{}")
    remove_leftovers(run, run, run / "logs")
    assert sorted(p.relative_to(run).as_posix() for p in run.rglob("*") if p.is_file()) == sorted(kept)
    (mine / left[0]).write_text("mine")
    (run / "linked").symlink_to(mine)
    remove_leftovers(run, run / "linked")
    assert (mine / left[0]).exists()


def test_temporary_names_are_recognised(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(os, "replace", lambda source, _target, **_folders: seen.append(Path(source).name))
    write_json(tmp_path / "status.json", {})
    assert is_temporary(seen[0])
    assert not is_temporary("status.json")
    assert not is_temporary(".hidden.tmp")
