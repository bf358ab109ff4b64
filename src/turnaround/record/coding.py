"""Records to JSON objects and back. Enters: a frozen dataclass, or a file's bytes. Leaves: the other one.

JSON has no NaN and no infinity: both are written as null. Where a field is a plain number, null is read back
as NaN ("there was no number"); where it may be None, null is None. An unknown key is ignored, so that a newer
writer may add fields; a newer *format* is refused, because a field may have changed its meaning.
"""

import dataclasses
import hashlib
import json
import math
import re
import reprlib
import sys
import types
import zlib
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from turnaround.errors import RunDirectoryError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")

FORMAT_VERSION = 1
"""Raised only when an old reader would misunderstand a new file; new fields do not raise it."""

KEY = "key"
"""In a field's metadata: its key in the file, where that is not its name."""

CRC = "crc"
"""The last key of a line, and of a whole file without a digest of its own: the CRC-32 of all bytes before it."""
_SEAL = re.compile(rb',\s*"crc": ?"([0-9a-f]{8})"\s*\}\s*\Z')
_MAX_SEAL_BYTES = 64

# Made once: json.loads would make one for each line. NaN and Infinity of careless writers become null.
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)

_ABSENT = object()


class NewerFormatError(RunDirectoryError):
    """Not damage: the file is from a later turnaround."""


def to_json(record: "DataclassInstance") -> dict[str, Any]:
    """Return a record as a JSON object, with the format version first."""
    return {"format": FORMAT_VERSION, **plain(record)}


def plain(value: Any) -> Any:
    """Return the value in JSON's own types: non-finite numbers become None, scalars of numpy and torch numbers."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if dataclasses.is_dataclass(value):
        return {_key(field): plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return plain(value.item()) if hasattr(value, "item") else str(value)


def _key(field: "dataclasses.Field[Any]") -> str:
    return str(field.metadata.get(KEY, field.name))


def from_json(kind: type[Record], payload: object) -> Record:
    """Return a record from a JSON object; RunDirectoryError says which field is wrong (the caller adds the file)."""
    if isinstance(payload, dict):
        check_format(payload)
    return _record(kind, payload, "")


def check_format(payload: dict[str, Any]) -> None:
    """Refuse what a newer turnaround wrote; no version at all is taken for the first."""
    version = payload.get("format", 1)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise _wrong("format", "a version number", version)
    if version > FORMAT_VERSION:
        raise NewerFormatError(
            f"written in format {version} by a newer turnaround; this one reads up to {FORMAT_VERSION}. "
            "Upgrade turnaround to read it."
        )


def _wrong(where: str, expected: str, received: object) -> RunDirectoryError:
    # reprlib: a hostile file must neither fill the screen nor exhaust the stack.
    return RunDirectoryError(f"{where or 'content'}: expected {expected}, received {reprlib.repr(received)}")


# Reads one value of a record's field: (value, where it stands, for messages) -> the value as its annotation wants it.
_Read = Callable[[Any, str], Any]


class _Field(NamedTuple):
    name: str
    key: str
    is_required: bool
    is_number: bool
    """True when a float of JSON is taken as it is: most values are, and 100,000 lines have two million of them."""
    read: _Read


@cache
def _fields(kind: type) -> tuple[_Field, ...]:
    """Return how to read each field; cached for each kind of record, since annotations are slow to inspect."""
    hints = get_type_hints(kind)
    return tuple(
        _Field(
            name=field.name,
            key=_key(field),
            is_required=field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
            is_number=hints[field.name] in (float, float | None),
            read=_reader(hints[field.name]),
        )
        for field in dataclasses.fields(kind)
    )


def _record(kind: type[Record], payload: object, where: str) -> Record:
    if not isinstance(payload, dict):
        raise _wrong(where, "an object", payload)
    prefix = f"{where}." if where else ""
    values = {}
    for name, key, is_required, is_number, read in _fields(kind):
        value = payload.get(key, _ABSENT)
        if is_number and type(value) is float and value - value == 0.0:  # finite: inf - inf is NaN
            values[name] = value
        elif value is not _ABSENT:
            values[name] = read(value, prefix + key)
        elif is_required:
            raise RunDirectoryError(f"{prefix}{key}: missing")
    return kind(**values)


def _reader(hint: Any) -> _Read:
    """Return the function that reads a value of this annotation, or raises RunDirectoryError."""
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        return partial(_record, hint) if dataclasses.is_dataclass(hint) else partial(_scalar, hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return partial(_optional, _reader(arguments[0]))
    if origin is Literal:
        return partial(_word, arguments)
    if origin is list:
        return partial(_list, arguments[0], _reader(arguments[0]))
    assert origin is dict, f"no rule for {hint}"
    return partial(_by_word, get_args(arguments[0]), _reader(arguments[1]))


def _optional(read: _Read, value: Any, where: str) -> Any:
    known = None if value is None else read(value, where)
    return None if isinstance(known, float) and math.isnan(known) else known


def _word(vocabulary: tuple[str, ...], value: Any, where: str) -> Any:
    if value not in vocabulary:
        raise _wrong(where, "one of " + ", ".join(vocabulary), value)
    return value


def _by_word(vocabulary: tuple[str, ...], read: _Read, value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(where, "an object", value)
    # A key outside the vocabulary comes from a newer writer.
    return {key: read(value[key], f"{where}.{key}") for key in value if key in vocabulary}


def _list(hint: Any, read: _Read, value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(where, "a list", value)
    # A confusion matrix of 1000 classes is a million integers: no Python call for each.
    if hint in (int, str) and all(type(item) is hint for item in value):
        return value
    return [read(item, f"{where}[{number}]") for number, item in enumerate(value)]


def _scalar(hint: type, value: Any, where: str) -> Any:
    if hint in (str, bool) and isinstance(value, hint):
        return value
    if hint is float and value is None:
        return math.nan
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        is_finite = abs(value) <= sys.float_info.max  # an integer of JSON may be too large for a float
        if hint is float:
            return float(value) if is_finite else math.nan
        if hint is int and is_finite and value == int(value):
            return int(value)
    raise _wrong(where, {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}[hint], value)


# --- bytes to objects, and the checksums in them


def parse_object(content: bytes) -> dict[str, Any]:
    """Return a JSON object; ValueError says what it is instead."""
    try:
        payload = _DECODER.decode(content.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("not JSON (nested too deeply)") from error
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(payload, dict):
        raise ValueError("not a JSON object")
    return payload


def crc_of(content: bytes) -> str:
    """Return the checksum of what was written: enough to notice flipped, lost and swapped bytes, not an attacker."""
    return f"{zlib.crc32(content):08x}"


def is_as_written(content: bytes) -> bool | None:
    """Return whether a line, or a whole file, is what its checksum says; None where it has none."""
    end = content[-_MAX_SEAL_BYTES:]
    seal = _SEAL.search(end)
    return None if seal is None else crc_of(content[: len(content) - len(end) + seal.start()]) == seal[1].decode()


def parse_line(line: bytes) -> dict[str, Any]:
    """Return the object of a line; ValueError where it is none, or not the one that was written."""
    payload = parse_object(line)
    # The key without a seal that fits is damage too; a line without the key is of an earlier version, or of others.
    if CRC in payload and not is_as_written(line):
        raise ValueError("its checksum is wrong")
    return payload


def own_digest(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what a file says, for its key `digest`: a flipped bit in it is noticed too."""
    values = {key: value for key, value in content.items() if key not in ("format", CRC, "digest")}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
