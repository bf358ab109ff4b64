"""Kinds of GPU and their data sheets.

The names that drivers, PCI lists and people use become one short kind: "Tesla V100-SXM2-16GB", "v100" -> "V100". The
data sheets are in gpu_kinds.toml beside this file. A user adds or corrects kinds in ~/.config/turnaround/gpus.toml (the
folder can be set with TURNAROUND_CONFIG):

    ["RTX 4090 D"]
    bandwidth_gb_s = 1008
    memory_gb = 24
"""

from __future__ import annotations

import functools
import math
import os
import re
import tomllib
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from turnaround.errors import InputError

_VENDOR_WORDS = {"nvidia", "tesla", "geforce", "corporation", "amd", "instinct", "gpu", "inc", "graphics"}
# A slice of a GPU and a GPU in a laptop bear the whole one's name and have neither its memory nor its bandwidth.
_PARTIAL = re.compile(r"\b(laptop|mobile|mig|max q)\b")


def is_cuda(device: object) -> bool:
    """Tell whether a device of a record is a GPU: "cuda", "cuda:1"."""
    return str(device).startswith("cuda")


@dataclass(frozen=True, kw_only=True)
class GpuKind:
    """One data sheet. Rates are without sparsity; None where the sheet, or the user's file, has no figure."""

    name: str
    bandwidth_gb_s: float
    memory_gb: float | None = None
    fp16_tflops: float | None = None
    """fp16 or bf16 on tensor cores, sums in fp32."""
    tf32_tflops: float | None = None
    fp32_tflops: float | None = None
    board_watts: float | None = None
    """What the whole board may draw for long: the limit that its driver holds it to."""
    source: str = "given by the user"
    """Title of the vendor's data sheet or white paper."""
    matches: tuple[str, ...] = field(default=(), repr=False)
    """Regular expressions on the name as `_spelled` writes it."""


_NUMBERS = tuple(f.name for f in fields(GpuKind) if f.name.endswith(("_gb", "_gb_s", "_tflops", "_watts")))
_KEYS = (*_NUMBERS, "source", "matches")


def kind_of(name: str) -> str:
    """Return the short name: "NVIDIA H100 80GB HBM3" -> "H100"; an unknown one is itself without its maker's name."""
    spelled = _spelled(name)
    if spelled == "cpu":
        return "CPU"
    kinds = _kinds()
    for kind in kinds.values():
        if spelled == _spelled(kind.name):
            return kind.name
    if not _PARTIAL.search(spelled):
        for kind in kinds.values():
            if any(re.search(pattern, spelled) for pattern in kind.matches):
                return kind.name
    words = [word for word in name.split() if word.lower() not in _VENDOR_WORDS]
    return " ".join(words) or name


def data_sheet(kind: str) -> GpuKind | None:
    """Return the data sheet of a kind, by any of its names; None for one that nobody has described."""
    return _kinds().get(kind_of(kind))


def known_kinds() -> list[str]:
    """Return all kinds with a data sheet: the user's own first."""
    return list(_kinds())


def own_kinds_file() -> Path:
    """Return the file in which a user describes GPUs of their own; it need not exist."""
    folder = os.environ.get("TURNAROUND_CONFIG")
    return (Path(folder).expanduser() if folder else Path.home() / ".config" / "turnaround") / "gpus.toml"


def _spelled(name: str) -> str:
    """Lower case, letters and digits as words of their own, no maker: "RTX4090" -> "rtx 4090"."""
    words = re.findall(r"[a-z]+|\d+", name.lower())
    return " ".join(word for word in words if word not in _VENDOR_WORDS)


def _kinds() -> dict[str, GpuKind]:
    file = own_kinds_file()
    try:
        modified_ns = file.stat().st_mtime_ns
    except OSError:
        return _built_in()
    return _with_own(file, modified_ns)


@functools.cache
def _built_in() -> dict[str, GpuKind]:
    table = tomllib.loads((resources.files(__package__) / "gpu_kinds.toml").read_text(encoding="utf-8"))
    return {name: GpuKind(name=name, **{**entry, "matches": tuple(entry["matches"])}) for name, entry in table.items()}


@functools.lru_cache(maxsize=4)
def _with_own(file: Path, modified_ns: int) -> dict[str, GpuKind]:
    """Return the user's kinds, then the built-in ones. The time of change makes an edited file a new one."""
    built_in = _built_in()
    own = {name: _own_kind(file, name, entry, built_in.get(name)) for name, entry in _read(file).items()}
    return own | {name: kind for name, kind in built_in.items() if name not in own}


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(
            f"Your list of GPUs cannot be read: {file}: {error}. "
            "Correct it (one [NAME] section for each GPU, with bandwidth_gb_s = NUMBER), or move it away."
        ) from None


def _own_kind(file: Path, name: str, entry: Any, built_in: GpuKind | None) -> GpuKind:
    """Return a section of the user's file; what it does not say stays as it is built in."""

    def bad(what: str, todo: str) -> InputError:
        return InputError(f"Your list of GPUs, {file}: {what}. {todo}")

    if not isinstance(entry, dict):
        raise bad(f"{name} = {entry!r} is not a section", f'Write ["{name}"] and below it bandwidth_gb_s = NUMBER.')
    if unknown := [key for key in entry if key not in _KEYS]:
        raise bad(f"[{name}] has the unknown key {unknown[0]!r}", f"Valid: {', '.join(_KEYS)}.")
    for key in _NUMBERS:
        if key in entry and not _is_positive(entry[key]):
            raise bad(f"[{name}] {key} = {entry[key]!r}", "Give a number above 0.")
    if built_in is None and "bandwidth_gb_s" not in entry:
        raise bad(f"[{name}] has no bandwidth_gb_s", "Add the memory bandwidth from its data sheet, in GB/s.")
    matches = entry.get("matches", [])
    if not isinstance(matches, list) or not all(_is_pattern(pattern) for pattern in matches):
        raise bad(f"[{name}] matches = {matches!r}", "Give a list of regular expressions on the name in lower case.")
    own: dict[str, Any] = {key: tuple(value) if key == "matches" else value for key, value in entry.items()}
    if built_in is not None:
        return replace(built_in, **({"source": "given by the user"} | own))
    return GpuKind(name=name, **own)


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0 and math.isfinite(value)


def _is_pattern(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(re.compile(value))
    except re.error:
        return False
