"""Changes that break files: of bytes anywhere, of numbers in headers, of values in JSON. Strategies of hypothesis."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

Change = Callable[[bytes], bytes]
places = st.floats(0, 1, allow_nan=False)
"""Where in a file, as a share of its length."""
numbers = st.sampled_from([0, 1, 127, 128, 255, 256, 32767, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1])


def _put(place: int, new: bytes, *, instead: int) -> Change:
    return lambda data: data[: place % (len(data) + 1)] + new + data[place % (len(data) + 1) + instead :]


def _at(share: float, new: bytes, *, instead: int) -> Change:
    return lambda data: _put(int(share * len(data)), new, instead=instead)(data)


def _number(place: int, value: int, width: int, order: str) -> Change:
    number = (value % 256**width).to_bytes(width, "big" if order == "big" else "little")
    return _put(place, number, instead=width)


byte_changes: st.SearchStrategy[Change] = st.one_of(
    st.builds(lambda p, v: _at(p, bytes([v]), instead=1), places, st.integers(0, 255)),
    st.builds(lambda p: lambda data: data[: int(p * len(data))], places),
    st.builds(lambda p, new: _at(p, new, instead=0), places, st.binary(max_size=20)),
    st.builds(lambda p, n: _at(p, b"", instead=n), places, st.integers(1, 200)),
    st.builds(lambda p, times: lambda data: data[: int(p * len(data))] * times, places, st.integers(2, 5)),
)
header_changes: st.SearchStrategy[Change] = st.one_of(
    st.builds(lambda p, v: _put(p, bytes([v]), instead=1), st.integers(0, 90), st.integers(0, 255)),
    st.builds(_number, st.integers(0, 90), numbers, st.sampled_from([2, 4]), st.sampled_from(["big", "little"])),
)

scalars = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    st.sampled_from([10**400, -1, 0, 1e308, -1e308, 2**63, "x" * 5000, "\x1b[31m</script>", "2026-13-45T99:99", ""]),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@dataclass(frozen=True)
class JsonChange:
    """Of one place in a JSON value, counted through."""

    place: int
    what: str
    value: Any

    def __call__(self, content: Any) -> Any:
        spots = list(_spots(content))
        if not spots:
            return self.value
        inside, key = spots[self.place % len(spots)]
        if self.what == "replace":
            inside[key] = self.value
        elif self.what == "remove":
            del inside[key]
        elif isinstance(inside, dict):
            inside[str(self.value)[:20]] = inside.pop(key)
        else:
            inside.append(inside[key])
        return content


def _spots(content: Any) -> Any:
    """Every (container, key) in a JSON value."""
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in list(pairs):
        yield content, key
        yield from _spots(value)


json_changes = st.builds(
    JsonChange, st.integers(0, 500), st.sampled_from(["replace", "replace", "remove", "rename"]), values
)


def in_json(change: JsonChange) -> Change:
    """The change in a file of JSON, or in one line of a file of lines."""

    def changed(data: bytes) -> bytes:
        try:
            return json.dumps(change(json.loads(data))).encode()
        except ValueError:
            lines = data.split(b"\n")
            number = change.place % len(lines)
            with contextlib.suppress(ValueError):
                lines[number] = json.dumps(change(json.loads(lines[number]))).encode()
            return b"\n".join(lines)

    return changed


file_changes = st.one_of(byte_changes, json_changes.map(in_json), json_changes.map(in_json))


def applied(data: bytes, changes: list[Change]) -> bytes:
    for change in changes:
        data = change(data)
    return data
