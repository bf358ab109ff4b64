"""A corpus of what somebody else may hand over: runs, studies, images, logs, recipes and caches that mean harm.

Each entry changes a copy of something good in one way. tests/cli/test_hostile.py gives all of them to every verb.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from turnaround.record.coding import own_digest
from turnaround.record.layout import CheckpointFiles, RunDirectory

ESCAPE = "\x1b]52;c;aGFjaw==\x07\x1b[2J\x9b31m\u202eevil\r\n<script>alert(1)</script>"
"""Writes to the clipboard, clears the screen, colours it, turns the text around, breaks the line, runs in a page."""
WRONG: dict[str, Any] = {
    "null": None,
    "text": "x",
    "escapes": ESCAPE,
    "negative": -1,
    "largest": 1e308,
    "whole and long": 10**400,
    "not a number": float("nan"),
    "endless": float("-inf"),
    "list": [[]],
    "object": {"x": {}},
    "true": True,
}
DEEP = "[" * 200_000
FILES = ("recipe", "status", "machine", "epochs", "evaluation", "spans", "telemetry", "manifest", "weights", "best")


def files_of(run: RunDirectory) -> dict[str, Path]:
    """The files of a run that others may write, by a name that stays."""
    best = CheckpointFiles.all_in(run.best)[-1]
    return {
        **{name: getattr(run, name) for name in ("recipe", "status", "machine", "epochs", "evaluation")},
        "spans": run.spans(0),
        "telemetry": run.telemetry("theirs"),
        "manifest": run.checkpoints()[-1].manifest,
        "weights": run.checkpoints()[-1].weights,
        "best": best.manifest,
    }


Change = Callable[[RunDirectory, Path], None]
"""(the run, a file outside of it that must stay as it is)"""


def replaced(name: str, kind: str, run: RunDirectory, outside: Path) -> None:
    """In place of a file: something that must not be followed, waited for, or believed to end."""
    path = files_of(run)[name]
    path.unlink()
    match kind:
        case "link":
            path.symlink_to(outside)
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case "nothing":
            path.touch()
        case "deep":
            path.write_text(DEEP)
        case "huge":
            with path.open("wb") as file:  # a hole: it takes no room
                file.truncate(3 * 2**30)


def linked_folder(name: str, run: RunDirectory, outside: Path) -> None:
    shutil.rmtree(run.path / name)
    (run.path / name).symlink_to(outside.parent)


def wrong_everywhere(name: str, value: Any, run: RunDirectory, outside: Path) -> None:
    """Every value of a file is of a wrong kind; the format's version stays, so that it is read."""
    path = files_of(run)[name]
    texts = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    changed = [json.dumps(_with(json.loads(text), value)) for text in texts]
    path.write_text("".join(f"{text}\n" for text in changed))


def wrong_at_the_top(name: str, value: Any, run: RunDirectory, outside: Path) -> None:
    files_of(run)[name].write_text(json.dumps(value) + "\n")


def _with(value: Any, wrong: Any) -> Any:
    if isinstance(value, dict):
        return {key: inner if key == "format" else _with(inner, wrong) for key, inner in value.items()}
    if isinstance(value, list) and value:
        return [_with(inner, wrong) for inner in value]
    return wrong


def escapes_in_names(run: RunDirectory, outside: Path) -> None:
    """All names that are shown: classes, the recipe, the machine, the cause of the end; the values stay possible."""
    recipe, machine, status = (json.loads(path.read_text()) for path in (run.recipe, run.machine, run.status))
    classes = [f"{name}{ESCAPE}" for name in recipe["images"]["classes"]]
    recipe |= {"name": ESCAPE, "command": [ESCAPE], "images": {**recipe["images"], "classes": classes}}
    recipe["images"]["warnings"] = [ESCAPE]
    machine |= {"hostname": ESCAPE, "cpu": ESCAPE, "passed_over_checkpoints": [ESCAPE], "changed": [ESCAPE]}
    status |= {"cause": ESCAPE, "stopped_early": ESCAPE, "restarts": [ESCAPE], "not_saved": ESCAPE}
    for path, content in ((run.recipe, recipe), (run.machine, machine), (run.status, status)):
        path.write_text(json.dumps(content))
    for files in (*run.checkpoints(), *CheckpointFiles.all_in(run.best)):
        manifest = json.loads(files.manifest.read_text())
        files.manifest.write_text(json.dumps({**manifest, **({"classes": classes} if "classes" in manifest else {})}))


def files_elsewhere(run: RunDirectory, outside: Path) -> None:
    """The recipe names files outside: weights that would be opened, images that would be read, a cache to fill."""
    recipe = json.loads(run.recipe.read_text())
    recipe["data"] |= {"source": str(outside), "cache": str(outside.parent)}
    recipe["model"] |= {"weights": str(outside)}
    run.recipe.write_text(json.dumps(recipe))


def one_wrong_value(section: str, name: str, value: Any, run: RunDirectory, outside: Path) -> None:
    """One value of the recipe alone: among others that are wrong too it would be refused for another's sake."""
    recipe = json.loads(run.recipe.read_text())
    recipe[section] = {**recipe.get(section, {}), name: value}
    run.recipe.write_text(json.dumps(recipe))


def one_wrong_in_manifest(name: str, value: Any, run: RunDirectory, outside: Path) -> None:
    """One value of the newest checkpoint's manifest, whose digest is right: whoever changes the one can change both."""
    path = run.checkpoints()[-1].manifest
    manifest = {**json.loads(path.read_text()), name: value}
    manifest = {key: inner for key, inner in manifest.items() if key not in ("crc", "digest")}
    path.write_text(json.dumps({**manifest, "digest": own_digest(manifest)}))


def linked_pixels(run: RunDirectory, outside: Path) -> None:
    """The images would be decoded into a folder outside."""
    one_wrong_value("data", "cache", "off", run, outside)
    run.pixels.symlink_to(outside.parent)


ONE_WRONG = {
    **{("launch", name): ("x", 7, [1], {"x": 1}, "9" * 5000) for name in ("wanted", "device", "share", "processes")},
    ("data", "cache"): ("\0", "9" * 5000, 7, "~nobody-of-that-name"),
}


def recipe_names(section: str, values: dict[str, Any], run: RunDirectory, outside: Path) -> None:
    recipe = json.loads(run.recipe.read_text())
    recipe[section] |= values
    run.recipe.write_text(json.dumps(recipe))


def many_lines(run: RunDirectory, outside: Path) -> None:
    lines = run.epochs.read_bytes().splitlines()
    run.epochs.write_bytes(b"\n".join([lines[0]] * 20_000))


def checkpoints_without_end(run: RunDirectory, outside: Path) -> None:
    for number in range(2_000):
        (run.checkpoint / f"epoch-{90_000 + number:05d}").mkdir()


RUNS: dict[str, Change] = {
    **{
        f"{name} is a {kind}": partial(replaced, name, kind)
        for name in FILES
        for kind in ("link", "pipe", "device", "folder")
    },
    **{f"{name} is {kind}": partial(replaced, name, kind) for name in FILES for kind in ("nothing", "huge")},
    **{f"{name} is deep": partial(replaced, name, "deep") for name in FILES if name != "weights"},
    **{f"{name} is a linked folder": partial(linked_folder, name) for name in ("checkpoint", "best", "logs")},
    **{
        f"{name} holds {kind}": partial(wrong_everywhere, name, value)
        for name in FILES
        if name not in ("weights", "telemetry", "best")
        for kind, value in WRONG.items()
    },
    **{f"{name} is a list": partial(wrong_at_the_top, name, [7]) for name in FILES if name != "weights"},
    **{
        f"{section}.{name} is {repr(value)[:12]}": partial(one_wrong_value, section, name, value)
        for (section, name), values in ONE_WRONG.items()
        for value in values
    },
    **{
        f"manifest.{name} is {repr(value)[:12]}": partial(one_wrong_in_manifest, name, value)
        for name in ("epoch", "update", "step", "plan", "shares", "totals", "optimizer", "sha256", "recipe")
        for value in ([[1, "x"]], 10**30, ESCAPE)
    },
    ".pixels is a link": linked_pixels,
    "escapes in names": escapes_in_names,
    "files elsewhere": files_elsewhere,
    "a device as its split": partial(recipe_names, "data", {"split_by_photo": "/dev/zero"}),
    "a pattern without end": partial(recipe_names, "data", {"source": "/*/*/*/*/*/*/*/*/*x.tar"}),
    "a network of 7 billion": partial(recipe_names, "model", {"name": "vit_7b_patch16_dinov3"}),
    "20,000 lines": many_lines,
    "2,000 empty checkpoints": checkpoints_without_end,
}


# --- images


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims so many pixels and has next to none."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


def endless_scans() -> bytes:
    """A progressive JPEG whose last scan is repeated a thousand times."""
    with io.BytesIO() as file:
        Image.new("RGB", (2_000, 2_000), "red").save(file, "JPEG", progressive=True)
        data = file.getvalue()
    start = data.rindex(b"\xff\xda")
    return data[:start] + data[start:-2] * 1_000 + data[-2:]


def tiff_in_jpeg(strips: list[tuple[int, int]], data: bytes, *, side_px: int = 64) -> bytes:
    """A TIFF whose strips, (first byte, length) within `data`, are JPEGs."""
    tags = {256: 1, 257: 1, 258: 3, 259: 1, 262: 1, 273: len(strips), 277: 1, 278: 1, 279: len(strips)}
    behind = 8 + 2 + 12 * len(tags) + 4
    numbers = [
        struct.pack("<3H", 8, 8, 8),
        *(struct.pack(f"<{len(strips)}I", *those) for those in zip(*strips, strict=True)),
    ]
    numbers[1] = struct.pack(f"<{len(strips)}I", *(start + behind + sum(map(len, numbers)) for start, _ in strips))
    places = dict(zip((258, 273, 279), (behind, behind + 6, behind + 6 + len(numbers[1])), strict=True))
    values = {256: side_px, 257: side_px, 259: 7, 262: 6, 277: 3, 278: side_px // len(strips)} | places
    if len(strips) == 1:
        values |= {273: strips[0][0] + behind + sum(map(len, numbers)), 279: strips[0][1]}
    entries = b"".join(
        struct.pack("<HHII", tag, 3 if tag == 258 else 4, count, values[tag]) for tag, count in tags.items()
    )
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + b"".join(numbers) + data


def many_chunks() -> bytes:
    """A good picture behind 20,000 empty chunks: Pillow goes through them in Python."""
    with io.BytesIO() as file:
        Image.new("RGB", (64, 64), "red").save(file, "PNG")
        data = file.getvalue()
    empty = struct.pack(">I", 0) + b"teSt" + struct.pack(">I", zlib.crc32(b"teSt"))
    return data[:33] + empty * 20_000 + data[33:]


def hostile_images(folder: Path, outside: Path) -> Iterator[Path]:
    """Write the pictures, and yield each."""
    contents = {
        "claims.png": png_header(60_000, 60_000),
        "scans.jpg": endless_scans(),
        "scans.tif": tiff_in_jpeg([(0, len(endless_scans()))], endless_scans(), side_px=2_000),
        "chunks.png": many_chunks(),
        "nothing.jpg": b"",
        "page.jpg": b"<html>" + ESCAPE.encode(),
        "half.png": png_header(64, 64)[:60],
        f"name{ESCAPE.replace('/', '')}.png": b"not a picture",
        "program.eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/tmp/x) (w) file\n",
    }
    for name, data in contents.items():
        (folder / name).write_bytes(data)
        yield folder / name
    (folder / "device.jpg").symlink_to("/dev/zero")
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe.png")
    with (folder / "huge.jpg").open("wb") as file:
        file.truncate(3 * 2**30)
    yield from (folder / name for name in ("device.jpg", "pipe.png", "huge.jpg"))


# --- logs, recipes, studies

LOGS: dict[str, bytes] = {
    "deep.json": DEEP.encode(),
    "wrong.json": json.dumps({"epochs": [[]], "x": float("nan"), ESCAPE: ESCAPE}).encode(),
    "list.json": b"[" + b"1e308," * 1000 + b"NaN]",
    "log.csv": f"epoch,val_accuracy\n1,{ESCAPE!r}\n2,nan\n3,1e308\n-1,{'9' * 5000}\n".encode(),
    "wide.csv": b"epoch," + b"x," * 20_000 + b"\n1," + b"2," * 20_000 + b"\n",
    "quote.csv": b'epoch,val_accuracy\n"' + b"x" * 3_000_000,
    "escape.csv": f'name,workers,val_accuracy,epoch_time_s\n"{ESCAPE}",1,0.5,3\n'.encode(),
    "bytes.log": bytes(range(256)) * 100,
    "events.out.tfevents.1": b"\xff" * 4_000,
    "endless.log": b"Epoch 1/3 " * 200_000,
}
RECIPES: dict[str, str] = {
    "deep": "x = " + "[" * 20_000,
    "deep table": "[" + "a." * 20_000 + "b]",
    "long number": "[training]\nepochs = " + "9" * 20_000,
    "escapes": f"name = {json.dumps(ESCAPE)}\n[training]\nepochs = {json.dumps(ESCAPE)}\n",
    "no numbers": "[training]\nlearning_rate = nan\nepochs = inf\n",
    "wrong kinds": "[training]\nepochs = [[1]]\n[model]\nname = 7\n[data]\nsource = {}\n",
}


def studies(planned: dict[str, Any]) -> dict[str, str]:
    """What study.json may hold, made from a good one."""
    wrong = {f"study holds {kind}": json.dumps(_with(planned, value)) for kind, value in WRONG.items()}
    return {**wrong, "study is deep": DEEP, "study is a list": "[7]", "study is nothing": ""}
