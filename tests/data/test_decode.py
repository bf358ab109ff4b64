"""decode: every format and mode to defined pixels, every damage to a short reason, and many files at once."""

import contextlib
import hashlib
import io
import pickle
import struct
import time
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from PIL.Image import Transpose

from hostile import tiff_in_jpeg
from turnaround.data import decode as decode_module
from turnaround.data.decode import UnreadableImage, decode, decode_to, is_costly

WHITE, RED = (255, 255, 255), (200, 30, 40)


def picture(width_px: int = 96, height_px: int = 64) -> Image.Image:
    """Smooth, coloured, and different in every corner, so that no turn of it looks like another."""
    x, y = np.meshgrid(np.linspace(0, 1, width_px), np.linspace(0, 1, height_px))
    channels = np.stack([x, y, (1 - x) * (1 - y)], axis=-1)
    return Image.fromarray((channels * 220 + 20).astype(np.uint8))


def pixels_of(path: Path, size_px: int = 32) -> np.ndarray:
    pixels, digest = decode(path, size_px=size_px)
    assert pixels.shape == (size_px, size_px, 3)
    assert pixels.dtype == np.uint8
    assert pixels.flags.writeable
    assert digest == hashlib.blake2b(path.read_bytes(), digest_size=16).digest()
    return pixels


def expected(image: Image.Image, size_px: int = 32) -> np.ndarray:
    return np.asarray(image.convert("RGB").resize((size_px, size_px), Image.Resampling.BILINEAR))


def assert_close(actual: np.ndarray, wanted: np.ndarray, levels: float = 3.0) -> None:
    assert np.abs(actual.astype(int) - wanted.astype(int)).mean() <= levels


def reason_of(path: Path) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UnreadableImage) as caught:
            decode(path, size_px=32)
    assert caught.value.path == path
    assert len(caught.value.reason) <= 120
    assert "\n" not in caught.value.reason
    assert str(path) in str(caught.value)
    return caught.value.reason


@pytest.mark.fault(45, "a wrong extension: the content decides")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"])
def test_every_format_whatever_the_extension(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "liar.png"
    options = {"quality": 95} if kind in ("JPEG", "WEBP") else {}
    picture().save(path, format=kind, **options)
    assert_close(pixels_of(path), expected(picture()), levels=8 if kind == "GIF" else 3)


@pytest.mark.parametrize("size_px", [8, 32, 64, 65, 300])
def test_jpeg_is_the_whole_picture_at_every_scale(tmp_path: Path, size_px: int) -> None:
    image = picture(403, 355)  # sides that no reduced decoding divides
    image.save(tmp_path / "x.jpg", quality=95)
    assert_close(pixels_of(tmp_path / "x.jpg", size_px), expected(image, size_px), levels=1.5)


def test_resizing_is_antialiased(tmp_path: Path) -> None:
    stripes = np.zeros((256, 256), np.uint8)
    stripes[:, ::2] = 255
    Image.fromarray(stripes).save(tmp_path / "x.png")
    assert np.ptp(pixels_of(tmp_path / "x.png")) <= 40
    assert abs(pixels_of(tmp_path / "x.png").mean() - 127.5) < 3


@pytest.mark.fault(44, "EXIF orientations 1 to 8: one picture")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("size_px", [16, 128])
def test_eight_orientations_give_one_picture(tmp_path: Path, kind: str, size_px: int) -> None:
    stored_as = {
        1: None,
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_90,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_270,
    }
    upright = picture(160, 96)
    for orientation, turn in stored_as.items():
        stored = upright if turn is None else upright.transpose(turn)
        exif = Image.Exif()
        exif[0x0112] = orientation
        path = tmp_path / f"{orientation}.img"
        stored.save(path, format=kind, exif=exif.tobytes(), **({} if kind in ("PNG", "TIFF") else {"quality": 95}))
        with Image.open(path) as reread:
            assert_close(np.asarray(ImageOps.exif_transpose(reread).convert("RGB")), np.asarray(upright))
        assert_close(pixels_of(path, size_px), expected(upright, size_px))


def test_damaged_exif_does_not_stop_a_good_picture(tmp_path: Path) -> None:
    picture().save(tmp_path / "x.jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\x7f nonsense", quality=95)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_close(pixels_of(tmp_path / "x.jpg"), expected(picture()))


@pytest.mark.fault(45, "animated GIF, WebP, PNG, several pages: the first frame")
@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_first_frame_of_several(tmp_path: Path, kind: str) -> None:
    frames = [Image.new("RGB", (40, 30), colour) for colour in (RED, (0, 0, 255), (0, 255, 0))]
    options = {"lossless": True} if kind == "WEBP" else {}
    frames[0].save(tmp_path / "x.img", format=kind, save_all=True, append_images=frames[1:], **options)
    assert_close(pixels_of(tmp_path / "x.img"), expected(frames[0]), levels=2)


@pytest.mark.fault(42, "16-bit grey: scaled, not clipped to white")
@pytest.mark.parametrize("ending", ["png", "tif"])
@pytest.mark.parametrize("order", ["<u2", ">u2"])
def test_16_bit_ramp_is_a_ramp(tmp_path: Path, ending: str, order: str) -> None:
    ramp = np.tile(np.linspace(0, 65535, 64).astype(order), (64, 1))
    mode = "I;16" if order == "<u2" else "I;16B"
    Image.frombytes(mode, (64, 64), ramp.tobytes()).save(tmp_path / f"x.{ending}")
    pixels = pixels_of(tmp_path / f"x.{ending}", 64)
    assert np.abs(pixels[0, :, 0].astype(int) - np.linspace(0, 255, 64)).max() <= 1.5
    assert (pixels[..., 0] == pixels[..., 2]).all()


def png(width_px: int, height_px: int, *, colour_type: int, rows: bytes, depth: int = 16) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width_px, height_px, depth, colour_type, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.fault(42, "16-bit colour: scaled alike")
def test_16_bit_colour_is_scaled_like_16_bit_grey(tmp_path: Path) -> None:
    values = np.linspace(0, 65535, 64).astype(">u2")
    row = b"\0" + np.repeat(values, 3).tobytes()
    (tmp_path / "x.png").write_bytes(png(64, 64, colour_type=2, rows=row * 64))
    assert np.array_equal(pixels_of(tmp_path / "x.png", 64)[0, :, 1], (values >> 8).astype(np.uint8))


@pytest.mark.fault(43, "float and 32-bit TIFF: by the stated rule")
@pytest.mark.parametrize(
    ("low", "high", "shown_low", "shown_high"),
    [
        (0.0, 1.0, 0, 255),
        (0.25, 0.5, 64, 128),  # inside 0..1: not stretched
        (0.0, 200.0, 0, 200),
        (0.0, 65535.0, 0, 255),
        (-3.0, 5.0, 0, 255),  # no usual range: its own
        (1e30, 2e30, 0, 255),
    ],
)
def test_float_tiff_by_the_stated_rule(
    tmp_path: Path, low: float, high: float, shown_low: int, shown_high: int
) -> None:
    ramp = np.tile(np.linspace(low, high, 32, dtype=np.float32), (32, 1))
    Image.fromarray(ramp).save(tmp_path / "x.tif")
    row = pixels_of(tmp_path / "x.tif")[0, :, 0].astype(int)
    assert abs(row[0] - shown_low) <= 1
    assert abs(row[-1] - shown_high) <= 1
    assert (np.diff(row) >= 0).all()


def test_float_tiff_with_holes(tmp_path: Path) -> None:
    values = np.full((32, 32), 0.5, np.float32)
    values[:16] = np.nan
    Image.fromarray(values).save(tmp_path / "x.tif")
    pixels = pixels_of(tmp_path / "x.tif")
    assert pixels[0, 0, 0] == 0
    assert pixels[-1, -1, 0] == 128
    Image.fromarray(np.full((8, 8), np.inf, np.float32)).save(tmp_path / "y.tif")
    assert reason_of(tmp_path / "y.tif") == "no pixel holds a finite number"


@pytest.mark.parametrize(("high", "shown"), [(200, 200), (65535, 255), (2_000_000_000, 255)])
def test_32_bit_integers(tmp_path: Path, high: int, shown: int) -> None:
    ramp = np.tile(np.linspace(0, high, 32).astype(np.int32), (32, 1))
    Image.fromarray(ramp).save(tmp_path / "x.tif")
    row = pixels_of(tmp_path / "x.tif")[0, :, 0].astype(int)
    assert (row[0], row[-1]) == (0, shown)


def test_constant_images_of_every_depth(tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), -7, np.int32)).save(tmp_path / "x.tif")
    assert (pixels_of(tmp_path / "x.tif") == 0).all()


@pytest.mark.fault(43, "alpha, also of palettes: composited on white")
@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "P"])
def test_transparency_lies_on_white(tmp_path: Path, mode: str) -> None:
    image = Image.new("RGBA", (40, 40), (*RED, 255))
    image.paste((0, 0, 0, 0), (0, 0, 20, 40))  # transparent black on the left
    if mode == "P":
        image = image.convert("RGB").quantize(4)
        image.save(tmp_path / "x.png", transparency=image.getpixel((0, 0)))
    elif mode == "PA":
        image.convert("PA").convert("RGBA").save(tmp_path / "x.png")
    else:
        image.convert(mode).save(tmp_path / "x.png")
    pixels = pixels_of(tmp_path / "x.png", 40)
    assert tuple(pixels[20, 5]) == WHITE
    grey = Image.new("RGB", (1, 1), RED).convert("L").getpixel((0, 0))
    assert np.abs(pixels[20, 35].astype(int) - (RED if mode != "LA" else (grey,) * 3)).max() <= 2


def test_half_transparent_is_half_white(tmp_path: Path) -> None:
    Image.new("RGBA", (16, 16), (0, 0, 0, 128)).save(tmp_path / "x.png")
    assert (np.abs(pixels_of(tmp_path / "x.png").astype(int) - 127) <= 1).all()


@pytest.mark.parametrize(("mode", "key"), [("RGB", RED), ("L", 90)])
def test_a_transparent_colour_lies_on_white(tmp_path: Path, mode: str, key: object) -> None:
    Image.new(mode, (16, 16), key).save(tmp_path / "x.png", transparency=key)
    assert (pixels_of(tmp_path / "x.png") == 255).all()


def test_transparent_gif_lies_on_white(tmp_path: Path) -> None:
    image = Image.new("P", (16, 16), 1)
    image.putpalette([0, 0, 0, *RED])
    image.save(tmp_path / "x.gif", transparency=1)
    assert (pixels_of(tmp_path / "x.gif") == 255).all()


@pytest.mark.fault(43, "palette, grey, 1 bit: the colours that are meant")
@pytest.mark.parametrize(("mode", "ending"), [("1", "png"), ("1", "tif"), ("L", "jpg"), ("P", "png"), ("P", "bmp")])
def test_grey_palette_and_bits(tmp_path: Path, mode: str, ending: str) -> None:
    image = Image.new("RGB", (40, 40), "black")
    image.paste(WHITE, (20, 0, 40, 40))
    image.convert(mode).save(tmp_path / f"x.{ending}")
    pixels = pixels_of(tmp_path / f"x.{ending}", 40)
    assert pixels[:, :18].max() <= 5
    assert pixels[:, 22:].min() >= 250


@pytest.mark.fault(43, "CMYK keeps its colours, also Adobe's inverted one")
@pytest.mark.parametrize("ending", ["jpg", "tif"])
def test_cmyk_keeps_its_colours(tmp_path: Path, ending: str) -> None:
    image = picture().convert("CMYK")
    image.save(tmp_path / f"x.{ending}")  # Pillow writes JPEG as Adobe does: inverted, with the marker
    assert b"Adobe" in (tmp_path / f"x.{ending}").read_bytes() or ending == "tif"
    assert_close(pixels_of(tmp_path / f"x.{ending}"), expected(image), levels=4)


@pytest.mark.fault(40, "a truncated image of any format: refused with a reason, never filled in")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_truncated_files_are_refused(tmp_path: Path, kind: str, share: float) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    whole = io.BytesIO()
    Image.fromarray(noise).save(whole, format=kind)
    (tmp_path / "x.img").write_bytes(whole.getvalue()[: int(len(whole.getvalue()) * share)])
    assert reason_of(tmp_path / "x.img")


def test_truncated_while_scaled(tmp_path: Path) -> None:
    picture(640, 480).save(tmp_path / "x.jpg", quality=95)
    data = (tmp_path / "x.jpg").read_bytes()
    (tmp_path / "x.jpg").write_bytes(data[: len(data) // 2])
    assert "truncated" in reason_of(tmp_path / "x.jpg")


@pytest.mark.fault(41, "a decompression bomb: refused by its header, before anything is decoded")
@pytest.mark.parametrize("width_px", [8_000, 12_000, 200_000])
def test_too_many_pixels_are_refused_by_the_header(tmp_path: Path, width_px: int) -> None:
    (tmp_path / "x.png").write_bytes(png(width_px, 8_000, colour_type=2, depth=8, rows=b""))
    reason = reason_of(tmp_path / "x.png")
    assert "too large" in reason
    assert "50 Mpx" in reason


def in_scans(num_scans: int, side_px: int = 64, *, progressive: bool = True) -> bytes:
    """A JPEG whose last scan stands there again and again."""
    content = io.BytesIO()
    picture(side_px, side_px).save(content, "JPEG", progressive=progressive)
    data = content.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * (num_scans - data.count(b"\xff\xda") + 1) + data[-2:]


@pytest.mark.fault(41, "a JPEG that repeats one scan for ever: counted from its markers, refused before it is decoded")
def test_scans_are_counted_before_a_picture_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.jpg"
    path.write_bytes(in_scans(20))
    pixels_of(path)
    path.write_bytes(in_scans(500))
    pixels_of(path)
    path.write_bytes(in_scans(501))
    assert reason_of(path) == "more than 500 scans of 64 x 64 px: a JPEG that takes far too long to decode"
    monkeypatch.setattr(decode_module, "MAX_SCANNED_PIXELS", 64 * 64 * 30)
    path.write_bytes(in_scans(30))
    pixels_of(path)
    path.write_bytes(in_scans(31))
    assert reason_of(path) == "31 scans of 64 x 64 px: a JPEG that takes far too long to decode"


def test_what_lies_around_the_scans_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thumbnails in the metadata and what follows the picture hold the same bytes."""
    monkeypatch.setattr(decode_module, "MAX_SCANS", 12)
    data = in_scans(10)
    comment = b"\xff\xda\xff\xd9" * 40
    path = tmp_path / "x.jpg"
    path.write_bytes(data[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + data[2:] + data)
    pixels_of(path)
    path.write_bytes(in_scans(60, progressive=False))  # libjpeg ends at what follows the first scan of all components
    assert "scans" not in reason_of(path)


def test_a_sequential_jpeg_in_several_scans_is_counted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One component in each scan: libjpeg reads on to the end, as with a progressive one."""
    data = in_scans(1, progressive=False)
    scan = data.rindex(b"\xff\xda")
    # The header of a scan of three components becomes that of one; whether the rest decodes is not what is asked.
    alone = b"\xff\xda\x00\x08\x01" + data[scan + 5 : scan + 7] + data[scan + 11 : -2]
    monkeypatch.setattr(decode_module, "MAX_SCANS", 12)
    (tmp_path / "x.jpg").write_bytes(data[:scan] + alone * 13 + data[-2:])
    assert "more than 12 scans" in reason_of(tmp_path / "x.jpg")


@pytest.mark.fault(41, "a JPEG within a TIFF that repeats one scan for ever: counted in every strip")
def test_scans_within_a_tiff_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.tif"
    few, many = in_scans(20), in_scans(51)
    path.write_bytes(tiff_in_jpeg([(0, len(few))], few))
    pixels_of(path)
    path.write_bytes(tiff_in_jpeg([(0, len(many))], many))
    assert reason_of(path) == "more than 50 scans of 64 x 64 px: a JPEG that takes far too long to decode"
    path.write_bytes(tiff_in_jpeg([(0, len(few)), (len(few), len(many))], few + many))
    assert "more than 50 scans" in reason_of(path)
    path.write_bytes(tiff_in_jpeg([(0, len(few))] * 4, few))  # blank tiles may share their bytes
    assert "scans" not in reason_of(path)
    path.write_bytes(tiff_in_jpeg([(start, len(few)) for start in range(4)], few))
    assert "lie over one another" in reason_of(path)
    monkeypatch.setattr(decode_module, "MAX_SCANNED_PIXELS", 64 * 64 * 15)
    path.write_bytes(tiff_in_jpeg([(0, len(few))], few))
    assert "20 scans" in reason_of(path)


@pytest.mark.fault(41, "a WebP takes 17 bytes a pixel: its limit is lower, so that 0.7 GB are enough for every picture")
def test_the_limit_of_webp_is_lower(tmp_path: Path) -> None:
    Image.new("RGB", (8_000, 5_001)).save(tmp_path / "x.webp", lossless=True, method=0)
    assert reason_of(tmp_path / "x.webp") == "too large (8000 x 5001 px, more than the limit of 40 Mpx)"


def test_a_small_tiff_of_huge_tiles(tmp_path: Path) -> None:
    side_tags = {256: 16, 257: 16, 258: 8, 259: 1, 262: 1, 277: 1, 322: 40_000, 323: 40_000, 324: 8, 325: 256}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in side_tags.items())
    head = b"II*\0" + struct.pack("<IH", 8, len(side_tags))
    (tmp_path / "x.tif").write_bytes(head + entries + bytes(4) + bytes(256))
    assert "tiles" in reason_of(tmp_path / "x.tif")


@pytest.mark.parametrize(
    ("kind", "size_px", "is_so"),
    [("JPEG", 500, False), ("PNG", 5_000, False), ("PNG", 5_001, True), ("TIFF", 10, True), (None, 2_000_001, True)],
)
def test_what_is_decoded_in_a_process_of_its_own(kind: str | None, size_px: int, is_so: bool) -> None:
    content = io.BytesIO()
    if kind is None:
        content.write(bytes(size_px))
    else:
        Image.new("L", (size_px, size_px)).save(content, kind)
    assert is_costly(content.getvalue()) is is_so


def test_many_scans_of_a_small_picture_are_costly() -> None:
    assert is_costly(in_scans(20, 1_200))
    assert not is_costly(in_scans(10, 1_200))


def chunk(name: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


@pytest.mark.fault(41, "a header of very many small pieces is costly, and to find that out takes no time")
def test_many_pieces_of_a_small_picture_are_costly() -> None:
    content = io.BytesIO()
    picture(64, 64).save(content, "PNG")
    data = content.getvalue()
    assert not is_costly(data[:33] + chunk(b"teSt") * 900 + data[33:])
    for place in (33, len(data) - 12):  # before the pixels, and behind them
        large = data[:place] + chunk(b"teSt") * 2_000_000 + data[place:]
        for some in (large, data[:place] + chunk(b"teSt") * 1_100 + data[place:]):
            started_s = time.process_time()
            assert is_costly(some)
            assert time.process_time() - started_s < 0.5  # 2 million took 20 s
    content = io.BytesIO()
    picture(64, 64).save(content, "JPEG")
    data = content.getvalue()
    assert is_costly(data[:2] + b"\xff\xfe\x00\x02" * 50_000 + data[2:])
    assert not is_costly(data + bytes(3_000_000))  # one scan, whatever follows it: photos of phones have 3 to 5 MB


@pytest.mark.fault(40, "zero bytes, HTML or text saved as .jpg: named for what it is")
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty file"),
        (b"<!DOCTYPE html><html><body>Not found</body></html>", "not an image (starts with '<!DOCTYPE')"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "starts with '%!PS-Adobe-3.0'"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "'heic': HEIC, AVIF or video"),
        (b"\x7fELF\x02\x01\x01\0\0\0\0\0", "starts with bytes 7f 45 4c 46"),
        (b"\xff\xd8\xff", "damaged header"),
        (b"   \n  \n", "not an image"),
        (bytes(100), "not an image"),
        (b"GIF8", "image"),
        (b"BM", "image"),
    ],
)
def test_what_is_not_an_image_is_named(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "x.jpg").write_bytes(data)
    assert words in reason_of(tmp_path / "x.jpg")


@pytest.mark.fault(45, "formats off the list (EPS would run Ghostscript) are not opened")
def test_formats_off_the_list_are_not_opened(tmp_path: Path) -> None:
    picture().save(tmp_path / "x.jpg", format="PPM")
    assert "not an image" in reason_of(tmp_path / "x.jpg")


def test_missing_file_and_folder(tmp_path: Path) -> None:
    assert "no such file" in reason_of(tmp_path / "gone.jpg")
    assert "directory" in reason_of(tmp_path)


@pytest.mark.parametrize("error", [MemoryError(), ValueError("x" * 500 + "\n"), SyntaxError(), RecursionError("deep")])
def test_whatever_pillow_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    picture().save(tmp_path / "x.png")

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Image, "open", fail)
    reason = reason_of(tmp_path / "x.png")
    assert ("memory" in reason) == isinstance(error, MemoryError)


@pytest.mark.fault(41, "a file too large to be an image is not read into memory")
def test_very_large_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture().save(tmp_path / "x.png")
    monkeypatch.setattr("turnaround.data.decode.MAX_FILE_BYTES", 100)
    assert "file larger than" in reason_of(tmp_path / "x.png")


@pytest.mark.fault(40, "bytes of an image changed at random: pixels or our error, nothing else")
def test_random_damage_never_escapes(tmp_path: Path) -> None:
    """Flipped bytes anywhere: pixels or a reason, no other exception and no warning."""
    rng = np.random.default_rng(7)
    for kind in ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"):
        whole = io.BytesIO()
        picture(48, 32).save(whole, format=kind)
        for _ in range(25):
            damaged = bytearray(whole.getvalue())
            for place in rng.integers(0, len(damaged), 4):
                damaged[place] = rng.integers(0, 256)
            (tmp_path / "x.img").write_bytes(bytes(damaged))
            with contextlib.suppress(UnreadableImage):
                assert decode(tmp_path / "x.img", size_px=16)[0].shape == (16, 16, 3)


def test_the_error_crosses_process_borders() -> None:
    error = pickle.loads(pickle.dumps(UnreadableImage(Path("a\nb.jpg"), "empty file")))
    assert (error.path, error.reason) == (Path("a\nb.jpg"), "empty file")


def test_decoding_into_a_square_that_is_there(tmp_path: Path) -> None:
    picture().save(tmp_path / "x.png")
    picture().convert("L").save(tmp_path / "grey.png")
    rows = np.full((3, 16, 16, 3), 7, np.uint8)
    digests = [decode_to(rows[0], tmp_path / "x.png"), decode_to(rows[2], tmp_path / "grey.png")]
    for row, name, digest in ((0, "x.png", digests[0]), (2, "grey.png", digests[1])):
        pixels, wanted = decode(tmp_path / name, size_px=16)
        assert np.array_equal(rows[row], pixels)
        assert digest == wanted
    assert (rows[1] == 7).all()


@pytest.mark.fault(41, "a picture of many pixels in little data is worked on in bands: the same pixels in less memory")
@pytest.mark.parametrize("mode", ["RGBA", "LA", "F", "I"])
def test_large_pictures_are_worked_on_in_bands(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(3).integers(0, 255, (37, 53, 4), dtype=np.uint8)
    grey = Image.fromarray(values[..., 0])
    made = {"RGBA": Image.fromarray(values), "LA": Image.fromarray(values).convert("LA")}
    made.get(mode, grey.convert(mode) if mode in ("F", "I") else grey).save(tmp_path / "x.tif")
    whole = pixels_of(tmp_path / "x.tif")
    monkeypatch.setattr("turnaround.data.decode._BAND_PIXELS", 200)
    assert np.array_equal(pixels_of(tmp_path / "x.tif"), whole)
