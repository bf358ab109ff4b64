"""An image file in, a square of 8-bit RGB pixels and the digest of the file's bytes out.

The content decides the format, never the extension. What the pixels mean is fixed here, for every format:

    orientation     EXIF orientations 1..8 are applied
    several frames  the first frame
    transparency    composited on white (not for 16-bit grey, where Pillow does not read it)
    16 bits         the high byte, as Pillow itself does for 16-bit colour: nothing is clipped to white
    32 bits, float  the smallest of the ranges 0..1 (float only), 0..255, 0..65535 that holds all values
                    becomes 0..255; when none does, the image's own minimum..maximum; not-a-number becomes 0
    others          CMYK (also Adobe's inverted one), palette, grey, 1 bit: converted to RGB as Pillow does it

A file that cannot be decoded completely raises UnreadableImage; nothing is guessed and nothing is filled in.
"""

import hashlib
import os
import re
import warnings
from collections.abc import Callable, Iterator
from io import BytesIO
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, JpegImagePlugin, TiffImagePlugin, UnidentifiedImageError

from turnaround.errors import DataError, PassingStorageError, ProcessFailedError, TurnaroundError
from turnaround.patience import PASSING, PAUSES_S, patiently

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")  # an allow-list: Pillow would run Ghostscript for EPS
MAX_PIXELS = 50_000_000  # 50 Mpx: larger than any camera's photo
# libwebp's animation decoder keeps three canvases beside Pillow's picture: 17 bytes a pixel where the next largest, a
# TIFF of floats, takes 12 (measured at 49 Mpx as the growth of the address space).
MAX_PIXELS_OF_WEBP = 40_000_000
MAX_DECODE_BYTES = 700_000_000  # what decoding takes at most beside the file itself; follows from the two above
MAX_FILE_BYTES = 1 << 30  # no image of 50 Mpx needs more; a mislabelled video would fill the memory
# A JPEG in many scans is gone through once for each: a scan of 75 bytes costs as much time as the whole picture, about
# 1 ns a pixel. Cameras and web sites write 10 to 20 scans.
MAX_SCANS = 500  # the limit that libjpeg-turbo recommends for files of strangers
MAX_SCANNED_PIXELS = 1_500_000_000  # scans x pixels: 30 scans of a picture of 50 Mpx
# libtiff goes through every strip or tile of a TIFF in JPEG for itself, and prints a line of its own from 100 scans on.
_MAX_SCANS_IN_TIFF = 50
# Below these, decoding takes at most about a second and 430 MB, whatever is in the file. The pixels of a JPEG in one
# scan cost what they cost, in however many bytes. Other limits are of what Pillow does in Python, holding the
# interpreter: 150,000 empty chunks of a PNG (1.8 MB) take 1 to 3 s, a header of 128 kB in comments 0.05 s.
_CHEAP_PIXELS, _CHEAP_FILE_BYTES, _CHEAP_HEADER_BYTES, _CHEAP_CHUNKS = 25_000_000, 2_000_000, 1 << 17, 1_000
DIGEST_BYTES = 16  # 128 bits: two of a million files agree by chance with a probability below 1e-26
BACKGROUND_RGB = (255, 255, 255)
_BAND_PIXELS = 1 << 21  # converted at a time: 8 MB as RGBA
_JPEG_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")  # but for stuffed bytes and restarts, which stand inside a scan
_START_OF_SCAN, _END_OF_IMAGE, _WITHOUT_LENGTH = 0xDA, 0xD9, (0x01, 0xD8)
_TIFF_TILE_TAGS = (322, 323)
_TIFF_COMPRESSION_TAG, _TIFF_JPEG = 259, 7  # 6, the old kind, takes one scan and nothing behind it
_TIFF_PLACE_TAGS = ((273, 279), (324, 325))  # first bytes and lengths of strips, of tiles
_TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_PNG_START = b"\x89PNG\r\n\x1a\n"

_EXIF_ORIENTATION_TAG = 0x0112
# The transposition that undoes each orientation; 1 is upright. 5 to 8 swap width and height.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class UnreadableImage(DataError):  # noqa: N818  (named for what it is: it is listed, not only raised)
    """One file is not a complete image; `reason` is short enough for a list of many."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{str(path)!r} cannot be read as an image: {reason}.")
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type["UnreadableImage"], tuple[Path, str]]:
        return type(self), (self.path, self.reason)  # it crosses process borders


class MachineFailedImage(UnreadableImage):
    """The machine has failed over a picture that may be good: whoever leaves pictures out keeps this one."""

    def of_the_machine(self) -> TurnaroundError:
        """Return the error for whoever cannot go on without the picture."""
        raise NotImplementedError


class UnansweredImage(MachineFailedImage):
    """The file system does not answer, however often it is asked."""

    def of_the_machine(self) -> TurnaroundError:
        return PassingStorageError(
            f"{str(self.path)!r} cannot be read now: {self.reason}, {len(PAUSES_S) + 1} times within "
            f"{sum(PAUSES_S):.1f} s. Look at the disk or the network file system; the image may be good."
        )


class MemoryShortImage(MachineFailedImage):
    """There is too little memory for it."""

    def of_the_machine(self) -> TurnaroundError:
        return ProcessFailedError(
            f"{str(self.path)!r}: {self.reason}. Ask for more memory, or use fewer cores (taskset -c 0-3 turnaround "
            "...); the image may be good."
        )


def decode(path: Path, *, size_px: int) -> tuple[NDArray[np.uint8], bytes]:
    """Return the (size_px, size_px, 3) pixels of the whole image and the blake2b digest of the file's bytes.

    The image is squeezed to the square with antialiasing, its aspect ratio is not kept: nothing at the border
    is lost, whatever the shape, as in Keras' flow_from_directory; a centre crop loses what lies at the edge.
    """
    pixels = np.empty((size_px, size_px, 3), np.uint8)
    return pixels, decode_to(pixels, path)


def decode_to(out: NDArray[np.uint8], path: Path) -> bytes:
    """Decode as `decode` does, into an existing square; return the digest. After an error `out` is undefined."""
    data = read_file(path)
    out[...] = decode_bytes(data, size_px=len(out), path=path)
    return digest_of(data)


def digest_of(data: bytes | memoryview) -> bytes:
    """Return the digest of a file's bytes, or of pixels."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def decode_bytes(data: bytes, *, size_px: int, path: Path) -> NDArray[np.uint8]:
    """Return the pixels of a file's content, read-only; `path` is the name in the error where there are none."""
    _refuse_size(path, len(data))
    try:
        # Damaged metadata around good pixels is no reason to print or, where warnings are errors, to stop.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.asarray(_square(data, size_px=size_px))
    except _RefusedError as refused:
        raise UnreadableImage(path, str(refused)) from None
    except UnidentifiedImageError:
        raise UnreadableImage(path, _not_an_image(data)) from None
    except Image.DecompressionBombError:
        raise UnreadableImage(path, _too_large("far more", MAX_PIXELS)) from None
    except MemoryError:
        raise MemoryShortImage(path, "not enough memory to decode it") from None
    except Exception as error:  # a damaged file can raise anything: SyntaxError, struct.error, zlib.error ...
        raise UnreadableImage(path, _short(error)) from error


def _refuse_size(path: Path, num_bytes: int) -> None:
    if num_bytes > MAX_FILE_BYTES:
        raise UnreadableImage(path, f"file larger than {MAX_FILE_BYTES / 1e9:.1f} GB")
    if not num_bytes:
        raise UnreadableImage(path, "empty file")


class _RefusedError(Exception):
    """A reason found in here, not by Pillow."""


def read_file(path: Path) -> bytes:
    """Return the bytes of a file that is not larger than an image can be, or raise UnreadableImage.

    Where the file system fails for a moment it is read again; after that, and without memory, MachineFailedImage.
    """
    try:
        return patiently(lambda: _read(path))
    except OSError as error:
        kind = UnansweredImage if error.errno in PASSING else UnreadableImage
        raise kind(path, (error.strerror or str(error)).lower()) from error
    except MemoryError:
        raise MemoryShortImage(path, "not enough memory to read it") from None


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            # Asked first: read(MAX_FILE_BYTES) would set that much memory aside for every file, and take three times
            # as long.
            _refuse_size(path, max(1, os.fstat(file.fileno()).st_size))  # 0 may be a pipe: reading tells
            return file.read()
    except NotADirectoryError:  # the path leads into a container: a file where a folder would be
        from turnaround.data.formats.members import read_member  # it imports this module

        return read_member(path)


def _square(data: bytes, *, size_px: int) -> Image.Image:
    """Return the picture as an upright RGB square."""
    with Image.open(BytesIO(data), formats=FORMATS) as image:
        _refuse_costly(image, data)  # before load(): Image.open has read the header alone
        # JPEG can be decoded at 1/2, 1/4, 1/8 while it stays >= size_px on both sides. The target is square,
        # so an orientation that swaps the sides changes nothing here. The box is the part of the reduced
        # picture that is picture: sides that do not divide evenly are padded by up to one pixel.
        drafted = image.draft(None, (size_px, size_px))
        image.load()
        box = drafted[1] if drafted else None
        square = _to_8_bit(image).resize((size_px, size_px), Image.Resampling.BILINEAR, box=box, reducing_gap=2.0)
        # Turned last, when it is small: turning and squeezing to a square commute.
        upright = _UPRIGHT.get(_orientation(image))
    if upright is not None:
        square = square.transpose(upright)
    return square if square.mode == "RGB" else square.convert("RGB")


def _refuse_costly(image: Image.Image, data: bytes) -> None:
    """Refuse what would take too much memory or time, by what the file says of itself: nothing was decoded yet."""
    num_pixels = image.width * image.height
    limit_px = MAX_PIXELS_OF_WEBP if image.format == "WEBP" else MAX_PIXELS
    if num_pixels > limit_px:
        raise _RefusedError(_too_large(f"{image.width} x {image.height} px, more", limit_px))
    if image.format == "TIFF":
        if _tile_bytes(image) > MAX_DECODE_BYTES:
            raise _RefusedError("its tiles are larger than any picture may be")
        num_scans, most = _num_scans_in_tiff(image, data), _MAX_SCANS_IN_TIFF
    else:
        num_scans, most = _num_scans(image, data), MAX_SCANS
    if num_scans > most or num_scans * num_pixels > MAX_SCANNED_PIXELS:
        raise _RefusedError(
            f"{'more than ' if num_scans > most else ''}{min(num_scans, most)} scans of "
            f"{image.width} x {image.height} px: a JPEG that takes far too long to decode"
        )


def is_costly(data: bytes) -> bool:
    """Return whether decoding could take more than about a second or 430 MB: then it belongs into a child process.

    It is quick itself: of a header no more than _CHEAP_HEADER_BYTES is read, of a PNG no more than _CHEAP_CHUNKS.
    """
    is_long = len(data) > _CHEAP_FILE_BYTES
    # What TIFF takes depends on its tiles and its compression, JPEG in scans among them.
    if data.startswith(_TIFF_STARTS) or (is_long and not data.startswith(b"\xff\xd8")) or _has_many_chunks(data):
        return True
    # WebP is read as a whole or not at all, by libwebp.
    head = data if data.startswith(b"RIFF") else data[:_CHEAP_HEADER_BYTES]
    try:
        with warnings.catch_warnings(), Image.open(BytesIO(head), formats=FORMATS) as image:
            warnings.simplefilter("ignore")
            if image.tile and image.tile[0][0] == "bmp_rle":
                return True  # decoded by Python, pixel by pixel
            is_one_scan = _is_one_scan(image, data)
            if is_long and not is_one_scan:
                return True
            return (1 if is_one_scan else _num_scans(image, data)) * image.width * image.height > _CHEAP_PIXELS
    except Exception:
        return len(head) < len(data)  # where that is all, it is no image: decoding it ends at once, and says why


def _has_many_chunks(data: bytes) -> bool:
    """Return true for a PNG of more chunks than a picture of 2 MB has in any program's pieces of 4 kB or more."""
    if not data.startswith(_PNG_START):
        return False
    place = len(_PNG_START)
    for _ in range(_CHEAP_CHUNKS):
        if place >= len(data):
            return False
        place += 12 + int.from_bytes(data[place : place + 4], "big")  # its length, its name and its checksum
    return True


def _is_one_scan(image: Image.Image, data: bytes) -> bool:
    """Return whether the decoder goes through the picture once, as far as the header tells."""
    if not isinstance(image, JpegImagePlugin.JpegImageFile):
        return True
    # A scan of all components of a sequential JPEG is the only one: libjpeg does not read on after it. Pillow has read
    # up to the end of its header: marker, length, number of components, two bytes for each, three more.
    header = b"\xff\xda" + (6 + 2 * image.layers).to_bytes(2, "big") + bytes([image.layers])
    first = image.fp.tell() - 8 - 2 * image.layers if image.format == "JPEG" and image.fp is not None else -1
    return "progressive" not in image.info and first > 0 and data.startswith(header, first)


def _num_scans(image: Image.Image, data: bytes) -> int:
    """Return how often the decoder goes through the picture; counting ends beyond MAX_SCANS."""
    return 1 if _is_one_scan(image, data) else _count_scans(data, 0, len(data), MAX_SCANS)


def _num_scans_in_tiff(image: Image.Image, data: bytes) -> int:
    """Return the most scans of any strip or tile of a TIFF; counting ends beyond _MAX_SCANS_IN_TIFF."""
    assert isinstance(image, TiffImagePlugin.TiffImageFile)
    if image.tag_v2.get(_TIFF_COMPRESSION_TAG) != _TIFF_JPEG:
        return 1
    # Blank tiles may share their bytes: once is enough.
    places = {place for tags in _TIFF_PLACE_TAGS for place in zip_longest(*map(_numbers_of(image), tags), fillvalue=0)}
    most, num_bytes = 1, 0
    for start, length in places:
        end = min(len(data), start + length) if length else len(data)  # libtiff guesses a length that is missing
        num_bytes += max(0, end - start)
        if num_bytes > 2 * len(data):
            raise _RefusedError("its strips lie over one another: a TIFF that takes far too long to decode")
        most = max(most, _count_scans(data, start, end, _MAX_SCANS_IN_TIFF))
        if most > _MAX_SCANS_IN_TIFF:
            break
    return most


def _numbers_of(image: TiffImagePlugin.TiffImageFile) -> Callable[[int], tuple[int, ...]]:
    def numbers(tag: int) -> tuple[int, ...]:
        value = image.tag_v2.get(tag, ())
        return tuple(map(int, value)) if isinstance(value, tuple) else (int(value),)

    return numbers


def _count_scans(data: bytes, start: int, end: int, most: int) -> int:
    """Return the number of scans of the JPEG that lies in these bytes; counting ends beyond `most`."""
    # From marker to marker, over the segments between them: metadata may hold a thumbnail, whose scans do not count.
    num_scans, place = 0, start + 2  # behind the marker of the start of the image
    while num_scans <= most and (marker := _JPEG_MARKER.search(data, place, end)) is not None:
        code, place = data[marker.end() - 1], marker.end()
        if code == _END_OF_IMAGE:
            break
        if code not in _WITHOUT_LENGTH:
            # A length counts its own two bytes; a lie of 0 or 1 must not hold the search in place.
            place += max(2, int.from_bytes(data[place : place + 2], "big"))
        num_scans += code == _START_OF_SCAN
    return max(1, num_scans)


def _tile_bytes(image: Image.Image) -> int:
    """Return the size of a decoded tile: libtiff makes room for whole tiles, however small the picture is."""
    assert isinstance(image, TiffImagePlugin.TiffImageFile)
    width_px, height_px = (image.tag_v2.get(tag, 0) for tag in _TIFF_TILE_TAGS)
    return int(width_px) * int(height_px) * 8  # four samples of 16 bits


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 when there is none. Pillow turns TIFF by itself and then reports none."""
    try:
        return int(image.getexif().get(_EXIF_ORIENTATION_TAG, 1))
    except Exception:
        return 1  # damaged metadata: the pixels are good, and upright is the best guess


def _to_8_bit(image: Image.Image) -> Image.Image:
    """Return an L or RGB image: these resize with antialiasing, and nothing but colour is left in them."""
    # Pillow opens some 16-bit PNGs in mode I, with 32 bits a pixel: there the high byte of 16 is meant too.
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        return Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        return Image.fromarray(_scaled_to_byte(np.asarray(image), image.mode == "F"))
    if image.has_transparency_data:
        return _on_background(image)
    if image.mode in ("L", "RGB"):
        return image
    return image.convert("L" if image.mode == "1" else "RGB")


def _bands(width_px: int, height_px: int) -> Iterator[tuple[int, int]]:
    """Yield first and last row of bands of a picture: a bomb of 50 Mpx must not take its size several times over."""
    rows = max(1, _BAND_PIXELS // max(1, width_px))
    return ((top, min(top + rows, height_px)) for top in range(0, height_px, rows))


def _on_background(image: Image.Image) -> Image.Image:
    """Composite the picture on white, band by band."""
    flat = Image.new("RGB", image.size)
    for top, bottom in _bands(*image.size):
        box = (0, top, image.width, bottom)
        layer = image.crop(box).convert("RGBA")
        background = Image.new("RGBA", layer.size, (*BACKGROUND_RGB, 255))
        flat.paste(Image.alpha_composite(background, layer).convert("RGB"), box)
    return flat


def _scaled_to_byte(values: NDArray[Any], is_float: bool) -> NDArray[np.uint8]:
    """Map values of unknown range, (height, width), to 0..255 by the rule at the head of this file."""
    bands = [values[top:bottom] for top, bottom in _bands(values.shape[1], values.shape[0])]
    finite = (band[np.isfinite(band)] for band in bands)
    known = [(float(some.min()), float(some.max())) for some in finite if some.size]
    if not known:
        raise _RefusedError("no pixel holds a finite number")
    low, high = min(pair[0] for pair in known), max(pair[1] for pair in known)
    ranges = (1.0, 255.0, 65535.0) if is_float else (255.0, 65535.0)
    full = next((full for full in ranges if low >= 0 and high <= full), None)
    if full is not None:
        low, high = 0.0, full
    return np.concatenate([_scaled_band(band.astype(np.float64), low, high) for band in bands])


def _scaled_band(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.uint8]:
    with np.errstate(invalid="ignore", over="ignore"):  # infinities and NaN become 0 below
        scaled = (values - low) / max(high - low, np.finfo(np.float64).tiny) * 255.0
    scaled[~np.isfinite(values)] = 0.0
    return np.rint(np.clip(scaled, 0.0, 255.0)).astype(np.uint8)


def _too_large(what: str, limit_px: int) -> str:
    return f"too large ({what} than the limit of {limit_px // 1_000_000} Mpx)"


def _not_an_image(data: bytes) -> str:
    """Show how the file starts: '<!DOCTYPE' or 'ftypheic' tells a person what it really is."""
    head = data[:16]
    text = head.decode("latin-1")
    if b"ftyp" in head:  # bytes 8..12 name the brand
        return f"not an image of a known format (an ISO media file, {text[8:12]!r}: HEIC, AVIF or video)"
    if head.lstrip().isascii() and text.strip().isprintable() and text.strip():
        return f"not an image (starts with {text.split()[0]!r})"
    if data.startswith((b"\xff\xd8", b"\x89PNG", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"RIFF")):
        return f"damaged header (only the first bytes, {head[:4].hex(' ')}, are those of an image)"
    return f"not an image (starts with bytes {head[:8].hex(' ')})"


def _short(error: Exception) -> str:
    line = " ".join(str(error).split()) or type(error).__name__
    return line if len(line) <= 120 else line[:117] + "..."
