"""Records to JSON objects and back. Enters: a frozen dataclass, or a file's object. Leaves: the other one.

JSON has no NaN and no infinity: both are written as null. Where a field is a plain number, null is read back
as NaN ("there was no number"); where it may be None, null is None. An unknown key is ignored, so that a newer
writer may add fields; a newer *format* is refused, because a field may have changed its meaning.
"""

import dataclasses
import math
import reprlib
import sys
import types
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from turnaround.errors import RunDirectoryError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")

FORMAT_VERSION = 1
"""Raised only when an old reader would misunderstand a new file; new fields do not raise it."""


class NewerFormatError(RunDirectoryError):
    """Not damage: the file is from a later turnaround."""


def to_json(record: "DataclassInstance") -> dict[str, Any]:
    """A record as a JSON object, with the format version first."""
    return {"format": FORMAT_VERSION, **plain(record)}


def plain(value: Any) -> Any:
    """The value in JSON's own types: non-finite numbers become None, scalars of numpy and torch numbers."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return plain(value.item()) if hasattr(value, "item") else str(value)


def from_json(kind: type[Record], payload: object) -> Record:
    """A record from a JSON object; RunDirectoryError says which field is wrong (the caller adds the file)."""
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


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _record(kind: type[Record], payload: object, where: str) -> Record:
    if not isinstance(payload, dict):
        raise _wrong(where, "an object", payload)
    hints, prefix = _hints(kind), f"{where}." if where else ""
    values = {}
    for field in dataclasses.fields(kind):
        if field.name in payload:
            values[field.name] = _value(hints[field.name], payload[field.name], prefix + field.name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise RunDirectoryError(f"{prefix}{field.name}: missing")
    return kind(**values)


def _value(hint: Any, value: Any, where: str) -> Any:
    """The value as its annotation wants it, or RunDirectoryError."""
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        return _record(hint, value, where) if dataclasses.is_dataclass(hint) else _scalar(hint, value, where)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        known = None if value is None else _value(arguments[0], value, where)
        return None if isinstance(known, float) and math.isnan(known) else known
    if origin is Literal:
        if value not in arguments:
            raise _wrong(where, "one of " + ", ".join(arguments), value)
        return value
    if origin is list:
        return _list(arguments[0], value, where)
    assert origin is dict, f"no rule for {hint}"
    if not isinstance(value, dict):
        raise _wrong(where, "an object", value)
    vocabulary = get_args(arguments[0])  # a key outside it comes from a newer writer
    return {key: _value(arguments[1], value[key], f"{where}.{key}") for key in value if key in vocabulary}


def _list(hint: Any, value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(where, "a list", value)
    # A confusion matrix of 1000 classes is a million integers: no Python call for each.
    if hint in (int, str) and all(type(item) is hint for item in value):
        return value
    return [_value(hint, item, f"{where}[{number}]") for number, item in enumerate(value)]


def _scalar(hint: type, value: Any, where: str) -> Any:
    if hint is str and isinstance(value, str):
        return value
    if hint is float and value is None:
        return math.nan
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        is_finite = abs(value) <= sys.float_info.max  # an integer of JSON may be too large for a float
        if hint is float:
            return float(value) if is_finite else math.nan
        if hint is int and is_finite and value == int(value):
            return int(value)
    raise _wrong(where, {float: "a number", int: "a whole number", str: "a text"}[hint], value)
