"""Tar shards as WebDataset writes them: samples, parts, and what is wrong with a shard."""

from __future__ import annotations

import gzip
import os
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from data.formats.pictures import labelled_shard, picture, shard
from turnaround.data.decode import UnreadableImage, decode, read_file
from turnaround.data.formats import scan
from turnaround.data.formats.tar import members
from turnaround.data.labelled import labelled_images
from turnaround.errors import DataError


def message(source: Path) -> str:
    with pytest.raises(DataError) as error:
        scan(source, holdout=0.25, seed=0)
    return str(error.value)


def test_a_shard_is_a_source(tmp_path: Path) -> None:
    found = scan(labelled_shard(tmp_path / "set.tar"), holdout=0.25, seed=0)
    assert found.classes == ("apple", "pear")
    assert (found.num_train, len(found.files)) == (6, 8)
    assert sorted(found.files) == [f"set.tar/{k:04}.png" for k in range(8)]
    for file, label in zip(found.files, found.labels, strict=True):
        number = int(file[-8:-4])
        assert number % 2 == label
        assert read_file(found.root / file) == picture(number)
        assert decode(found.root / file, size_px=8)[0][0, 0, 0] == number


def test_names_of_shards_and_folders_tell_the_parts(tmp_path: Path) -> None:
    labelled_shard(tmp_path / "a" / "set-train-000.tar")
    labelled_shard(tmp_path / "a" / "set-train-001.tar", first=8)
    labelled_shard(tmp_path / "a" / "set-val-000.tar", first=16)
    labelled_shard(tmp_path / "b" / "train" / "0.tar")
    labelled_shard(tmp_path / "b" / "test" / "0.tar", first=8)
    for place, num_train in (("a", 16), ("b", 8)):
        found = scan(tmp_path / place, holdout=0.25, seed=0)
        assert (found.num_train, len(found.files) - found.num_train, found.split) == (
            num_train,
            8,
            "names of the shards",
        )
    found = scan(tmp_path / "a" / "set-train-{000..001}.tar", holdout=0.25, seed=0)
    assert len(found.files) == 16
    assert "names of the shards" in message(tmp_path / "a" / "*val*.tar")
    assert "1 of its 3 files are not there" in message(tmp_path / "a" / "set-train-{000..002}.tar")
    assert "is no range of at most" in message(tmp_path / "a" / "set-train-{002..001}.tar")
    evaluated = labelled_images(tmp_path / "b", run=Path("runs/x"))
    assert len(evaluated.files) == 8
    assert evaluated.notes == ("Left out: 8 images of the part 'train' (names of the shards).",)


def test_many_shards_are_read_by_processes(tmp_path: Path) -> None:
    for number in range(4):
        labelled_shard(tmp_path / f"{number}.tar", first=8 * number)
    assert len(scan(tmp_path, holdout=0.25, seed=0).files) == 32
    (tmp_path / "2.tar").write_bytes((tmp_path / "2.tar").read_bytes()[:3000])
    assert f"{tmp_path / '2.tar'} is cut off" in message(tmp_path)


def test_labels_in_json_and_a_list_of_classes(tmp_path: Path) -> None:
    several = {f"{k}.png": picture(k) for k in range(4)} | {f"{k}.json": b'{"label": %d}' % (k % 2) for k in range(4)}
    path = shard(tmp_path / "s.tar", dict(sorted(several.items())))
    assert scan(path, holdout=0.5, seed=0).classes == ("0", "1")
    (tmp_path / "classnames.txt").write_text("granny smith\nwilliams\n")
    assert scan(path, holdout=0.5, seed=0).classes == ("granny smith", "williams")
    (tmp_path / "classnames.txt").write_text("granny smith\n")
    assert "names 1 class, each of which must be there once; the shards have labels up to 1" in message(path)


def test_long_names_and_other_members(tmp_path: Path) -> None:
    for format_ in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        path = tmp_path / f"{format_}.tar"
        with tarfile.open(path, "w", format=format_) as tar:
            for k in range(4):
                key = "ordner/" + 150 * "ä" + f"/{k}"
                for name, content in (
                    (f"{key}.PNG", picture(k)),
                    (f"{key}.seg.png", b"x"),
                    (f"{key}.cls", b"%d" % (k % 2)),
                ):
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    tar.addfile(info, BytesIO(content))
            link = tarfile.TarInfo("link.jpg")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(link)
            tar.addfile(tarfile.TarInfo("about.txt"))
        found = scan(path, holdout=0.5, seed=0)
        assert [file.endswith(".PNG") for file in found.files] == [True] * 4
        assert all(read_file(found.root / file).startswith(b"\x89PNG") for file in found.files)
        assert [member.name for member in members(path)][-1] == "about.txt"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"a.png": picture(0)}, "member 'a': no label beside the image: 'a.cls' (text) or 'a.json'"),
        ({"a.png": picture(0), "a.cls": b" "}, "member 'a': the label is no name and no number"),
        ({"a.png": picture(0), "a.json": b"{"}, "member 'a.json': no JSON"),
        ({"a.png": picture(0), "a.json": b'{"x": 1}'}, "member 'a.json': no label in it. Known names: label, class"),
        ({"a.txt": b"x"}, "holds no image. Looked for members that end in bmp"),
        ({"a.png": picture(0), "a.cls": b"1.5"}, "member 'a': the label '1.5' is a number with a fraction"),
    ],
)
def test_what_is_wrong_with_a_shard(content: dict[str, bytes], said: str, tmp_path: Path) -> None:
    path = shard(tmp_path / "s.tar", content)
    assert said in message(path)
    assert message(path).startswith(str(path))


def test_a_shard_that_is_cut_off_or_no_tar(tmp_path: Path) -> None:
    whole = labelled_shard(tmp_path / "s.tar").read_bytes()
    path = tmp_path / "t.tar"
    for cut in (700, 1400, 5 * 512 + 1):
        path.write_bytes(whole[:cut])
        assert "is cut off" in message(path)
    path.write_bytes(b"x" + whole[1:])
    assert "is damaged or no tar file: there is no header of a member at byte 0" in message(path)
    path.write_bytes(gzip.compress(whole))
    assert "is compressed (gzip), so no image in it can be read alone" in message(path)
    path.write_bytes(b"%PDF" + bytes(2000))
    assert "is damaged or no tar file: there is no header of a member at byte 0" in message(path)
    path.write_bytes(b"")
    assert "is cut off" in message(path)
    path.write_bytes(bytes(1024))
    assert "holds no image" in message(path)
    twice = [("a.png", picture(0)), ("a.cls", b"0"), ("b.png", picture(1)), ("b.cls", b"1"), ("a.png", picture(2))]
    assert "the key 'a' is there twice" in message(shard(path, twice))


def test_a_shard_that_changes_after_the_scan(tmp_path: Path) -> None:
    path = labelled_shard(tmp_path / "s.tar")
    with pytest.raises(UnreadableImage, match="no such member"):
        read_file(path / "9999.png")
    read_file(path / "0001.png")
    labelled_shard(path, first=100)
    os.utime(path, ns=(1, 1))  # some file systems tell times in steps of milliseconds
    with pytest.raises(UnreadableImage, match="no such member"):
        read_file(path / "0001.png")
    path.unlink()
    with pytest.raises(UnreadableImage, match="no such file"):
        read_file(path / "0001.png")


def test_an_archive_beside_class_folders_is_left_alone(tmp_path: Path) -> None:
    labelled_shard(tmp_path / "original.tar")
    for name in ("apple", "pear"):
        (tmp_path / name).mkdir()
        for k in range(3):
            (tmp_path / name / f"{k}.png").write_bytes(picture(k))
    assert set(scan(tmp_path, holdout=0.3, seed=0).files) == {
        f"{name}/{k}.png" for name in ("apple", "pear") for k in range(3)
    }
