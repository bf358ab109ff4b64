"""Many files at once go to their places; a file that a decoder dies of is named, and the others are decoded."""

import errno
import hashlib
import io
import resource
import signal
import threading
import time
from pathlib import Path
from typing import IO

import numpy as np
import psutil
import pytest
from PIL import Image

from struck import decoders_below
from turnaround import children, patience
from turnaround.children import ChildPool, Death
from turnaround.data import decode, decoders
from turnaround.data.decode import (
    MAX_DECODE_BYTES,
    MAX_FILE_BYTES,
    MemoryShortImage,
    UnansweredImage,
    UnreadableImage,
    decode_bytes,
)
from turnaround.data.decoders import DecoderLimits, DecodeTarget, GuardedDecoder, blame, decode_into
from turnaround.errors import PassingStorageError, ProcessFailedError


@pytest.fixture
def twenty(tmp_path: Path) -> tuple[str, ...]:
    """Twenty images, each of its own colour; the fourth is bad."""
    files = tuple(f"{index}.png" for index in range(20))
    for index, name in enumerate(files):
        Image.new("RGB", (9, 9), (index, 2 * index, 0)).save(tmp_path / name)
    (tmp_path / "3.png").write_bytes(b"")
    return files


def test_many_files_go_to_their_places(tmp_path: Path, twenty: tuple[str, ...]) -> None:
    out = tmp_path / "out"
    out.write_bytes(bytes(5 + 20 * 192))
    target = DecodeTarget(path=out, offset_bytes=5, root=tmp_path, size_px=8)
    seen: list[tuple[int, int]] = []
    decoded = decode_into(target, twenty, lambda done, total: seen.append((done, total)))
    assert decoded.bad == {3: "empty file"}
    assert decoded.digests[4].tobytes() == hashlib.blake2b((tmp_path / "4.png").read_bytes(), digest_size=16).digest()
    assert not decoded.digests[3].any()
    assert decoded.images_per_s > 0
    pixels = np.frombuffer(out.read_bytes()[5:], np.uint8).reshape(20, 8, 8, 3)
    assert pixels[:, 0, 0, 1].tolist() == [0 if index == 3 else 2 * index for index in range(20)]
    assert seen[-1] == (20, 20)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


def test_many_files_checked_and_not_kept(tmp_path: Path, twenty: tuple[str, ...]) -> None:
    before = sorted(path.name for path in tmp_path.iterdir())
    decoded = decode_into(DecodeTarget(path=None, offset_bytes=0, root=tmp_path, size_px=8), twenty)
    assert decoded.bad == {3: "empty file"}
    assert decoded.digests.any(axis=1).tolist() == [index != 3 for index in range(20)]
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def endless(path: Path, num_comments: int = 10_000_000) -> bytes:
    """A small picture behind millions of empty comments: within every limit, and 10 s of computing on a quick machine,
    where a limit of one second strikes after two to three."""
    content = io.BytesIO()
    Image.new("RGB", (16, 16), (9, 90, 200)).save(content, "JPEG")
    data = content.getvalue()
    path.write_bytes(data[:2] + b"\xff\xfe\x00\x02" * num_comments + data[2:])
    return path.read_bytes()


@pytest.mark.fault(41, "a picture that takes for ever: its decoder is ended and replaced, the file is named")
@pytest.mark.parametrize("num_files", [20, 80])
def test_a_picture_that_takes_for_ever_is_named(
    tmp_path: Path, num_files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few files are decoded by the process itself, many by others."""
    monkeypatch.setattr(decoders, "CPU_LIMIT_S", 1)
    monkeypatch.setattr(children, "num_helpers", lambda: 2)
    files = tuple(f"{index}.png" for index in range(num_files))
    for index, name in enumerate(files):
        Image.new("RGB", (9, 9), (index, 2 * index, 0)).save(tmp_path / name)
    endless(tmp_path / "5.png")
    out = tmp_path / "out"
    out.write_bytes(bytes(num_files * 192))
    decoded = decode_into(DecodeTarget(path=out, offset_bytes=0, root=tmp_path, size_px=8), files)
    assert decoded.bad == {5: "takes more than 1 s of computing to decode"}
    pixels = np.frombuffer(out.read_bytes(), np.uint8).reshape(num_files, 8, 8, 3)
    assert pixels[:, 0, 0, 1].tolist() == [0 if index == 5 else 2 * index for index in range(num_files)]
    assert decoded.digests.any(axis=1).tolist() == [index != 5 for index in range(num_files)]
    assert decoders_below(psutil.Process()) == []


def test_whose_fault_a_death_is() -> None:
    def blamed(exit_code: int, mark: int) -> tuple[int, str]:
        return blame(Death(exit_code=exit_code, mark=mark), num_processes=3, cpu_limit_s=7)

    assert blamed(-signal.SIGXCPU, 4) == (4, "takes more than 7 s of computing to decode")
    assert blamed(-signal.SIGSEGV, 0) == (0, "the decoder crashed on it (signal 11)")
    for exit_code, mark in ((-signal.SIGKILL, 4), (1, 4), (-signal.SIGSEGV, -1)):
        with pytest.raises(ProcessFailedError, match="for 3 such processes"):
            blamed(exit_code, mark)


def test_a_good_picture_in_a_process_of_its_own_is_the_same(tmp_path: Path) -> None:
    Image.fromarray(np.random.default_rng(1).integers(0, 255, (40, 50, 3), dtype=np.uint8)).save(tmp_path / "x.tif")
    data = (tmp_path / "x.tif").read_bytes()
    with GuardedDecoder() as decoder:
        there = decoder.decode(data, size_px=16, path=tmp_path / "x.tif")
        assert np.array_equal(there, decode_bytes(data, size_px=16, path=tmp_path / "x.tif"))
        with pytest.raises(UnreadableImage) as caught:
            decoder.decode(data[:500], size_px=16, path=tmp_path / "x.tif")
    assert caught.value.path == tmp_path / "x.tif"


def test_the_next_picture_is_decoded_after_one_that_took_too_long(tmp_path: Path) -> None:
    with GuardedDecoder(cpu_limit_s=1) as decoder:
        with pytest.raises(UnreadableImage, match="takes more than 1 s of computing"):
            decoder.decode(endless(tmp_path / "slow.jpg"), size_px=16, path=tmp_path / "slow.jpg")
        Image.new("RGB", (9, 9), (1, 2, 3)).save(tmp_path / "x.tif")
        assert decoder.decode((tmp_path / "x.tif").read_bytes(), size_px=16, path=tmp_path).shape == (16, 16, 3)


def test_closing_does_not_wait_for_a_picture(tmp_path: Path) -> None:
    data, errors = endless(tmp_path / "slow.jpg", 20_000_000), []
    decoder = GuardedDecoder()

    def decode() -> None:
        try:
            decoder.decode(data, size_px=16, path=tmp_path / "slow.jpg")
        except UnreadableImage as error:
            errors.append(error.reason)

    thread = threading.Thread(target=decode)
    thread.start()
    time.sleep(1.0)
    start_s = time.monotonic()
    decoder.close()
    thread.join()
    assert time.monotonic() - start_s < 20  # where the picture takes more than 30
    assert errors == ["the decoder was closed"]


def limits_of(task: int) -> tuple[int, int]:
    decoders._own[0][1].begin_picture(task)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return resource.getrlimit(resource.RLIMIT_AS)[0] - pages * resource.getpagesize(), resource.getrlimit(
        resource.RLIMIT_CPU
    )[0]


@pytest.mark.fault(41, "the memory and the computing time of a decoder are limited by the kernel")
def test_a_decoder_has_limits() -> None:
    with ChildPool(limits_of, 1, begin=decoders._begin, begin_with=(None, 7)) as pool:
        pool.submit(0)
        left_bytes, cpu_s = pool.take().result
    assert MAX_DECODE_BYTES < left_bytes <= MAX_DECODE_BYTES + MAX_FILE_BYTES + (256 << 20)
    assert 7 < cpu_s < 30


PEAKS = {
    "JPEG": {"mode": "CMYK", "progressive": True},
    "WEBP": {"mode": "RGBA", "lossless": True, "method": 0},
    "PNG": {"mode": "RGBA", "compress_level": 1},
    "TIFF": {"mode": "F", "compression": "tiff_lzw"},
}


def decode_and_peak(data: bytes) -> int:
    """In a child: how far the address space grew."""
    status = Path("/proc/self/status")

    def peak() -> int:
        return int(next(line for line in status.read_text().splitlines() if line.startswith("VmPeak")).split()[1])

    before = peak()
    decode_bytes(data, size_px=64, path=Path("x"))
    return 1024 * (peak() - before)


@pytest.mark.fault(41, "every format, as large as it may be, is decoded in 0.7 GB")
@pytest.mark.parametrize("kind", PEAKS)
def test_the_promised_memory_is_enough(kind: str) -> None:
    options = dict(PEAKS[kind])
    side_px = 6_320 if kind == "WEBP" else 7_070
    content = io.BytesIO()
    Image.new(str(options.pop("mode")), (side_px, side_px)).save(content, kind, **options)
    with ChildPool(decode_and_peak, 1) as pool:
        pool.submit(content.getvalue())
        assert pool.take().result <= MAX_DECODE_BYTES


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """What the next reads of 5.png raise, the last one first."""
    failures: list[Exception] = []

    def flaky(path: Path, *how: str) -> IO[bytes]:
        if path == tmp_path / "5.png" and failures:
            raise failures.pop()
        return Path.open(path, *how)

    monkeypatch.setattr(decode, "open", flaky, raising=False)
    monkeypatch.setattr(patience, "PAUSES_S", (0.0, 0.0, 0.0))
    return failures


@pytest.mark.fault(26, "a file server fails for a moment while an image is read: read again, and never left out for it")
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_an_image_that_cannot_be_read_for_a_moment(
    tmp_path: Path, twenty: tuple[str, ...], failing: list[Exception], number: int
) -> None:
    target = DecodeTarget(path=None, offset_bytes=0, root=tmp_path, size_px=8)
    failing += [OSError(number, "for a moment")] * 3
    assert decode_into(target, twenty).bad == {3: "empty file"}
    assert failing == []
    failing += [OSError(number, "for a moment")] * 4
    with pytest.raises(PassingStorageError, match=r"5\.png' cannot be read now: for a moment, 4 times"):
        decode_into(target, twenty)


@pytest.mark.fault(26, "too little memory for an image is the machine's failure, not the image's")
def test_without_memory_no_image_is_bad(tmp_path: Path, twenty: tuple[str, ...], failing: list[Exception]) -> None:
    failing.append(MemoryError())
    with pytest.raises(ProcessFailedError, match="not enough memory to read it"):
        decode_into(DecodeTarget(path=None, offset_bytes=0, root=tmp_path, size_px=8), twenty)


def test_a_picture_that_takes_more_than_any_may_is_to_blame() -> None:
    limits = DecoderLimits.__new__(DecoderLimits)
    for limits.has_room in (True, False):
        assert decoders._is_own_fault(MemoryShortImage(Path("x"), "no memory"), limits) == limits.has_room
        assert not decoders._is_own_fault(UnansweredImage(Path("x"), "no answer"), limits)
    assert not decoders._is_own_fault(MemoryShortImage(Path("x"), "no memory"), None)
